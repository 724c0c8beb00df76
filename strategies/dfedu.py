"""dFedU: FedU without a server that mixes; devices do it themselves.

Dinh et al. (2021), algorithm 2; symbols and keys are those of :mod:`bouquet.strategies.fedu`.

====================  ======================================================
paper                 here
====================  ======================================================
w_{k,R}^(t)           ``upload.w``, kept on the device in ``personal.w``
Σ_l a_kl w_{l,R}      ``payload.sum``: all a device learns of its neighbours
Σ_l a_kl              ``payload.degree``
t                     ``payload.round`` and ``personal.round``
====================  ======================================================

Flower's server stands in for the links between devices: it relays to each device the weighted
sum of its neighbours' models, and keeps no model beyond the round. The mixing step of round t
needs the device's own w_{k,R}^(t) and is taken when the sum arrives, with the next message. A
sum is mixed only with the model of its own round, so a device that missed a round, or whose
reply was lost, never mixes twice or with the wrong model.

A neighbour that fails in a round is left out of that round's sum and degree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bouquet.core.errors import BadInput
from bouquet.core.scheme import Federation, Round, Work
from bouquet.core.task import Task
from bouquet.core.trees import Forest, Tree, distance, mean_of_rows, norm, stack_trees
from bouquet.strategies import fedu
from bouquet.strategies.graphs import OnGraph


class Personal(NamedTuple):
    """What stays on the device: the model before mixing, μ̃, and the round they are of."""

    w: Tree
    reach: Tensor
    round: Tensor


class Payload(NamedTuple):
    """The mean of all models, and what this device needs to mix in a round's neighbours."""

    mean: Tree
    round: Tensor
    sum: Tree
    degree: Tensor


class Upload(NamedTuple):
    """The device's model, for its neighbours."""

    w: Tree


class Server(NamedTuple):
    """The relay: the mean, the graph, and the last round's sums on their way to the devices."""

    mean: Tree
    round: Tensor
    sums: Forest
    degrees: Tree
    graph: Tensor


@dataclass(frozen=True)
class DFedU(OnGraph[Personal, Payload, Upload, Server]):
    """Decentralized FedU: devices mix their neighbours in themselves."""

    name = "dfedu"
    title = "Decentralized FedU: devices mix their neighbours in themselves"
    paper = "Dinh et al. 2021, algorithm 2"
    shares = "w_i, its own model, of which its neighbours get weighted sums"
    keeps = "w_i, and the mixing step"
    payload_rows = ("sum", "degree")
    upload_rows = ("w",)

    def init_personal(self, task: Task, examples: int) -> Personal:
        """Everyone starts at the initial weights."""
        zero = torch.zeros((), dtype=torch.float64)
        return Personal(task.initial, zero, zero.clone())

    def init_server(self, task: Task) -> Server:
        """Nothing to relay yet."""
        zero = torch.zeros((), dtype=torch.float64)
        return Server(task.initial, zero, {}, {}, torch.zeros(0, 0, dtype=torch.float64))

    def welcome(self, server: Server, federation: Federation) -> Server:
        """Draw the graph of those who are there."""
        return server._replace(graph=self.drawn(federation))

    def advise(self, federation: Federation) -> str:
        """Everyone takes part; and warn where mixing drives models apart."""
        if federation.sampled not in (0, len(federation.members)):
            raise BadInput(
                "clients-per-round must be 0 for dfedu, in which everyone takes part, not "
                f"{federation.sampled}."
            )
        return super().advise(federation)

    def downlink(self, server: Server, clients: Sequence[str]) -> Payload:
        """Each device its sum and degree; zeros where nothing is on its way."""
        zeros = {name: torch.zeros_like(value) for name, value in server.mean.items()}
        nothing = torch.zeros((), dtype=torch.float64)
        return Payload(
            server.mean,
            server.round,
            stack_trees([server.sums.get(client, zeros) for client in clients]),
            torch.stack([server.degrees.get(client, nothing) for client in clients]),
        )

    def mixed(self, payload: Payload, personal: Personal) -> Tree:
        """The mixing step of algorithm 2, line 12, where the sum is of the model's own round."""
        fits = (payload.round == personal.round).to(torch.float64)
        pace = self.eta * personal.reach * fits
        return fedu.mix_in(personal.w, payload.sum, payload.degree, pace)

    def local_update(
        self, work: Work, payload: Payload, personal: Personal
    ) -> tuple[Upload, Personal]:
        """Mix in what arrived, then R local steps."""
        start = self.mixed(payload, personal)
        w = work.descend(work.task.loss, start, work.batches)
        round_ = torch.full_like(personal.round, work.round)
        return Upload(w), Personal(w, work.reach.to(torch.float64), round_)

    def upload_like(self, server: Server) -> Upload:
        """An upload is a model."""
        return Upload(server.mean)

    def aggregate(self, server: Server, uploads: Round[Upload]) -> Server:
        """Turn a round's models into sums for the neighbours; the models then are gone."""
        ids = sorted(uploads.federation.members)
        weights = server.graph[:, [ids.index(client) for client in uploads.clients]]
        sums = fedu.neighbour_sums(weights, uploads.mean.w)
        return Server(
            mean=mean_of_rows(uploads.mean.w),
            round=torch.tensor(float(uploads.number), dtype=torch.float64),
            sums={k: {n: v[p].clone() for n, v in sums.items()} for p, k in enumerate(ids)},
            degrees=dict(zip(ids, weights.sum(dim=1).unbind(), strict=True)),
            graph=server.graph,
        )

    def predictor(self, work: Work, payload: Payload, personal: Personal) -> Tree:
        """The device's model with its neighbours mixed in."""
        return self.mixed(payload, personal)

    def shared(self, task: Task, payload: Payload) -> Tree:
        """The mean of all models, which a client without data would use."""
        return payload.mean

    def diagnostics(self, personal: Personal, shared: Tree) -> Tree:
        """The size of the device's model and its distance from the mean."""
        return {"personal_norm": norm(personal.w), "drift": distance(personal.w, shared)}
