# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What eager refuses of an operator that changes a tensor in place: other dtypes, other shapes, memory that overlaps.

The operator itself says so: it is run on real memory of the same shapes, strides, dtypes and aliases, filled with one number. What it
raises there is the program's own error.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.bounded import Bounded
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import same_random_numbers, unrecorded
from dycl_tvm.frontend.trace.values.arguments import key_of, map_leaves, map_tensors, opname, tensors_of
from dycl_tvm.frontend.trace.values.layouts import layouts_of, meta_of, strides_of
from dycl_tvm.frontend.trace.values.result_types import is_plain
from dycl_tvm.frontend.trace.values.tensors import SELECT_AT, StagedTensor, storage_of

#: What has more elements than this is tried on the device ``meta``, which does not see overlaps.
_ELEMENTS = 1 << 22


#: What was tried and raised nothing, of PyTorch's own operators: it is the same in every session.
_tried = Bounded[Any, None](1 << 15)


def check_in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: torch.Tensor) -> None:
    """Raise what eager raises if an operator may not write its result to ``target``, one of its arguments."""
    session = current()
    tensors = tensors_of(args, kwargs)
    unsettled = [_is_read_alone(t, tensors, target) for t in tensors]
    memory = [(-1 - i, 0) if any_strides else _memory(t, tensors) for i, (t, any_strides) in enumerate(zip(tensors, unsettled))]
    alike = torch.Tag.pointwise in func.tags and not any(unsettled) and _are_alike(tensors, memory)  # one element says as much as all
    given = [
        meta_of((1,) * t.dim() if alike else tuple(t.shape), None, t.dtype) if alike or any_strides else t
        for t, any_strides in zip(tensors, unsettled)
    ]
    key = (func, key_of(given), key_of(map_tensors(lambda t: ..., (args, kwargs))), tuple(memory))
    if key in _tried:
        return
    shape: Any = target.shape
    with unrecorded(), warnings.catch_warnings(), same_random_numbers():
        warnings.simplefilter("ignore")  # `out` of another shape
        errors: list[Exception] = []
        for fill in (1, 0):  # no divisor is 0, every index is within: what both numbers raise is not for the values' sake
            copies = _copies(tensors, given, memory, fill)
            try:
                func(*_with(copies, args), **_with(copies, kwargs))
                shape = shape if alike else copies[id(target)].shape
                break
            except NotImplementedError:  # the operator cannot be tried without its values
                break
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                if "not implemented for" in str(error):  # on this device; the target is another
                    break
                errors.append(error)
        else:
            errors[-1].__dycl_raised__ = True  # type: ignore[attr-defined]
            raise errors[-1]
        overlap = _reads_what_it_writes(tensors, memory, target)
    if shape != target.shape:
        raise UnsupportedError(
            f"{func._opname.rstrip('_')}() gives its tensor `out` another shape", session.origin(), "give `out` the shape of the result"
        )
    if overlap:
        raise UnsupportedError(
            f"{func._opname}() reads memory through one view and writes to it through another that overlaps",
            session.origin(),
            "copy what it reads: x[1:] += x[:-1].clone()",
        )
    if func.namespace == "aten":
        _tried[key] = None


def _is_read_alone(t: torch.Tensor, tensors: list[torch.Tensor], target: torch.Tensor) -> bool:
    """Whether the strides of a tensor depend on the path, and say nothing: its memory is its own, and no element is written twice.

    Those of others are settled.
    """
    layouts = layouts_of(t)
    if layouts is None:
        return False
    apart = t.dim() == 1 and all(stride > 0 for (stride,) in strides_of(t))  # no element is written twice
    if (t is not target or apart) and not any(storage_of(other) is storage_of(t) for other in tensors if other is not t):
        return True
    layouts.settle()
    return False


