# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The recorder: every ATen operation of the user's program passes here and becomes a step of the HCFG.

Operations on constants only are computed at once. All others are run on meta tensors for shape and strides, made functional
(see :mod:`.tensors`), and recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dycl_tvm.hcfg.checks  # noqa: F401  (its operators become PyTorch's)
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import apart, current
from dycl_tvm.frontend.trace.unrecorded import plainly, unrecorded
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.about_operators import About, about_operator
from dycl_tvm.frontend.trace.values.arguments import key_of, leaves, map_leaves, map_tensors, opname, sorted_leaves, tensors_of
from dycl_tvm.frontend.trace.values.blame import as_in_eager, check_types, of_program
from dycl_tvm.frontend.trace.values.complex_numbers import refuse_complex
from dycl_tvm.frontend.trace.values.composed import cast, composition_of, without_masks
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.folding import (
    FILLS,
    FOLD_LIMIT,
    absorbed,
    constant_of,
    full,
    is_empty,
    name_of_folded,
    without_elements,
)
from dycl_tvm.frontend.trace.values.grown import Grown, refuse_grown, refuse_lengths
from dycl_tvm.frontend.trace.values.identity import are_one
from dycl_tvm.frontend.trace.values.in_place import check_in_place, functional_twin
from dycl_tvm.frontend.trace.values.layouts import QUESTIONS, layouts_of, marks_of, meta_of, result_by_layouts, with_marks
from dycl_tvm.frontend.trace.values.missing import added_result, without_result
from dycl_tvm.frontend.trace.values.random import draw, draws_nothing, is_random
from dycl_tvm.frontend.trace.values.ranges import RANGED, ranges_of
from dycl_tvm.frontend.trace.values.real_memory import memory_key
from dycl_tvm.frontend.trace.values.result_types import DECIDES, FACTORS, RESULTS, result_of, scalar_dtype, type_of_product
from dycl_tvm.frontend.trace.values.storage import DTYPE_NAMES, check_shape_undoable, may_be_one, tensor_type
from dycl_tvm.frontend.trace.values.strided import as_strided
from dycl_tvm.frontend.trace.values.tensors import (
    StagedTensor,
    as_constant,
    emit_one,
    fresh_like,
    home,
    read,
    storage_of,
    view_of,
    write,
)
from dycl_tvm.hcfg.nodes import Constant, Value
from dycl_tvm.hcfg.types import TensorType

aten = torch.ops.aten


class Known:
    """What a session knows of results: what operations on constants give, shapes by operation, and ranges of integers."""

    def __init__(self) -> None:
        self.folded: dict[Any, Any] = {}
        self.metas: dict[Any, Any] = {}
        self._types: dict[int, tuple[torch.Tensor, TensorType]] = {}
        #: By their ids, constants that follow from ``x.new_zeros(...)`` and the like, where a variable begins; how often a truth did.
        self.fills: dict[int, Constant] = {}
        self.truths_of_fills = 0

    def type_of(self, meta: torch.Tensor) -> TensorType:
        """Return the type of a result's shape, which is mostly one of those known."""
        known = self._types.get(id(meta))
        if known is None:
            known = self._types[id(meta)] = (meta, tensor_type(meta))
        return known[1]


def truths_of_fills() -> int:
    """Return how often a tensor was asked for its truth so far that follows from what ``x.new_zeros(...)`` and the like give."""
    return current().get(Known).truths_of_fills


def known_bounds() -> dict[Value, tuple[int, int]]:
    """Return between which numbers results of operators lie that are positions, or count."""
    return elements().given


class _Recording:
    # Not in Recorder itself: PyTorch wraps a mode's own method so that its first call imports torch._dynamo, which takes a second.
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled():  # it makes tensors that can be views of no others
            with torch.inference_mode(False):
                return dispatch(func, tuple(args), dict(kwargs or {}))
        return dispatch(func, tuple(args), dict(kwargs or {}))


