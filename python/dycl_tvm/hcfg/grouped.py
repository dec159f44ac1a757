# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Products of float32 with weights of 8 or 4 bits, as operators of graphs: the weights are dequantised, the rest is float32.

Importing the file makes them PyTorch operators of the namespace ``dycl_quantized``. Weights are rows of integers, int8 (n, k), or uint8
(n, ceil(k / 2)) for 4 bits: two's complement, the first of two in the low half of a byte. Each ``group`` of neighbours of a row has a
float32 scale, (n, ceil(k / group)): the last group may be shorter. A weight is ``float32(integer) * scale``, rounded once.
"""

from __future__ import annotations

import torch

from dycl_tvm.hcfg.quantized import NAMESPACE

#: The names of the operators in graphs.
LINEAR, ROWS = f"{NAMESPACE}.grouped_linear.default", f"{NAMESPACE}.grouped_rows.default"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def in_bytes(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Return integers (n, k) of 8 or 4 bits as operators take them."""
    if bits == 8:
        return integers.to(torch.int8).contiguous()
    nibbles = torch.nn.functional.pad(integers.to(torch.int8), (0, integers.shape[1] % 2)).view(torch.uint8) & 15
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def dequantised(data: torch.Tensor, scales: torch.Tensor, group: int, k: int) -> torch.Tensor:
    """Return rows of integers, with their scales, as the float32 weights (..., k)."""
    if data.dtype == torch.uint8:
        signed = (torch.stack([data & 15, data >> 4], -1).flatten(-2).view(torch.int8) ^ 8) - 8
        data = signed[..., :k]
    return data.to(torch.float32) * scales.repeat_interleave(group, -1)[..., :k]


def _linear(x: torch.Tensor, data: torch.Tensor, scales: torch.Tensor, group: int) -> torch.Tensor:
    """A product (..., k) x (n, k)^T."""
    return torch.nn.functional.linear(x, dequantised(data, scales, group, x.shape[-1]))


def _rows(data: torch.Tensor, scales: torch.Tensor, group: int, k: int, index: torch.Tensor) -> torch.Tensor:
    """Rows of the weights, as ``aten.embedding`` takes them."""
    embedding = torch.nn.functional.embedding
    return dequantised(embedding(index, data), embedding(index, scales), group, k)


for _schema, _function in (
    ("grouped_linear(Tensor x, Tensor data, Tensor scales, int group) -> Tensor", _linear),
    ("grouped_rows(Tensor data, Tensor scales, int group, int k, Tensor index) -> Tensor", _rows),
):
    _library.define(_schema)
    _library.impl(_schema.split("(")[0], _function, "CompositeExplicitAutograd")
