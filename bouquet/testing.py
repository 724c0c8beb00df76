"""The laws every scheme must keep, for ours and for yours.

>>> from bouquet.testing import check_scheme
>>> def test_my_scheme_keeps_the_laws():
...     check_scheme(MyScheme)
"""

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import MessageType

from bouquet.client_app.stores import DiskStore
from bouquet.core.trees import flatten, unflatten
from bouquet.engines import LocalNodes
from bouquet.laboratory import (
    Laboratory,
    as_round,
    ask,
    assert_close,
    assert_same,
    assert_same_end,
    kept_numbers,
    moved_twice,
    numbers,
    one_client,
    reported,
    sent_bytes,
    sent_numbers,
    welcomed,
)
from bouquet.objects import SchemeLike
from bouquet.problem import problem
from bouquet.storage.state import Identity, PersonalState

Law = Callable[[Laboratory], None]
LAWS: dict[str, Law] = {}


def law(check: Law) -> Law:
    """Make a function one of the laws."""
    LAWS[check.__name__] = check
    return check


def check_scheme(
    scheme: SchemeLike, *, keys: Mapping[str, Any] | None = None, laws: Iterable[str] = ()
) -> None:
    """Run a scheme through the laws; the first that is broken raises ``AssertionError``.

    Parameters
    ----------
    scheme : str, Scheme or class
        As :func:`bouquet.simulate` takes it.
    keys : mapping, optional
        Keys it cannot do without, such as ``{"clients_per_round": 0}``.
    laws : iterable of str
        Only these, of ``LAWS``; all without.
    """
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        room = Laboratory(scheme, Path(folder), keys or {})
        for name in laws or LAWS:
            try:
                LAWS[name](room)
            except AssertionError as error:
                words = name.replace("_", " ")
                raise AssertionError(f"{scheme!r} breaks the law: {words}. {error}") from error


@law
def changes_nothing_it_is_given(room: Laboratory) -> None:
    """A scheme's methods are pure: others may hold the same tensors."""
    settings = room.settings()
    scheme = settings.scheme
    loaded, work, payload, personal = one_client(settings)
    _, personal = scheme.local_update(work, payload, personal)  # no longer the initial one
    server = welcomed(settings, loaded)
    given = (work.batches, payload, personal, loaded.task.initial, server)
    before = copy.deepcopy(given)
    upload, _ = scheme.local_update(work, payload, personal)
    scheme.predictor(work, payload, personal)
    scheme.aggregate(server, as_round(settings, loaded, upload))
    assert_same(given, before)


@law
def gives_the_same_answer_twice(room: Laboratory) -> None:
    """Nothing is drawn but from what the client is given."""
    settings = room.settings()
    _, work, payload, personal = one_client(settings)
    update = settings.scheme.local_update
    assert_same(update(work, payload, personal), update(work, payload, personal))


@law
def sends_nothing_personal(room: Laboratory) -> None:
    """Every byte and number of every reply, searched for what the clients keep.

    Each client has a node of its own, so that no mean hides it, and numbers are doubles, so that
    none turns up by chance.
    """
    keys = {"nodes": 5, "dtype": "float64", "clients_per_round": 0, "store": "disk"}
    settings, folder = room.settings(**keys), room.new().parent
    scheme, task = settings.scheme, problem(settings).task
    with closing(LocalNodes(settings.run.nodes)) as grid:
        replies = [
            reply
            for round_ in (1, 2)
            for kind in (MessageType.TRAIN, MessageType.EVALUATE)
            for reply in ask(grid, settings, folder, round_, kind)
        ]
    secrets = moved_twice(folder) if scheme.first_shows else kept_numbers(folder)
    if scheme.first_shows:
        replies = [reply for reply in replies if reply.metadata.group_id == "2"]
    secrets -= numbers([*task.initial.values(), *flatten(scheme.init_personal(task, 1)).values()])
    secrets -= {0.0, 1.0}
    assert bool(secrets) == scheme.stateful, "its clients keep nothing, or nothing that moves"
    secrets -= kept_numbers(folder, scheme.sent)
    for reply in replies if not scheme.exception else ():
        assert not secrets & sent_numbers(reply), "a number that a client keeps was sent"
        sent = sent_bytes(reply)
        some = sorted(secrets)[:: max(1, len(secrets) // 50)]
        found = [one for one in some if np.float64(one).tobytes() in sent]
        assert not found, "bytes that a client keeps were sent"


@law
def keeps_its_state_on_disk_bit_for_bit(room: Laboratory) -> None:
    """What a client keeps is a record of tensors and nothing else."""
    settings, folder = room.settings(), room.new()
    scheme = settings.scheme
    _, work, payload, personal = one_client(settings)
    _, personal = scheme.local_update(work, payload, personal)
    identity = Identity(scheme.name, scheme.version, "shape", "000")
    DiskStore(folder).save(PersonalState(identity, 1, flatten(personal)))
    state = DiskStore(folder).load(identity, before=2)
    assert state is not None
    assert_same(unflatten(scheme.records.personal, state.tensors), personal)


@law
def answers_a_message_delivered_twice_alike(room: Laboratory) -> None:
    """A network may deliver a message again, in any store."""
    for store in ("memory", "context", "disk"):
        settings, folder = room.settings(store=store, clients_per_round=0), room.new()
        with closing(LocalNodes(settings.run.nodes)) as grid:
            ask(grid, settings, folder, 1)
            once, again = (ask(grid, settings, folder, 2) for _ in range(2))
        for one, other in zip(once, again, strict=True):
            assert sent_bytes(one) == sent_bytes(other), f"other bytes, with store {store}"
            assert reported(one) == reported(other), f"other numbers, with store {store}"


@law
def ends_after_a_stop_as_if_never_stopped(room: Laboratory) -> None:
    """The run's folder holds all there is to know."""
    five = room.settings(rounds=5)
    assert_same_end(room.run(five), room.resumed(five, room.run(room.settings(rounds=2))))


@law
def resumes_exactly_when_killed_within_a_round(room: Laboratory) -> None:
    """The clients have done round 3; the server only remembers round 2."""
    five, killed = room.settings(rounds=5), room.new()
    shutil.copytree(room.run(room.settings()), killed)
    checkpoint = Path("server") / "checkpoint.safetensors"
    shutil.copy(room.run(room.settings(rounds=2)) / checkpoint, killed / checkpoint)
    assert_same_end(room.run(five), room.resumed(five, killed))


@law
def computes_in_a_cohort_what_clients_compute_alone(room: Laboratory) -> None:
    """Batched and one by one differ by rounding alone."""
    together, alone = (room.settings(dtype="float64", cohort=how) for how in ("vmap", "loop"))
    assert_close(room.run(together), room.run(alone))


@law
def lets_clients_that_finish_early_wait_without_moving(room: Laboratory) -> None:
    """Passes over unequal data are unequally many steps."""
    keys = {"dtype": "float64", "local_steps": 0, "local_epochs": 1, "batch_size": 64}
    together, alone = (room.settings(cohort=how, **keys) for how in ("vmap", "loop"))
    assert_close(room.run(together), room.run(alone))


@law
def does_not_depend_on_the_number_of_nodes(room: Laboratory) -> None:
    """But for rounding."""
    two, five = (room.settings(dtype="float64", cohort="vmap", nodes=count) for count in (2, 5))
    assert_close(room.run(two), room.run(five))