class Recorder(_Recording, TorchDispatchMode):
    """Records ATen operations into the session under way."""


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record one ATen operation and return tensors for the user's program."""
    if current().growing:
        if func is aten.dim.default and isinstance(args[0], Grown):  # PyTorch asks for it to find out which overload is called
            return args[0].dim_()
        refuse_grown(func, args, kwargs)
    about = about_operator(func)
    if about.special:
        if func is aten._local_scalar_dense.default:
            return item(args[0])
        if func is aten.equal.default:
            return equal(*args)
        if func is aten.lift_fresh.default and not isinstance(args[0], StagedTensor) and constants().is_shared(args[0]):
            return args[0]  # made of an array
        name = about.name
        if name in QUESTIONS:
            layouts = layouts_of(args[0])
            return func(*args, **kwargs) if layouts is None else layouts.answer(lambda t: func(t, *args[1:], **kwargs), args[0])
        if is_random(func):
            bound = _bind(func, args, kwargs)
            if not draws_nothing(func, bound):
                return _draw(func, args, kwargs, bound)
    if kwargs:
        _check_device(func, kwargs)
    tensors, others = sorted_leaves(args, kwargs)
    if others and any(map(scalars.is_symbolic, others)):
        func, args, kwargs = _lower_scalars(func, args, kwargs, tensors)
        about, tensors = about_operator(func), tensors_of(args, kwargs)
    if about.fills:
        filled = _filled(func, args, kwargs)
        if filled is not None:
            return filled
    if about.indexes:
        args = (args[0], without_masks(dispatch, args[1]), *args[2:])
        tensors = tensors_of(args, kwargs)
    if about.written:
        return _in_place(func, args, kwargs, list(about.written.values()), list(about.written))
    if about.splits:
        return _multi_view(func, args, kwargs)
    if about.views and args and isinstance(args[0], torch.Tensor):
        return _view(func, args, kwargs, tensors)
    several = composition_of(func, args, kwargs) if about.composed else None
    if several is not None:
        return several(dispatch, *args, **kwargs)
    return _functional(about, args, kwargs, tensors)


def _draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bound: dict[str, Any]) -> Any:
    """Record an operator that draws random numbers."""
    refuse_lengths(leaves(list(bound.values())), "a size")
    _check_device(func, kwargs)
    if 0 in about_operator(func).written:
        check_in_place(func, args, {k: v for k, v in kwargs.items() if k != "generator"}, args[0])
    return draw(dispatch, _meta_result, func, bound)


