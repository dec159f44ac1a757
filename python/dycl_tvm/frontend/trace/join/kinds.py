# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Values of one of several kinds, of which numbers of the run tell which: None or a state, a text that names the mode at hand.

Such a value has a flag for each kind, and for each kind a value of its own, which is of use where the flag holds. It goes through joins
and the headers of loops as other values do. Using it parts the paths, by its flags, right behind the place at which the paths met that
made it: so there are as many paths behind that place as there are kinds, however many ways lead there.
"""

from __future__ import annotations

import enum
import types
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.decisions import Decision
from dycl_tvm.frontend.trace.join.captured import (
    Alternatives,
    Captured,
    Items,
    NumberLeaf,
    OfKinds,
    PathState,
    Plain,
    TensorLeaf,
    adopt,
    is_immutable,
    same_number,
    same_plain,
    same_structure,
)
from dycl_tvm.frontend.trace.join.poison import Poison, Why, filled, of_poison
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aligned import dims_of
from dycl_tvm.frontend.trace.values.folding import made_once
from dycl_tvm.frontend.trace.values.grown import Grown, is_alike
from dycl_tvm.frontend.trace.values.layouts import marks_of
from dycl_tvm.frontend.trace.values.storage import DTYPES, Stale, tensor_type
from dycl_tvm.hcfg.nodes import Operand, Origin, Value
from dycl_tvm.hcfg.types import ScalarType, TensorType, Type

#: So many kinds may one value be of, each a way of its own from where the value is used; and so many that are tensors, tuples and so on.
_MOST, _MOST_OF_A_TYPE = 8, 3
#: What paths bring, kind by kind: the number of the path, its flag of the kind, and the value there.
Groups = list[list[tuple[int, Operand, Captured]]]
_EMPTY = {"int": 0, "float": 0.0, "bool": False}


class OneOf(Poison, OfKinds):
    """Stands for such a value.

    Parameters
    ----------
    decision : object
        What parts the paths if it is used.
    why : Why
    kinds : list of (Operand, object)
        For each kind the flag that says whether it is that one, and what it is then.
    """

    __slots__ = ("_kinds",)

    def __init__(self, decision: Any, why: Why, kinds: list[tuple[Operand, Any]]) -> None:
        super().__init__(decision, why)
        object.__setattr__(self, "_kinds", kinds)


def kinds_of(x: OneOf) -> list[tuple[Operand, Any]]:
    """Return the flags and values of the kinds that a value may be of."""
    kinds: list[tuple[Operand, Any]] = object.__getattribute__(x, "_kinds")
    return kinds


def alternatives(c: Captured) -> list[tuple[Operand, Captured]]:
    """Return the kinds that a captured value may be of."""
    return c.kinds if isinstance(c, Alternatives) else [(True, c)]


def is_kind(c: Captured) -> bool:
    """Whether a captured value can be one kind beside others: no object of which a path knows what it holds."""
    if isinstance(c, Items):
        return all(map(is_kind, c.items))
    if isinstance(c, TensorLeaf):
        return not isinstance(c.value, Stale)
    if isinstance(c, NumberLeaf):
        return scalars.mixed_of(c.obj) is None
    return isinstance(c, Plain) and (is_immutable(c.obj) or _is_name(c.obj))


def _is_name(x: Any) -> bool:
    """Whether an object that the program had before the call says what to do: a state of a machine, a step, a sentinel."""
    if isinstance(x, types.MethodType):
        return isinstance(x.__func__, types.FunctionType) and not _is_made_now(x.__func__) and not _is_made_now(x.__self__)
    return type(x) is object or (isinstance(x, (enum.Enum, types.FunctionType)) and not _is_made_now(x))


def _is_made_now(x: Any) -> bool:
    heap = current().heap
    return heap.is_newer(x, heap.run_started)


def are_one_kind(a: Captured, b: Captured) -> bool:
    """Whether one value can stand for two."""
    if isinstance(a, Items) and isinstance(b, Items):
        return same_structure(a, b) and all(are_one_kind(x, y) for x, y in zip(a.items, b.items))
    if isinstance(a, TensorLeaf) and isinstance(b, TensorLeaf):
        return _alike(a.obj, b.obj)
    if isinstance(a, NumberLeaf) and isinstance(b, NumberLeaf):
        return scalars._kind(a.operand) == scalars._kind(b.operand)
    return isinstance(a, Plain) and isinstance(b, Plain) and (a.obj is b.obj or same_plain([a.obj, b.obj]))


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    if isinstance(a, Grown) or isinstance(b, Grown):
        return is_alike(a, b, dims_of([a, b])) and not any((*marks_of(a), *marks_of(b)))
    return tensor_type(a) == tensor_type(b) and marks_of(a) == marks_of(b)


def by_kind(found: Sequence[Captured]) -> Groups | None:
    """Return what values of several paths are, kind by kind; None if they are not of a few kinds."""
    groups: Groups = []
    for path, c in enumerate(found):
        for flag, one in alternatives(c):
            if not is_kind(one):
                return None
            group = next((g for g in groups if are_one_kind(g[0][2], one)), None)
            if group is None:
                groups.append(group := [])
            elif group[-1][0] == path:
                return None
            group.append((path, flag, one))
    return groups if len(groups) > 1 and are_few([group[0][2] for group in groups]) else None


def are_few(kinds: Sequence[Captured]) -> bool:
    """Whether one value may be of so many kinds: what grows in every trip of a loop would be of ever more."""
    of_types = Counter(type(c.obj) for c in kinds if not isinstance(c, Plain))
    return len(kinds) <= _MOST and all(n <= _MOST_OF_A_TYPE for n in of_types.values())


def placeholder(type_: Type) -> Operand:
    """Return what stands where a value is of no use: zeros."""
    if isinstance(type_, TensorType):
        return made_once(("placeholder", type_), lambda: torch.zeros(type_.shape, dtype=DTYPES[type_.dtype]))
    assert isinstance(type_, ScalarType)
    return _EMPTY[type_.kind]


def is_older(c: Captured, since: int) -> bool:
    """Whether an object that can be changed was there before the paths began: it is the same on all, and places say what it holds."""
    return isinstance(c, (TensorLeaf, Items)) and not isinstance(c.obj, tuple) and not current().heap.is_newer(c.obj, since)


class Settled:
    """Which kinds values are of where paths have met, as far as the run at hand was started with that.

    Parameters
    ----------
    found : iterable of OneOf
        In the order in which they were made.
    origin : Origin or None
        What is to be said of where paths part; else the place at hand.
    """

    def __init__(self, found: Iterable[OneOf], origin: Origin | None = None) -> None:
        self._origin = origin
        self._answers: dict[int, bool] = {}
        self._decisions: dict[int, Decision] = {}
        self._known = {id(x): (x, self._settle(x)) for x in found}

    def __call__(self, x: Any) -> Any:
        """Return what a value is."""
        return self._known[id(x)][1] if id(x) in self._known else x

    def changes(self, values: Iterable[Any]) -> bool:
        """Whether one of some values is among them."""
        return any(id(x) in self._known for x in values)

    def _settle(self, x: OneOf) -> Any:
        left = kinds_of(x)
        while True:
            left = [kind for kind in left if self._answer(kind[0]) is not False] or left[-1:]
            sure = [value for flag, value in left if self._answer(flag)]
            if sure or len(left) == 1:
                return sure[0] if sure else left[0][1]
            flag = left[0][0]
            assert isinstance(flag, Value)
            found = self._decisions.get(id(flag))
            if found is None:
                answer = current().decisions.of_kind(flag, self._origin)
                if isinstance(answer, bool):
                    self._note(kinds_of(x), flag, answer)
                    continue
                found = self._decisions[id(flag)] = answer
            return OneOf(found.target, of_poison(x), left)

    def _answer(self, flag: Operand) -> bool | None:
        return self._answers.get(id(flag)) if isinstance(flag, Value) else flag  # type: ignore[return-value]  # a flag is a bool

    def told(self, columns: Iterable[tuple[Value, Sequence[Operand]]]) -> dict[int, Operand]:
        """Return the parameters of the block where paths have met that are one constant on all paths that are of the kinds settled.

        Of each parameter it is given what each path brings. A flag that a loop tests often changes together with a kind.
        """
        known = [(self._answers[id(param)], brought) for param, brought in columns if id(param) in self._answers]
        told: dict[int, Operand] = {}
        for param, brought in columns if known else ():
            left = [x for i, x in enumerate(brought) if all(isinstance(b[i], Value) or b[i] is answer for answer, b in known)]
            is_constant = bool(left) and not isinstance(left[0], Value)
            if is_constant and all(same_number(NumberLeaf(None, x), NumberLeaf(None, left[0])) for x in left):
                told[id(param)] = left[0]
        return told

    def _note(self, kinds: list[tuple[Operand, Any]], flag: Value, answer: bool) -> None:
        """Note whether a flag of a value holds: exactly one of them does."""
        self._answers[id(flag)] = answer
        if answer:
            self._answers.update({id(other): False for other, _ in kinds if other is not flag})


def renewed(x: Any) -> Any:
    """Return a value whose paths part where the program is now, if they cannot part any more where the value was made."""
    if type(x) is not OneOf or not current().decisions.is_rolled(object.__getattribute__(x, "_decision")):
        return x
    return OneOf(object.__getattribute__(x, "_decision"), of_poison(x), kinds_of(x))


def go_on(path: PathState) -> tuple[dict[str, Any], Any]:
    """Go on with one path alone; return its variables and value."""
    env, value = adopt(path)
    found = [*env.values(), value, *[c.obj for state in path.places.values() for c in state.items]]
    made = {id(x): again for x in found if (again := renewed(x)) is not x}
    if not made:
        return env, value
    settled = Settled(made.values())

    def new(x: Any) -> Any:
        return settled(made.get(id(x), x))

    for state in path.places.values():
        if any(id(c.obj) in made for c in state.items):
            state.place.write(filled(state.place, state.raw, [new(c.obj) for c in state.items]))
    return {name: new(x) for name, x in env.items()}, new(value)
