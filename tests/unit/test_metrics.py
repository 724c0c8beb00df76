"""Metrics against scikit-learn's, where they are not defined, and without a word of padding."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    roc_auc_score,
    top_k_accuracy_score,
)
from torch import Tensor, nn

from bouquet.core import cohort
from bouquet.core.judging import (
    LOSSES,
    LOSSES_FOR,
    METRICS,
    USUAL_METRIC,
    Metric,
    binary_cross_entropy,
    cross_entropy,
)
from bouquet.core.measure import CLASSES, LOSS, SEVERAL, VALUES, counts
from bouquet.core.task import Task

Floats = np.ndarray[Any, Any]


def said(name: str, output: Any, y: Any) -> float:
    """A client's number, as an evaluation has it."""
    metric = METRICS[name]
    found = metric.of(torch.as_tensor(output), torch.as_tensor(y))
    return float(found if metric.whole else found.double().mean())


def scores(seed: int, size: int, classes: int, ties: bool = False) -> tuple[Floats, Floats]:
    """Scores of classes that know something of the truth; with ties, few different ones."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=size)
    output = rng.normal(size=(size, classes)) + np.eye(classes)[y]
    return (np.round(output) if ties else output), y


def softmax(output: Floats) -> Floats:
    powers = np.exp(output - output.max(axis=1, keepdims=True))
    chances: Floats = powers / powers.sum(axis=1, keepdims=True)
    return chances


some = st.integers(0, 10**6)


@given(seed=some, size=st.integers(1, 40), classes=st.integers(2, 6))
def test_classes_are_judged_as_scikit_learn_does(seed: int, size: int, classes: int) -> None:
    """Also of a client that lacks some of the classes, and is told of some that it lacks."""
    output, y = scores(seed, size, classes)
    guess, there = output.argmax(axis=1), np.unique(y)
    assert said("accuracy", output, y) == pytest.approx(accuracy_score(y, guess))
    recalls = [np.mean(guess[y == one] == one) for one in there]
    assert said("balanced-accuracy", output, y) == pytest.approx(np.mean(recalls))
    if len(there) > 1 and set(guess) <= set(y):  # else scikit-learn warns, and says the same
        assert np.mean(recalls) == pytest.approx(balanced_accuracy_score(y, guess))
    assert said("f1", output, y) == pytest.approx(f1_score(y, guess, average="macro"))
    entropy = log_loss(y, softmax(output), labels=range(classes))
    assert said("perplexity", output, y) == pytest.approx(np.exp(entropy))


@given(seed=some, size=st.integers(12, 40), classes=st.integers(3, 6))
def test_the_classes_that_score_highest_are_scikit_learns(
    seed: int, size: int, classes: int
) -> None:
    output, y = scores(seed, size, classes)
    expected = top_k_accuracy_score(y, output, k=2, labels=range(classes))
    assert said("top-2", output, y) == pytest.approx(expected)


@given(seed=some, size=st.integers(1, 40), classes=st.integers(2, 5), ties=st.booleans())
def test_the_auc_is_scikit_learns_over_the_classes_that_have_one(
    seed: int, size: int, classes: int, ties: bool
) -> None:
    """One against the rest, equal scores counting half; what all are, or none is, has none."""
    output, y = scores(seed, size, classes, ties)
    chances = torch.tensor(output).softmax(dim=1).numpy()  # equal to the last bit, or no tie
    areas = [
        roc_auc_score(y == one, chances[:, one])
        for one in range(classes)
        if 0 < sum(y == one) < size
    ]
    found = said("auc", output, y)
    assert found == pytest.approx(np.mean(areas)) if areas else np.isnan(found)
    if len(areas) == classes > 2:
        whole = roc_auc_score(y, chances, multi_class="ovr", average="macro")
        assert found == pytest.approx(whole)
    if len(areas) == classes == 2:
        assert found == pytest.approx(roc_auc_score(y, chances[:, 1]))


def test_the_auc_by_hand_with_ties() -> None:
    """Of 2 x 2 pairs three are in order and one is equal: 3.5 of 4. All equal: a half."""
    assert said("auc", [[0.0], [1.0], [1.0], [2.0]], [[0.0], [1.0], [0.0], [1.0]]) == 3.5 / 4
    assert said("auc", [[1.0], [1.0], [1.0], [1.0]], [[0.0], [1.0], [0.0], [1.0]]) == 0.5


@given(seed=some, size=st.integers(2, 30), labels=st.integers(1, 4))
def test_several_labels_are_judged_as_scikit_learn_does(seed: int, size: int, labels: int) -> None:
    rng = np.random.default_rng(seed)
    y = (rng.random((size, labels)) < 0.4).astype(float)
    output = rng.normal(size=(size, labels)) + y
    guess = output > 0
    assert said("accuracy", output, y) == pytest.approx(accuracy_score(y, guess))
    each = [f1_score(y[:, one], guess[:, one], zero_division=np.nan) for one in range(labels)]
    known = [one for one in each if not np.isnan(one)]
    found = said("f1", output, y)
    assert found == pytest.approx(np.mean(known)) if known else np.isnan(found)
    kinds = [one for one in range(labels) if 0 < y[:, one].sum() < size]
    found = said("auc", output, y)
    if kinds:
        assert found == pytest.approx(roc_auc_score(y[:, kinds], output[:, kinds]))
    else:
        assert np.isnan(found)


@given(seed=some, size=st.integers(2, 30), values=st.integers(1, 3))
def test_values_are_judged_as_scikit_learn_does(seed: int, size: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.normal(3, 2, size=(size, values))
    output = y + rng.normal(size=y.shape)
    assert said("mse", output, y) == pytest.approx(mean_squared_error(y, output))
    assert said("mae", output, y) == pytest.approx(mean_absolute_error(y, output))
    assert said("r2", output, y) == pytest.approx(r2_score(y, output))


def test_losses_are_scikit_learns_too() -> None:
    rng = np.random.default_rng(0)
    y, output = rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    for name, judge in (("mse", mean_squared_error), ("mae", mean_absolute_error)):
        found = LOSSES[name](torch.tensor(output), torch.tensor(y))
        assert float(found.mean()) == pytest.approx(judge(y, output))
    labels = (y > 0).astype(float)
    chances = 1 / (1 + np.exp(-output))
    entropies = [log_loss(labels[:, one], chances[:, one]) for one in range(2)]
    found = LOSSES["bce"](torch.tensor(output), torch.tensor(labels))
    assert float(found.mean()) == pytest.approx(np.mean(entropies))


# Where there is no number


@pytest.mark.parametrize(
    ("name", "output", "y"),
    [
        ("r2", [[1.0], [2.0]], [[0.1], [0.1]]),  # constant, and no sum of squares by rounding
        ("r2", [[1.0]], [[3.0]]),
        ("auc", [[1.0, 2.0]], [1]),
        ("auc", [[1.0], [2.0]], [[1.0], [1.0]]),
        ("auc", [[np.nan, 1.0], [2.0, 1.0]], [0, 1]),
        ("f1", [[-1.0], [-2.0]], [[0.0], [0.0]]),  # nobody has the label, and nobody says so
    ],
)
def test_what_is_not_defined_is_no_number(name: str, output: list[Any], y: list[Any]) -> None:
    assert np.isnan(said(name, output, y))


def test_a_value_that_never_changes_is_left_out_beside_one_that_does() -> None:
    y = np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 4.0]])
    output = y + np.array([[5.0, 0.5], [5.0, 0.5], [5.0, -0.5]])
    assert said("r2", output, y) == pytest.approx(r2_score(y[:, 1], output[:, 1]))


def test_a_metric_that_is_not_defined_is_in_no_mean_but_a_loss_always_is() -> None:
    assert not counts("personal_auc", float("nan"))
    assert counts("personal_auc", 0.0)
    assert counts("train_shared_loss", float("nan"))
    assert not counts("shared_log-loss", float("nan"))  # a metric that is only called so


# Texts


def test_positions_of_texts_without_a_target_do_not_count() -> None:
    rng = torch.Generator().manual_seed(0)
    output = torch.randn(3, 5, 4, generator=rng, dtype=torch.float64)
    y = torch.randint(4, (3, 5), generator=rng)
    y[0, 2:] = y[2, 4] = -100
    flat, truth = output[y != -100], y[y != -100]
    for name in ("balanced-accuracy", "f1", "auc", "perplexity"):
        assert said(name, output, y) == pytest.approx(said(name, flat, truth))
    entropy = log_loss(truth, softmax(flat.numpy()), labels=range(4))
    assert said("perplexity", output, y) == pytest.approx(np.exp(entropy))
    first = METRICS["top-2"].of(output, y)[0]
    assert float(first) == pytest.approx(said("top-2", output[0, :2], y[0, :2]))


# In a cohort


def task(metric: Metric, targets: str, width: int) -> Task:
    """A linear model of three inputs."""
    module = nn.Linear(3, width).double()
    initial = {name: value.detach() for name, value in module.named_parameters()}
    criterion = {CLASSES: None, VALUES: LOSSES["mse"], SEVERAL: binary_cross_entropy}[targets]
    structure = module.to("meta")
    return Task(structure, initial, width, criterion=criterion, metric=metric, targets=targets)


def examples(targets: str, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two clients, one of nine examples and one of five, padded with the first of all."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(2, 9, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(width, (2, 9), generator=rng)
    if targets != CLASSES:
        y = torch.randn(2, 9, width, generator=rng, dtype=torch.float64)
    y = (y > 0).double() if targets == SEVERAL else y
    real = torch.ones(2, 9, dtype=torch.float64)
    real[1, 5:] = 0
    x[1, 5:], y[1, 5:] = x[0, 0], y[0, 0]
    return x, y, real


@pytest.mark.parametrize("name", METRICS)
def test_a_clients_number_is_of_its_own_examples_without_padding(name: str) -> None:
    metric = METRICS[name]
    for targets in metric.targets:
        width = 12 if name == "top-10" else 6
        whole, (x, y, real) = task(metric, targets, width), examples(targets, width)
        found = cohort.score(whole, whole.initial, x, y, real, own=False)
        for client, size in ((0, 9), (1, 5)):
            output = whole.output(whole.initial, x[client, :size])
            alone = said(name, output, y[client, :size])
            assert float(found.metric[client]) == pytest.approx(alone, nan_ok=True)
            losses = whole.losses(whole.initial, x[client, :size], y[client, :size])[0]
            assert float(found.loss[client]) == pytest.approx(float(losses.mean()))


def test_single_examples_are_compared_by_the_metric_or_else_by_the_loss() -> None:
    for name, by in (("accuracy", "accuracy"), ("top-2", "top-2"), ("f1", "loss")):
        one, (x, y, real) = task(METRICS[name], CLASSES, 6), examples(CLASSES, 6)
        assert one.compared_by.name == by
        found = cohort.single(one, one.initial, x, y, real, own=False)
        output = one.output(one.initial, x[1, :5])
        judge = cross_entropy if by == "loss" else METRICS[name].of
        expected = judge(output, y[1, :5]).double()
        torch.testing.assert_close(found[1], nn.functional.pad(expected, (0, 4)))


def test_what_a_guess_costs_is_known_of_entropies_alone() -> None:
    """Four classes, or labels that an example has or not; of values nobody knows the size."""
    accuracy, f1, r2 = METRICS["accuracy"], METRICS["f1"], METRICS["r2"]
    assert task(accuracy, CLASSES, 4).guess == pytest.approx(np.log(4))
    assert task(f1, SEVERAL, 4).guess == pytest.approx(np.log(2))
    assert task(r2, VALUES, 4).guess is None


def test_the_usual_loss_and_metric_of_every_kind_of_targets_fit_it() -> None:
    for targets in (CLASSES, VALUES, SEVERAL):
        assert LOSSES_FOR[targets][0] in LOSSES
        assert targets in METRICS[USUAL_METRIC[targets]].targets
    assert LOSS.name not in METRICS
