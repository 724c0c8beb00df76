"""The ServerApp: Flower's own loop, with APFL as its strategy."""

from logging import getLogger

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from bouquet.flower import PersonalizedStrategy
from bouquet.strategies.apfl import APFL
from digits_app.client_app import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say how well the shared and the personal models do."""
    torch.manual_seed(0)  # of the initial weights; all else has the strategy's seed
    scheme = APFL(alpha=float(context.run_config["alpha"]))
    strategy = PersonalizedStrategy(scheme, local_steps=10, lr=0.3, eval_every=1, min_clients=2)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    model = Net()
    model.load_state_dict(result.arrays.to_torch_state_dict())  # the shared model
    last = result.evaluate_metrics_clientapp[max(result.evaluate_metrics_clientapp)]
    for whose in ("shared", "personal"):
        getLogger("flwr").info("%s accuracy %.4f", whose, last[f"{whose}_accuracy"])
