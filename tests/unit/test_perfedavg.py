"""Per-FedAvg against closed forms and finite differences."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bouquet.core.batches import Plan, draw, gather, steps
from bouquet.core.descent import Sgd, slope_in_vmap
from bouquet.core.scheme import Model, Work
from bouquet.core.task import Batch
from bouquet.core.trees import Nothing, Tree, pick
from bouquet.problem import problem
from bouquet.settings import parse
from bouquet.strategies.perfedavg import PerFedAvg
from tests.conftest import Quadratics, Run
from tests.unit.algebra import EXACT, clients, descended

Start = Callable[..., Run]


@pytest.mark.parametrize("mode", ["exact", "first-order", "hessian-free"])
def test_it_follows_its_closed_form(start: Start, quadratics: Quadratics, mode: str) -> None:
    """On ½(w − c)ᵀA(w − c) the adapted point is w̃ = w − aA(w − c), so w̃ − c = (I − aA)(w − c).

    The outer gradient is A(I − aA)(w − c) and the exact step b(I − aA)A(I − aA)(w − c); first
    order drops the first factor. Differences of a quadratic's gradients are exact.
    """
    a_lr, b = 0.3, 0.2
    keys = {"perfedavg": {"inner_lr": a_lr, "mode": mode}}
    run = start(scheme="perfedavg", rounds=3, local_steps=4, lr=b, **keys, **quadratics.keys)
    shared, eye = quadratics.init, np.eye(3)
    for _ in range(3):
        uploads = []
        for a, c in clients(quadratics):
            inner = eye - a_lr * a
            curvature = a @ inner if mode == "first-order" else inner @ a @ inner
            uploads.append(descended(shared, curvature, c, b, 4))
        shared = np.mean(uploads, axis=0)
    np.testing.assert_allclose(run.shared(), shared, atol=EXACT, rtol=0)
    for k, (a, c) in enumerate(clients(quadratics)):
        expected = descended(shared, a, c, a_lr, 1)
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_a_client_adapts_by_as_many_steps_as_told(start: Start, quadratics: Quadratics) -> None:
    keys = {"perfedavg": {"inner_lr": 0.3, "adapt_steps": 4}}
    run = start(scheme="perfedavg", rounds=1, lr=0.2, **keys, **quadratics.keys)
    for k, (a, c) in enumerate(clients(quadratics)):
        expected = descended(run.shared(), a, c, 0.3, 4)
        np.testing.assert_allclose(run.predictor(f"{k:03}"), expected, atol=EXACT, rtol=0)


def test_without_an_inner_step_it_is_fedavg(start: Start, quadratics: Quadratics) -> None:
    keys: dict[str, Any] = {"rounds": 3, "lr": 0.3, "weights": "uniform"}
    run = start(scheme="perfedavg", perfedavg={"inner_lr": 0.0}, **keys, **quadratics.keys)
    plain = start(scheme="fedavg", **keys, **quadratics.keys)
    np.testing.assert_allclose(run.shared(), plain.shared(), atol=EXACT, rtol=0)


def test_the_exact_step_is_the_slope_of_the_meta_objective() -> None:
    """With one batch for all three, the step is ∇F of F(w) = f(w − a∇f(w)), by differences."""
    scheme, (work, start) = PerFedAvg(inner_lr=0.5), logistic_work(same=True)
    upload, _ = scheme.local_update(work, Model(start), Nothing())
    f = work.task.loss
    batch = work.batches[0]

    def meta(w: Tree) -> float:
        slope = torch.func.grad(f)(w, batch)
        adapted = {n: w[n] - scheme.inner_lr * slope[n] for n in w}
        return float(f(adapted, batch))

    for name, place in (("output.weight", (3, 20)), ("output.bias", (7,))):
        h = 1e-5
        up = {n: v.clone() for n, v in start.items()}
        down = {n: v.clone() for n, v in start.items()}
        up[name][place] += h
        down[name][place] -= h
        slope = (meta(up) - meta(down)) / (2 * h)
        moved = (start[name][place] - upload.w[name][place]).item() / work.sgd.lr
        assert moved == pytest.approx(slope, abs=1e-8)


def test_three_batches_have_the_parts_the_paper_gives_them() -> None:
    """w ← w − b (I − a∇²f(w; D″)) ∇f(w − a∇f(w; D); D′), with dense Hessians."""
    scheme, (work, start) = PerFedAvg(inner_lr=0.5), logistic_work(same=False)
    upload, _ = scheme.local_update(work, Model(start), Nothing())
    inner, outer, curvature = work.batches
    names = list(start)
    flat = torch.cat([start[n].flatten() for n in names])

    def loss(point: torch.Tensor, batch: Batch) -> torch.Tensor:
        sizes = [start[n].numel() for n in names]
        parts = zip(names, point.split(sizes), strict=True)
        return work.task.loss({n: p.reshape(start[n].shape) for n, p in parts}, batch)

    slope = torch.func.grad(loss)
    g = slope(flat - scheme.inner_lr * slope(flat, inner), outer)
    hessian = torch.autograd.functional.hessian(lambda point: loss(point, curvature), flat)
    expected = flat - work.sgd.lr * (g - scheme.inner_lr * hessian @ g)
    found = torch.cat([upload.w[n].flatten() for n in names])
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_the_hessian_free_step_approaches_the_exact_one() -> None:
    """Its error falls with the square of δ."""
    work, start = logistic_work(same=False)
    target, _ = PerFedAvg(inner_lr=0.5).local_update(work, Model(start), Nothing())
    gaps = []
    for delta in (0.03, 0.003):
        scheme = PerFedAvg(inner_lr=0.5, mode="hessian-free", delta=delta)
        upload, _ = scheme.local_update(work, Model(start), Nothing())
        gaps.append(max((upload.w[n] - target.w[n]).abs().max().item() for n in start))
    assert gaps[1] < gaps[0] / 50


def logistic_work(same: bool) -> tuple[Work, Tree]:
    """One local step of logistic regression on digits, in double precision."""
    settings = parse({"dtype": "float64", "data.clients": 4, "model.name": "linear"})
    loaded = problem(settings)
    own = loaded.data.clients["000"].train
    drawn = draw(["000"], [own], Plan(3, 0, 10), (0, "train", 1), torch.float64)
    batches = steps(pick(gather(loaded.data.x, loaded.data.y, drawn), 0))
    chosen = [batches[0]] * 3 if same else batches
    return Work(loaded.task, Sgd(0.1), chosen), loaded.task.initial


def test_a_cohort_can_take_its_steps_together() -> None:
    """Second derivatives go through vmap as well."""
    scheme, (work, start) = PerFedAvg(inner_lr=0.5), logistic_work(same=False)
    alone, _ = scheme.local_update(work, Model(start), Nothing())
    together = replace(work, sgd=Sgd(0.1, gradient=slope_in_vmap))
    same, _ = scheme.local_update(together, Model(start), Nothing())
    for name in start:
        torch.testing.assert_close(same.w[name], alone.w[name], atol=1e-12, rtol=0)