def _filled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a constant that takes nothing of a tensor but its shape and type; None if it would be too large to keep."""
    meta = _meta_result(func, args, kwargs)
    if meta.numel() > FOLD_LIMIT:
        return None
    number = FILLS[func._opname]
    made = full(meta, number if number is not None else _bind(func, args, kwargs)["fill_value"])
    current().get(Known).fills[id(made)] = made
    return fresh_like(meta, made)


# -- functional operations ---------------------------------------------------------------------------------------------
def _functional(about: About, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
    func = about.func
    values = [read(t) if t.numel() else without_elements(read(t)) for t in tensors]
    constants = [v for v in values if isinstance(v, Constant)]
    if len(constants) == len(values) and not about.keeps:
        folded = _fold(func, args, kwargs, constants)
        if folded is not None:
            return folded
    metas = _meta_result(func, args, kwargs, tensors)
    if is_empty(metas):
        return map_tensors(lambda m: fresh_like(m, full(m, 0)), metas)
    decided = absorbed(func, args, values, metas)
    if decided is not None:
        return fresh_like(metas, decided)
    one = isinstance(metas, torch.Tensor)
    parts = [metas] if one else leaves(metas)
    if not one and func._opname not in _OF_TYPES and any(isinstance(part, (bool, int, float)) for part in parts):
        raise UnsupportedError(
            f"{func._opname}() gives a Python number that depends on the values of its input", current().origin(), "use item() of a tensor"
        )
    session = current()
    outputs = session.builder.repeated(about.op, values)
    if outputs is None:
        type_of = session.get(Known).type_of
        types = [type_of(m) if isinstance(m, torch.Tensor) else None for m in parts]
        operands = iter(values)
        hargs = map_tensors(lambda _: next(operands), args)
        hkwargs = map_tensors(lambda _: next(operands), kwargs) if kwargs else {}
        outputs = session.builder.tensor_op(about.op, hargs, hkwargs, types, values)
    if about.ranged:
        _note_bounds(about, args, kwargs, outputs)
    if one:
        made = fresh_like(metas, outputs[0])  # type: ignore[arg-type]  # it has a type
        if func is aten.eq.Tensor and all(isinstance(t, StagedTensor) and t.identity is not None for t in args):
            made.compared = args  # type: ignore[assignment]  # two tensors
        return made
    results = iter(outputs)
    return map_leaves(lambda m: m if (v := next(results)) is None else fresh_like(m, v), metas)


#: Operators that give numbers which follow from the types of their operands.
_OF_TYPES = frozenset(
    ["dim", "is_same_size", "numel", "size", "storage_offset", "stride", "sym_numel", "sym_size", "sym_storage_offset", "sym_stride"]
)


def _note_bounds(about: About, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: tuple[Value | None, ...]) -> None:
    """Note between which numbers positions and counts lie, so that indexing with them needs no check."""
    if args[0].dtype.is_floating_point and RANGED[about.name] is None:
        return
    known = known_bounds()
    for which, found in ranges_of(about.name, _bind(about.func, args, kwargs), args[0], known.get(read(args[0]))).items():
        if which < len(outputs) and (output := outputs[which]) is not None:
            known[output] = found


def _fold(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], constants: list[Constant]) -> Any:
    """Compute an operation on constants; None if the result would be too large to keep."""
    about = current().get(Known)
    folded = about.folded
    key = (func, torch.get_default_dtype(), tuple(id(c) for c in constants), key_of(args), key_of(kwargs))
    known = folded.get(key)
    if known is None:
        try:
            metas = _meta_result(func, args, kwargs)
        except UnsupportedError:
            metas = None
        size = sum(m.numel() for m in tensors_of(metas))
        if size > max(FOLD_LIMIT, sum(c.data.numel() for c in constants)):
            return None
        with unrecorded():
            data = iter(constants)
            result = func(*map_tensors(lambda _: next(data).data, args), **map_tensors(lambda _: next(data).data, kwargs))
            if metas is None:
                metas = map_tensors(lambda t: meta_of(tuple(t.shape), t.stride(), t.dtype), result)
            name = name_of_folded(constants)
            kept = [_Kept(m, constant_of(t, name)) if isinstance(t, torch.Tensor) else t for m, t in zip(leaves(metas), leaves(result))]
            if any(id(c) in about.fills for c in constants):
                about.fills.update({id(k.constant): k.constant for k in kept if isinstance(k, _Kept)})
            rest = iter(kept)
            known = folded[key] = (map_leaves(lambda _: next(rest), result), constants)
    return map_leaves(lambda k: fresh_like(k.meta, k.constant) if isinstance(k, _Kept) else k, known[0])


@dataclass
class _Kept:
    """A computed tensor: its strides, and what it holds."""

    meta: torch.Tensor
    constant: Constant


def _meta_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor] | None = None) -> Any:
    """Run an operation on meta tensors; ``tensors`` are those among its arguments, where they are known."""
    tensors = tensors_of(args, kwargs) if tensors is None else tensors
    ambiguous = [found for found in map(layouts_of, tensors) if found is not None]
    if ambiguous:
        return result_by_layouts(lambda a, k: _meta_result(func, a, k), args, kwargs, ambiguous)
    about, metas = about_operator(func), current().get(Known).metas
    key = (about.op, torch.get_default_dtype(), key_of(args), key_of(kwargs) if kwargs else None)
    known = RESULTS.get(key, metas.get(key))
    if known is None:
        check_types(func, args, kwargs)
        results = RESULTS if about.builtin else metas
        with plainly():
            margs, mkwargs = map_leaves(_on_meta, args), map_leaves(_on_meta, kwargs)
            if not tensors and any(a.name == "device" for a in func._schema.arguments):
                mkwargs["device"] = torch.device("meta")
            try:
                with apart():
                    known = result_of(func, margs, mkwargs)
            except (NotImplementedError, torch._subclasses.fake_tensor.DataDependentOutputException) as error:  # type: ignore[attr-defined]
                with apart():
                    known, results = added_result(func, margs, mkwargs), metas  # users say what it gives
                if known is None:
                    raise without_result(func, isinstance(error, NotImplementedError)) from error
            except TypeError as error:
                raise as_in_eager(error, func, args, kwargs) from error
        results[key] = known
    return known


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        made = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device="meta")
        return with_marks(made, *marks_of(leaf))
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


# -- views and in-place operations ---------------------------------------------------------------------------------
def _view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
    base = args[0]
    if func._opname == "as_strided":
        return as_strided(base, *args[1:], **kwargs)
    if func._opname == "view_as_complex" and base.storage_offset() % 2:  # what has no memory has no offset either
        raise of_program(RuntimeError("Tensor must have a storage_offset divisible by 2"))
    if not isinstance(base, StagedTensor):
        memory = memory_key(base)
        if constants().written_storage(base, memory) is None and all(t is base or as_constant(t) is not None for t in tensors):
            return _constant_view(func, base, memory, args, kwargs)
    meta = _meta_result(func, args, kwargs, tensors)
    source, known = read(base), current().get(Known)
    value = emit_one(func, (source, *args[1:]), known.type_of(meta), kwargs)
    bounds = known_bounds().get(source)
    if bounds is not None and meta.dtype == base.dtype:
        known_bounds()[value] = bounds
    storage, chain = home(base)
    offset = int(base.storage_offset() * base.dtype.itemsize // meta.dtype.itemsize + meta.storage_offset())
    view = StagedTensor(meta, storage, (*chain, (func, args[1:], kwargs)), value, offset)
    return view if func._opname == "detach" else view_of(base, view)


def _constant_view(func: Any, base: torch.Tensor, memory: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """View a weight. The result is a constant; writing to it would change the weight, which is refused."""
    result = _fold(func, args, kwargs, [constants().of(base, memory)])
    if result is None:
        meta = _meta_result(func, args, kwargs)
        result = fresh_like(meta, emit_one(func, (read(base), *args[1:]), tensor_type(meta), kwargs))
    try:
        storage, chain = home(base)
    except UnsupportedError:  # an unusual view of the model's: nothing is lost unless its memory is changed
        may_be_one(result.storage_, storage_of(base), _Unusual())
        return result
    result.chain = (*chain, (func, args[1:], kwargs))
    result.storage_ = storage
    result._cached = (storage.version, result._cached[1])
    return result if func._opname == "detach" else view_of(base, result)


class _Unusual:
    """In the place of a decision: a view of the model's memory that cannot be written through."""

    def refuse(self, reason: str, others: object = "") -> None:
        """Refuse to read what may have been changed."""
        raise UnsupportedError(reason, current().origin(), "give the tensor memory of its own: t = t.clone()")