def _reads_what_it_writes(tensors: list[torch.Tensor], memory: list[tuple[int, int]], target: torch.Tensor) -> bool:
    """Whether another tensor overlaps with the one that is written to; eager's result then depends on the order of the elements."""
    home, offset = memory[next(i for i, t in enumerate(tensors) if t is target)]
    if any(where == home and t.dtype != target.dtype for t, (where, _) in zip(tensors, memory)):
        return True  # a part of a complex number, and the number itself
    others = [
        (t, at)
        for t, (where, at) in zip(tensors, memory)
        if where == home and t is not target and (at, t.shape, t.stride()) != (offset, target.shape, target.stride())
    ]
    if not others:
        return False
    written = torch.zeros(max(_end(t, at) for t, at in [*others, (target, offset)]), dtype=torch.bool)
    written.as_strided(target.shape, target.stride(), offset).fill_(True)
    return any(bool(written.as_strided(t.shape, t.stride(), at).any()) for t, at in others)


def _end(t: torch.Tensor, offset: int) -> int:
    """Return how much memory a tensor needs that begins at an offset."""
    return offset + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0


def _memory(t: torch.Tensor, tensors: list[torch.Tensor]) -> tuple[int, int]:
    """Return where a tensor lies: the number of the first of the tensors in its memory, and its offset there."""
    if isinstance(t, StagedTensor) and any(op is SELECT_AT for op, _, _ in t.chain):
        return -1 - next(i for i, other in enumerate(tensors) if other is t), 0  # its offset is known at run time only
    storage = storage_of(t)
    return next(i for i, other in enumerate(tensors) if storage_of(other) is storage), int(t.storage_offset())


def _are_alike(tensors: list[torch.Tensor], memory: list[tuple[int, int]]) -> bool:
    """Whether tensors have one shape, row by row, and each has its memory for itself."""
    return (
        len({t.shape for t in tensors}) == 1
        and len({id(t) for t in tensors}) == len({home for home, _ in memory})
        and all(map(is_plain, tensors))
    )


def _copies(tensors: list[torch.Tensor], shapes: list[torch.Tensor], memory: list[tuple[int, int]], fill: int) -> dict[int, torch.Tensor]:
    """Make tensors for each of those given, by their ids: of the shapes and strides of others, and in memory like those given."""
    device = "cpu" if sum(t.numel() for t in shapes) <= _ELEMENTS else "meta"
    extents: dict[int, int] = {}
    for t, (home, offset) in zip(shapes, memory):
        extents[home] = max(extents.get(home, 0), _end(t, offset))
    storages: dict[int, torch.Tensor] = {}
    copies = {}
    for t, like, (home, offset) in zip(tensors, shapes, memory):
        storage = storages.setdefault(home, torch.full((extents[home],), fill, dtype=t.dtype, device=device))
        copies[id(t)] = storage.as_strided(like.shape, like.stride(), offset)
    return copies


def _with(copies: dict[int, torch.Tensor], given: Any) -> Any:
    return map_leaves(lambda a: copies[id(a)] if isinstance(a, torch.Tensor) else a, given)


def functional_twin(func: Any) -> Any:
    """Return the operator that gives anew what another one writes to its first argument, or to ``out``.

    Raises
    ------
    UnsupportedError
        If there is none.
    """
    name, overload = opname(func), func._overloadname
    # Python's own are called otherwise: __ilshift__() writes what __lshift__() gives
    packet = getattr(torch.ops.aten, f"__{name[3:]}" if name.startswith("__i") else name.rstrip("_"), None)
    overloads = packet.overloads() if packet is not None else []
    same = [o for o in overloads if _parameters(getattr(packet, o)) == _parameters(func)]  # pow_.Scalar is pow.Tensor_Scalar
    for candidate in (*same, overload, overload.replace("out", "default"), overload.removesuffix("_out"), "default"):
        if candidate in overloads and not getattr(packet, candidate)._schema.is_mutable:
            return getattr(packet, candidate)
    raise UnsupportedError(
        f"the in-place operator {func} has no form that returns a new tensor", current().origin(), "assign the result to a new variable"
    )


@functools.cache
def _parameters(func: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
