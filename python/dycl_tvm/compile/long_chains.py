# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Chains of operators whose expression would be too long if all of it were one kernel.

Schedules for GPUs write what is computed element by element into its readers. Expressions are trees: each operator that names its operand
several times, as a bound that lets NaN through does, multiplies the size of what is before it, and so do operators that read one tensor by
two ways (`x % 7 + x // 3`). So some operators are computed by kernels of their own.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from dycl_tvm.backends.tir_cpu.reading.stages import Complexity, complexity_of

_PATTERN = "op_pattern"
_LAST_INLINED, _OPAQUE = 2, 8  # relax's OpPatternKind: kInjective, kOpaque


def cut_long_chains(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark operators that fusion has to leave alone; to be called once the patterns of all are known, and before fusion."""
    cut = _Cut(mod)
    for gv, fn in list(mod.functions_items()):
        if isinstance(fn, relax.Function):
            cut.builder_.update_func(gv, cut.visit_expr(fn))
    return cut.builder_.get()


@relax.expr_functor.mutator
class _Cut(relax.PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod
        #: Of the variables whose expressions would be written into their readers, the complexity of these.
        self.complexities: dict[Any, Complexity] = {}
        self.is_long = False

    def visit_var_binding_(self, binding: Any) -> None:
        self.is_long = False
        call = binding.value
        if isinstance(call, relax.Call) and call.op == tvm.ir.Op.get("relax.call_tir"):
            fn = self.mod[call.args[0]]
            if int(fn.attrs.get(_PATTERN, _OPAQUE)) <= _LAST_INLINED and not isinstance(call.ty, relax.TupleType):
                operands = [self.complexities.get(arg) for arg in call.args[1].fields]
                found = _complexity(fn, operands)
                self.is_long = any(operands) and found.is_too_long()
                if not self.is_long:
                    self.complexities[binding.var] = found
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not self.is_long:
            return call
        name = call.args[0]
        alone = self.builder_.add_func(self.mod[name].with_attr(_PATTERN, _OPAQUE), f"{name.name_hint}_alone")
        return relax.Call(call.op, [alone, *call.args[1:]], call.attrs, call.ty_args)


def _complexity(fn: Any, operands: list[Complexity | None]) -> Complexity:
    """Return the complexity of what a function computes, with its operands written into it."""
    known: dict[Any, Complexity | None] = dict(zip(fn.params, operands))
    last = Complexity()

    def visit(store: Any) -> None:
        nonlocal last
        last = known[store.buffer] = complexity_of(store.value, known.get)

    tvm_ffi.structural_walk(fn.body, (tirx.BufferStore, visit))
    return last
