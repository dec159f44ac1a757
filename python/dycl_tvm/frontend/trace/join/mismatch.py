# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which values could not be made one by a join, at the header of a loop, or between two calls: messages name all of them."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.places import MISSING, Attribute, Contents, Place, space_of
from dycl_tvm.frontend.trace.join.captured import Captured, Items, NumberLeaf, PlaceState, Plain, TensorLeaf, is_container
from dycl_tvm.frontend.trace.join.poison import Poison, Why, of_poison
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.storage import Stale

#: What a variable is on a side that does not set it.
NOT_SET = "not set"
_MOST_LINES = 10
_MOST_DECISIONS = 3
_LONGEST = 40
_LONGEST_CHOICE = 200
_SHOWN = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device)


class Mismatches:
    """The values that cannot be one, at one place; ``str`` lists them.

    Parameters
    ----------
    heading : str
        What is listed.
    sides : tuple of str
        When a value is what it is on each side, if there are two and it can be said.
    decisions : iterable of Decision
        Where the sides part.
    unset : str
        What is said of a value that is not set on all sides, if it is something else than of others.
    """

    def __init__(self, heading: str, sides: tuple[str, ...] = (), decisions: Iterable[Any] = (), unset: str = "") -> None:
        self._heading, self._sides, self._unset = heading, sides, unset
        self._decisions = list(decisions)
        self._before: dict[int, Mismatches] = {}
        self._found: dict[str, str] = {}

    def add(self, name: Name, found: Sequence[str], verb: str = "is", unset: bool = False) -> Why:
        """Take down a value, with what it is on each side; return what is to be said of it."""
        either = " or ".join(dict.fromkeys(found))
        text = " and ".join(f"{what} {side}" for what, side in zip(found, self._sides)) if self._sides else either
        self._found.setdefault(str(name), text)
        reason = f"{name} {verb} {text if self._sides else f'{either}, depending on the path'}"
        is_ = either if len(either) <= _LONGEST_CHOICE else Why.is_  # joined again and again, texts would double
        return Why(f"{name} {self._unset}" if unset and self._unset else reason, is_, unset, self)

    def parted_before(self, other: Any) -> None:
        """Note that paths that meet here have met before, as values that could not be one there."""
        if isinstance(other, Mismatches):
            self._before[id(other)] = other

    def _all_decisions(self) -> list[Any]:
        """Return where the sides part, and where those parted that met before; these may have met in many ways."""
        found, todo, seen = list[Any](), [self], set[int]()
        while todo:
            one = todo.pop()
            if id(one) not in seen:
                seen.add(id(one))
                found += one._decisions
                todo += reversed(one._before.values())
        return found

    def __str__(self) -> str:
        if not self._found:
            return ""
        values = [f"    {name}: {text}" for name, text in self._found.items()]
        return "\n".join([self._heading, *_places(self._all_decisions()), *_shortened(values, _MOST_LINES)])


def between_paths(decisions: Iterable[Any], sides: tuple[str, ...] = ()) -> Mismatches:
    """What differs between paths that are joined."""
    return Mismatches("These values differ between the paths that part at", sides, decisions, "is set on one path only, and used later")


def between_trips(loop: Any) -> Mismatches:
    """What changes its type from one trip of a loop to the next."""
    return Mismatches("These values change their type or their items in the loop at", ("before the loop's body", "after it"), [loop])


def between_calls() -> Mismatches:
    """What changes its type from one call of the model to the next."""
    return Mismatches("These values change their type or their items from call to call:", ("before the first call", "after it"))


class Name:
    """The name of a value, as the user would write it; its text is made when it is wanted.

    Parameters
    ----------
    of : str or Place
        Such as ```x``` or ``the value returned``; a place of the heap is called as the variable or attribute that has it.
    label : str
        Which item of it.
    """

    __slots__ = ("_label", "_of")

    def __init__(self, of: str | Place, label: str = "") -> None:
        self._of, self._label = of, label

    def item(self, label: str) -> Name:
        """Return the name of an item."""
        return Name(self._of, self._label + label)

    @property
    def variable(self) -> str:
        """The name of a variable or attribute; nothing if it is none."""
        name = (self._of if isinstance(self._of, str) else self._of.text).strip("`")
        return name if name.isidentifier() and not self._label else ""

    @property
    def plain(self) -> str:
        """The name without the marks of code."""
        return str(self).strip("`")

    def __str__(self) -> str:
        name = self._of if isinstance(self._of, str) else _name_of(self._of)
        if not self._label:
            return name
        return f"{name[:-1]}{self._label}`" if name.endswith("`") else f"{self._label} of {name}"


