# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Bounds of the elements of whole-number tensors that hold whatever the inputs are, kept from operation to operation of a run.

An answer for such an element stays within them: no input gives another. They are found forwards, from what a run does, and share nothing
with what staging concludes from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

Bounds = tuple[int, int]
Of = Callable[[Any], "Bounds | None"]


class Named(Protocol):
    """An operator, by its name without the underscore of one in place."""

    name: str
    overload: str


class Memories:
    """Between which numbers lies all that was ever written to a memory, as long as that is known; and to which the inputs wrote."""

    def __init__(self) -> None:
        self._bounds: dict[int, Bounds] = {}
        self._free: set[int] = set()

    def is_free(self, t: torch.Tensor) -> bool:
        """Whether anything was written to a memory in which the inputs have a part."""
        return _memory(t) in self._free

    def new(self, t: torch.Tensor) -> None:
        """Note that a tensor has a memory to which nothing was written yet; one that is given back may be given again."""
        self._free.discard(_memory(t))

    def freed(self, t: torch.Tensor) -> None:
        """Note that something was written to a tensor in which the inputs have a part."""
        self._free.add(_memory(t))

    def of(self, t: torch.Tensor) -> Bounds | None:
        """Return what a memory may hold."""
        return self._bounds.get(_memory(t))

    def made(self, t: torch.Tensor, bounds: Bounds | None) -> None:
        """Note what a tensor with a memory of its own holds."""
        if bounds is None:
            self._bounds.pop(_memory(t), None)
        else:
            self._bounds[_memory(t)] = bounds

    def written(self, t: torch.Tensor, bounds: Bounds | None) -> Bounds | None:
        """Note what may be in a tensor from now on, beside what was; return both."""
        before = self.of(t)
        both = None if before is None or bounds is None else (min(before[0], bounds[0]), max(before[1], bounds[1]))
        self.made(t, both)
        return both


def _memory(t: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(t.untyped_storage()._cdata)


def is_whole(t: torch.Tensor) -> bool:
    """Whether a tensor holds integers."""
    return t.dtype in _LIMITS


def contents(t: torch.Tensor) -> Bounds | None:
    """Return the bounds of a tensor that is no matter of the inputs: those of what it holds."""
    if not is_whole(t) or not t.numel():
        return None
    with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
        return int(t.min()), int(t.max())


def result(operator: Named, args: Any, kwargs: Any, of: Of, dtype: torch.dtype) -> Bounds | None:
    """Return bounds of what an operator gives that moves, chooses or computes elements; None if there are none."""
    if operator.name in ("multinomial", "randperm"):  # positions, that are drawn
        return 0, (args[0] if isinstance(args[0], int) else args[0].shape[-1]) - 1
    rule = _RULES.get(operator.name)
    limits = _LIMITS.get(dtype)
    if rule is None or limits is None or not args:
        return None

    def fitting(found: Bounds | None) -> Bounds | None:
        return found if found is not None and limits.min <= found[0] and found[1] <= limits.max else None

    return fitting(rule(operator, args, kwargs, lambda x: fitting(of(x))))  # operands are converted first, and may wrap round


_LIMITS = {t: torch.iinfo(t) for t in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)}


def _around(found: Iterable[Bounds | None]) -> Bounds | None:
    known = list(found)
    if not known or any(b is None for b in known):
        return None
    return min(b[0] for b in known if b), max(b[1] for b in known if b)


