"""What a scheme is made of: its records, wrappers around it, its steps, and where it is found."""

import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
from torch import Tensor

from bouquet.core.descent import Step
from bouquet.core.errors import BadInput
from bouquet.core.round import play
from bouquet.core.scheme import (
    AnyScheme,
    Averaging,
    Federation,
    Member,
    Model,
    Record,
    Scheme,
    Upload,
)
from bouquet.core.trees import Nothing, Tree
from bouquet.core.wrapper import FACTS, Wrapper
from bouquet.imports import absolute, imported
from bouquet.laboratory import assert_same
from bouquet.settings import parse
from bouquet.strategies import SCHEMES
from bouquet.strategies.afl import Agnostic
from bouquet.strategies.apfl import APFL
from bouquet.strategies.fedalt import FedAlt
from bouquet.strategies.mocha import Mocha
from bouquet.strategies.perfedavg import PerFedAvg
from bouquet.strategies.plsgd import PLSGD
from bouquet.strategies.registry import find
from bouquet.strategies.server_optimizers import Optimized, ServerOptimizer
from tests.conftest import Run, kebab
from tests.unit.algebra import number, scalar_work

Start = Callable[..., Run]
Write = Callable[[str, str], Path]


# Records


class Kept(NamedTuple):
    v: Tree


class Sent(NamedTuple):
    w: Tree
    loss: Tensor


Mine = TypeVar("Mine", bound=Record)


class Half(Scheme[Kept, Mine, Upload, Model]):
    """A base that leaves two records open, one by a name of its own."""


class Whole(Half[Nothing, Sent]):
    """A scheme of that base."""


class Child(Whole):
    """A scheme that has its records from its parent."""


def test_a_scheme_has_the_records_in_its_brackets() -> None:
    class Straight(Scheme[Kept, Model, Sent, Model]):
        pass

    assert Straight().records == (Kept, Model, Sent, Model)


def test_records_come_through_generic_bases_and_parents() -> None:
    for kind in (Whole, Child):
        assert kind().records == (Kept, Nothing, Sent, Model)
    assert Half[Model, Model]().records == (Kept, Mine, Upload, Model)


def test_what_follows_from_records() -> None:
    """Who keeps nothing is not stateful; who uploads no w, or one by one, does not average."""

    class Plain(Averaging[Nothing]):
        pass

    class OneByOne(Averaging[Kept]):
        upload_rows = ("w",)

    assert (Plain().stateful, Plain().averages) == (False, True)
    assert (OneByOne().stateful, OneByOne().averages) == (True, False)
    assert not SCHEMES["local"]().averages


# Wrappers

WRAPPED: list[AnyScheme] = [APFL(), FedAlt(personal_steps=7, stateless=True), PerFedAvg(), Mocha()]
ADAM = ServerOptimizer("adam", 0.1, 0.9, 0.99, 1e-3)


@pytest.mark.parametrize("scheme", WRAPPED, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "wrap", [Wrapper, lambda one: Optimized(one, ADAM), lambda one: Wrapper(Wrapper(one))]
)
def test_a_wrapper_says_of_itself_what_the_scheme_inside_says(
    scheme: AnyScheme, wrap: Callable[[AnyScheme], AnyScheme]
) -> None:
    wrapped = wrap(scheme)
    for fact in (*FACTS, "state_kind", "stateful", "stateless", "averages"):
        assert getattr(wrapped, fact) == getattr(scheme, fact), fact
    assert (wrapped.draws(3), wrapped.adapts()) == (scheme.draws(3), scheme.adapts())
    assert wrapped.personal_part("input") == scheme.personal_part("input")


def test_an_agnostic_scheme_adds_a_loss_to_what_is_shared() -> None:
    scheme = Agnostic(APFL(), 0.1)
    assert scheme.upload_rows == ("loss",)
    assert scheme.shares == f"{APFL.shares}; its loss at the received weights"
    assert {one: getattr(scheme, one) for one in FACTS if one not in ("upload_rows", "shares")} == {
        one: getattr(APFL(), one) for one in FACTS if one not in ("upload_rows", "shares")
    }


def test_a_wrapper_passes_on_all_there_is() -> None:
    """A fact or a method that joins ``Scheme`` joins ``Wrapper`` too."""
    assert set(FACTS) == {name for name in Scheme.__annotations__ if not name.startswith("_")}
    methods = {name for name in vars(Scheme) if not name.startswith("_")} - set(FACTS)
    follows = {"state_kind", "stateful", "averages"}  # from facts and records
    assert methods - vars(Wrapper).keys() == follows | {"assembled"}  # it is


