# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The layers of a graph that can compute with integers: convolutions and products with constant weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, TensorOp, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.rewrite import static_argument

#: The names of input, weight and bias, and which dimension of the weight is the output's channels.
_KINDS: dict[str, tuple[str, str, str | None, int]] = {
    "aten.convolution.default": ("input", "weight", "bias", 0),
    "aten.conv2d.default": ("input", "weight", "bias", 0),
    "aten.linear.default": ("input", "weight", "bias", 0),
    "aten.addmm.default": ("mat1", "mat2", "self", 1),
    "aten.mm.default": ("self", "mat2", None, 1),
    "aten.matmul.default": ("self", "other", None, 1),
}


@dataclass(frozen=True, eq=False)
class Layer:
    """One place where a layer runs; a layer that runs at several places has one ``weight``.

    Attributes
    ----------
    step : TensorOp
    block : Block
    x : Value
    weight : Constant
    channel : int
        The dimension of the weight that is the output's channels.
    bias : Constant or None
    names : tuple of str
        Of its input, weight and bias in the operator's schema.
    """

    step: TensorOp
    block: Block
    x: Value
    weight: Constant
    channel: int
    bias: Constant | None
    names: tuple[str, str, str | None]

    @property
    def is_finite(self) -> bool:
        """Whether all weights are numbers that integers can stand for."""
        return bool(self.weight.data.isfinite().all())

    @property
    def name(self) -> str:
        """The qualified name of the module, or of the weight where there is no module."""
        return name_of(self.weight)


def name_of(weight: Constant) -> str:
    """Return the qualified name of the module of a weight, or of the weight where there is no module."""
    text = weight.name
    while text.endswith((".folded", ".weight")):
        text = text.rpartition(".")[0]
    return text


def layers_of(graph: HCFG) -> list[Layer]:
    """Return the layers of a graph whose sub-DNNs are not formed yet, in the order of its blocks."""
    found = []
    for block in graph.blocks:
        for step in block.steps:
            layer = _layer(step, block) if isinstance(step, TensorOp) and step.op in _KINDS else None
            if layer is not None:
                found.append(layer)
    return found


def no_layers(graph: HCFG) -> list[tuple[str, int, str]]:
    """Return the constant weights of products and convolutions that are no layers: names, at how many places they run, and why."""
    steps = [(s, b) for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) and s.op in _KINDS]
    weights = [static_argument(step, _KINDS[step.op][1]) for step, block in steps if _layer(step, block) is None]
    return [(name_of(w), n, _why_no_layer(w)) for w, n in Counter(w for w in weights if isinstance(w, Constant)).items()]


def _why_no_layer(weight: Constant) -> str:
    dtype = weight.type.dtype  # type: ignore[union-attr]  # constants are tensors
    return f"its weights are {dtype}, not float32" if dtype != "float32" else "a product or a convolution of another kind"


def without(layers: list[Layer], skip: Collection[str]) -> list[Layer]:
    """Return the layers that are none of, and in none of the modules of, ``skip``.

    Raises
    ------
    UsageError
        For a name that is no layer's.
    """
    if isinstance(skip, str):
        raise UsageError(f"skip is a collection of names: [{skip!r}]")
    for name in skip:
        if not any(_is_in(layer.name, name) for layer in layers):
            known = ", ".join(dict.fromkeys(layer.name or "(a weight without a name)" for layer in layers))
            raise UsageError(f"there is no layer {name!r} that could be skipped; there are {known or 'none'}")
    return [layer for layer in layers if not any(_is_in(layer.name, name) for name in skip)]


def _is_in(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _layer(step: TensorOp, block: Block) -> Layer | None:
    x_name, weight_name, bias_name, channel = _KINDS[step.op]
    x, weight = static_argument(step, x_name), static_argument(step, weight_name)
    bias = None if bias_name is None else static_argument(step, bias_name)
    out = step.outputs[0]
    if isinstance(x, Constant) or not isinstance(weight, Constant) or not (bias is None or isinstance(bias, Constant)):
        return None
    if out is None or any(not _is_float32(v) for v in (x, weight, out, *([] if bias is None else [bias]))):
        return None
    rank = len(weight.type.shape)  # type: ignore[union-attr]  # constants are tensors
    convolution = "conv" in step.op
    if rank != (4 if convolution else 2) or (convolution and len(x.type.shape) != 4):
        return None
    if step.op == "aten.convolution.default" and static_argument(step, "transposed"):
        return None
    if step.op == "aten.addmm.default" and (static_argument(step, "beta"), static_argument(step, "alpha")) != (1, 1):
        return None
    return Layer(step, block, x, weight, channel, bias, (x_name, weight_name, bias_name))


def argument_at(step: TensorOp, name: str | None) -> Any:
    """Return where an argument stands in a step: a position, or its name among the keywords; None if it is left out."""
    if name is None:
        return None
    if name in step.kwargs:
        return name
    from dycl_tvm.hcfg.interpreter import resolve

    position = next(k for k, a in enumerate(resolve(step.op)._schema.arguments) if a.name == name)
    return position if position < len(step.args) else None


def _is_float32(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype == "float32"
