# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Give regions of an IRModule to backends, and count what was given."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from dycl_tvm.backends.offload import Offload
from dycl_tvm.backends.registry import Backend, Generated, Region
from dycl_tvm.errors import CompileError, UsageError


@dataclass
class Partitioned:
    """Result of :func:`partition`.

    Attributes
    ----------
    mod : tvm.IRModule
        Regions have become ``call_dps_packed`` of external symbols.
    generated : list of Generated
    backend_of : dict
        External symbol to backend name.
    offload : dict
        Backend name (``tvm`` too) to :class:`Offload`. Equal regions count once for each place.
    """

    mod: tvm.IRModule
    generated: list[Generated] = field(default_factory=list)
    backend_of: dict[str, str] = field(default_factory=dict)
    offload: dict[str, Offload] = field(default_factory=dict)


def partition(
    mod: tvm.IRModule,
    backends: Sequence[Backend],
    target: tvm.target.Target,
    constants: Mapping[str, Collection[int]] | None = None,
    required: Collection[str] = (),
) -> Partitioned:
    """Let each backend in turn take what its patterns match and its cost hook wants.

    Parameters
    ----------
    mod : tvm.IRModule
    backends : sequence of Backend
    target : tvm.target.Target
    constants : mapping, optional
        Name of a function to the parameters that are weights wherever it is called.
    required : collection of str
        Backends that the user asked for.

    Raises
    ------
    UsageError
        If a required backend has no patterns for the target.
    CompileError
        If a backend fails to generate code.
    """
    result = Partitioned(mod)
    for backend in (b for b in backends if b.patterns is not None):
        _give(result, backend, target, constants or {}, backend.name in required)
    rest = Offload()
    for _, fn in _relax_functions(result.mod):
        nodes, macs = work_of(fn)
        rest.nodes, rest.macs = rest.nodes + nodes, rest.macs + macs
    result.offload["tvm"] = rest
    return result


def _relax_functions(mod: tvm.IRModule) -> list[tuple[Any, Any]]:
    found = [(gv, fn) for gv, fn in mod.functions_items() if isinstance(fn, relax.Function)]
    return sorted(found, key=lambda item: item[0].name_hint)


def _give(
    result: Partitioned, backend: Backend, target: tvm.target.Target, constants: Mapping[str, Collection[int]], required: bool
) -> None:
    stats = result.offload.setdefault(backend.name, Offload())
    assert backend.patterns is not None
    table = list(backend.patterns(target))
    if not table:
        if required:
            raise UsageError(f"the backend {backend.name!r} takes nothing for {target}: is its library installed? See docs/backends.md")
        return
    patterns = [
        relax.transform.FusionPattern(f"{backend.name}.{p.name}", p.pattern, p.annotations, p.predicate)
        if p.predicate is not None
        else relax.transform.FusionPattern(f"{backend.name}.{p.name}", p.pattern, p.annotations)
        for p in table
    ]
    found = _Found(backend, target, stats)
    merge = relax.transform.FuseOpsByPattern(patterns, bind_constants=False, annotate_codegen=not backend.merge)
    if backend.merge:
        merge = tvm.transform.Sequential([merge, relax.transform.MergeCompositeFunctions()])
    kernels = {gv: fn for gv, fn in result.mod.functions_items() if not isinstance(fn, relax.Function)}
    for gv, fn in _relax_functions(result.mod):
        # MergeCompositeFunctions looks at "main" only: each sub-DNN has its turn as the main of a module
        alone = tvm.IRModule({tvm.ir.GlobalVar("main"): fn.with_attr("global_symbol", "main"), **kernels})
        body = found.take(merge(alone), constants.get(gv.name_hint, ()))
        result.mod.update_func(gv, body.with_attr("global_symbol", gv.name_hint))
    result.backend_of.update({r.symbol: backend.name for r in found.used})
    if found.used:
        assert backend.codegen is not None, "a backend with patterns has a code generator"
        try:
            result.generated.append(backend.codegen(found.used, target))
        except Exception as error:
            raise CompileError(f"the backend {backend.name} failed to generate code: {error}") from error