def test_a_wrapper_as_it_stands_changes_nothing() -> None:
    """Two rounds of two clients, wrapped or not, to the last bit."""

    def ends(scheme: AnyScheme) -> tuple[Any, Any]:
        works = {
            one: scalar_work(steps=3, lr=0.1, curvature=2.0, optimum=float(one)) for one in "12"
        }
        everyone = Federation({one: Member(1, weight=float(one)) for one in works})
        task = works["1"].task
        server = scheme.welcome(scheme.init_server(task), everyone)
        kept = {one: scheme.init_personal(task, 1) for one in works}
        for round_ in (1, 2):
            server, kept = play(scheme, server, everyone, works, kept, round_)
        return server, kept

    for scheme in (APFL(), PLSGD(output="mean-shared").assembled()):
        assert_same(ends(Wrapper(scheme)), ends(scheme))


# Steps


class Pair(NamedTuple):
    w: Tree
    v: Tree


def both(p: Pair, step: Step) -> Tensor:
    """(w − 1)² + ½ (w − 1)² v: slopes (2 + v) (w − 1) and ½ (w − 1)²."""
    gap = (p.w["w"] - 1.0).square().sum()
    return step.active * (gap + 0.5 * gap * p.v["w"].sum())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (3.0 - 0.1 * 6.0, 1.0 - 0.1 * 2.0)),
        ({"lr": 0.2}, (3.0 - 0.2 * 6.0, 1.0 - 0.2 * 2.0)),
        ({"hold": ("v",)}, (3.0 - 0.1 * 6.0, 1.0)),
        ({"hold": ("w",), "rates": {"v": 0.5}}, (3.0, 1.0 - 0.5 * 2.0)),
        ({"rates": {"w": 0.01}}, (3.0 - 0.01 * 6.0, 1.0 - 0.1 * 2.0)),
        ({"rates": {"v": 0.0}, "lr": 0.2}, (3.0 - 0.2 * 6.0, 1.0)),
        ({"hold": ("w", "v")}, (3.0, 1.0)),
        ({"project": lambda p: p._replace(v=p.w)}, (3.0 - 0.1 * 6.0, 3.0 - 0.1 * 6.0)),
    ],
)
def test_a_step_is_the_one_written_out(
    options: dict[str, Any], expected: tuple[float, float]
) -> None:
    """From w = 3 and v = 1 the slopes are 3·2 = 6 and ½·4 = 2; the run's rate is 0.1."""
    work = scalar_work(steps=1, lr=0.1, curvature=1.0, optimum=0.0)
    end = work.descend(both, Pair(number(3.0), number(1.0)), work.batches, **options)
    assert isinstance(end, Pair)
    assert (end.w["w"].item(), end.v["w"].item()) == pytest.approx(expected, abs=1e-15)


def test_steps_go_on_from_each_other() -> None:
    """On (w − 1)² with rate 0.1 the gap shrinks by 0.8 a step; with rate 0.25 it is halved."""
    work = scalar_work(steps=3, lr=0.1, curvature=2.0, optimum=1.0)
    for lr, shrink in ((0.0, 0.8), (0.25, 0.5)):
        end = work.descend(work.task.loss, number(3.0), work.batches, lr=lr)
        assert end["w"].item() == pytest.approx(1 + 2 * shrink**3, abs=1e-15)


def test_a_watch_sees_every_step() -> None:
    """Its points follow one another from the start to the end, and it changes nothing."""
    work = scalar_work(steps=3, lr=0.1, curvature=1.0, optimum=0.0)
    seen: list[tuple[Pair, Pair, Any]] = []
    watched = replace(work, watch=lambda *step: seen.append(step))
    start = Pair(number(3.0), number(1.0))
    end = watched.descend(both, start, work.batches, hold=("v",))
    assert_same(end, work.descend(both, start, work.batches, hold=("v",)))
    assert [step[2] for step in seen] == list(work.batches)
    assert seen[0][0] is start
    assert seen[-1][1] is end
    for one, following in itertools.pairwise(seen):
        assert_same(one[1], following[0])
    # (2 + v) (w − 1) = 3 · 2, and then 0.7 times as much at every step.
    points = [step[1].w["w"].item() for step in seen]
    assert points == pytest.approx([1 + 2 * 0.7, 1 + 2 * 0.7**2, 1 + 2 * 0.7**3], abs=1e-15)


