# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tensors of the staged program: metadata for PyTorch, an SSA value for the HCFG.

A :class:`StagedTensor` is a wrapper subclass that has shape, strides and dtype but no data. Tensors that share memory share
a :class:`Storage`, whose ``value`` is the SSA value of its base; a view is the base and the chain of view operators that leads
from it. An in-place operator computes a new value and writes it through the chain into the storage, and a view
that has become stale is read anew from its base: so the HCFG is free of side effects, and aliasing is as in eager.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import clock
from dycl_tvm.frontend.trace.modes import KEYS, refusal
from dycl_tvm.frontend.trace.session import current, staging
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.arguments import leaves
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.folding import any_row, fold_one
from dycl_tvm.frontend.trace.values.identity import Apart, Carrier, Identity, of_role, settle
from dycl_tvm.frontend.trace.values.layouts import Layouts, layouts_of, marks_of, meta_of, with_marks
from dycl_tvm.frontend.trace.values.real_memory import memory_key
from dycl_tvm.frontend.trace.values.roles import Role
from dycl_tvm.frontend.trace.values.storage import DTYPES, Stale, Storage, tensor_type
from dycl_tvm.hcfg.nodes import Constant, Value
from dycl_tvm.hcfg.types import TensorType

aten = torch.ops.aten

#: One step of a view: the functional operator that makes the view, and its arguments after the tensor.
ViewStep = tuple[Any, tuple[Any, ...], dict[str, Any]]


_CPU = torch.device("cpu")


#: PyTorch asks any tensor for these where it is stored in a module.
_ASKED_BY_MODULES: dict[str, Callable[[Role], bool]] = {
    "_is_param": lambda role: role.is_parameter or issubclass(role.cls, torch.nn.Parameter),
    "_is_buffer": lambda role: role.is_buffer,
}


class StagedTensor(torch.Tensor, Carrier):
    """A tensor known at run time (or a constant made while staging). See the module's text.

    Attributes
    ----------
    storage_, chain
        Its memory, and the views that lead from there to it.
    base : torch.Tensor or None
        The tensor that it was made a view of.
    compared : tuple or None
        The tensors of which it says where they are equal, if it may matter whether they are one.
    layouts : Layouts or None
        The strides that it may have, if they depend on the path: PyTorch then asks for them by operators (:mod:`.layouts`).
    """

    storage_: Storage
    chain: tuple[ViewStep, ...]
    base: torch.Tensor | None = None
    layouts: Layouts | None = None
    identity: Identity | None = None
    born: int
    compared: tuple[torch.Tensor, torch.Tensor] | None = None
    _cached: tuple[int, Value]

    @staticmethod
    def __new__(cls, meta: torch.Tensor, storage: Storage, chain: tuple[ViewStep, ...], value: Value, offset: int = 0) -> StagedTensor:
        """Wrap a storage at an offset; ``meta`` gives shape and strides, ``value`` what the tensor holds now."""
        layouts = layouts_of(meta)
        self: StagedTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=offset,
            dtype=meta.dtype,
            device=_CPU,
            requires_grad=meta.requires_grad,
            dispatch_sizes_strides_policy=None if layouts is None else "strides",
            _extra_dispatch_keys=KEYS,
        )
        torch._C._set_throw_on_mutable_data_ptr(self)  # type: ignore[attr-defined]
        with_marks(self, *marks_of(meta))
        self.storage_, self.chain, self.born = storage, chain, next(clock)
        if layouts is not None:
            self.layouts = layouts
        self._cached = (storage.version, value)
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse to run where no mode sees it."""
        if staging():
            raise refusal()
        raise RuntimeError(f"{func} was called on a staged tensor after staging ended")

    def held_type(self) -> TensorType:
        """Return the type of what it holds."""
        return tensor_type(self)

    def __getattr__(self, name: str) -> Any:
        """Say that there is no such attribute, if none of the tensors that it may be has one."""
        if staging() and name in _ASKED_BY_MODULES:
            if of_role(self, f"the attribute `{name}`", _ASKED_BY_MODULES[name]):
                return True
        elif staging() and not name.startswith("__"):
            settle(self, f"the attribute `{name}`")
        error = AttributeError(f"'Tensor' object has no attribute {name!r}")
        error.__dycl_raised__ = True  # type: ignore[attr-defined]  # eager raises it too
        raise error

    def __hash__(self) -> int:
        settle(self, "the hash")
        if self.identity is not None and staging():
            current().get(Apart).note_hash(self.identity)
        return id(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if staging():
            constant = as_constant(self)
            if constant is not None and not self.requires_grad:
                with plainly():
                    return repr(constant.data)
            raise UnsupportedError(
                "the text of a tensor known only at run time", current().origin(), "return the tensor, and format it outside"
            )
        return f"<tensor known at run time, shape {tuple(self.shape)}, {self.dtype}>"

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "a tensor known only at run time cannot be pickled or saved", current().origin(), "keep I/O out of the forward"
        )


def fresh(value: Value) -> StagedTensor:
    """Make a tensor with memory of its own."""
    assert isinstance(value.type, TensorType)
    meta = meta_of(value.type.shape, None, DTYPES[value.type.dtype])
    return StagedTensor(meta, Storage(value), (), value)


def fresh_like(meta: torch.Tensor, value: Value) -> StagedTensor:
    """Make a tensor with memory of its own and the strides of ``meta``."""
    return StagedTensor(meta, Storage(value), (), value)


def read(t: torch.Tensor) -> Value:
    """Return the value that a tensor holds now (real tensors are constants, unless they were written to)."""
    value = peek(t)
    if isinstance(value, Stale):
        value.refuse()
    return value


def home(t: torch.Tensor) -> tuple[Storage, tuple[ViewStep, ...]]:
    """Return the memory that a tensor lies in, and the views that lead from there to it."""
    return (t.storage_, t.chain) if isinstance(t, StagedTensor) else constants().home(t)


def storage_of(t: torch.Tensor) -> Storage:
    """Return the memory that a tensor lies in."""
    return t.storage_ if isinstance(t, StagedTensor) else constants().storage(t)


def memory_of(t: torch.Tensor) -> Any:
    """Return the key of the place that the memory of a tensor is."""
    return t.storage_.key if isinstance(t, StagedTensor) else (memory_key(t), "storage")


def peek(t: torch.Tensor) -> Value:
    """Return the value that a tensor holds now, also one that must not be used (see :class:`Stale`)."""
    if not isinstance(t, StagedTensor):
        known, memory = constants(), memory_key(t)
        written = known.written_storage(t, memory)
        if written is None:
            return known.of(t, memory)
        storage, chain = known.home(t)
        value = storage.value
        if isinstance(value, Stale):
            return Stale(tensor_type(t), value.decision)
        for op, args, kwargs in chain:
            value = emit_view(op, value, args, kwargs)
        return value
    if t.storage_.shared:
        constants().check_shared(t.storage_)
    version, value = t._cached
    if version == t.storage_.version:
        return value
    value = t.storage_.value
    if isinstance(value, Stale):
        return Stale(t.held_type(), value.decision)
    for op, args, kwargs in t.chain:
        value = emit_view(op, value, args, kwargs)
    return value


def emit_view(op: Any, value: Value, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Record one view operator on a value."""
    assert isinstance(value.type, TensorType)
    if isinstance(op, OwnStep):
        return op.read(value, *args)
    with plainly():
        meta = op(meta_of(value.type.shape, None, DTYPES[value.type.dtype]), *args, **kwargs)
    return emit_one(op, (value, *args), tensor_type(meta), kwargs)


