# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Values of an ONNX graph while it is staged.

A tensor known at build time is an ordinary ``torch.Tensor``; one known at run time is a fake tensor with a :class:`Symbol`. A sequence is
a Python list, an optional without an element is None. So sequences and optionals cost nothing at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import Block, Origin, Value
from dycl_tvm.hcfg.types import ITEM_BYTES, TensorType

#: A tensor, a list of data (a sequence), or None (an optional without an element, an output that is not there).
Datum = Any

DTYPE_NAMES = {getattr(torch, name): name for name in ITEM_BYTES}

#: What a value depends on: ``("input", name)``, ``("merge", where)`` (a join of an If) or ``("loop", where)`` (the state of a rolled loop).
Cause = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Symbol:
    """What a run-time tensor stands for: its value in the HCFG, and what that depends on."""

    value: Value
    causes: frozenset[Cause]


class NeedsValue(UnsupportedError):
    """A value must be known when the network is built, because a shape or the structure follows from it.

    Attributes
    ----------
    causes : frozenset
        What the value depends on.
    """

    def __init__(self, reason: str, origin: Origin | None, causes: frozenset[Cause], suggestion: str = "") -> None:
        self.causes = causes
        super().__init__(reason, origin, suggestion)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the model that would have to be fixed by ``input_values``."""
        return tuple(sorted(name for kind, name in self.causes if kind == "input"))


@dataclass
class Outcome:
    """One way through a graph: the block in which it ends, and the values that it gives there.

    Attributes
    ----------
    own : dict
        What names of graphs around it stand for on this way only; others share an environment.
    group : object or None
        Outcomes of one group may be joined later; one without a group goes its own way to the end.
    """

    block: Block
    values: list[Datum]
    own: dict[str, Datum] = field(default_factory=dict)
    group: object | None = None


def is_runtime(x: Any) -> bool:
    """Whether a value is a tensor known only at run time."""
    return isinstance(x, FakeTensor)


def symbol(x: torch.Tensor) -> Symbol:
    """Return what a run-time tensor stands for."""
    found: Symbol = x._dycl  # type: ignore[attr-defined]  # set by the recorder
    return found


def causes_of(*data: Datum) -> frozenset[Cause]:
    """Return what data depend on."""
    found: set[Cause] = set()
    for x in data:
        for leaf in leaves(x):
            if is_runtime(leaf):
                found |= symbol(leaf).causes
    return frozenset(found)


def leaves(x: Datum) -> Iterator[torch.Tensor]:
    """Yield the tensors of a datum, in order."""
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from leaves(item)


def rebuild(x: Datum, tensors: Iterator[torch.Tensor]) -> Datum:
    """Return a datum of the structure of ``x`` with other tensors."""
    if isinstance(x, torch.Tensor):
        return next(tensors)
    if isinstance(x, list):
        return [rebuild(item, tensors) for item in x]
    return x


def signature(x: Datum) -> Any:
    """Return what two data must share so that one can stand for both: structure, shapes and dtypes."""
    if isinstance(x, torch.Tensor):
        return (tuple(x.shape), x.dtype)
    if isinstance(x, (list, tuple)):
        return ("sequence", *(signature(item) for item in x))
    return ("none",)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are surely equal: the same run-time value, or equal constants."""
    if a is b:
        return True
    if is_runtime(a) or is_runtime(b):
        return is_runtime(a) and is_runtime(b) and symbol(a).value is symbol(b).value and a.shape == b.shape
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a, b))


def tensor_type(t: torch.Tensor, origin: Origin | None = None) -> TensorType:
    """Return the HCFG type of a tensor.

    Raises
    ------
    UnsupportedError
        If artefacts have no tensors of that dtype.
    """
    name = DTYPE_NAMES.get(t.dtype)
    if name is None:
        raise UnsupportedError(
            f"a tensor of {str(t.dtype).removeprefix('torch.')} that is known only at run time",
            origin,
            f"use one of {', '.join(ITEM_BYTES)}; other types are supported where they are constant",
        )
    return TensorType(tuple(int(s) for s in t.shape), name)


def describe(data: Sequence[Datum]) -> str:
    """Return the types of data for messages."""
    return ", ".join(_describe(x) for x in data)


def _describe(x: Datum) -> str:
    if isinstance(x, torch.Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return f"a sequence of {len(x)}" if isinstance(x, list) else "nothing"
