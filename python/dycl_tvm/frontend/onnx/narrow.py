# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Weights of 4 bits: as the integers of 8 bits that they are, where nothing but their value counts.

Only ``DequantizeLinear`` asks for nothing else: its result has the type of its scale. Weights of 4 bits that anything else reads (a
``QuantizeLinear`` saturates to their type) stay what they are, and are refused where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_WIDER = {onnx.TensorProto.INT4: np.int8, onnx.TensorProto.UINT4: np.uint8}


def widened(model: Any, base: str) -> Any:
    """Return a model whose dequantised weights of 4 bits are stored in 8; the model itself if it has none.

    Parameters
    ----------
    model : onnx.ModelProto
        It is not changed.
    base : str
        The folder of its external data.
    """
    graph = model.graph
    narrow = {t.name for t in graph.initializer if t.data_type in _WIDER}
    if not narrow:
        return model
    narrow -= {o.name for o in graph.output} | {i.name for i in graph.input}
    for node in graph.node:
        dequantises = node.op_type == "DequantizeLinear" and node.domain in ("", "ai.onnx")
        narrow -= {name for k, name in enumerate(node.input) if not (dequantises and k in (0, 2))}
        narrow -= set(_names_inside(node))
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.name in narrow:
            values = numpy_helper.to_array(tensor, base).astype(_WIDER[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return made


def _names_inside(node: Any) -> Iterator[str]:
    """Yield the names that the graphs inside of a node read or give."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from inner.input
                yield from _names_inside(inner)
