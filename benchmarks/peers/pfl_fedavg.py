"""FedAvg in pfl-research: its own algorithm and simulated backend, in one process."""

import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from speed import CLIENTS, LR
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from work import TRAIN, Outcome, Tally, Work, data, loss_of, main, net


class Classifier(nn.Module):
    """The workload's network with the two methods pfl asks for."""

    def __init__(self, work: Work, tally: Tally) -> None:
        super().__init__()
        self.net, self.tally = net(work), tally

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What a gradient step descends."""
        self.tally.count(len(y))
        return cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Pfl asks for it in the first round, which is warm-up."""
        return {"loss": Weighted(float(cross_entropy(self.net(x), y, reduction="sum")), len(y))}


class Clock(TrainingProcessCallback):
    """Notes when every round ends."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """The first round starts."""
        self.ticks.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """A round is done; go on."""
        self.ticks.append(time.perf_counter())
        return False, Metrics()


def run(work: Work) -> Outcome:
    """Rounds of the workload."""
    x, y = map(torch.from_numpy, data(work.features))
    rng = np.random.default_rng(0)

    def batches_of(client: int) -> PyTorchTensorDataset:
        chosen = torch.from_numpy(rng.permutation(TRAIN)[: work.steps * work.batch])
        return PyTorchTensorDataset((x[client][chosen], y[client][chosen]))

    clients = FederatedDataset(batches_of, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
    tally, clock = Tally(work.batch), Clock()
    classifier = Classifier(work, tally)
    before = loss_of(classifier.net, work)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds,
            train_cohort_size=work.active,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=PyTorchModel(
            classifier,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(classifier.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=work.steps,
            local_learning_rate=LR,
            local_batch_size=work.batch,
        ),
        callbacks=[clock],
    )
    seconds = np.diff(clock.ticks).tolist()
    return Outcome(seconds, tally.steps, (before, loss_of(classifier.net, work)))


if __name__ == "__main__":
    main(run, ("pfl", "torch"))
