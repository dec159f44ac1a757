# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Regions as C++: one function describes a region to ``onednn_region.h``, one is its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.backends.onednn.library import find_library
from dycl_tvm.backends.onednn.steps import RELU, Step, parse, shape_of
from dycl_tvm.backends.registry import Generated, Region
from dycl_tvm.errors import CompileError


@dataclass
class Steps:
    """A region: its primitives in order, the variable that each defines, and the variables that it returns."""

    steps: list[Step]
    outputs: list[Any]
    results: list[Any]


def read(region: Region) -> Steps:
    """Return the steps of a region."""
    local: dict[Any, Any] = {}
    alias: dict[Any, Any] = {}
    steps: list[Step] = []
    outputs: list[Any] = []

    def root(expr: Any) -> Any:
        while expr in alias:
            expr = alias[expr]
        return expr

    for block in region.function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Function):
                local[binding.var] = value
            elif isinstance(value, relax.Call) and value.op in local:
                steps.append(_inline(local[value.op], [root(a) for a in value.args]))
                outputs.append(binding.var)
            elif isinstance(value, (relax.Var, relax.Tuple)):
                alias[binding.var] = value
            else:
                raise CompileError(f"internal: a region of oneDNN holds {value}")
    result = root(region.function.body.body)
    return Steps(steps, outputs, [root(f) for f in result.fields] if isinstance(result, relax.Tuple) else [result])


def _inline(fn: Any, args: Sequence[Any]) -> Step:
    """Return the step of a composite function, in terms of the region's variables."""
    bindings = {b.var: b.value for block in fn.body.blocks for b in block.bindings}
    step = parse(fn.body.body, bindings)
    if step is None:
        raise CompileError(f"internal: oneDNN's predicate took what its code generator does not: {fn}")
    given = dict(zip(fn.params, args))
    for name in ("x", "w", "bias", "residual"):
        if getattr(step, name) is not None:
            setattr(step, name, given[getattr(step, name)])
    return step


def generate(regions: Sequence[Region], target: tvm.target.Target) -> Generated:
    """Write all regions of a network into one file."""
    library = find_library()
    assert library is not None  # there were patterns
    parts = ['#include "onednn_region.h"\n\nusing namespace dycl::onednn;\n', *(_region(r) for r in regions)]
    return Generated(sources=(("onednn_regions.cc", "\n".join(parts)),), link_flags=library.link_flags)


def _region(region: Region) -> str:
    steps = read(region)
    names: dict[Any, str] = {}
    lines = []
    for k, param in enumerate(region.function.params):
        names[param] = f"a{k}"
        constant = ", true" if k in region.constants else ""
        lines.append(f"Tensor* a{k} = r.Argument({k}, {_braces(shape_of(param))}{constant});")
    for k, (step, out) in enumerate(zip(steps.steps, steps.outputs)):
        names[out] = f"t{k}"
        lines.append(f"Tensor* t{k} = {_call(step, names)};")
    first = len(region.function.params)
    lines += [f"r.Output({first + k}, {names[result]});" for k, result in enumerate(steps.results)]
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"static void Describe_{region.symbol}(Region& r) {{\n{body}\n}}\n"
        f'extern "C" int __tvm_ffi_{region.symbol}(void* self, const TVMFFIAny* args, int32_t, TVMFFIAny*) {{\n'
        f"  return Run(self, Describe_{region.symbol}, args);\n}}\n"
    )


def _call(step: Step, names: dict[Any, str]) -> str:
    call = _primitive(step, names)
    return f"r.Relu({call})" if step.activation == RELU else call


def _primitive(step: Step, names: dict[Any, str]) -> str:
    bias = names[step.bias] if step.bias is not None else "nullptr"
    after = [f"Add({names[step.residual]})"] if step.residual is not None else []
    if step.activation is not None and step.activation != RELU:
        kind, alpha, beta = step.activation
        after.append(f"Eltwise({kind}, {alpha!r}F, {beta!r}F)")
    ends = f", {{{', '.join(after)}}})" if after else ")"
    start = f"{names[step.x]}, {names[step.w]}, {bias}, {_braces(step.out_shape)}"
    if not step.is_convolution:
        return f"r.Product({start}{ends}"
    attrs = step.call.attrs
    stride, padding, dilation = ([int(v) for v in getattr(attrs, a)] for a in ("strides", "padding", "dilation"))
    window = ", ".join(map(_braces, (stride, [d - 1 for d in dilation], padding[:2], padding[2:])))
    return f"r.Convolution({start}, {{{window}}}, {int(attrs.groups)}{ends}"


def _braces(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"
