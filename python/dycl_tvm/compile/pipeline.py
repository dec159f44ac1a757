# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From Relax operators to scheduled kernels in objects."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from dycl_tvm.backends.extents import Extent, Wanted
from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.families.attention import Maker
from dycl_tvm.backends.tir_cpu.front import add_sizes, with_front
from dycl_tvm.backends.tir_cpu.generic import schedule
from dycl_tvm.backends.tir_cpu.graph import ANCHORS
from dycl_tvm.backends.tir_cpu.reading.expression import elementwise
from dycl_tvm.backends.tir_cpu.words.loops import IN_PLACE, INSTRUCTIONS, NAME, ROWS, SCHEDULED, in_place
from dycl_tvm.backends.tir_cpu.words.vector_math import with_functions
from dycl_tvm.compile.legalize import LEGALIZE
from dycl_tvm.errors import CompileError

Progress = Callable[[str, int, int], None]

#: Kernels of one object; objects are compiled one after the other, with progress in between.
_SHARD = 16


def legalise(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower Relax operators to calls of one PrimFunc each, except the anchors that kernel families take as they are."""
    with target, tvm.transform.PassContext(opt_level=3):
        dead = relax.transform.DeadCodeElimination()
        return relax.transform.LegalizeOps(LEGALIZE, skip_ops=list(ANCHORS))(dead(mod))


def to_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower what is left of Relax operators to calls of fused PrimFuncs."""
    passes = tvm.transform.Sequential(
        [
            tvm.transform.module_pass(lambda m, _: without_dead_bindings(m), opt_level=0, name="WithoutDeadBindings"),
            relax.transform.DeadCodeElimination(),  # functions; for bindings it takes the square of their number
            relax.transform.LegalizeOps(LEGALIZE),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )
    with target, tvm.transform.PassContext(opt_level=3):
        return passes(mod)


def without_dead_bindings(mod: tvm.IRModule) -> tvm.IRModule:
    """Drop the bindings that no result depends on, in time linear in their number; all calls are pure here."""
    changed = {}
    for gv, fn in mod.functions_items():
        if not isinstance(fn, relax.Function):
            continue
        needed = set(relax.analysis.free_vars(fn.body.body))
        blocks = []
        for block in reversed(fn.body.blocks):
            kept = []
            for binding in reversed(block.bindings):
                if binding.var in needed:
                    kept.append(binding)
                    needed.update(relax.analysis.free_vars(binding.value))
            blocks.append(type(block)(kept[::-1]))
        body = relax.SeqExpr(blocks[::-1], fn.body.body)
        changed[gv] = relax.Function(fn.params, body, fn.ret_ty, fn.is_pure, fn.attrs, fn.span)
    for gv, fn in changed.items():
        mod.update_func(gv, fn)
    return mod


@dataclass
class KernelSet:
    """The distinct kernels of a module.

    Attributes
    ----------
    functions : dict
        Symbol to PrimFunc, in order of first use.
    makers : dict
        Name of a function of the module to what makes it again for fewer keys.
    maker_of : dict
        The same by symbol.
    """

    functions: dict[str, Any] = field(default_factory=dict)
    dedup: bool = True
    makers: Mapping[str, Maker] = field(default_factory=dict)
    maker_of: dict[str, Maker] = field(default_factory=dict)
    _by_hash: dict[int, list[str]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)
    _fronts: dict[Any, str] = field(default_factory=dict)

    def symbol(self, gv: Any, fn: Any) -> str:
        """Return the symbol of the kernel that computes ``fn``; equal functions have one."""
        if gv.name_hint in self._known:
            return self._known[gv.name_hint]
        # only what changes the code may tell functions apart: not the names, not the fusion's notes
        plain = fn
        for key in list(fn.attrs.keys()) if fn.attrs else []:
            if key not in ("tirx.noalias", "s_tir", SCHEDULED, IN_PLACE, INSTRUCTIONS, ROWS):
                plain = plain.without_attr(key)
        plain = _in_place(plain)
        code = tvm_ffi.structural_hash(plain, map_free_vars=True)
        same = self._by_hash.setdefault(code, [])
        symbol = next((s for s in same if self.dedup and tvm_ffi.structural_equal(self.functions[s], plain, map_free_vars=True)), None)
        if symbol is None:
            # numbers that TVM appends to tell functions apart depend on what else is in the module
            name = fn.attrs.get(NAME) if fn.attrs else None
            base = (name or re.sub(r"\d+(?=_|$)", "", gv.name_hint)).strip("_")[:60]
            number = self._counts.get(base, 0)
            self._counts[base] = number + 1
            symbol = f"dycl_{base}_{number}"
            self.functions[symbol] = plain
            same.append(symbol)
        self._known[gv.name_hint] = symbol
        if gv.name_hint in self.makers:
            self.maker_of[symbol] = self.makers[gv.name_hint]
        return symbol

    def front(self, symbol: str, wanted: Wanted, keys: Extent | None) -> str:
        """Return the symbol of the kernel that computes only what is wanted of the output of another one, of so many keys."""
        key = (symbol, wanted, keys)
        if key not in self._fronts:
            self._fronts[key] = f"{symbol}_front_{len(self._fronts)}"
            fn = self.functions[symbol]
            if keys is not None:
                fn = self.maker_of[symbol](keys).with_attr(ROWS, fn.attrs[ROWS])
            self.functions[self._fronts[key]] = with_front(fn, wanted)
        return self._fronts[key]


def _in_place(fn: Any) -> Any:
    """Mark a function of TVM's that computes element by element; kernels of families say it themselves."""
    if SCHEDULED in fn.attrs:
        return fn
    op = elementwise(fn)
    same = (
        []
        if op is None
        else [k for k, t in enumerate(op.inputs) if t == op.out and tuple(fn.params[k].shape) == tuple(fn.params[-1].shape)]
    )
    return in_place(fn, same)


@dataclass
class Built:
    """Objects of kernels, and how many of them were left without a schedule."""

    objects: list[tuple[str, bytes]]
    unscheduled: list[str]


def build_kernels(functions: dict[str, Any], target: tvm.target.Target, progress: Progress | None = None, prefix: str = "kernels") -> Built:
    """Schedule and compile kernels to objects with symbols ``__tvm_ffi_<symbol>``."""
    objects: list[tuple[str, bytes]] = []
    unscheduled: list[str] = []
    items = list(functions.items())
    for start in range(0, len(items), _SHARD):
        if progress is not None:
            progress("kernels", start, len(items))
        chunk = {}
        for symbol, fn in items[start : start + _SHARD]:
            scheduled = schedule(fn, target)
            if scheduled is None:
                unscheduled.append(symbol)
                scheduled = fn
            chunk[symbol] = add_sizes(scheduled).with_attr("global_symbol", symbol)
        objects.append((f"{prefix}_{start // _SHARD}.o", _object(chunk, target, unscheduled, functions)))
    return Built(objects, sorted(set(unscheduled)))


def _object(chunk: dict[str, Any], target: tvm.target.Target, unscheduled: list[str], plain: dict[str, Any]) -> bytes:
    try:
        module = _compile(chunk, target)
    except Exception:  # a schedule that the code generator does not take: find it, and leave that kernel plain
        good = {}
        for symbol, fn in chunk.items():
            try:
                _compile({symbol: fn}, target)
                good[symbol] = fn
            except Exception:
                unscheduled.append(symbol)
                good[symbol] = add_sizes(plain[symbol]).with_attr("global_symbol", symbol)
        try:
            module = _compile(good, target)
        except Exception as error:
            raise CompileError(f"TVM could not compile the kernels {', '.join(chunk)} for {target}: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.o"
        module.write_to_file(str(path))
        return path.read_bytes()


def _compile(chunk: dict[str, Any], target: tvm.target.Target) -> Any:
    return compile_kernels({k: fn if SCHEDULED in fn.attrs else with_functions(fn) for k, fn in chunk.items()}, target)
