# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A lowered Relax function as a flat list of kernel calls over numbered tensors."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax

from dycl_tvm.backends.tir_cpu.words.loops import IN_PLACE, SCHEDULED
from dycl_tvm.compile.pipeline import KernelSet
from dycl_tvm.compile.templates import BACKEND, is_symbol
from dycl_tvm.errors import CompileError
from dycl_tvm.hcfg.types import TensorType


@dataclass(frozen=True)
class Call:
    """Run a kernel: tensors by number, inputs first, outputs last.

    ``in_place`` are places of inputs that the output may overwrite, ``sizes`` the sizes of the call that it takes behind its inputs.
    """

    symbol: str
    backend: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    in_place: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass
class CallList:
    """What a sub-DNN does.

    Attributes
    ----------
    types : list of TensorType
        One per tensor; the parameters come first.
    n_params : int
    alias : dict
        Tensor number to the number of the tensor whose memory it is, seen with another shape.
    constants : dict
        Tensor number to its data (NumPy).
    calls : list of Call
    results : list of int
    """

    name: str
    types: list[TensorType] = field(default_factory=list)
    n_params: int = 0
    alias: dict[int, int] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def root(self, number: int) -> int:
        """Return the tensor that owns the memory."""
        while number in self.alias:
            number = self.alias[number]
        return number


def call_list(name: str, mod: tvm.IRModule, kernels: KernelSet, backend_of: dict[str, str]) -> CallList:
    """Flatten the function ``name`` of a lowered module; the kernels that it calls are added to ``kernels``."""
    return _Flattener(name, mod, kernels, backend_of).run()


class _Flattener:
    def __init__(self, name: str, mod: tvm.IRModule, kernels: KernelSet, backend_of: dict[str, str]) -> None:
        self.out = CallList(name)
        self.mod, self.kernels, self.backend_of = mod, kernels, backend_of
        self.env: dict[Any, Any] = {}  # variable to tensor number, or a nested tuple of them

    def run(self) -> CallList:
        fn = self.mod[self.out.name]
        for param in fn.params:
            self.env[param] = self._new(param.ty)
        self.out.n_params = len(fn.params)
        for block in fn.body.blocks:
            for binding in block.bindings:
                self.env[binding.var] = self._expr(binding.value)
        self.out.results = _flat(self._expr(fn.body.body))
        return self.out

    def _new(self, type_: Any) -> int:
        self.out.types.append(TensorType(tuple(int(d) for d in type_.shape), str(type_.dtype.dtype)))
        return len(self.out.types) - 1

    def _expr(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self.env[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._expr(f) for f in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return self._expr(expr.tuple_value)[expr.index]
        if isinstance(expr, tvm.ir.GenericConst):
            number = self._new(expr.ty)
            self.out.constants[number] = np.asarray(_numpy(expr))
            return number
        if isinstance(expr, relax.Call):
            return self._call(expr)
        raise CompileError(f"sub-DNN {self.out.name} was lowered to something that is not a kernel call: {expr}")

    def _call(self, call: Any) -> Any:
        op = getattr(call.op, "name", None)
        if op == "relax.call_tir":
            gv = call.args[0]
            fn = self.mod[gv]
            inputs = _flat(self._expr(call.args[1]))
            if len(inputs) == 1 and self._is_reshape(self.out.types[inputs[0]], call.ty, fn):
                return self._view(inputs[0], call.ty)
            return self._emit(self.kernels.symbol(gv, fn), "tvm", inputs, call.ty)
        if op == "relax.call_dps_packed":
            symbol = str(call.args[0].global_symbol)
            backend = BACKEND if is_symbol(symbol) else self.backend_of[symbol]
            return self._emit(symbol, backend, _flat(self._expr(call.args[1])), call.ty)
        if op == "relax.reshape":
            return self._view(_flat(self._expr(call.args[0]))[0], call.ty)
        raise CompileError(f"the Relax operator {op or call.op} in sub-DNN {self.out.name} has no lowering for this target")

    @staticmethod
    def _is_reshape(source: TensorType, type_: Any, fn: Any) -> bool:
        if isinstance(type_, relax.TupleType) or SCHEDULED in fn.attrs:
            return False
        # the analysis takes a slice from the front for a reshape: sizes must agree too
        same_size = math.prod(int(d) for d in type_.shape) == source.numel and str(type_.dtype.dtype) == source.dtype
        return bool(same_size and relax.analysis.has_reshape_pattern(fn))

    def _view(self, of: int, type_: Any) -> int:
        number = self._new(type_)
        self.out.alias[number] = self.out.root(of)
        return number

    def _emit(self, symbol: str, backend: str, inputs: list[int], type_: Any) -> Any:
        several = isinstance(type_, relax.TupleType)
        outputs = [self._new(t) for t in (type_.fields if several else [type_])]
        kernel = self.kernels.functions.get(symbol)
        over = tuple(int(k) for k in kernel.attrs.get(IN_PLACE, ())) if kernel is not None and kernel.attrs else ()
        self.out.calls.append(Call(symbol, backend, tuple(inputs), tuple(outputs), over))
        return tuple(outputs) if several else outputs[0]


def _numpy(expr: Any) -> Any:
    data = getattr(expr, "data", None)
    return (data if data is not None else expr.value).numpy()


def _flat(value: Any) -> list[int]:
    if isinstance(value, tuple):
        return [n for v in value for n in _flat(v)]
    return [value]


def constant_calls(lst: CallList, constant_params: set[int], foldable: Collection[str]) -> set[int]:
    """Return the calls that depend on constants only (parameters in ``constant_params``) and whose kernel is ``foldable``."""
    known = set(lst.constants) | constant_params
    found = set()
    for k, call in enumerate(lst.calls):
        if call.inputs and call.symbol in foldable and all(lst.root(n) in known for n in call.inputs):
            known.update(call.outputs)
            found.add(k)
    return found
