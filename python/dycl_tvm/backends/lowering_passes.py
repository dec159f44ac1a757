# Licensed under the Apache License, Version 2.0; see LICENSE.
"""TVM's lowering of scheduled PrimFuncs, with a flattening of buffers that keeps every index, and checks of arguments in few words.

TVM's own ``FlattenBuffer`` hands each flat index to its detection of iterator maps, which is wrong in this version: it takes
``(i // 2 + 1) % 2 * 2 + (i % 2 + 1) % 2`` for ``(i + 2) % 4``. It does so for variables of loops only. Here the loops' variables
in indices have stand-ins while that pass runs, so that the plain offset is left; the ordinary simplifier, which knows the ranges
of the loops, then shortens it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import StringImm, TensorLoad, Var
from tvm.tirx.compilation_pipeline import get_tir_pipeline, register_tir_pipeline

from dycl_tvm.backends.front import has_front
from dycl_tvm.backends.tir_cpu.front import skip_behind
from dycl_tvm.backends.tir_cpu.words import amx
from dycl_tvm.backends.tir_cpu.words.loops import SCHEDULED
from dycl_tvm.backends.tir_cpu.words.machine import for_compiler
from dycl_tvm.backends.tir_cuda.grid import with_grids

_NAME = "dycl"
_REFUSED = StringImm("a kernel was called with arguments that it was not made for")


def compile_kernels(functions: dict[str, Any], target: tvm.target.Target) -> Any:
    """Compile scheduled PrimFuncs by their symbols; return the module of them."""
    _register()
    built = tvm.compile(tvm.IRModule(functions), target=for_compiler(target), tir_pipeline=_NAME)
    return getattr(built, "mod", built)


def lowering() -> tuple[Any, Any]:
    """Return the pass that lowers bound functions, and what makes the passes that finish those of a device."""
    _register()
    passes, _, finish_device = get_tir_pipeline(_NAME)
    return passes, finish_device


def _register() -> None:
    register_tir_pipeline(_NAME, _pipeline)


def _pipeline() -> tuple[Any, Any, Any]:
    stock, finish_host, finish_device = get_tir_pipeline("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="dycl.Lower")
    def lower(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        with own_passes():
            return _each_body(stock(mod), _in_few_words)

    return lower, finish_host, finish_device


def _in_few_words(body: Any) -> Any:
    """Let all checks of a kernel's arguments say the same when they fail.

    TVM writes for each, some ten an argument, what was expected and what came, and for a small kernel LLVM takes a third of its time to
    compile these words. Nobody but this package calls kernels, so a check fails only where the package is wrong itself.
    """
    # TVM's constructor takes the condition first, whatever its signature says
    return tvm_ffi.structural_map(
        body, (tirx.AssertStmt, lambda check: tirx.AssertStmt(check.condition, StringImm("ValueError"), [_REFUSED]))
    )


class _Replaced:
    """TVM's pipeline looks its passes up by name when it runs: two names are those of ours while any thread lowers."""

    stock: tuple[Any, Any] = (None, None)
    users = 0
    lock = threading.Lock()


@contextmanager
def own_passes() -> Iterator[None]:
    """Let TVM's pipeline flatten and compact buffers by the passes of this file, in all threads."""
    with _Replaced.lock:
        if _Replaced.users == 0:
            flatten, compact = _Replaced.stock = tirx.transform.FlattenBuffer, s_tir.transform.CompactBufferAllocation
            tirx.transform.FlattenBuffer = lambda: _flattening(flatten())
            s_tir.transform.CompactBufferAllocation = lambda: _compaction(compact())
        _Replaced.users += 1
    try:
        yield
    finally:
        with _Replaced.lock:
            _Replaced.users -= 1
            if _Replaced.users == 0:
                tirx.transform.FlattenBuffer, s_tir.transform.CompactBufferAllocation = _Replaced.stock


def _compaction(compact: Any) -> Any:
    """Return the pass that makes memory of a kernel's own as small as what is touched of it.

    Kernels of families take what they need, and of loops that ask sizes of the call that pass does not see more; but it looks for long.
    Of tiles it sees where they begin, and where it finds no bound for that, the size that it writes names a variable of a loop.
    """

    @tvm.transform.module_pass(opt_level=0, name="dycl.CompactBufferAllocation")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        functions = dict(mod.functions_items())
        others = {gv: fn for gv, fn in functions.items() if not (amx.used_by([fn]) or (has_front(fn) and SCHEDULED in fn.attrs))}
        if not others:
            return mod
        compacted = compact(tvm.IRModule(others, attrs=mod.attrs))
        return tvm.IRModule({**functions, **dict(compacted.functions_items())}, attrs=mod.attrs)

    return run


def _flattening(flatten: Any) -> Any:
    @tvm.transform.module_pass(opt_level=0, name="dycl.FlattenBuffer")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        hidden = _Hidden()
        # between schedules and flat buffers: loops are plain, and indices are those of dimensions
        mod = _each_body(tvm.IRModule({gv: _with_front(fn) for gv, fn in mod.functions_items()}, attrs=mod.attrs), hidden.hide)
        return s_tir.transform.StmtSimplify()(_each_body(flatten(mod), hidden.show))

    return run


def _with_front(fn: Any) -> Any:
    """Return a function that computes no more than is wanted: on a CPU its loops end earlier, on a GPU its launches have fewer blocks."""
    if not has_front(fn):
        return fn
    return with_grids(fn) if str(fn.attrs["target"].kind.name) == "cuda" else skip_behind(fn)


def _each_body(mod: tvm.IRModule, change: Any) -> tvm.IRModule:
    return tvm.IRModule({gv: fn.with_body(change(fn.body)) for gv, fn in mod.functions_items()}, attrs=mod.attrs)


def _divides(body: Any) -> bool:
    """Whether there is a quotient or a remainder: without one, an index is a sum that nothing can be read wrongly in."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.FloorDiv, found.append), (tirx.FloorMod, found.append)])
    return bool(found)


class _Hidden:
    """Stand-ins of variables."""

    def __init__(self) -> None:
        self._stand_in: dict[Any, Any] = {}
        self._variable: dict[Any, Any] = {}

    def hide(self, body: Any) -> Any:
        """Put stand-ins for the variables in the indices of loads and stores."""
        if not _divides(body):
            return body
        return tvm_ffi.structural_map(
            body,
            [
                (TensorLoad, lambda load: tirx.BufferLoad(load.source, [self._hidden(i) for i in load.indices])),
                (tirx.BufferStore, lambda s: tirx.BufferStore(s.buffer, s.value, [self._hidden(i) for i in s.indices])),
            ],
        )

    def show(self, body: Any) -> Any:
        """Put the variables back."""
        return tvm_ffi.structural_map(body, (Var, lambda v: self._variable.get(v, v))) if self._variable else body

    def _hidden(self, index: Any) -> Any:
        return tvm_ffi.structural_map(index, (Var, self._hide_variable))

    def _hide_variable(self, variable: Any) -> Any:
        if not isinstance(variable.ty, tvm.ir.PrimType) or variable in self._variable:
            return variable
        found = self._stand_in.get(variable)
        if found is None:
            found = self._stand_in[variable] = Var(variable.name, variable.ty)
            self._variable[found] = variable
        return found