class _Found:
    """The distinct regions of one backend, over all sub-DNNs."""

    def __init__(self, backend: Backend, target: tvm.target.Target, stats: Offload) -> None:
        self.backend, self.target, self.stats = backend, target, stats
        self.distinct: list[Region] = []
        self.used: list[Region] = []

    def take(self, mod: tvm.IRModule, constants: Collection[int]) -> Any:
        """Return ``main`` with the regions that are worth it as external calls, the others put back."""
        chosen: dict[str, str] = {}
        dropped: list[str] = []
        places = _calls_of(mod["main"])
        known = _constant_args(mod["main"], constants)
        for gv, fn in _relax_functions(mod):
            if not fn.attrs or fn.attrs.get("Codegen") != self.backend.name:
                continue
            region = self._region(fn.without_attr("global_symbol"), known.get(gv.name_hint, frozenset()))
            if self.backend.worth is not None and not self.backend.worth(region, self.target):
                dropped.append(gv.name_hint)
                self.stats.rejected += places[gv.name_hint]
                self.stats.rejected_nodes += region.nodes * places[gv.name_hint]
                self.stats.rejected_macs += region.macs * places[gv.name_hint]
                continue
            chosen[gv.name_hint] = region.symbol
            if all(region is not r for r in self.used):
                self.used.append(region)
            self.stats.regions += places[gv.name_hint]
            self.stats.nodes += region.nodes * places[gv.name_hint]
            self.stats.macs += region.macs * places[gv.name_hint]
        return _externalise(_undo(mod, dropped), chosen)["main"]

    def _region(self, fn: Any, constants: frozenset[int]) -> Region:
        """Return the region of a function; equal functions with the same constant parameters are one."""
        for region in self.distinct:
            if region.constants == constants and tvm_ffi.structural_equal(region.function, fn):
                return region
        nodes, macs = work_of(fn)
        self.distinct.append(Region(f"{self.backend.name}_region_{len(self.distinct)}", fn, macs, nodes, constants))
        return self.distinct[-1]


def _calls_of(fn: Any) -> Counter[str]:
    """Count the calls of each global function."""
    found: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar):
            found[expr.op.name_hint] += 1

    relax.analysis.post_order_visit(fn, visit)
    return found


def constant_vars(fn: Any, constant_params: Collection[int]) -> set[Any]:
    """Return the variables of a function that depend on constants and constant parameters only."""
    known = {fn.params[k] for k in constant_params}
    for block in fn.body.blocks:
        for binding in block.bindings:
            free = list(relax.analysis.free_vars(binding.value))
            if isinstance(binding.value, tvm.ir.GenericConst) or (free and all(v in known for v in free)):
                known.add(binding.var)
    return known


def _constant_args(fn: Any, constant_params: Collection[int]) -> dict[str, frozenset[int]]:
    """Return, for each global function that ``fn`` calls, the arguments that depend on constant parameters only, at all its calls."""
    known = constant_vars(fn, constant_params)
    found: dict[str, frozenset[int]] = {}
    for block in fn.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
                here = frozenset(k for k, a in enumerate(value.args) if a in known or isinstance(a, tvm.ir.GenericConst))
                found[value.op.name_hint] = found.get(value.op.name_hint, here) & here
    return found


def _undo(mod: tvm.IRModule, names: list[str]) -> tvm.IRModule:
    """Put the bodies of regions back where they were called."""
    if not names:
        return mod
    for name in names:
        mod[name] = mod[name].without_attr("global_symbol").without_attr("Codegen")
    inlined = _Inliner(mod, set(names))
    for gv, fn in _relax_functions(mod):
        if gv.name_hint not in names:
            mod.update_func(gv, inlined.run(fn))
    for name in names:
        del mod[name]
    return relax.transform.CanonicalizeBindings()(mod)


