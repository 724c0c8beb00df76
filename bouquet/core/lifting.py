"""What a function refers to, taken apart: tensors, which may change, and the rest.

A scheme's objective is a closure: it refers to the received weights, the client's own, the keys.
To record it once for all clients, its tensors must become inputs. ``Lifted`` finds them in whatever
the function holds on to, and makes the same function of other tensors.
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor

from bouquet.core.task import Task


class NotReplayable(Exception):
    """A step that cannot be recorded; it is taken as it is."""


class Same:
    """An object that stands for itself: equal to no other, however alike."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Watched:
    """Stands for an object while a step is recorded, and remembers what the step asked it for."""

    def __init__(self, value: Any, seen: dict[str, Any]) -> None:
        self.__dict__.update(_value=value, _seen=seen)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._value, name)
        if isinstance(found, (Tensor, list, tuple, dict)) or holds_tensors(found):
            raise NotReplayable(f"a step reads {name} of {type(self._value).__name__}")
        self._seen[name] = found
        return replace(found, initial=_Unread(found.initial)) if _has_kind(found) else found


class _Unread(dict[str, Any]):
    """The names of a task's weights without them: those of its like have other values."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))

    def _refuse(self, *words: object) -> Any:
        raise NotReplayable("a step reads where the weights start")

    __getitem__ = get = values = items = _refuse


def _has_kind(value: Any) -> bool:
    return isinstance(value, Task) and value.kind is not None


class Lifted:
    """A value and the tensors in it.

    Parameters
    ----------
    value : object
        Functions, records, trees, in any depth.

    Attributes
    ----------
    tensors : list of Tensor
        Those in it, in order.
    watched : list
        Objects with many parts, such as a client's work, of which only those count that a step
        asks for.
    key : tuple
        All the rest: two values with the same key differ in tensors and watched objects alone.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self.tensors: list[Tensor] = []
        self.watched: list[Any] = []
        self._tasks: list[Task] = []
        trail: list[Hashable] = []

        def note(found: Any) -> None:
            if isinstance(found, Task):
                self._tasks.append(found)
                found = (found.kind or Same(found), found.fixed_name)
            trail.append(found)

        def tensor(found: Tensor) -> Tensor:
            self.tensors.append(found)
            trail.append((found.shape, found.dtype, found.device))
            return found

        def watch(found: Any) -> Any:
            self.watched.append(found)
            return found

        try:
            _walk(value, tensor, watch, note)
        except (RecursionError, ValueError) as error:  # a function that refers to itself
            raise NotReplayable(str(error)) from error
        self.key = tuple(trail)

    def filled(self, tensors: Sequence[Tensor], seen: Sequence[dict[str, Any]]) -> Any:
        """The value with other tensors; what is asked of watched objects is written down."""
        left, notes = iter(tensors), iter(seen)
        return _walk(
            self._value, lambda _: next(left), lambda it: Watched(it, next(notes)), lambda _: None
        )

    def constants(self, seen: Sequence[dict[str, Any]]) -> list[Tensor]:
        """Tensors that never change, which a recording may hold on to: the key tells their values.

        ``seen`` is what was asked of watched objects, of which those that are tasks have some too.
        """
        found = [value for asked in seen for value in asked.values() if isinstance(value, Task)]
        return [value for task in (*self._tasks, *found) for value in task.fixed.values()]

    def answers(self, seen: Sequence[dict[str, Any]]) -> bool:
        """Whether the watched objects have what was asked of them."""
        return all(
            _equal(getattr(one, name), value)
            for one, asked in zip(self.watched, seen, strict=True)
            for name, value in asked.items()
        )


def _equal(one: Any, other: Any) -> bool:
    if _has_kind(one) and _has_kind(other):
        return bool(one.kind == other.kind) and one.fixed_name == other.fixed_name
    return one is other or (isinstance(one, (int, float, str, MethodType)) and one == other)


def holds_tensors(value: Any) -> bool:
    """Whether a frozen dataclass, such as a scheme, has tensors among its fields."""
    if not is_dataclass(value) or isinstance(value, (type, Task)):
        return False
    if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # who knows who else has it
        return False
    parts = [getattr(value, one.name) for one in fields(value)]
    return any(isinstance(part, Tensor) or holds_tensors(part) for part in parts)


def _walk(
    value: Any,
    tensor: Callable[[Tensor], Tensor],
    watch: Callable[[Any], Any],
    note: Callable[[Any], None],
) -> Any:
    """Go through a value in a fixed order and build it anew."""

    def all_of(parts: Sequence[Any]) -> Iterator[Any]:
        return (_walk(part, tensor, watch, note) for part in parts)

    match value:
        case Tensor():
            return tensor(value)
        case dict():
            note((dict, *value))
            return dict(zip(value, all_of(list(value.values())), strict=True))
        case list() | tuple():
            note((type(value), len(value)))
            parts = list(all_of(value))
            if isinstance(value, list):
                return parts
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        case FunctionType():
            note(value.__code__)
            defaults = _walk(value.__defaults__, tensor, watch, note)
            cells = [
                CellType(c) for c in all_of([c.cell_contents for c in value.__closure__ or ()])
            ]
            return FunctionType(
                value.__code__,
                value.__globals__,
                value.__name__,
                defaults,
                tuple(cells) or None,
            )
        case MethodType():
            note(value.__func__)
            return MethodType(value.__func__, _walk(value.__self__, tensor, watch, note))
        case functools.partial():
            args, words = all_of([value.func, (value.args, value.keywords)])
            return functools.partial(args, *words[0], **words[1])
        case Task():
            note(value)
            return value
    try:
        hash(value)
    except TypeError:
        if is_dataclass(value):
            note(Same(type(value)))
            return watch(value)
        value_key: Hashable = Same(value)
    else:
        if holds_tensors(value):  # a scheme whose numbers are those of many runs
            names = [one.name for one in fields(value) if one.init]
            note(Same(type(value)))
            inside = all_of([getattr(value, name) for name in names])
            return replace(value, **dict(zip(names, inside, strict=True)))
        value_key = value
    note((type(value), value_key))
    return value