class OwnStep:
    """A view operator that PyTorch does not have: how the view is read from its base, and a new base made of the old one and the view."""

    _opname: str

    def read(self, base: Value, *args: Any) -> Value:
        """Return what the view holds."""
        raise NotImplementedError

    def write(self, base: Value, value: Value, *args: Any) -> Value:
        """Return ``base`` with what the view holds replaced."""
        raise NotImplementedError


class SelectAt(OwnStep):
    """The view operator of an index known only at run time: ``x.select(dim, position)``, with the position in a tensor of one element."""

    _opname = "select at a run-time index"

    def read(self, base: Value, dim: int, position: Value) -> Value:
        return _select_at(base, dim, position)

    def write(self, base: Value, value: Value, dim: int, position: Value) -> Value:
        return _scatter_at(base, value, dim, position)


SELECT_AT = SelectAt()


def select_at(base: torch.Tensor, storage: Storage, chain: tuple[ViewStep, ...], dim: int, position: Value) -> StagedTensor:
    """Return the view of ``base`` (of a storage, by a chain) at an index known only at run time."""
    value = _select_at(read(base), dim, position)
    like = meta_of(tuple(base.shape), base.stride(), base.dtype)  # forks if it has several
    with plainly():
        meta = with_marks(like.select(dim, 0), *marks_of(base))
    return view_of(base, StagedTensor(meta, storage, (*chain, (SELECT_AT, (dim, position), {})), value))


def view_of(base: torch.Tensor, view: StagedTensor) -> StagedTensor:
    """Note of what a tensor is a view."""
    view.base = getattr(base, "base", None)
    view.base = base if view.base is None else view.base
    return view


def _select_at(value: Value, dim: int, position: Value) -> Value:
    type_ = value.type
    assert isinstance(type_, TensorType)
    shape = (*type_.shape[:dim], *type_.shape[dim + 1 :])
    row = emit_one(
        aten.index_select.default, (value, dim, position), TensorType((*type_.shape[:dim], 1, *type_.shape[dim + 1 :]), type_.dtype)
    )
    return emit_one(aten.view.default, (row, list(shape)), TensorType(shape, type_.dtype))


