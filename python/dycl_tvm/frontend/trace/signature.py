# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The inputs of a network: from example inputs to their structure, names and types, and back to arguments."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from typing import Any, cast

import torch

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.frontend.trace.clock import Dated, OwnValue
from dycl_tvm.frontend.trace.dimensions import Dimensions, at_size
from dycl_tvm.frontend.trace.heap.reach import has_attributes_only
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.special_sizes import front_of, known_sizes, special_sizes
from dycl_tvm.frontend.trace.values.identity import Apart, identity_of, mark_outside
from dycl_tvm.frontend.trace.values.storage import DTYPE_NAMES, may_be_one
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, fresh_like
from dycl_tvm.hcfg.nodes import InputPair, Value
from dycl_tvm.hcfg.sizes import InputSize
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.classes import DEVICE, name_of, set_attributes
from dycl_tvm.runtime.structure import Structure, leaf_types, unflatten


def _signature_of(forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.Signature:
    """Return the parameters of a model; those of compiled functions, which say nothing of them, are what is given."""
    try:
        return inspect.signature(forward)
    except ValueError:
        given = [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(args))]
        return inspect.Signature([*given, *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in kwargs)])


class Inputs:
    """The inputs of one model.

    Attributes
    ----------
    structure : Structure
        ``{"dict": [[parameter, structure], ...]}`` in the order of the model's signature: an artefact's caller may give
        them by position or by name. ``*args`` is a tuple under its own name, which the entry ``varargs`` says, ``**kwargs`` a
        dict (``varkw``).
    names, types : list
        Of the leaves: ``x``, ``state[0]``.
    sizes : list of InputSize
        Those that the caller decides; ``dynamic_shapes`` says which. The types of such leaves are those of their buffers.
    special : list of dict
        Sizes that have a path of their own; ``specialize`` says which.
    """

    def __init__(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any = None, specialize: Any = None
    ) -> None:
        forward = model.forward if isinstance(model, torch.nn.Module) else model
        try:
            self._signature = _signature_of(forward, args, kwargs)
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"the example inputs do not fit {getattr(forward, '__qualname__', forward)}{self._signature}: {error}"
            ) from None
        self.names: list[str] = []
        self.types: list[TensorType] = []
        #: The objects of the user's classes that the one at hand is an attribute of.
        self._within: set[int] = set()
        self._classes: dict[tuple[str, tuple[str, ...]], type] = {}
        #: The example tensors; one that is given twice is one input.
        self._examples: list[_Example] = []
        self.structure: Structure = {"dict": [[name, self._describe(value, name)] for name, value in bound.arguments.items()]}
        entries = {inspect.Parameter.VAR_POSITIONAL: "varargs", inspect.Parameter.VAR_KEYWORD: "varkw"}
        for name in bound.arguments:
            if (kind := self._signature.parameters[name].kind) in entries:
                self.structure[entries[kind]] = name
        self.sizes: list[InputSize] = []
        if dynamic_shapes is not None:
            dimensions = Dimensions(dynamic_shapes, self.structure, self.types)
            self.sizes, self.types = dimensions.sizes, dimensions.bounded()
            for k in {d.input for size in self.sizes for d in size.dims}:
                self._examples[k].enlarge(self.types[k].shape, self.names[k])
        self.special = [] if specialize is None else special_sizes(specialize, self.sizes)

    def _describe(self, x: Any, where: str) -> Structure:
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            if x.dtype not in DTYPE_NAMES:
                raise UsageError(f"the example input `{where}` has the dtype {x.dtype}; supported are {', '.join(DTYPE_NAMES.values())}")
            if isinstance(x, torch.Tensor) and x.layout != torch.strided:
                raise UsageError(f"the example input `{where}` is sparse ({x.layout}); dense tensors are supported")
            if not all(isinstance(s, int) for s in x.shape):
                raise UsageError(f"the example input `{where}` has the symbolic shape {tuple(x.shape)}; give every dimension a number")
            if isinstance(x, torch.Tensor):
                for k, known in enumerate(self._examples):
                    if known.given is x:
                        return {"leaf": k, "type": "tensor"}
            self._examples.append(_Example(x, self._examples))
            self.names.append(where)
            self.types.append(TensorType(tuple(int(s) for s in x.shape), DTYPE_NAMES[x.dtype]))
            return {"leaf": len(self.names) - 1, "type": "tensor"}
        if x is None or isinstance(x, (bool, int, float, str)):
            return {"const": x}
        fields = record_fields(x)
        if fields is not None:
            self._classes[type(x).__name__, tuple(fields)] = type(x)
            return {
                "namedtuple": type(x).__name__,
                "fields": fields,
                "items": [self._describe(getattr(x, f), f"{where}.{f}") for f in fields],
            }
        if isinstance(x, (tuple, list)):
            kind = "tuple" if isinstance(x, tuple) else "list"
            return {kind: [self._describe(v, f"{where}[{i}]") for i, v in enumerate(x)]}
        if isinstance(x, dict):
            return {"dict": [[k, self._describe(v, f"{where}[{k!r}]")] for k, v in x.items()]}
        named = name_of_constant(x)
        if named is not None:
            return {"const": x.__qualname__ if isinstance(x, type) else str(x), "name": named}
        if is_plain_object(cast(Any, type(x))) and name_of(type(x)) is not None and id(x) not in self._within:
            self._within.add(id(x))
            attributes = [[name, self._describe(value, f"{where}.{name}")] for name, value in vars(x).items()]
            self._within.remove(id(x))
            return {"object": type(x).__name__, "class": name_of(type(x)), "attributes": attributes}
        raise UsageError(
            f"the example input `{where}` is a {type(x).__name__}; "
            "give tensors, numbers, strings, None, tuples, lists and dicts of them, and objects with such attributes"
        )

    def tensors(self, values: list[Value]) -> list[torch.Tensor]:
        """Return the tensors that a run of the program is given: strides, memory and ``requires_grad`` are those of the examples.

        ``values`` are those of the leaves, and then of the sizes.
        """
        made: list[StagedTensor] = []
        sizes = values[len(self._examples) :]
        known = known_sizes(self.special, self.sizes, sizes)
        for number, (buffer, example) in enumerate(zip(values, self._examples)):
            if example.same is None:
                value = front_of(buffer, number, self.sizes, known)
                assert isinstance(value.type, TensorType)
                t = fresh_like(example.of_shape(value.type.shape), value)
                mark_outside(t.storage_, "input", number)
            else:
                home = made[example.same].storage_
                t = StagedTensor(example.meta, home, (), home.value)
            mark_outside(t, "input", number)
            for k in example.overlaps:
                may_be_one(t.storage_, made[k].storage_, _Overlap())
            made.append(t)
        current().get(Apart).homes = [identity_of(t.storage_) for t in made]
        sized = at_size(list(made), self.sizes, sizes, known)
        for number, (part, whole) in enumerate(zip(sized, made)):
            if part is not whole:
                mark_outside(part, "input", number)
        return sized

    def pairs(self, apart: Apart) -> list[InputPair]:
        """Return of which inputs it matters whether they are one. Where the examples were one view, the second one's data is not read."""
        one = {(example.same, k) for k, example in enumerate(self._examples) if example.same is not None}
        kinds = {"one": one, "apart": apart.memory - one, "different": apart.objects - apart.memory - one}
        return [InputPair(a, b, kind) for kind, pairs in kinds.items() for a, b in sorted(pairs)]

    def build(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with the given leaves."""
        assert len(leaf_types(self.structure)) == len(leaves) == len(self.names)
        arguments = self._with_classes(unflatten(self.structure, lambda k, _: leaves[k]))
        bound = inspect.BoundArguments(self._signature, arguments)  # type: ignore[arg-type]
        return bound.args, bound.kwargs

    def _with_classes(self, x: Any) -> Any:
        """Give records the classes of the example inputs."""
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return self._classes[type(x).__name__, x._fields](**{f: self._with_classes(v) for f, v in zip(x._fields, x)})
        if isinstance(x, (tuple, list)):
            return type(x)(self._with_classes(v) for v in x)
        if isinstance(x, dict):
            return {k: self._with_classes(v) for k, v in x.items()}
        if name_of_constant(x) is None and not isinstance(x, torch.Tensor) and is_plain_object(cast(Any, type(x))):
            set_attributes(x, [(name, self._with_classes(v)) for name, v in vars(x).items()])
        return x


class _Example:
    """What counts of an example tensor: how it lies in memory, and which of those before it lie there too.

    Attributes
    ----------
    meta : torch.Tensor
        Its shape, strides and dtype.
    same : int or None
        One before it that is the same view of the same memory.
    overlaps : list of int
        Those before it that have memory in common with it otherwise.
    """

    def __init__(self, given: Any, before: list[_Example]) -> None:
        self.given, self.same = given, None
        self.overlaps: list[int] = []
        if not isinstance(given, torch.Tensor):
            self.meta = torch.empty(tuple(given.shape), dtype=given.dtype, device="meta")
            return
        self.meta = torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device="meta", requires_grad=given.requires_grad)
        for k, other in enumerate(before):
            if self._view() == other._view():
                self.same = k
            elif self._overlaps(other):
                self.overlaps.append(k)

    def enlarge(self, shape: tuple[int, ...], name: str) -> None:
        """Let it stand for tensors of all sizes up to a shape."""
        if not self.meta.is_contiguous() or self.same is not None or self.overlaps:
            raise UsageError(f"the example input `{name}`, whose sizes the caller decides, must be contiguous and have its own memory")
        self.meta = self.of_shape(shape)

    def of_shape(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return what it is like at a shape, which may be its own."""
        if shape == tuple(self.meta.shape):
            return self.meta
        return torch.empty(shape, dtype=self.meta.dtype, device="meta", requires_grad=self.meta.requires_grad)

    def _view(self) -> Any:
        """Return what is equal for two tensors that are the same view of the same memory."""
        t = self.given
        return (t.data_ptr(), t.shape, t.stride(), t.dtype) if _has_memory(t) else id(t)

    def _overlaps(self, other: _Example) -> bool:
        if not _has_memory(self.given) or not _has_memory(other.given):
            return False
        (start, end), (begin, until) = (
            (t.data_ptr(), t.data_ptr() + t.element_size() * (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))))
            for t in (self.given, other.given)
        )
        return bool(start < until and begin < end)