# Where others' parts are found


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file in the current folder, which is one of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def written(name: str, code: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    yield written
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_part_is_loaded_from_a_package_in_the_current_folder(write: Write) -> None:
    write("ourparts/__init__.py", "")
    write("ourparts/inner.py", "class Outer:\n    class Inner:\n        word = 'here'\n")
    assert imported("ourparts.inner:Outer.Inner", "scheme").word == "here"


@pytest.mark.parametrize("file", ["part.py", "./part.py", "absolute"])
def test_a_part_is_loaded_from_a_file_and_may_import_what_is_beside_it(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    write("beside.py", "word = 'beside'")
    path = write("part.py", "from beside import word")
    name = f"{path if file == 'absolute' else file}:word"
    anywhere = absolute(name)
    assert imported(name, "scheme") == "beside"
    monkeypatch.chdir(tmp_path.parent)
    assert imported(anywhere, "scheme") == "beside"


def test_a_file_is_loaded_once_and_again_when_it_changed(write: Write) -> None:
    path = write("part.py", "class Part: word = 1")
    first = imported("./part.py:Part", "scheme")
    assert imported(f"{path}:Part", "scheme") is first
    write("part.py", "class Part: word = 2")
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))
    assert imported("./part.py:Part", "scheme").word == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nosuchpackage.part:Part", "No module named 'nosuchpackage'"),
        ("part:Other", "module 'part' has no attribute 'Other'"),
        ("./nowhere.py:Part", "No such file or directory"),
        ("./part.py:Other", "has no attribute 'Other'"),
        ("./part.py:", "has no attribute ''"),
        (":Part", "Empty module name"),
        ("./raises.py:Part", "no luck today"),
        ("./wrong.py:Part", r"'\(' was never closed"),
        ("./needs.py:Part", "No module named 'nosuchpackage'"),
    ],
)
def test_why_a_part_cannot_be_loaded_is_said_in_a_sentence(
    write: Write, name: str, why: str
) -> None:
    write("part.py", "class Part: pass")
    write("raises.py", "raise RuntimeError('no luck today')")
    write("wrong.py", "class Part(")
    write("needs.py", "import nosuchpackage")
    with pytest.raises(BadInput, match=rf"^scheme '.*' cannot be imported: .*{why}.*\.$") as caught:
        imported(name, "scheme")
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        ("number", r"must be a subclass of bouquet\.Scheme, not 7\.$"),
        ("Other", r"must be a subclass of bouquet\.Scheme, not <class"),
        ("instance", r"must be a subclass of bouquet\.Scheme, not FedAlt\("),
        ("Nameless", r"must have a name of its own, .*not ''\.$"),
        ("Copy", r"must have a name of its own, .*not 'fedalt'\.$"),
        ("Taken", r"must have a name of its own, .*not 'data'\.$"),
        ("Later", r"must have a name of its own, .*not 'stage2'\.$"),
        ("Odd", r"must have a name of its own, .*not 'my scheme'\.$"),
        ("Bare", r"must be made a dataclass, with @dataclass\(frozen=True\), to have keys\.$"),
    ],
)
def test_what_is_no_scheme_is_refused_with_a_sentence(
    write: Write, part: str, sentence: str
) -> None:
    write(
        "part.py",
        """
        from bouquet.core.config import key
        from bouquet.core.scheme import Scheme
        from bouquet.strategies.fedalt import FedAlt

        number, instance = 7, FedAlt()

        class Other: pass
        class Nameless(Scheme): pass
        class Taken(FedAlt): name = "data"
        class Later(FedAlt): name = "stage2"
        class Odd(FedAlt): name = "my scheme"
        class Copy(FedAlt): pass
        class Bare(FedAlt):
            name = "bare"
            share: float = key(0.5, "a key")
        """,
    )
    with pytest.raises(BadInput, match=rf"^scheme './part.py:{part}' {sentence}"):
        find(f"./part.py:{part}")


def test_our_schemes_are_found_by_name_and_by_path() -> None:
    for name, kind in SCHEMES.items():
        assert find(name) is kind
        assert find(f"{kind.__module__}:{kind.__name__}") is kind


def test_an_unknown_scheme_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadInput, match=r"^scheme must be one of fedavg, .* not 'fedfoo'\.$"):
        find("fedfoo")


# A scheme of the user's own