def _externalise(mod: tvm.IRModule, symbols: dict[str, str]) -> tvm.IRModule:
    """Turn calls of regions into calls of external symbols that write into their last arguments."""
    if not symbols:
        return mod
    mutator = _Externaliser(mod, symbols)
    for gv, fn in _relax_functions(mod):
        if gv.name_hint not in symbols and not (fn.attrs and "Codegen" in fn.attrs):
            mod.update_func(gv, mutator.visit_expr(fn))
    for name in symbols:
        del mod[name]
    return mod


@relax.expr_functor.mutator
class _Externaliser(relax.PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: tvm.IRModule, symbols: dict[str, str]) -> None:
        super().__init__(mod)
        self.symbols = symbols

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if isinstance(call.op, tvm.ir.GlobalVar) and call.op.name_hint in self.symbols:
            out = call.ty
            types = list(out.fields) if isinstance(out, relax.TupleType) else out
            return relax.call_dps_packed(self.symbols[call.op.name_hint], relax.Tuple(list(call.args)), types)
        return call


class _Inliner:
    """Copies the bodies of chosen functions, and of the composite functions inside them, to their places of call."""

    def __init__(self, mod: tvm.IRModule, names: set[str]) -> None:
        self.mod, self.names = mod, names

    def run(self, fn: Any) -> Any:
        bb = relax.BlockBuilder(self.mod)
        params = list(fn.params)
        with bb.function("f", params, attrs=dict(fn.attrs.items()) if fn.attrs else None, private=False):
            with bb.dataflow():
                env: dict[Any, Any] = {}
                out = self._body(bb, fn, env)
                result = bb.emit_output(out)
            bb.emit_func_output(result)
        return bb.get()["f"].with_attr("global_symbol", fn.attrs["global_symbol"])

    def _body(self, bb: Any, fn: Any, env: dict[Any, Any]) -> Any:
        local: dict[Any, Any] = {}
        for block in fn.body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.Function):
                    local[binding.var] = value
                    continue
                env[binding.var] = self._value(bb, value, env, local)
        return self._substitute(fn.body.body, env)

    def _value(self, bb: Any, value: Any, env: dict[Any, Any], local: dict[Any, Any]) -> Any:
        value = self._substitute(value, env)
        if isinstance(value, relax.Call):
            callee = None
            if isinstance(value.op, tvm.ir.GlobalVar) and value.op.name_hint in self.names:
                callee = self.mod[value.op.name_hint]
            elif isinstance(value.op, relax.Var) and value.op in local:
                callee = local[value.op]
            if callee is not None:
                return self._body(bb, callee, dict(zip(callee.params, value.args)))
        return bb.emit(value)

    @staticmethod
    def _substitute(expr: Any, env: dict[Any, Any]) -> Any:
        if isinstance(expr, relax.Var):
            return env.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([_Inliner._substitute(f, env) for f in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(_Inliner._substitute(expr.tuple_value, env), expr.index)
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [_Inliner._substitute(a, env) for a in expr.args], expr.attrs, expr.ty_args)
        return expr


def work_of(fn: Any) -> tuple[int, int]:
    """Return (operators, multiply-accumulates) of a Relax function, functions defined in it included."""
    nodes = macs = 0

    def visit(expr: Any) -> None:
        nonlocal nodes, macs
        if not isinstance(expr, relax.Call) or not isinstance(expr.op, tvm.ir.Op):
            return
        if expr.op.name == "relax.call_dps_packed":
            return
        nodes += 1
        macs += _macs(expr)

    relax.analysis.post_order_visit(fn, visit)
    return nodes, macs


def _macs(call: Any) -> int:
    name = call.op.name
    if name.startswith("relax.nn.conv") and "transpose" not in name:
        weight = [int(d) for d in call.args[1].ty.shape]
        return math.prod(int(d) for d in call.ty.shape) * math.prod(weight[1:])
    if name == "relax.matmul":
        return math.prod(int(d) for d in call.ty.shape) * int(list(call.args[0].ty.shape)[-1])
    return 0