def _has_memory(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.device.type == "cpu" and t.numel() > 0 and type(t) is torch.Tensor


class _Overlap:
    """In the place of a decision: two example inputs overlap in memory."""

    def refuse(self, reason: str, others: object = "") -> None:
        """Refuse to read one after a change of the other."""
        raise UnsupportedError(
            "an input is changed in place, and another that overlaps with it in memory is read (so did the example inputs)",
            current().origin(),
            "give inputs of their own memory: x.clone()",
        )


def record_fields(x: Any) -> list[str] | None:
    """Return the field names of a named tuple or dataclass; None for anything else."""
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return list(x._fields)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return [f.name for f in dataclasses.fields(x)]
    return None


def name_of_constant(x: Any) -> str | None:
    """Return the name of a class, a member of an enum, a dtype or a device of PyTorch; None for anything else, or one not to be found."""
    if isinstance(x, type):
        return name_of(x)
    if isinstance(x, torch.dtype):
        return str(x).replace(".", ":")
    if isinstance(x, torch.device):
        return DEVICE
    kind = type(x)
    if not isinstance(x, enum.Enum) or name_of(kind) is None or kind.__members__.get(x.name) is not x:
        return None
    return f"{name_of(kind)}.{x.name}"


@functools.cache
def is_plain_object(cls: Any) -> bool:
    """Whether objects of a class are their attributes and nothing else, and no parts of a program."""
    if any("__class__" in vars(c) for c in cls.__mro__[:-1]):  # it is taken for an object of another class
        return False
    return has_attributes_only(cls) and cls.__new__ is object.__new__ and not issubclass(cls, (torch.nn.Module, Dated, OwnValue))