def label_of(container: Items, i: int) -> str:
    """Return how an item is written after its container's name."""
    if not is_container(container.obj):
        return f".{container.keys[i]}"
    fields = getattr(container.obj, "_fields", None) if isinstance(container.obj, tuple) else None
    return f".{fields[i]}" if fields else f"[{_key(container.keys[i])}]" if container.keys else f"[{i}]"


def _name_of(place: Place) -> str:
    """Return the name of a place of the heap; for what a container holds, that of a variable or attribute which has the container."""
    if not place.text.startswith("a "):
        return place.text
    frame, left = inspect.currentframe(), 3
    while frame is not None and left:
        if not frame.f_globals.get("__name__", "").startswith("dycl_tvm."):
            left -= 1
            found = _name_in(frame.f_locals, place.owner)
            if found is not None:
                return f"`{found}`"
        frame = frame.f_back
    return place.text


def _name_in(variables: Mapping[str, Any], x: Any) -> str | None:
    direct = next((name for name, value in variables.items() if value is x), None)
    if direct is not None:
        return direct
    for name, value in variables.items():
        for attribute, held in (space_of(value) or {}).items():
            if held is x:
                return f"{name}.{attribute}"
    return None


def sides_of(found: Sequence[Captured | None]) -> list[str]:
    """Say what a value is on each side; None where it is not set."""
    texts: list[str] = []
    first: dict[str, Any] = {}
    for c in found:
        text = NOT_SET if c is None else describe(c)
        if isinstance(c, Plain) and not isinstance(c.obj, Poison) and first.setdefault(text, c.obj) is not c.obj:
            text = f"another {type(c.obj).__name__}"
        texts.append(text)
    return texts


def sides_of_contents(found: Sequence[PlaceState]) -> list[str]:
    """Say what a container holds on each side."""
    texts = [_contents(state) for state in found]
    if len(set(texts)) > 1:
        return texts
    return [texts[0] if state.structure == found[0].structure else "other ones" for state in found]


def verb_of(place: Place) -> str:
    """Return the verb that goes with what :func:`sides_of_contents` says."""
    return "is" if isinstance(place, Attribute) else "holds"


def _contents(state: PlaceState) -> str:
    if isinstance(state.place.owner, dict):
        return _keys([k for k, _ in state.raw])
    if isinstance(state.place, Attribute):
        return describe(state.items[0]) if state.items else NOT_SET
    return _counted(len(state.items)) if isinstance(state.place, Contents) else "its contents"


def describe(c: Captured) -> str:
    """Say what kind of value something is."""
    if isinstance(c.obj, Grown):
        return c.obj.described()
    if isinstance(c, TensorLeaf):
        text = f"a tensor {list(c.obj.shape)} of {str(c.obj.dtype).removeprefix('torch.')}"
        text += " marked as a conjugate" * c.obj.is_conj() + " marked as negative" * c.obj.is_neg()
        return f"{text} that may have been changed in place under another name" if isinstance(c.value, Stale) else text
    if isinstance(c, NumberLeaf):
        mixed = scalars.mixed_of(c.obj)
        return mixed.types if mixed else f"a number ({scalars._kind(c.operand)})"
    if isinstance(c, Items):
        kind = type(c.obj).__name__
        return f"a {kind} with {_keys(c.keys)}" if isinstance(c.obj, dict) else f"a {kind} of {_counted(len(c.items))}"
    if c.obj is MISSING:
        return NOT_SET
    if isinstance(c.obj, Poison):
        return of_poison(c.obj).is_
    if type(c.obj) in _SHOWN:
        return _short(repr(c.obj))
    return f"the class {c.obj.__name__}" if isinstance(c.obj, type) else f"a {type(c.obj).__name__}"


def _counted(n: int) -> str:
    return f"{n} item" if n == 1 else f"{n} items"


def _keys(keys: Sequence[Any]) -> str:
    return f"the key{'s'[: len(keys) > 1]} {_short(', '.join(map(_key, keys)))}" if keys else "no keys"


def _key(key: Any) -> str:
    """Return the text of a dict's key, without running code of the user's."""
    return repr(key) if type(key) in _SHOWN else f"a {type(key).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _places(decisions: Sequence[Any]) -> list[str]:
    """Say where decisions stand, with the columns of the file."""
    lines: dict[str, None] = {}
    for decision in decisions:
        origin = decision.origin
        if origin is not None:
            source = linecache.getline(origin.file, origin.line)
            column = len(source) - len(source.lstrip()) + origin.column + 1
            where = f" in {origin.function}" if origin.function else ""
            lines[f'  File "{origin.file}", line {origin.line}, column {column}{where}: {origin.code}'] = None
    return _shortened(list(lines), _MOST_DECISIONS)


def _shortened(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"    and {len(lines) - most + 1} more"]