def _multi_view(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Take split, chunk and unbind apart into slices and selects, which can be written through."""
    base = args[0]
    bound = _bind(func, args, kwargs)
    dim = bound.get("dim", 0) % max(base.dim(), 1)
    if func._opname == "unbind":
        return [dispatch(aten.select.int, (base, dim, i), {}) for i in range(base.shape[dim])]
    metas = _meta_result(func, args, kwargs)
    parts, start = [], 0
    for meta in metas:
        parts.append(dispatch(aten.slice.Tensor, (base, dim, start, start + meta.shape[dim]), {}))
        start += meta.shape[dim]
    return parts


def _bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in func._schema.arguments]
    return {**dict(zip(names, args)), **kwargs}


def _in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str], positions: list[int]) -> Any:
    """Run the functional form of an in-place operator and write its result."""
    bound = _bind(func, args, kwargs)
    name = opname(func)
    if names == ["out"]:
        out = bound.pop("out")
        check_in_place(func, args, kwargs, out)
        result = _anew(func, bound)
        _store(out, result)
        return out
    if len(positions) != 1 or positions[0] != 0:
        raise UnsupportedError(
            f"{name}() changes more than one tensor in place", current().origin(), "use the form that returns new tensors"
        )
    target = args[0]
    if name not in _METADATA_CHANGES:
        check_in_place(func, args, kwargs, target)
    if name in ("copy_", "fill_", "zero_"):
        if name == "copy_":
            source = args[1]
        elif name == "zero_":
            source = dispatch(aten.full.default, ([], 0), {"dtype": target.dtype})
        else:
            source = args[1] if isinstance(args[1], torch.Tensor) else dispatch(aten.full.default, ([], args[1]), {"dtype": target.dtype})
        source = _cast(source, target.dtype)
        if tuple(source.shape) != tuple(target.shape):
            source = dispatch(aten.clone.default, (dispatch(aten.expand.default, (source, list(target.shape)), {}),), {})
        write(target, read(source))
        return target
    if name in _METADATA_CHANGES and isinstance(target, StagedTensor):
        return _change_metadata(func, target, args[1:], kwargs)
    if name in ("set_", "resize_", "resize_as_", "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_"):
        raise UnsupportedError(
            f"{name}() changes a tensor's shape or memory in place", current().origin(), f"use {name.rstrip('_')}() and assign the result"
        )
    result = _anew(func, bound)
    _store(target, result)
    return target


def _anew(func: Any, bound: dict[str, Any]) -> Any:
    """Record the functional form of an in-place operator, which may take its arguments in another order."""
    twin = functional_twin(func)
    found = [a for a in twin._schema.arguments if a.name in bound]
    positional = tuple(bound[a.name] for a in found if not a.kwarg_only)
    return dispatch(twin, positional, {a.name: bound[a.name] for a in found if a.kwarg_only})


#: In-place operators that change only the shape of the tensor object, and the views that do the same.
_METADATA_CHANGES = {"as_strided_", "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"}


def _change_metadata(func: Any, target: StagedTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Change the shape of a tensor object in place: it becomes the view that the functional operator gives."""
    packet = getattr(aten, func._opname.rstrip("_"))
    twin = next(getattr(packet, o) for o in (func._overloadname, "int", "default") if o in packet.overloads())
    view = dispatch(twin, (target, *args), kwargs)
    if target.layouts is not None:
        target.layouts.settle()
    check_shape_undoable(target.storage_)
    with torch._C._DisableTorchDispatch():
        func(target, *args, **kwargs)
    target.chain, target._cached = view.chain, view._cached
    return target


def _store(target: torch.Tensor, result: torch.Tensor) -> None:
    write(target, read(_cast(result, target.dtype)))


def _cast(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return cast(dispatch, t, dtype)  # type: ignore[no-any-return]


# -- host scalars ------------------------------------------------------------------------------------------------------
def item(t: torch.Tensor, text: str | None = None) -> Any:
    """Return the one element of a tensor as a number (plain if the tensor is a constant); ``text`` is that of the ``item``."""
    constant = as_constant(t)
    if constant is not None:
        with unrecorded():
            return constant.data.item()
    if t.numel() != 1:
        raise of_program(RuntimeError(f"a Tensor with {t.numel()} elements cannot be converted to Scalar"))
    if t.dtype.is_complex:
        refuse_complex()
    kind = "float" if t.dtype.is_floating_point else "bool" if t.dtype == torch.bool else "int"
    value = read(t)
    number = scalars.emit("item", value, type_=scalars.ScalarType(kind), text=text)  # type: ignore[arg-type]
    if kind == "int":
        number.node.bounds, number.node.base = elements().of(value), elements().base_of(value)
    return number


def equal(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Return whether two tensors have the same shape and elements: a bool, or a number of the run."""
    if a.shape != b.shape:
        return False
    return item(dispatch(aten.all.default, (dispatch(aten.eq.Tensor, (a, b), {}),), {}))


def truth_of(x: Any) -> Any:
    """Return the truth of a tensor or number: a bool, or an operand of type bool."""
    if isinstance(x, torch.Tensor) and x.numel() == 0:
        return bool(torch.empty(tuple(x.shape), device="meta"))
    if isinstance(x, StagedTensor) and x.compared is not None:
        are_one(*x.compared)  # a container that compares its items asks whether they are one before
    if isinstance(x, torch.Tensor) and x.numel() != 1:
        raise of_program(RuntimeError("Boolean value of Tensor with more than one value is ambiguous"))
    if isinstance(x, StagedTensor) and x.dtype.is_complex:
        x = x != 0
    number = item(x) if isinstance(x, torch.Tensor) else x
    known = current().get(Known)
    if known.fills and isinstance(x, StagedTensor) and id(as_constant(x)) in known.fills:
        known.truths_of_fills += 1
    return scalars.truth_operand(number) if scalars.is_symbolic(number) else bool(number)


def to_tensor(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a rank-0 tensor of a number."""
    operand = scalars.operand_of(x)
    if not isinstance(operand, Value):
        made: torch.Tensor = dispatch(aten.full.default, ([], operand), {"dtype": dtype})
        return made
    value = current().builder.host_op("to_tensor", (operand,), TensorType((), DTYPE_NAMES[dtype]))
    return fresh_like(torch.empty((), dtype=dtype, device="meta"), value)


def within(x: torch.Tensor, low: int, high: int, message: str) -> torch.Tensor:
    """Return a tensor of integers as it is; a call in which an element is not from ``low`` to ``high`` ends in a RuntimeError."""
    made: torch.Tensor = dispatch(torch.ops.dycl_check.within.default, (x, low, high, message), {})
    return made


#: Types of arguments that are tensors.
_TENSORS = ("Tensor", "Optional[Tensor]")


def _lower_scalars(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Replace host scalars among the arguments by rank-0 tensors, choosing the overload that takes tensors."""
    name = opname(func)
    if name in ("full", "full_like", "scalar_tensor", "new_full"):
        return _full(func, args, kwargs)
    check_types(func, args, kwargs)
    declared = {a.name: str(a.type) for a in func._schema.arguments}
    bound = _bind(func, args, kwargs)
    replaced = {}
    for key, value in bound.items():
        if scalars.is_symbolic(value) and declared[key] in (*_TENSORS, "number", "Optional[number]"):
            replaced[key] = to_tensor(value, scalar_dtype(value, tensors))
            if (
                func is aten.pow.Tensor_Scalar and key == "exponent" and not replaced[key].dtype.is_floating_point
            ):  # a tensor of them may hold any
                replaced[key] = within(replaced[key], 0, 2**63 - 1, "Integers to negative integer powers are not allowed.")
        elif any(scalars.is_symbolic(v) for v in leaves(value)):
            refuse_lengths(leaves(value), "a size")
            raise UnsupportedError(
                f"{name}() takes `{key}` as a number fixed at build time, but here it is known only at run time",
                current().origin(),
                "keep shapes and dimensions static; index with a tensor (torch.index_select) instead of a number",
            )
    if all(declared[k] in _TENSORS for k in replaced):
        return (func, *_positional(func, {**bound, **replaced}))
    packet = getattr(aten, name, None)
    wanted = {k for k in bound if bound[k] is not None}
    for overload in packet.overloads() if packet is not None else ():
        twin = getattr(packet, overload)
        types = {a.name: str(a.type) for a in twin._schema.arguments}
        if "out" in types or not wanted <= set(types):
            continue
        if all(types[k] in _TENSORS for k in replaced):
            others = {
                k: (to_tensor(v, scalar_dtype(v, tensors)) if types[k] in _TENSORS and isinstance(v, (int, float)) else v)
                for k, v in bound.items()
            }
            return (twin, *_positional(twin, {**others, **replaced}))
    factor, operand = FACTORS.get(name.removesuffix("_"), ("", ""))
    result = type_of_product(bound[factor], tensors) if list(replaced) == [factor] and isinstance(bound[operand], torch.Tensor) else None
    if result is not None:
        scaled = dispatch(aten.mul.Tensor, (_cast(bound[operand], result), to_tensor(bound[factor], result)), {})
        return (func, *_positional(func, {k: v for k, v in {**bound, operand: scaled}.items() if k != factor}))
    refuse_lengths(leaves(list(bound.values())), "a number")
    raise UnsupportedError(
        f"{name}() takes a number fixed at build time, but here it is known only at run time", current().origin(), "use a tensor operand"
    )


def _full(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Fill a shape with a host scalar: expand a rank-0 tensor."""
    bound = _bind(func, args, kwargs)
    value = bound.get("fill_value", bound.get("s"))
    like = bound.get("self")
    shape = bound.get("size", list(like.shape) if like is not None else [])
    kind = scalars._kind(scalars.operand_of(value))
    default = like.dtype if like is not None else scalars.dtype_of(kind)
    if like is None and not bound.get("dtype"):
        scalars.refuse_mixed(scalars.mixed_of(value), DECIDES)
    filled = to_tensor(value, bound.get("dtype") or default)
    return aten.clone.default, (dispatch(aten.expand.default, (filled, list(shape)), {}),), {}


def _check_device(func: Any, kwargs: dict[str, Any]) -> None:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        raise UnsupportedError(
            f"{func._opname}() asks for the device {device} inside the forward",
            current().origin(),
            "build with the model and its inputs on the CPU; the target says where the artefact runs",
        )


def _positional(func: Any, bound: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give named arguments in the form in which ATen passes them: positional, unless keyword-only."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    missing = False
    for a in func._schema.arguments:
        if a.name not in bound:
            missing = True
        elif a.kwarg_only or missing:
            keyword[a.name] = bound[a.name]
        else:
            positional.append(bound[a.name])
    return tuple(positional), keyword
