# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The backend ``tir_cpu``: kernels of families for CPUs, for whatever the backends before it have left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm

from dycl_tvm.backends.front import same_front
from dycl_tvm.backends.network_kernels import Blocks, Chosen, Network
from dycl_tvm.backends.registry import Backend
from dycl_tvm.backends.tir_cpu import attention, borders, halves, rms_norm
from dycl_tvm.backends.tir_cpu.emit import ModuleEmitter
from dycl_tvm.backends.tir_cpu.families import reduction
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.fuse import fuse
from dycl_tvm.backends.tir_cpu.graph import Reader
from dycl_tvm.backends.tir_cpu.kernels import Kernels
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.machine import machine_of


class FamilyKernels:
    """The kernels of one network; see :class:`dycl_tvm.backends.network_kernels.NetworkKernels`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        machine = machine_of(network.target)
        self.selector = Selector(machine, network.options, network.target, network.progress, network.weight_bytes, network.varied)
        self._kernels = Kernels(self.selector)
        self._halved = 0

    @property
    def makers(self) -> Mapping[str, Maker]:
        """By the name of its function, what makes a kernel again with loops that ask sizes of the call."""
        return self._kernels.makers

    def prepare(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with one operator in the place of each RMS norm that is written out."""
        return rms_norm.join(mod)

    def choose(self, mod: tvm.IRModule, names: Sequence[str], plan: Callable[[Mapping[str, Any], Any], Blocks]) -> tvm.IRModule:
        """Return the module with family kernels in it."""
        reader = Reader(mod)
        graphs = {name: reader.read(name, self.network.constants.get(name, ())) for name in names}
        for graph in graphs.values():
            attention.join(graph, mod, self._kernels.takes_attention)
            borders.join(graph, self._kernels.takes_border)
            fuse(graph, views=self.network.options.accuracy == "bf16")
        blocks = plan(graphs, self._kernels)
        self._halved = sum(halves.store(graph, self._kernels) for graph in graphs.values())
        emitter = ModuleEmitter(mod, self._kernels)
        for name, graph in graphs.items():
            emitter.function(graph, blocks.params[name], blocks.results[name])
        self.selector.save()
        return emitter.finish(list(graphs))

    def schedule(self, functions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kernels of reductions."""
        if "reduction" in self.selector.options.disabled_families:
            return {}
        found = ((symbol, reduction.schedule(fn, self.selector.machine)) for symbol, fn in functions.items())
        return {symbol: same_front(fn, functions[symbol]) for symbol, fn in found if fn is not None}

    def chosen(self) -> Chosen:
        """Return what was chosen."""
        measured = self.selector.measured + self.selector.found
        left = tuple(dict.fromkeys(self._kernels.left))
        estimated = self.selector.choices() - measured
        return Chosen(self._kernels.offload, dict(self._kernels.families), left, measured, estimated, self._halved)


def backend() -> Backend:
    """Return the backend."""
    return Backend("tir_cpu", kernels=FamilyKernels)