GENTLE = """
    from dataclasses import dataclass
    from bouquet.core.config import key
    from bouquet.core.trees import mix
    from bouquet.strategies.fedalt import FedAlt

    @dataclass(frozen=True)
    class Gentle(FedAlt):
        name = "gentle"
        share: float = key(0.5, "part of its way that v goes", low=0.0, high=1.0)

        def local_update(self, work, payload, personal):
            upload, new = super().local_update(work, payload, personal)
            before = self.start(work, payload, personal).v
            return upload, new._replace(v=mix(new.v, before, self.share))
"""
SMALL: dict[str, Any] = {
    "local_steps": 3,
    "store": "disk",
    "data": {"clients": 4, "partition": "dirichlet"},
    "model": {"hidden": 8, "layers": 1},
}
GENTLY = "./gentle.py:Gentle"


@pytest.fixture
def gentle(write: Write) -> None:
    write("gentle.py", GENTLE)


@pytest.mark.usefixtures("gentle")
def test_a_scheme_of_ones_own_runs_with_its_keys_under_its_name(start: Start) -> None:
    """All of its way is FedAlt; half of it ends half way between the start and FedAlt's end."""
    keys: dict[str, Any] = {"rounds": 1, **SMALL}
    plain = start(scheme="fedalt", fedalt={"personal_lr": 0.2}, **keys)
    none, half, whole = (
        start(scheme=GENTLY, gentle={"share": share, "personal_lr": 0.2}, **keys)
        for share in (0.0, 0.5, 1.0)
    )
    assert none.sha == half.sha == whole.sha == plain.sha
    assert whole.clients == plain.clients
    for name, end in plain.personal("000").items():
        begin = none.personal("000")[name]
        assert (begin != end).any()
        np.testing.assert_allclose(half.personal("000")[name], (begin + end) / 2, atol=1e-6)
    assert "share = 0.5" in (half.path / "config.toml").read_text()


@pytest.mark.usefixtures("gentle")
def test_a_scheme_of_ones_own_goes_on_where_it_stopped(start: Start) -> None:
    keys: dict[str, Any] = {"scheme": GENTLY, "clients_per_round": 2, **SMALL}
    whole = start(rounds=4, **keys)
    half = start(rounds=2, **keys)
    resumed = start(rounds=4, folder=half.path, resume=True, **keys)
    assert (resumed.sha, resumed.clients) == (whole.sha, whole.clients)


@pytest.mark.usefixtures("gentle")
def test_a_scheme_of_ones_own_is_a_stage_of_a_pipeline(start: Start) -> None:
    """It starts at FedAvg's weights, and tuning goes on from the v it leaves."""

    def run(stage: str, **keys: float) -> Run:
        told = {"pipeline": f"fedavg:1 {stage}:2 finetune:1"} | kebab(SMALL)
        return start(settings=parse(told | {f"stage2.{name}": v for name, v in keys.items()}))

    plain, gently = run("fedalt"), run(GENTLY, **{"gentle.share": 1.0})
    assert (gently.sha, gently.clients) == (plain.sha, plain.clients)
    assert run(GENTLY).clients != plain.clients
    assert [event["stage"] for event in gently.events] == ["fedavg", "gentle", "gentle", "finetune"]


@pytest.mark.usefixtures("gentle")
@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"gentle.share": 2.0}, r"^gentle\.share must be .* 1.*, not 2"),
        ({"gentle.share": "much"}, r"^gentle\.share must be a number"),
        ({"gentle.shaer": 0.5}, r"^Unknown key gentle\.shaer: did you mean gentle\.share"),
        ({"gentle.share": 0.5, "scheme": "fedalt"}, r"^Unknown key gentle\.share"),
        ({"pipeline": f"fedavg:1 {GENTLY}:x"}, r"^pipeline must be stages"),
        ({"pipeline": f"fedavg:1 {GENTLY}:1", "stage2.gentle.share": 2.0}, r"^gentle\.share must"),
        ({"pipeline": "fedavg:1 ./gentle.py:Gone:1"}, r"^scheme './gentle\.py:Gone' cannot be"),
    ],
)
def test_wrong_keys_of_a_scheme_of_ones_own_are_refused(
    keys: dict[str, object], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        parse({"scheme": GENTLY} | keys)


def test_two_schemes_of_one_name_are_refused(write: Write) -> None:
    write("gentle.py", GENTLE)
    write("other.py", GENTLE)
    parse({"pipeline": f"{GENTLY}:1 gentle.py:Gentle:1"})  # one scheme, however it is called
    with pytest.raises(BadInput, match=r"^scheme './other.py:Gentle' .*another is called 'gentle'"):
        parse({"pipeline": f"{GENTLY}:1 ./other.py:Gentle:1"})
