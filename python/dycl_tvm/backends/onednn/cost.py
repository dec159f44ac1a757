# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whether oneDNN would be faster than the kernels that are generated here: two estimates of the same kind are compared."""

from __future__ import annotations

import functools
import math

import tvm

from dycl_tvm.backends.onednn.source import read
from dycl_tvm.backends.onednn.steps import Step, shape_of
from dycl_tvm.backends.registry import Region
from dycl_tvm.backends.tir_cpu.options import KernelOptions
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.machine import Machine, machine_of
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense, Tensor

#: oneDNN's share of the peak where arithmetic bounds it, measured on convolutions of 64 to 512 channels.
_EFFICIENCY = 0.8
#: Seconds of a primitive beyond its arithmetic: the call, and threads that start and meet.
_CALL = 2e-6
#: Caches stream this much faster than memory.
_CACHE = 4.0
#: What no kernel family takes gets TVM's generic schedule: its share of the peak.
_GENERIC = 0.03
#: A region must be this much faster than what it replaces: estimates are no better, and an artefact without oneDNN needs less.
_CLEARLY = 1.25


def worth(region: Region, target: tvm.target.Target) -> bool:
    """Return whether the estimate for oneDNN is clearly below that of the kernel families."""
    machine = machine_of(target)
    steps = read(region).steps
    ours = sum(families_seconds(step, target) for step in steps)
    return sum(onednn_seconds(step, machine) for step in steps) + _borders(region, machine) < ours / _CLEARLY


def onednn_seconds(step: Step, machine: Machine) -> float:
    """Return the estimate for one primitive, with all cores of the machine."""
    macs = math.prod(step.out_shape) * (math.prod(shape_of(step.w)[1:]) if step.is_convolution else shape_of(step.x)[-1])
    arithmetic = 2e-9 * macs / (_EFFICIENCY * machine.gflops * machine.cores)
    weights = 4e-9 * math.prod(shape_of(step.w)) / (machine.bandwidth * machine.cores)
    images = 4e-9 * (math.prod(shape_of(step.x)) + math.prod(step.out_shape)) / (_CACHE * machine.bandwidth * machine.cores)
    return max(arithmetic, weights) + images + _CALL


def families_seconds(step: Step, target: tvm.target.Target) -> float:
    """Return the estimate for the kernel that would be generated."""
    selector = _selector(target)
    machine = selector.machine
    work = _convolution(step, machine.lanes) if step.is_convolution else _product(step)
    chosen = selector.convolution(work) if isinstance(work, Conv2D) else selector.product(work)
    return chosen.plan.seconds if chosen is not None else 2e-9 * work.macs / (_GENERIC * machine.gflops * machine.cores)


def _borders(region: Region, machine: Machine) -> float:
    """Return the seconds for the changes of layout where a region begins and ends: every tensor of it is read and written once."""
    images = [p for k, p in enumerate(region.function.params) if k not in region.constants and len(p.ty.shape) == 4]
    out = region.function.ret_ty
    numbers = [math.prod(shape_of(p)) for p in images]
    numbers += [math.prod(int(d) for d in t.shape) for t in (getattr(out, "fields", None) or [out]) if len(t.shape) == 4]
    return 2 * 4e-9 * sum(numbers) / (_CACHE * machine.bandwidth * machine.cores)


@functools.lru_cache(maxsize=4)
def _selector(target: tvm.target.Target) -> Selector:
    return Selector(machine_of(target), KernelOptions(), target)


def _convolution(step: Step, lanes: int) -> Conv2D:
    x, attrs = shape_of(step.x), step.call.attrs
    stride, padding, dilation = ([int(v) for v in getattr(attrs, a)] for a in ("strides", "padding", "dilation"))
    kernel = shape_of(step.w)[2:]
    return Conv2D(
        Tensor(x, "float32", lanes),
        Tensor(step.out_shape, "float32", lanes),
        (kernel[0], kernel[1]),
        (stride[0], stride[1]),
        (padding[0], padding[1], padding[2], padding[3]),
        (dilation[0], dilation[1]),
        int(attrs.groups),
    )


def _product(step: Step) -> Dense:
    k, n = shape_of(step.w)
    return Dense(1, math.prod(step.out_shape[:-1]), n, k)
