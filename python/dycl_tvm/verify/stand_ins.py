# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Weights that stand for those of a program where it counts which one is meant, and not what it holds: together they are small."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from dycl_tvm.codegen.weights import tensor_bytes, weight_names
from dycl_tvm.compile.program import Program, Weight
from dycl_tvm.runtime.params import ALIGN, FILE_DTYPES, write_laid_out
from dycl_tvm.verify.noise import noise

#: Weights of up to so many bytes stay as they are, for among so few random bytes two may be equal.
_SMALL = 4096


class StandIns:
    """A program whose large weights are windows on one piece of memory, no two at one place.

    The memory holds zeros and ones at random, as bytes: numbers of every type.

    Attributes
    ----------
    program : Program
        The given one, with other weights.
    """

    def __init__(self, program: Program) -> None:
        large = [k for k, w in enumerate(program.weights) if w.type.nbytes > _SMALL]
        self._places = {k: ALIGN * n for n, k in enumerate(large)}
        size = max((self._places[k] + program.weights[k].type.nbytes for k in large), default=0)
        generator = torch.Generator().manual_seed(0)
        pieces = [noise((size + -size % ALIGN,), lambda n: torch.randint(0, 2, (n,), dtype=torch.uint8, generator=generator))]
        size = pieces[0].numel()
        for k, weight in enumerate(program.weights):
            if k not in self._places:
                self._places[k] = size
                data = torch.frombuffer(bytearray(tensor_bytes(weight.data)) or bytearray(ALIGN), dtype=torch.uint8)
                pieces += [data, torch.zeros(-data.numel() % ALIGN, dtype=torch.uint8)]
                size += data.numel() + -data.numel() % ALIGN
        self._memory = torch.cat(pieces)
        self.program = dataclasses.replace(program, weights=[self._window(k, w) for k, w in enumerate(program.weights)])

    def _window(self, number: int, weight: Weight) -> Weight:
        begin = self._places[number]
        window = self._memory[begin : begin + weight.type.nbytes].view(getattr(torch, weight.type.dtype))
        return dataclasses.replace(weight, data=window.reshape(weight.type.shape))

    def write(self, path: Path, fingerprint: str) -> None:
        """Write them as the params file of a library."""
        entries: dict[str, dict[str, Any]] = {}
        for k, name in enumerate(weight_names(self.program)):
            type_, begin = self.program.weights[k].type, self._places[k]
            entries[name] = {"dtype": FILE_DTYPES[type_.dtype], "shape": list(type_.shape), "data_offsets": [begin, begin + type_.nbytes]}
        write_laid_out(path, entries, [tensor_bytes(self._memory)], fingerprint)
