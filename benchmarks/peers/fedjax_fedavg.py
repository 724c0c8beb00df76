"""FedAvg in FedJAX: its own algorithm, sampler and jitted default of ``for_each_client``."""

import time

import fedjax
import haiku as hk
import jax
from fedjax.algorithms import fed_avg
from speed import LR
from work import CLASSES, Outcome, Tally, Work, data, main, some


def forward(work: Work, batch: fedjax.BatchExample) -> jax.Array:
    """The workload's network in Haiku, whose images end with the channels."""
    x = batch["x"]
    if work.model == "linear":
        return hk.Linear(CLASSES)(x)
    if work.model == "mlp":
        return hk.nets.MLP([200, 200, CLASSES])(x)
    layers = [
        *(hk.Conv2D(32, 5), jax.nn.relu, hk.MaxPool(2, 2, "VALID")),
        *(hk.Conv2D(64, 5), jax.nn.relu, hk.MaxPool(2, 2, "VALID")),
        *(hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(CLASSES)),
    ]
    return hk.Sequential(layers)(x.reshape(-1, 28, 28, 1))


def run(work: Work) -> Outcome:
    """Rounds of the workload, each until its weights are there: JAX computes in the background."""
    tally = Tally(work.batch)

    def counted(batch: fedjax.BatchExample) -> fedjax.BatchExample:
        tally.count(len(batch["y"]))
        return batch

    def counting(client: fedjax.ClientDataset) -> fedjax.ClientDataset:
        return fedjax.ClientDataset(client.raw_examples, fedjax.BatchPreprocessor([counted]))

    x, y = data(work.features)
    clients = fedjax.InMemoryFederatedData(
        {f"{number:03}": {"x": x[number], "y": y[number]} for number in range(len(x))}
    )
    sample = dict(zip("xy", some(work.features), strict=True))
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: forward(work, batch)),
        {key: value[:1] for key, value in sample.items()},
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(
            batch["y"], scores
        ),
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(LR),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            work.batch, num_epochs=None, num_steps=work.steps, seed=0
        ),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(clients, work.active, seed=0)
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def loss() -> float:
        return float(model.train_loss(sample, model.apply_for_eval(state.params, sample)).mean())

    seconds, before = [], loss()
    for _ in range(work.rounds):
        started = time.perf_counter()
        chosen = [(name, counting(client), key) for name, client, key in sampler.sample()]
        state, _ = algorithm.apply(state, chosen)
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - started)
    return Outcome(seconds, tally.steps, (before, loss()))


if __name__ == "__main__":
    main(run, ("fedjax", "jax", "dm-haiku"))
