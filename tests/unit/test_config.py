"""What is accepted as a configuration, and what a user is told when it is not."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings as checked
from hypothesis import strategies as st

from bouquet.core.config import LARGEST, Key, flatten, key, keys_of, read, refuse_unknown, write
from bouquet.core.errors import BadInput
from bouquet.data import DATASETS
from bouquet.settings import all_keys, parse
from bouquet.strategies import SCHEMES


@dataclass(frozen=True)
class Example:
    """A config with a key of every kind."""

    count: int = key(3, "how many", low=1, high=9)
    step_size: float = key(0.5, "how far", low=0.0, open_low=True)
    keen: bool = key(False, "whether to hurry")
    mode: str = key("fast", "how", choices=("fast", "slow"))
    note: str = key("", "any text")
    strength: float = key(1.0, "how strong", name="lambda", high=2.0)


def refusal(name: str, value: object) -> str:
    """What is said about a value that is refused."""
    with pytest.raises(BadInput) as refused:
        read(Example, {f"some.{name}": value}, "some")
    return str(refused.value)


# Typed configs


def test_a_key_goes_by_its_prefix_and_its_kebab_case_name() -> None:
    names = [one.name for one in keys_of(Example, "some")]
    assert names == [
        "some.count",
        "some.step-size",
        "some.keen",
        "some.mode",
        "some.note",
        "some.lambda",
    ]
    assert read(Example, {"some.step-size": 2.0}, "some") == Example(step_size=2.0)
    assert read(Example, {"some.lambda": 2.0}, "some") == Example(strength=2.0)


def test_what_is_not_set_keeps_its_default_and_other_keys_are_left_alone() -> None:
    assert read(Example, {"count": 4, "other.mode": "odd"}, "some") == Example()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("count", "4", "some.count must be a whole number from 1 to 9, not '4'."),
        ("count", 4.0, "some.count must be a whole number from 1 to 9, not 4.0."),
        ("count", True, "some.count must be a whole number from 1 to 9, not True."),
        ("count", [4], "some.count must be a whole number from 1 to 9, not [4]."),
        ("count", 0, "some.count must be a whole number from 1 to 9, not 0."),
        ("count", 10, "some.count must be a whole number from 1 to 9, not 10."),
        ("step-size", "0.1", "some.step-size must be a number above 0, not '0.1'."),
        ("step-size", True, "some.step-size must be a number above 0, not True."),
        ("step-size", 0.0, "some.step-size must be a number above 0, not 0.0."),
        ("step-size", 0, "some.step-size must be a number above 0, not 0."),
        ("step-size", 2e9, "some.step-size must be at most 1e+09, not 2000000000.0."),
        ("step-size", math.nan, "some.step-size must be a number above 0, not nan."),
        ("step-size", math.inf, "some.step-size must be a number above 0, not inf."),
        ("lambda", 2.5, "some.lambda must be a number of at most 2, not 2.5."),
        ("lambda", -math.inf, "some.lambda must be a number of at most 2, not -inf."),
        ("keen", 1, "some.keen must be true or false, not 1."),
        ("keen", "true", "some.keen must be true or false, not 'true'."),
        ("mode", "slack", "some.mode must be one of 'fast', 'slow', not 'slack'."),
        ("mode", 1, "some.mode must be one of 'fast', 'slow', not 1."),
        ("note", 1, "some.note must be text, not 1."),
    ],
)
def test_a_wrong_value_is_refused_with_the_key_and_what_is_allowed(
    name: str, value: object, said: str
) -> None:
    assert refusal(name, value) == said


@pytest.mark.parametrize(("name", "value"), [("count", 1), ("count", 9), ("lambda", 2.0)])
def test_the_ends_of_a_closed_range_are_allowed(name: str, value: object) -> None:
    assert value in dataclasses.astuple(read(Example, {f"some.{name}": value}, "some"))


def test_a_whole_number_will_do_where_a_number_belongs_and_becomes_one() -> None:
    step_size = read(Example, {"step-size": 2}).step_size
    assert step_size == 2.0
    assert isinstance(step_size, float)


@pytest.mark.parametrize("name", ["count", "step-size"])
def test_a_number_too_large_for_any_float_is_refused_like_any_other(name: str) -> None:
    assert refusal(name, 10**400).startswith(f"some.{name} must be ")


# What a file can hold and be called.
WRITABLE = st.characters(codec="utf-8", exclude_characters="\0")
examples = st.builds(
    Example,
    count=st.integers(1, 9),
    step_size=st.floats(0, exclude_min=True, max_value=LARGEST),
    keen=st.booleans(),
    mode=st.sampled_from(["fast", "slow"]),
    note=st.text(WRITABLE),
    strength=st.floats(max_value=2, allow_infinity=False),
)


@checked(deadline=None)
@given(examples, st.sampled_from(["", "some"]))
def test_what_is_written_reads_back_the_same(config: Example, prefix: str) -> None:
    assert read(Example, write(config, prefix), prefix) == config


@pytest.mark.parametrize("word", ["a\0b", "\udcff"])
def test_text_that_no_file_can_hold_is_refused(word: str) -> None:
    """The second is what Python makes of a byte on the command line that is not UTF-8."""
    with pytest.raises(BadInput, match="out must be text, not"):
        parse({"out": word})


# Unknown keys and tables


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ruonds", "did you mean rounds? "),
        ("alpha", "did you mean apfl.alpha or plsgd.alpha? "),
        ("local.lambda", "did you mean ditto.lambda? "),
        ("zzz", ""),
    ],
)
def test_an_unknown_key_is_refused_with_those_like_it(name: str, hint: str) -> None:
    known = ["seed", "rounds", "lr", "apfl.alpha", "plsgd.alpha", "ditto.lambda"]
    with pytest.raises(BadInput) as refused:
        refuse_unknown(["rounds", name], known)
    assert str(refused.value) == f"Unknown key {name}: {hint}`bouquet keys` lists all there are."


def test_tables_flatten_to_dotted_keys_however_deep() -> None:
    tables = {"lr": 1, "apfl": {"alpha": 0.5, "deep": {"er": True}}, "empty": {}}
    assert flatten(tables) == {"lr": 1, "apfl.alpha": 0.5, "apfl.deep.er": True}


# A run's settings


def test_what_the_user_does_not_set_has_its_documented_default() -> None:
    defaults = {one.name: one.default for one in all_keys()}
    chosen = {"model.name": DATASETS["digits"].model, "metric": "accuracy"}
    assert parse({}).flat() == defaults | chosen


def test_local_epochs_take_the_place_of_the_default_local_steps() -> None:
    run = parse({"local-epochs": 3}).run
    assert (run.local_steps, run.local_epochs) == (0, 3)


def test_local_steps_and_local_epochs_cannot_both_be_set() -> None:
    with pytest.raises(BadInput, match=r"local-steps or local-epochs, not both: they are 7 and 3"):
        parse({"local-steps": 7, "local-epochs": 3})


def test_a_round_without_local_work_is_refused() -> None:
    with pytest.raises(BadInput, match="local-steps and local-epochs are both 0"):
        parse({"local-steps": 0})


@pytest.mark.parametrize("name", list(DATASETS))
def test_the_data_set_chooses_the_model_unless_the_user_does(name: str) -> None:
    assert parse({"data.name": name}).model.name == DATASETS[name].model
    assert parse({"data.name": name, "model.name": "cnn"}).model.name == "cnn"


@pytest.mark.parametrize(("scheme", "own"), [("fedavg", "examples"), ("apfl", "uniform")])
def test_uploads_are_weighted_as_the_scheme_has_it_unless_the_user_says(
    scheme: str, own: str
) -> None:
    assert parse({"scheme": scheme}).weights == own
    for said in ("uniform", "examples"):
        assert parse({"scheme": scheme, "weights": said}).weights == said


def values_of(one: Key) -> st.SearchStrategy[object]:
    """Values that a key allows."""
    if one.name == "scheme":
        return st.sampled_from(list(SCHEMES))
    if one.name == "device":
        return st.sampled_from(["auto", "cpu", "cuda", "cuda:1"])
    if one.choices:
        return st.sampled_from(one.choices)
    if one.kind is int:
        return st.integers(max(1, int(one.low)), int(min(one.high, 10**6)))
    if one.kind is float:
        high = min(one.high, 1e6)
        return st.floats(max(one.low, -1e6), high, exclude_min=one.open_low)
    return st.booleans() if one.kind is bool else st.text(WRITABLE, min_size=1)


# These go together or with some schemes only, which has tests of its own.
PARTICULAR = {"local-epochs", "weights", "server-optimizer", "server-lr", "join.clients"}
PARTICULAR |= {"pipeline", "stage-keys", "lr-schedule", "warmup", "weight-decay"}
PARTICULAR |= {"decoupled-weight-decay", "amp", "optimizer", "lr-decay-per-step", "statistics"}
PARTICULAR |= {"metric", "loss", "save-outcomes", "evaluate-on", "aggregation", "max-update-norm"}
PARTICULAR |= {"validation", "validation-folds", "validation-fold", "apfl.predict-steps"}
any_keys = st.fixed_dictionaries(
    {}, optional={one.name: values_of(one) for one in all_keys() if one.name not in PARTICULAR}
)


@checked(deadline=None)
@given(any_keys)
def test_settings_written_flat_parse_back_to_the_same(values: dict[str, object]) -> None:
    settings = parse(values)
    assert parse(settings.flat()) == settings
    assert {name: settings.flat()[name] for name in values} == values


def test_settings_with_local_epochs_parse_back_to_the_same() -> None:
    settings = parse({"local-epochs": 2})
    assert parse(settings.flat()) == settings


def test_equal_settings_are_one_key_of_a_cache() -> None:
    assert len({parse({}), parse({"lr": 0.1}), parse({"lr": 0.2})}) == 2


def test_an_unknown_key_of_a_scheme_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadInput, match=r"^Unknown key apfl\.alhpa: did you mean apfl\.alpha "):
        parse({"apfl.alhpa": 0.5})


def test_the_run_itself_can_be_changed_without_touching_the_rest() -> None:
    before = parse({"seed": 4, "apfl.alpha": 0.1})
    after = before.with_run(rounds=7)
    assert after.flat() == before.flat() | {"rounds": 7}
    assert before.run.rounds == parse({}).run.rounds
