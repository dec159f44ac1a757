# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Winograd convolutions: 3x3, stride 1, packed input and output, F(2x2,3x3) and F(4x4,3x3).

An output tile of m x m comes of an input tile of a x a, a = m + 2, by Y = A^T [(G g G^T) * (B^T d B)] A (Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks", 2016): a * a multiplications in place of 9 m * m, 2.25 times fewer for m = 2 and 4 times
for m = 4. The sum over input channels makes the products a batch of a * a matrix products. The points of F(4,3) are
0, +-sqrt(1/2), +-sqrt(2) and infinity: their error is a quarter of that of the usual 0, +-1, +-2 (symmetric reciprocal points: Alam
et al., "Winograd Convolution for Deep Neural Networks: Efficient Point Selection", 2022), at the same number of operations.

max error / max abs output against float64: F(2,3) stays below 2e-6, F(4,3) below 8e-6, for up to 512 channels of normally
distributed values (tested; the medians over random shapes are 6e-7 and 1.7e-6). "strict" allows no F(4,3).

The loops, for a block of tile rows at a time (its V stays in the second level cache)::

    V[x, ic] = B^T d B                            rows first, columns second
    for each group of oc blocks:
        M[x] = sum over ic of U[group, x, ic] * V[x, ic]    register tiles of oc blocks x cols tiles
        Y[group] = epilogue(A^T M A)

Either the blocks run in parallel (``split`` 0), each with scratch of its own, or the input channels and then the groups of one block do
(``split`` 1): then a thread reads only its part of the weights, which is what matters where there are more weights than pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from dycl_tvm.backends.extents import Bounds, Extent, Limit, outer, sizes_of
from dycl_tvm.backends.tir_cpu.families.conv_few import FEW_PLACES, few_weights, pays
from dycl_tvm.backends.tir_cpu.families.conv_winograd_cost import candidates, launches, seconds_of, work_of
from dycl_tvm.backends.tir_cpu.families.conv_winograd_loops import Loops, Shape, WinogradPlan
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.words.epilogue import weighted_buffers
from dycl_tvm.backends.tir_cpu.words.loops import prim_func, store
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.storage import takes
from dycl_tvm.backends.tir_cpu.words.workload import NOTHING, Conv2D, Epilogue, Tensor


class _ConvWinograd:
    """The family; see families/__init__.py."""

    name = "winograd"

    def plans(self, work: Conv2D, machine: Machine) -> list[WinogradPlan]:
        """Return the plans for a convolution, best estimate first; [] if the family does not take it."""
        if not _takes(work, machine):
            return []
        found: dict[tuple[int, ...], WinogradPlan] = {}
        for m in (2, 4):
            for oc, cols, blocks, split in candidates(work, machine, m):
                seconds = seconds_of(Shape(work, m, oc, cols, blocks, machine.lanes), split, machine)
                plan = WinogradPlan(seconds, m, oc, cols, blocks, split)
                way = (m, blocks, split)
                if way not in found or plan.seconds < found[way].seconds:
                    found[way] = plan  # register tiles that differ a little would crowd out what differs much
        ranked = sorted(found.values(), key=lambda plan: plan.seconds)
        return sorted((p for m in (2, 4) for p in [q for q in ranked if q.m == m][:6]), key=lambda plan: plan.seconds)

    def kernel(self, work: Conv2D, plan: WinogradPlan, machine: Machine, epilogue: Epilogue = NOTHING) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, y)."""
        return WinogradMaker(work, plan, machine, epilogue)()

    def packed(self, work: Conv2D, plan: WinogradPlan, machine: Machine) -> Tensor:
        """Vectors in the order in which they are used, [group, x, input channel, output block of the group], and their lanes."""
        s = Shape.of(work, plan, machine)
        return Tensor((s.oc_blocks * s.transform.a**2 * s.ci, s.lanes))

    def pack(self, work: Conv2D, plan: WinogradPlan, machine: Machine) -> Any:
        """Return the PrimFunc (weights, packed weights): U = G g G^T, computed in float64."""
        s = Shape.of(work, plan, machine)
        t, a = s.transform, s.transform.a
        co = work.y.shape[1]

        def body(w: Any, u: Any) -> None:
            with T.serial(0, s.oc_blocks) as block, T.serial(0, s.ci) as c, T.serial(0, s.lanes) as e:
                o = block * s.lanes + e
                half = T.alloc_buffer((a * 3,), "float64")
                inside = o < co if co % s.lanes else True
                for i in range(a):
                    for q in range(3):
                        terms = [_term(t.g[i][p], w[tirx.min(o, co - 1), c, p, q].astype("float64")) for p in range(3)]
                        store(half, (i * 3 + q,), _sum(terms))
                group = block // s.oc
                blocks = tirx.min(s.oc_blocks - group * s.oc, s.oc)
                for i in range(a):
                    for j in range(a):
                        at = group * s.oc * (a * a * s.ci) + ((i * a + j) * s.ci + c) * blocks + block % s.oc
                        value = _sum([_term(t.g[j][q], half[i * 3 + q]) for q in range(3)]).astype("float32")
                        zero = tirx.const(0, "float32")
                        store(u, (at, e), value if inside is True else tirx.if_then_else(inside, value, zero))

        return prim_func([("w", work.weight_shape, "float32"), ("u", self.packed(work, plan, machine).physical, "float32")], body)


FAMILY = _ConvWinograd()


@dataclass(frozen=True)
class WinogradMaker(Maker):
    """Makes the kernel of a convolution, also for the first images, rows and columns of the output alone, of an input that ends at a row
    and a column, behind which it is zero: these five are what is its own, and up to how many places are computed by themselves, of
    weights of their own, which are then an input behind the operands.

    The tiles that there are then lie side by side in V and M: products and transforms are of no others, in as many blocks as these fill.
    """

    work: Conv2D
    plan: WinogradPlan
    machine: Machine
    epilogue: Epilogue

    def __call__(self, own: Sequence[Limit | None] = ()) -> Any:
        """Return the PrimFunc (x, packed weights, epilogue operands, sizes of the call, y)."""
        s = Shape.of(self.work, self.plan, self.machine)
        seconds = [each for _, each in launches(s, self.plan.split, work_of(s, self.machine))]
        around, few = [*map(outer, own[:5])], next(map(outer, own[5:]), None)
        loops = Loops(s, self.machine, self.epilogue, self.plan.split, seconds, around, 0 if few is None else few.constant)
        *inputs, y = weighted_buffers(self.work.x, FAMILY.packed(self.work, self.plan, self.machine), self.epilogue, self.work.y)
        sizes = [(f"length_{k}", (), "int64") for k in sizes_of(own)]
        more = [("few", few_weights(self.work).physical, "float32")] if loops.few else []
        return prim_func([*inputs, *more, *sizes, y], loops.emit)

    def few(self, places: Sequence[Extent | None], bounds: Bounds) -> Extent | None:
        """Return up to how many places are computed by themselves where so many images, rows and columns are wanted; None for none."""
        shape = self.work.y.shape
        least = [n if e is None else max(0, min(n, bounds.range(e)[0])) for n, e in zip((shape[0], *shape[2:]), places, strict=True)]
        return Extent.number(FEW_PLACES) if math.prod(least) <= FEW_PLACES and pays(self.work) else None


def _term(factor: float, value: Any) -> Any:
    return None if factor == 0 else tirx.const(factor, "float64") * value


def _sum(terms: Sequence[Any]) -> Any:
    some = [t for t in terms if t is not None]
    return sum(some[1:], some[0])


def _takes(work: Conv2D, machine: Machine) -> bool:
    return (
        work.kernel == (3, 3)
        and work.stride == (1, 1)
        and work.dilation == (1, 1)
        and work.groups == 1
        and work.x.block == work.y.block == machine.lanes
        and takes(work.dtypes)
        and min(work.y.shape) > 0
    )
