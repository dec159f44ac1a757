# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From Relax operators to scheduled kernels in objects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from dycl_tvm.backends.extents import Limit, Wanted
from dycl_tvm.backends.front import with_front
from dycl_tvm.backends.lowering_passes import compile_kernels
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.front import add_sizes
from dycl_tvm.backends.tir_cpu.generic import schedule
from dycl_tvm.backends.tir_cpu.graph import ANCHORS
from dycl_tvm.backends.tir_cpu.reading.expression import elementwise
from dycl_tvm.backends.tir_cpu.words.loops import CHOOSING, IN_PLACE, INSTRUCTIONS, MASKING, NAME, REACH, ROWS, SCHEDULED, in_place
from dycl_tvm.backends.tir_cpu.words.vector_math import with_functions
from dycl_tvm.compile.device import is_device
from dycl_tvm.compile.legalize import LEGALIZE
from dycl_tvm.compile.long_chains import cut_long_chains
from dycl_tvm.compile.objects import Compiled, Progress, Recipe, make_objects
from dycl_tvm.errors import CompileError


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
            *([tvm.transform.module_pass(lambda m, _: cut_long_chains(m), opt_level=0, name="CutLongChains")] if is_device(target) else []),
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
        Name of a function of the module to what makes it again with loops that ask sizes of the call.
    maker_of : dict
        The same by symbol.
    tag : str
        What symbols end in, where a library has kernels of several sets.
    """

    functions: dict[str, Any] = field(default_factory=dict)
    dedup: bool = True
    makers: Mapping[str, Maker] = field(default_factory=dict)
    maker_of: dict[str, Maker] = field(default_factory=dict)
    tag: str = ""
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
            if key not in ("tirx.noalias", "s_tir", SCHEDULED, IN_PLACE, INSTRUCTIONS, ROWS, REACH, CHOOSING, MASKING):
                plain = plain.without_attr(key)
        plain = _in_place(plain)
        code = tvm_ffi.structural_hash(plain, map_free_vars=True)
        same = self._by_hash.setdefault(code, [])
        symbol = next((s for s in same if self.dedup and tvm_ffi.structural_equal(self.functions[s], plain, map_free_vars=True)), None)
        if symbol is None:
            # numbers that TVM appends to tell functions apart depend on what else is in the module; ours is of the function alone
            name = fn.attrs.get(NAME) if fn.attrs else None
            base = (name or re.sub(r"\d+(?=_|$)", "", gv.name_hint)).strip("_")[:60]
            symbol = f"dycl_{base}_{code & 0xFFFFFFFF:08x}{self.tag}"
            number = self._counts.get(symbol, 0)
            self._counts[symbol] = number + 1
            symbol += f"_{number}" if number else ""
            self.functions[symbol] = plain
            same.append(symbol)
        self._known[gv.name_hint] = symbol
        if gv.name_hint in self.makers:
            self.maker_of[symbol] = self.makers[gv.name_hint]
        return symbol

    def add(self, name: str, fn: Any) -> str:
        """Return the symbol of a kernel that no function of the module is."""
        code = tvm_ffi.structural_hash(fn, map_free_vars=True)
        symbol = f"dycl_{name}_{code & 0xFFFFFFFF:08x}{self.tag}"
        while symbol in self.functions and not tvm_ffi.structural_equal(self.functions[symbol], fn, map_free_vars=True):
            symbol += "_"
        self.functions.setdefault(symbol, fn)
        return symbol

    def front(self, symbol: str, wanted: Wanted, own: Sequence[Limit | None]) -> str:
        """Return the symbol of the kernel that computes only what is wanted of the output of another one; ``own`` is its maker's."""
        key = (symbol, wanted, tuple(own))
        if key not in self._fronts:
            fn = self.functions[symbol]
            if own:
                fn = self.maker_of[symbol](own).with_attr(ROWS, fn.attrs[ROWS])
            made = with_front(fn, wanted)
            name = f"{symbol}_front_{tvm_ffi.structural_hash(made, map_free_vars=True) & 0xFFFFFFFF:08x}"
            number = self._counts.get(name, 0)
            self._counts[name] = number + 1
            self._fronts[key] = name + (f"_{number}" if number else "")
            self.functions[self._fronts[key]] = made
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


def build_kernels(functions: dict[str, Any], target: tvm.target.Target, progress: Progress | None = None) -> Built:
    """Schedule and compile kernels to objects with symbols ``__tvm_ffi_<symbol>``."""
    made = make_objects(functions, target, Recipe("scheduled", _scheduled), progress)
    return Built([(f"{symbol}.o", made.code) for symbol, made in made.items()], sorted(s for s, o in made.items() if not o.lasting))


def _scheduled(symbol: str, fn: Any, target: tvm.target.Target) -> Compiled:
    """Compile a kernel as it is scheduled, or as plain loops where that fails."""
    scheduled = schedule(fn, target)
    if scheduled is not None:
        try:
            return Compiled(_compile(symbol, scheduled, target))
        except Exception:  # the code generator does not take the schedule; the plain loops are correct
            pass
    try:
        return Compiled(_compile(symbol, fn, target), lasting=False)
    except Exception as error:
        raise CompileError(f"TVM could not compile the kernel {symbol} for {target}: {error}") from error


def _compile(symbol: str, fn: Any, target: tvm.target.Target) -> Any:
    named = add_sizes(fn).with_attr("global_symbol", symbol)
    return compile_kernels({symbol: named if SCHEDULED in named.attrs else with_functions(named)}, target)
