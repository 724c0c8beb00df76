"""MOCHA: linear models of related tasks, learned in the dual with uneven local work.

Smith, Chiang, Sanjabi and Talwalkar (2017), *Federated multi-task learning*, algorithm 1,
on the problem Σ_k f_k(w_k) + λ tr(W Ω Wᵀ) + r ‖W‖², f_k the mean loss of client k.

====================  ======================================================
paper                 here
====================  ======================================================
α_t                   ``personal.duals``, a row for each training example
Δv_t = X_t Δα_t       the change of ``upload.primal``
W = −V (2λΩ + 2rI)⁻¹  ``server.models``; column k goes down as ``payload.w``
σ′ M_tt               ``payload.pace``: Σ_j |M_kj|, M the inverse above
θ_t^h                 how far ``local-steps`` get; ``mocha.local-work``
Ω                     ``server.omega``: (I − 11ᵀ/N)², or learned
====================  ======================================================

A local step is dual ascent on a batch (SDCA): with the outputs z of the client's current
point, each example's dual moves towards the slope of its loss, a ← a + s (∇φ(z) − a), by the
s that cannot overshoot, and the point follows, w ← w − pace Δv. What is not done in one round
is done in later ones: clients may do any part of their work, or none.

Learned Ω is the one that suits the models best, ((WᵀW)^½ / tr(WᵀW)^½)⁻¹, renewed every
``mocha.omega-every`` rounds; the problem is then Σ f_k + λ ‖W‖²_* + r ‖W‖². Two things differ
from the paper's text. A client sends v_k whole rather than Δv_k, so that a lost reply loses
nothing. And Ω is singular where it is fixed, so the ridge r, the paper's λ₂, must be positive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.config import key
from bouquet.core.errors import BadInput
from bouquet.core.measure import CLASSES, SEVERAL, VALUES
from bouquet.core.scheme import Federation, Round, Scheme, Work
from bouquet.core.task import Batch, Task
from bouquet.core.trees import Forest, Tree, mean_of_rows, norm, stack_trees


class Personal(NamedTuple):
    """What stays on the device: the dual variables, and the primal vector they make."""

    duals: Tensor
    primal: Tree


class Payload(NamedTuple):
    """The mean of all models, the client's own, and how carefully it must step."""

    mean: Tree
    w: Tree
    pace: Tensor


class Upload(NamedTuple):
    """The client's primal vector v_k = Σ_i ∇ of its outputs times duals / n."""

    primal: Tree


class Server(NamedTuple):
    """Everyone's primal vectors and models, the models' mean, the paces, and Ω."""

    mean: Tree
    primals: Forest
    models: Forest
    paces: Tree
    omega: Tensor


def zeros(tree: Tree) -> Tree:
    """A tree of zeros."""
    return {name: torch.zeros_like(value) for name, value in tree.items()}


def learned(server: Server, ids: Sequence[str]) -> Tensor:
    """((WᵀW)^½ / tr)⁻¹, kept away from singular."""
    columns = [torch.cat([v.double().flatten() for v in server.models[k].values()]) for k in ids]
    w = torch.stack(columns, dim=1)
    values, vectors = torch.linalg.eigh(w.T @ w)
    roots = values.clamp(min=0).sqrt()
    roots = roots + 1e-3 * roots.sum() / len(ids) + 1e-12
    inverse: Tensor = vectors @ torch.diag(roots.sum() / roots) @ vectors.T
    return inverse


def ascended(task: Task, w: Tree, duals: Tensor, pace: Tensor, batch: Batch) -> tuple[Tensor, Tree]:
    """One batch's dual step: the new duals, and the change of the primal vector."""
    real = (batch.weight > 0).to(duals.dtype) * batch.active
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in w.items()}
        outputs = task.output(leaves, batch.x)
        points = outputs.detach().requires_grad_()
        losses, _ = task.judge(points, batch.x, batch.y)
        (slopes,) = torch.autograd.grad(losses.sum(), points)
    sizes, curvature = bounds(task, batch)
    # The step for which strong concavity makes up for the quadratic term, all of the batch
    # moving at once (Shalev-Shwartz and Zhang 2013, with the batch's size).
    reach = pace * real.sum() * sizes * curvature / len(duals)
    moves = (real / (1 + reach)).unsqueeze(1) * (slopes - duals[batch.place])
    gradient = torch.autograd.grad(outputs, list(leaves.values()), moves / len(duals))
    return duals.index_add(0, batch.place, moves), dict(zip(leaves, gradient, strict=True))