def _elements(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    return None if op.overload == "dtype" else of(args[0])


def _any(*places: int) -> Any:
    def rule(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
        given = [args[p] for p in places if p < len(args)]
        given = [x for g in given for x in (g if isinstance(g, (list, tuple)) else [g])]
        # one without elements gives none
        return _around([of(x) for x in given if not (isinstance(x, torch.Tensor) and not x.numel())])

    return rule


def _extreme(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    return _around([of(x) for x in args[:2] if isinstance(x, torch.Tensor)])


def _written(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    changes = kwargs or any(x not in (None, False) for x in args[3:])
    return None if changes else _around([of(args[0]), of(args[2])])


def _scattered(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    return None if kwargs or len(args) != 4 else _around([of(args[0]), of(args[3])])


def _padded(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    return _around([of(args[0]), of(args[2] if len(args) > 2 else 0)])


def _corners(compute: Callable[[int, int], int]) -> Any:
    def rule(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
        a, b = (of(x) for x in args[:2]) if len(args) == 2 and not kwargs else (None, None)
        if a is None or b is None:
            return None
        found = [compute(x, y) for x in a for y in b]
        return min(found), max(found)

    return rule


def _one(compute: Callable[[Bounds], Bounds]) -> Any:
    def rule(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
        a = of(args[0])
        return None if a is None else compute(a)

    return rule


def _remainder(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    a, b = of(args[0]), of(args[1])
    if b is None or b[0] <= 0:
        return None
    return a if a is not None and a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


def _quotient(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    if op.name == "div" and kwargs != {"rounding_mode": "floor"}:
        return None
    a, b = of(args[0]), of(args[1])
    if a is None or b is None or b[0] <= 0:
        return None
    found = [x // y for x in a for y in b]
    return min(found), max(found)


def _and(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    known = [of(x) for x in args[:2]]
    if any(x is None for x in known):
        return None
    highs = [b[1] for b in known if b is not None and b[0] >= 0]
    return (0, min(highs)) if highs else None


def _clamped(op: Named, args: Any, kwargs: Any, of: Of) -> Bounds | None:
    given = [args[k] if k < len(args) else kwargs.get(n) for k, n in ((1, "min"), (2, "max"))]
    if op.name == "clamp_max":
        given = [None, args[1]]
    if not all(x is None or (isinstance(x, int) and of(x)) for x in given):
        return None
    known = of(args[0]) or (-(2**63), 2**63 - 1)
    low, high = [x if x is not None else end for x, end in zip(given, (-(2**63), 2**63 - 1))]
    found = min(max(known[0], low), high), min(max(known[1], low), high)
    return found if of(args[0]) or None not in given else None


_MOVING = (
    "alias clone contiguous detach diagonal expand flip gather index index_select lift_fresh permute repeat reshape roll select slice "
    "squeeze t transpose unfold unsqueeze view _unsafe_view _to_copy amax amin sort topk cummax cummin unbind split split_with_sizes "
    "flatten _reshape_alias"
)
_RULES: dict[str, Any] = {
    **dict.fromkeys(_MOVING.split(), _elements),
    "cat": _any(0),
    "stack": _any(0),
    **dict.fromkeys(["maximum", "minimum"], _any(0, 1)),
    "where": _any(1, 2),
    **dict.fromkeys(["masked_fill", "masked_scatter"], _any(0, 2)),
    **dict.fromkeys(["index_copy", "index_fill"], _any(0, 3)),
    **dict.fromkeys(["copy", "fill"], _any(1)),
    **dict.fromkeys(["slice_scatter", "select_scatter", "diagonal_scatter"], _any(0, 1)),
    "zero": lambda op, args, kwargs, of: (0, 0),
    "constant_pad_nd": _padded,
    "scatter": _scattered,
    **dict.fromkeys(["index_put", "_unsafe_index_put", "_index_put_impl"], _written),
    **dict.fromkeys(["max", "min"], _extreme),
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "rsub": _corners(lambda x, y: y - x),
    "mul": _corners(lambda x, y: x * y),
    "neg": _one(lambda a: (-a[1], -a[0])),
    "abs": _one(lambda a: (0 if a[0] <= 0 <= a[1] else min(map(abs, a)), max(map(abs, a)))),
    "remainder": _remainder,
    **dict.fromkeys(["floor_divide", "div"], _quotient),
    "bitwise_and": _and,
    **dict.fromkeys(["clamp", "clamp_min", "clamp_max"], _clamped),
}