def _scatter_at(base: Value, value: Value, dim: int, position: Value) -> Value:
    """Return ``base`` with the slice at a run-time index replaced."""
    type_ = base.type
    assert isinstance(type_, TensorType)
    size, rank = type_.shape[dim], len(type_.shape)
    along = tuple(size if d == dim else 1 for d in range(rank))
    indices = constants().of(torch.arange(size).reshape(along))
    here = emit_one(aten.eq.Tensor, (indices, position), TensorType(along, "bool"))  # position has one element, so it broadcasts
    part = emit_one(
        aten.unsqueeze.default, (value, dim), TensorType(tuple(1 if d == dim else n for d, n in enumerate(type_.shape)), type_.dtype)
    )
    return emit_one(aten.where.self, (here, part, base), type_)


@functools.cache
def op_name(func: Any) -> str:
    """Return the name under which an operator stands in the HCFG (``aten.add.Tensor``)."""
    return f"{func.namespace}.{func._opname}.{func._overloadname}"


def write(t: torch.Tensor, value: Value) -> None:
    """Change what a tensor holds, seen through all its aliases."""
    storage, chain = home(t)
    values = [storage.value]
    if chain and isinstance(values[0], Stale):
        values[0].refuse()
    for op, args, kwargs in chain[:-1]:
        values.append(emit_view(op, values[-1], args, kwargs))
    for (op, args, kwargs), base in zip(reversed(chain), reversed(values)):
        value = _scatter(op, base, value, args, kwargs)
    storage.set(value)


def emit_one(op: Any, args: tuple[Any, ...], type_: TensorType, kwargs: dict[str, Any] | None = None) -> Value:
    """Record an operation on values that has one result; on constants it is computed."""
    kwargs = kwargs or {}
    operands = [leaf for leaf in leaves((args, kwargs) if kwargs else args) if isinstance(leaf, Value)]
    folded = fold_one(op, args, kwargs, type_, operands)
    if folded is None and op is aten.index_select.default:
        folded = any_row(args[0], args[1], type_.shape)
    if folded is not None:
        return folded
    name, builder = op_name(op), current().builder
    (result,) = builder.repeated(name, operands) or builder.tensor_op(name, args, kwargs, [type_], operands)
    assert result is not None
    return result


#: Views of another type or sign of the same bytes, and how the bytes are seen from there as they were.
_SAME_BYTES = {
    "view_as_real": aten.view_as_complex.default,
    "view_as_complex": aten.view_as_real.default,
    "_conj": aten._conj.default,
    "_neg_view": aten._neg_view.default,
}


def _scatter(op: Any, base: Value, value: Value, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """Return ``base`` with the part that ``op`` views replaced by ``value``."""
    base_type = base.type
    assert isinstance(base_type, TensorType)
    if isinstance(op, OwnStep):
        return op.write(base, value, *args)
    name = op._opname
    if name in ("select", "slice", "diagonal"):
        scatter = {"select": aten.select_scatter.default, "slice": aten.slice_scatter.default, "diagonal": aten.diagonal_scatter.default}[
            name
        ]
        return emit_one(scatter, (base, value, *args), base_type)
    if name in _SAME_BYTES:
        return emit_one(_SAME_BYTES[name], (value,), base_type)
    if name == "view" and op._overloadname == "dtype":
        return emit_one(op, (value, DTYPES[base_type.dtype]), base_type)
    if name in ("view", "unsqueeze", "squeeze", "alias", "detach", "_unsafe_view"):
        return emit_one(aten.view.default, (value, list(base_type.shape)), base_type)
    if name in ("transpose", "t"):
        dims = args if name == "transpose" else ((0, 1) if len(base_type.shape) == 2 else ())
        return value if not dims else emit_one(aten.transpose.int, (value, *dims), base_type)
    if name == "permute":
        rank = len(base_type.shape)
        order = [d % rank for d in args[0]]
        return emit_one(aten.permute.default, (value, [order.index(d) for d in range(rank)]), base_type)
    raise UnsupportedError(
        f"an in-place change through a view made by {name}()",
        current().origin(),
        "write the result to a new tensor instead of changing it in place",
    )


def as_constant(t: torch.Tensor) -> Constant | None:
    """Return the constant that a tensor holds now, if it holds one."""
    value = read(t)
    return value if isinstance(value, Constant) else None


def known_numbers(t: torch.Tensor) -> list[Any] | None:
    """Return the elements of a staged tensor that is known while staging."""
    constant = as_constant(t) if isinstance(t, StagedTensor) else None
    return None if constant is None else constant.data.tolist()
