# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Build small HCFGs from PyTorch code, and run kernels without the C++ runtime."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import tvm
from torch.fx.experimental.proxy_tensor import make_fx

from dycl_tvm.compile import templates
from dycl_tvm.compile.ops.context import DTYPE_NAMES
from dycl_tvm.compile.program import KernelCall, KernelLibrary, Leave, Program
from dycl_tvm.hcfg.nodes import Constant, SubDNN, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.verify.machine import Machine
from dycl_tvm.verify.memory import CompiledKernels


def type_of(t: torch.Tensor) -> TensorType:
    """Return the type of a tensor."""
    return TensorType(tuple(t.shape), DTYPE_NAMES[t.dtype])


def record(fn: Callable[..., Any], args: Sequence[torch.Tensor], name: str = "sub") -> tuple[SubDNN, list[Constant]]:
    """Record the ATen operators that ``fn`` runs: parameters of the sub-DNN are the inputs, then the weights."""
    with torch.backends.mkldnn.flags(enabled=False):  # or recurrent layers become one opaque operator
        graph = make_fx(lambda *a: fn(*a), _allow_non_fake_inputs=True)(*args)
        graph = make_fx(torch.func.functionalize(graph), _allow_non_fake_inputs=True)(*args)  # composites hide in-place operators
    env: dict[Any, Any] = {}
    params: list[Value] = []
    weights: list[tuple[Value, Constant]] = []
    ops: list[TensorOp] = []
    results: list[Value] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            env[node] = Value(type_of(args[len(params)]), node.name)
            params.append(env[node])
        elif node.op == "get_attr":
            data = getattr(graph, node.target).detach().contiguous()
            env[node] = Value(type_of(data), node.name)
            weights.append((env[node], Constant(type_of(data), data, node.name)))
        elif node.op == "call_function" and node.target.__name__ == "getitem":
            env[node] = env[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            meta = node.meta["val"]
            several = isinstance(meta, (tuple, list))
            outputs = tuple(Value(type_of(m), node.name) if isinstance(m, torch.Tensor) else None for m in (meta if several else [meta]))
            op_args = torch.fx.map_arg(node.args, lambda n: env[n])
            ops.append(TensorOp(str(node.target), tuple(op_args), dict(torch.fx.map_arg(node.kwargs, lambda n: env[n])), outputs))
            env[node] = outputs if several else outputs[0]
        elif node.op == "output":
            out = node.args[0]
            results = [env[n] for n in (out if isinstance(out, (tuple, list)) else [out])]
    return SubDNN(name, params + [v for v, _ in weights], ops, results), [c for _, c in weights]


# read when the first parallel kernel runs
os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")


class Kernels:
    """The kernels of a library, callable on NumPy arrays; ``symbols`` are those that may be calls of templates in C++."""

    def __init__(self, library: KernelLibrary, symbols: Iterable[str] = ()) -> None:
        called = sorted({s for s in symbols if templates.is_symbol(s)})
        sources = (("templates.cc", templates.source_of(called)),) if called else ()
        self._kernels = CompiledKernels(replace(library, sources=(*library.sources, *sources)))
        self.calls: list[str] = []

    def __call__(self, symbol: str, arrays: Sequence[np.ndarray]) -> None:
        """Run a kernel; arrays must be 64-byte aligned."""
        self.calls.append(symbol)
        self._kernels.call(symbol, 0, [torch.from_numpy(a) for a in arrays])


def aligned(nbytes: int) -> np.ndarray:
    """Return zeroed bytes at an address that is a multiple of 64."""
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def run_program(machine: Machine, kernels: Callable[[str, Sequence[np.ndarray]], None], *inputs: np.ndarray) -> tuple[int, list[Any]]:
    """Make a call of a lowered program; return the number of the return site, and the results."""
    for block in machine.program.blocks:
        for instr in block.instrs:
            for slot in instr.args if isinstance(instr, KernelCall) else ():
                assert slot.space != "arena" or (slot.offset % 64 == 0 and slot.offset + slot.type.nbytes <= machine.program.arena_bytes)
    for call in machine.call([torch.from_numpy(x) for x in inputs]):
        kernels(machine.program.kernels[call.kernel].symbol, [machine.read(slot).numpy() for slot in call.args])
    assert isinstance(machine.ended, Leave), machine.ended
    return machine.ended.site, [x.numpy() if isinstance(x, torch.Tensor) else x for x in machine.results]


def new_machine(program: Program) -> Machine:
    """Return a machine with its state as a session begins."""
    machine = Machine(program)
    machine.begin()
    return machine


def host_target() -> Any:
    """Return the target of these tests: this machine's family, AVX2 where it is an x86-64."""
    if platform.machine() == "x86_64":
        return tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    return tvm.target.Target("llvm")


def run_sub_dnn(calls: Any, tensors: Sequence[torch.Tensor], kernels: Kernels) -> list[np.ndarray]:
    """Run the kernels of one call list, every tensor in memory of its own."""
    memory: dict[int, np.ndarray] = {}

    def array(number: int) -> np.ndarray:
        root = calls.root(number)
        if root not in memory:
            type_ = calls.types[root]
            memory[root] = aligned(max(type_.nbytes, 1))[: type_.nbytes].view(type_.dtype).reshape(type_.shape)
            if root in calls.constants:
                memory[root][...] = calls.constants[root]
            elif root >= calls.n_params and type_.dtype.startswith("float"):
                memory[root][...] = np.nan  # what a kernel forgets to write is seen
        return memory[root].reshape(calls.types[number].shape)

    for k, tensor in enumerate(tensors):
        array(k)[...] = tensor.numpy()
    for call in calls.calls:
        kernels(call.symbol, [array(n) for n in (*call.inputs, *call.outputs)])
    return [array(n) for n in calls.results]