def bounds(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """Each example's squared size as the model sees it, and the largest curvature of its loss."""
    if task.classes:
        sizes = 1 + batch.x.flatten(1).square().sum(dim=1)  # 1 for the bias
        # Of the cross entropy, in its logits; the other losses are means over values or labels.
        curvatures = {CLASSES: 0.5, VALUES: 2 / task.classes, SEVERAL: 0.25 / task.classes}
        return sizes, torch.full_like(sizes, curvatures[task.targets])
    curvature = torch.linalg.eigvalsh(batch.x)[:, -1]
    return torch.ones_like(curvature), curvature


@dataclass(frozen=True)
class Mocha(Scheme[Personal, Payload, Upload, Server]):
    """Federated multi-task learning in the dual."""

    name = "mocha"
    title = "Federated multi-task learning in the dual"
    paper = "Smith et al. 2017, algorithm 1"
    shares = "v_i, the primal vector its dual variables make"
    keeps = "its dual variables, one for each training example"
    exception = "multi-task learning: v_i belongs to the client's own model"
    payload_rows = ("w", "pace")
    upload_rows = ("primal",)
    alone = True
    descends = False
    decay = "mocha.ridge"

    strength: float = key(
        0.1, "pull of the tasks towards each other", name="lambda", low=0.0, degenerate="0 is Local"
    )
    ridge: float = key(
        0.01, "pull of all weights towards 0; the smaller, the slower", low=0.0, open_low=True
    )
    omega: str = key(
        "fixed",
        "how tasks relate: all alike, (I - 11'/N)^2, or as their models turn out",
        choices=("fixed", "learned"),
    )
    omega_every: int = key(10, "learned: rounds between two looks at the models", low=1)
    local_work: float = key(
        1.0,
        "least share of its local steps a client does; the rest by chance, as stragglers would",
        low=0.0,
        high=1.0,
    )

    def init_personal(self, task: Task, examples: int) -> Personal:
        """Duals start at 0, and so do the models."""
        first = next(iter(task.initial.values()))
        size = task.classes or first.numel()
        return Personal(torch.zeros(examples, size, dtype=first.dtype), zeros(task.initial))

    def init_server(self, task: Task) -> Server:
        """Nobody is there yet."""
        return Server(zeros(task.initial), {}, {}, {}, torch.zeros(0, 0, dtype=torch.float64))

    def welcome(self, server: Server, federation: Federation) -> Server:
        """Relate those who are there; with more of them than before, Ω starts over."""
        count = len(federation.members)
        if len(server.omega) == count:
            return server
        fixed = torch.eye(count, dtype=torch.float64) - 1 / count
        omega = fixed @ fixed if self.omega == "fixed" else count * torch.eye(count).double()
        return self.coupled(server._replace(omega=omega), sorted(federation.members))

    def coupled(self, server: Server, ids: Sequence[str]) -> Server:
        """W = −V M and the paces, with M = (2λΩ + 2rI)⁻¹."""
        eye = torch.eye(len(ids), dtype=torch.float64)
        inverse = torch.linalg.inv(2 * self.strength * server.omega + 2 * self.ridge * eye)
        primals = stack_trees([server.primals.get(client, zeros(server.mean)) for client in ids])
        models = {
            name: -torch.tensordot(inverse, value.double(), dims=1).to(value.dtype)
            for name, value in primals.items()
        }
        return Server(
            mean=mean_of_rows(models),
            primals=server.primals,
            models={k: {n: v[p].clone() for n, v in models.items()} for p, k in enumerate(ids)},
            paces=dict(zip(ids, inverse.abs().sum(dim=1).unbind(), strict=True)),
            omega=server.omega,
        )

    def downlink(self, server: Server, clients: Sequence[str]) -> Payload:
        """Each client's column of the coupling."""
        none = torch.zeros((), dtype=torch.float64)
        own = [server.models.get(client, zeros(server.mean)) for client in clients]
        paces = [server.paces.get(client, none) for client in clients]
        return Payload(server.mean, stack_trees(own), torch.stack(paces))

    def local_update(
        self, work: Work, payload: Payload, personal: Personal
    ) -> tuple[Upload, Personal]:
        """Dual ascent on as many batches as the client gets to."""
        share = self.local_work + (1 - self.local_work) * work.luck
        w, (duals, primal) = payload.w, personal
        pace = payload.pace.to(duals.dtype)
        for batch in work.batches[: round(share * len(work.batches))]:
            duals, change = ascended(work.task, w, duals, pace, batch)
            primal = {name: value + change[name] for name, value in primal.items()}
            w = {name: value - pace * change[name] for name, value in w.items()}
        return Upload(primal), Personal(duals, primal)

    def upload_like(self, server: Server) -> Upload:
        """An upload has the shape of a model."""
        return Upload(server.mean)

    def aggregate(self, server: Server, uploads: Round[Upload]) -> Server:
        """Take in the primal vectors, look at Ω if it is time, and couple the tasks anew."""
        ids = sorted(uploads.federation.members)
        primals = dict(server.primals)
        for place, client in enumerate(uploads.clients):
            primals[client] = {n: v[place].clone() for n, v in uploads.mean.primal.items()}
        new = self.coupled(server._replace(primals=primals), ids)
        if self.omega == "learned" and uploads.number % self.omega_every == 0:
            new = self.coupled(new._replace(omega=learned(new, ids)), ids)
        return new

    def advise(self, federation: Federation) -> str:
        """The dual is that of linear models."""
        if federation.model not in ("linear", "vector"):
            raise BadInput(
                "model.name must be 'linear' (or 'vector', for quadratic problems) for mocha, "
                f"which is about linear models, not {federation.model!r}."
            )
        if self.ridge < 1e-12 * max(1.0, self.strength):
            raise BadInput(
                "mocha.ridge must be at least 1e-12, and as many times mocha.lambda, or the tasks' "
                f"coupling cannot be inverted; it is {self.ridge:g}."
            )
        return ""

    def predictor(self, work: Work, payload: Payload, personal: Personal) -> Tree:
        """The client's column of W."""
        return payload.w

    def shared(self, task: Task, payload: Payload) -> Tree:
        """The mean of all models, which a client without data would use."""
        return payload.mean

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The size of the client's primal vector."""
        return {"personal_norm": norm(personal.primal)}
