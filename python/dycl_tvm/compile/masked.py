# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Masks that a convolution applies while it reads, in place of kernels that write a whole image with zeros behind its rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dycl_tvm.backends.extents import Bounds, Extent, Wanted, outer
from dycl_tvm.backends.tir_cpu.families.conv_winograd import WinogradMaker
from dycl_tvm.backends.tir_cpu.words.loops import MASKING
from dycl_tvm.compile.call_list import Call, CallList
from dycl_tvm.compile.pipeline import KernelSet
from dycl_tvm.compile.wanted import Fact, Mask, Number

#: Of an image, dimensions and how far it reaches along each: behind that it is zero.
Masks = Mapping[int, Extent]
#: The rows and the columns of an image.
AROUND = (2, 3)


def take_masks(lst: CallList, fact: Callable[[int], Fact | None], kernels: KernelSet) -> dict[int, Masks]:
    """Let convolutions read what is masked for them, and nobody else, as it is before; masks that nobody reads any more go.

    Parameters
    ----------
    lst : CallList
        Whose calls are changed.
    fact : callable
        What is known of a tensor by its number.
    kernels : KernelSet

    Returns
    -------
    dict
        The output of such a convolution to the masks that it is to apply.
    """
    writer = {call.outputs[0]: call for call in lst.calls if len(call.outputs) == 1 and call.backend == "tvm"}
    found: dict[int, Masks] = {}
    loose: set[int] = set()
    for k, call in enumerate(lst.calls):
        if not isinstance(kernels.maker_of.get(call.symbol), WinogradMaker):
            continue
        x, masks, passed = call.inputs[0], {}, []
        while x in writer and (known := _mask_of(writer[x], fact, kernels)) is not None and known[1].dim not in masks:
            passed.append(x)
            x, mask = known
            masks[mask.dim] = mask.extent
        if masks:
            lst.calls[k] = replace(call, inputs=(x, *call.inputs[1:]))
            found[call.outputs[0]] = masks
            loose.update(passed)
    if loose:
        lst.calls[:] = _without(lst, loose)
    return found


def within(read: Wanted | None, masks: Masks, bounds: Bounds) -> Wanted | None:
    """Return what is read of an image that is masked while it is read."""
    if read is None:
        return None
    found = list(read)
    for dim, extent in masks.items():
        there = outer(found[dim])
        if there is None or bounds.covers(there, extent):
            found[dim] = extent
    return tuple(found)


def _mask_of(call: Call, fact: Callable[[int], Fact | None], kernels: KernelSet) -> tuple[int, Mask] | None:
    """Return what a call masks with zeros, and how, if it does nothing else."""
    fn = kernels.functions[call.symbol]
    if MASKING not in fn.attrs:
        return None
    truth, through, other = (call.inputs[int(k)] for k in fn.attrs[MASKING])
    mask, number = fact(truth), fact(other)
    if not isinstance(mask, Mask) or mask.dim not in AROUND or not mask.extent.factor or not isinstance(number, Number) or number.value:
        return None
    return through, mask


def _without(lst: CallList, loose: set[int]) -> list[Call]:
    """Return the calls without those of loose results that nobody reads, and without those that were for them alone."""
    needed, kept = {lst.root(n) for n in lst.results}, []
    for call in reversed(lst.calls):
        if all(n in loose and n not in needed for n in call.outputs):
            loose.update(map(lst.root, call.inputs))
        else:
            kept.append(call)
            needed.update(map(lst.root, call.inputs))
    return kept[::-1]
