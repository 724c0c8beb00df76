"""Every scheme in Flower's own loop ends with the weights of ours."""

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from flwr.simulation import run_simulation

from bouquet.core.trees import sha256
from bouquet.data import DataConfig
from bouquet.engines import LocalNodes
from bouquet.flower import PersonalizedStrategy, client_app, wire
from bouquet.models import ModelConfig
from bouquet.problem import problem
from bouquet.settings import Settings, parse
from bouquet.strategies import SCHEMES
from tests.conftest import WORKING, Run, kebab

Finished = Callable[[Settings], Run]
ROUNDS, NODES = 3, 2
# Clients of unequal size and few of them a round, so that laws are not met by luck.
KEYS: dict[str, Any] = {"clients_per_round": 3, "local_steps": 4, "batch_size": 8, "seed": 3}
DATA = DataConfig(clients=5, partition="dirichlet")
MLP = ModelConfig("mlp", hidden=8, layers=1)
FEDERATED = [name for name in WORKING if not SCHEMES[name].pooled]


def model_for(scheme: str) -> ModelConfig:
    return ModelConfig("linear") if scheme == "mocha" else MLP


def keys_for(scheme: str) -> dict[str, Any]:
    named = {"model": {"name": "linear"}} if scheme == "mocha" else {}
    return KEYS | named | ({"clients_per_round": 0} if scheme == "dfedu" else {})


def ours(scheme: str, **more: Any) -> Settings:
    """The same run in our own loop."""
    model = model_for(scheme)
    same = {
        "scheme": scheme,
        "rounds": ROUNDS,
        "nodes": NODES,
        "store": "context",  # in which clients stay on their nodes, as in anybody's Flower app
        "data": {"clients": DATA.clients, "partition": DATA.partition},
        "model": {"name": model.name, "hidden": model.hidden, "layers": model.layers},
    }
    return parse(kebab(keys_for(scheme) | same | more))


def started(scheme: str, grid: Grid, **more: Any) -> Result:
    initial = wire.pack(problem(ours(scheme)).task.initial)
    strategy = PersonalizedStrategy(scheme, **keys_for(scheme), **more)
    return strategy.start(grid, initial, num_rounds=ROUNDS)


def assert_same_end(result: Result, run: Run) -> None:
    assert sha256(wire.unpack(result.arrays)) == run.sha
    (metrics,) = result.evaluate_metrics_clientapp.values()
    for name in ("shared_loss", "personal_loss", "shared_accuracy", "personal_accuracy"):
        whose, _, what = name.partition("_")
        assert metrics[name] == pytest.approx(run.summary[whose][what]["mean"], rel=1e-12)


# An optimizer that keeps its moments, in a node's Context here, and slows down.
KEEPING = {"optimizer": "adam", "optimizer_state": "keep", "lr": 0.02, "lr_decay_per_step": 0.01}


@pytest.mark.parametrize(
    ("scheme", "more"), [*((scheme, {}) for scheme in FEDERATED), ("apfl", KEEPING)]
)
def test_flowers_own_loop_ends_with_the_bits_of_ours(
    scheme: str, more: dict[str, Any], finished: Finished
) -> None:
    grid = LocalNodes(NODES, client_app(model_for(scheme), DATA))
    try:
        result = started(scheme, grid, **more)
    finally:
        grid.close()
    assert_same_end(result, finished(ours(scheme, **more)))


def test_flowers_simulation_ends_with_the_bits_of_our_loop(finished: Finished) -> None:
    """Personal state travels in the nodes' Context, between processes."""
    results: dict[str, Result] = {}
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for scheme in ("apfl", "scaffold", "fedalt"):
            results[scheme] = started(scheme, grid)

    simulate(server, client_app(MLP, DATA))
    assert len(results) == 3
    for scheme, result in results.items():
        assert_same_end(result, finished(ours(scheme)))


def simulate(server: ServerApp, app: ClientApp) -> None:
    import ray

    resources: dict[str, Any] = {"num_cpus": 1.0, "num_gpus": 0.0}
    init: dict[str, Any] = {"log_to_driver": False, "num_cpus": 2}
    try:
        run_simulation(
            server, app, NODES, backend_config={"client_resources": resources, "init_args": init}
        )
    finally:
        ray.shutdown()
