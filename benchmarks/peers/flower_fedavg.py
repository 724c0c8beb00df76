"""FedAvg in plain Flower: its own strategy and simulation on Ray, a virtual client a node."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from speed import CLIENTS, LR
from torch.nn.functional import cross_entropy
from work import TRAIN, Outcome, Tally, Work, data, loss_of, main, net

client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """What one client does in a round."""
    work = Work.named(str(message.content["config"]["workload"]), rounds=1)
    network, tally = net(work), Tally(work.batch)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    steps = torch.optim.SGD(network.parameters(), LR)
    number = int(context.node_config["partition-id"])
    x, y = (torch.from_numpy(of_all[number]) for of_all in data(work.features))
    for batch in torch.randperm(TRAIN)[: work.steps * work.batch].split(work.batch):
        tally.count(len(batch))
        steps.zero_grad()
        cross_entropy(network(x[batch]), y[batch]).backward()
        steps.step()
    metrics = MetricRecord({"num-examples": TRAIN, "steps": tally.steps})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """Flower's own strategy, which notes each round's seconds and steps."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.started, self.seconds, self.steps = 0.0, list[float](), 0

    def configure_train(self, *arguments: Any, **named: Any) -> Iterable[Message]:
        """A round starts."""
        self.started = time.perf_counter()
        return super().configure_train(*arguments, **named)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """A round ends."""
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self.started)
        self.steps += sum(reply.content["metrics"]["steps"] for reply in replies)
        return result


def run(work: Work) -> Outcome:
    """Rounds of the workload."""
    server, outcome = ServerApp(), []

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        network = net(work)
        before = loss_of(network, work)
        strategy = Timed(
            fraction_train=work.active / CLIENTS,
            fraction_evaluate=0.0,
            min_available_nodes=CLIENTS,
        )
        result = strategy.start(
            grid,
            ArrayRecord(network.state_dict()),
            num_rounds=work.rounds,
            train_config=ConfigRecord({"workload": work.name}),
        )
        network.load_state_dict(result.arrays.to_torch_state_dict())
        losses = (before, loss_of(network, work))
        outcome.append(Outcome(strategy.seconds, strategy.steps, losses))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
    return outcome[0]


if __name__ == "__main__":
    # By its own name, so that Ray's workers import this module once and do not receive it with
    # every message.
    import flower_fedavg

    main(flower_fedavg.run, ("flwr", "ray", "torch"))
