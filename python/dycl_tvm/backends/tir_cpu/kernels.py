# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The nodes that kernel families take: what layout each wants, and how it is computed once layouts are chosen."""

from __future__ import annotations

import enum
import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dycl_tvm.backends.offload import Offload
from dycl_tvm.backends.tir_cpu import match, rms_norm
from dycl_tvm.backends.tir_cpu.families import attention, channelwise, concat
from dycl_tvm.backends.tir_cpu.families.conv_direct import DirectMaker
from dycl_tvm.backends.tir_cpu.families.conv_direct_plans import DirectPlan
from dycl_tvm.backends.tir_cpu.families.conv_winograd import WinogradMaker
from dycl_tvm.backends.tir_cpu.families.conv_winograd_loops import WinogradPlan
from dycl_tvm.backends.tir_cpu.families.family import Candidate, Maker
from dycl_tvm.backends.tir_cpu.families.matmul import matmul
from dycl_tvm.backends.tir_cpu.families.normalisation import group_norm, layer_norm
from dycl_tvm.backends.tir_cpu.families.products import ProductMaker
from dycl_tvm.backends.tir_cpu.families.softmax import softmax
from dycl_tvm.backends.tir_cpu.fuse import epilogue_of, operands_of
from dycl_tvm.backends.tir_cpu.graph import Node, Var
from dycl_tvm.backends.tir_cpu.select import Selector
from dycl_tvm.backends.tir_cpu.words.loops import in_place
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D, Dense, Epilogue, Tensor


class Want(enum.Enum):
    """The layout that a node asks for."""

    PACKED = "packed"
    FOLLOW = "follow"
    PLAIN = "plain"


#: Of inputs, of each of their dimensions, which dimension of the output has the same rows (``loops.ROWS``).
Rows = Sequence[Sequence[int]]
#: The batch alone: of images and what is added to them.
_BATCH = (0,)
#: Of inputs, of each of their dimensions, how far back a row of the output reaches (``loops.REACH``).
Reach = Sequence[Sequence[tuple[int, int, int]]]


class Emitter(Protocol):
    """What a node needs to write its calls into the new function."""

    def read(self, var: Var, tensor: Tensor) -> Any:
        """Return a tensor of the function as an array of another layout, or of dimensions of 1 more or fewer."""

    def transposed(self, var: Var, shape: tuple[int, int]) -> Any:
        """Return a tensor, seen as a matrix of ``shape``, with rows and columns exchanged."""

    def call(
        self,
        name: str,
        key: Any,
        make: Callable[[], Any],
        args: Sequence[Any],
        out: Tensor,
        rows: Rows = (),
        reach: Reach = (),
        choosing: Sequence[Sequence[int]] = (),
        masking: Sequence[int] = (),
    ) -> Any:
        """Emit a call of a PrimFunc; ``make`` is called once for equal ``key``. The rest is of the first arguments."""

    def write(self, var: Var, tensor: Tensor, expr: Any) -> None:
        """Define a tensor of the function."""


class Kernels:
    """The families, with their choices for one machine."""

    def __init__(self, selector: Selector) -> None:
        self.selector, self.machine, self.options = selector, selector.machine, selector.options
        self.offload = Offload()
        self.families: Counter[str] = Counter()
        self.left: list[str] = []
        #: By the name of its function, what makes a kernel again with loops that ask sizes of the call.
        self.makers: dict[str, Maker] = {}

    def want(self, node: Node) -> Want:
        """Return the layout that a node asks for."""
        if self._convolution(node) is not None:
            return Want.PACKED
        if self._concatenation(node):
            return Want.FOLLOW
        if node.channelwise is not None and node.output is not None and not node.output.constant and "channelwise" not in self._disabled:
            return Want.FOLLOW if self._in_vectors(node) else Want.PLAIN
        return Want.PLAIN

    def _in_vectors(self, node: Node) -> bool:
        """Whether each input with channels is an image, or has as many as fill vectors: beyond the last channel nothing may be read."""
        assert node.channelwise is not None and node.output is not None
        if node.output.tensor.shape[1] % self.machine.lanes == 0:
            return True
        return all(v.packable or dim is None for v, dim in zip(node.inputs, node.channelwise.channel_dims))

    def read_packed(self, node: Node) -> list[Var]:
        """Return the inputs that a packed node reads in packed layout."""
        operands = [v for v, shape in operands_of(node) if len(shape) > 1 and shape[1] > 1]
        work = self._convolution(node)
        if work is not None:
            return [*node.inputs[:1], *operands] if work.x.block > 1 else operands
        return [*node.inputs, *operands]

    def chosen(self, node: Node) -> Candidate[Conv2D] | None:
        """Return how a convolution is computed, or None for other nodes."""
        work = self._convolution(node)
        return self.selector.convolution(work) if work is not None else None

    @property
    def _disabled(self) -> frozenset[str]:
        return self.options.disabled_families

    def _convolution(self, node: Node) -> Conv2D | None:
        work = match.conv_work(node, self.machine.lanes)
        return work if work is not None and self.selector.convolution(work) is not None else None

    def _concatenation(self, node: Node) -> bool:
        """Whether a node joins images along their channels, in whole blocks."""
        if (
            node.anchor != "relax.concat"
            or node.output is None
            or not node.output.packable
            or node.output.tensor.dtype not in ("float32", "uint8")
            or not all(v.packable for v in node.inputs)
        ):
            return False
        lanes = self.machine.lanes
        parts, y = (
            [Tensor(v.tensor.shape, v.tensor.dtype, lanes) for v in node.inputs],
            Tensor(node.output.tensor.shape, node.output.tensor.dtype, lanes),
        )
        return int(node.value.attrs.axis) == 1 and len(parts) == len(node.value.args[0].fields) and concat.takes(parts, y)

    # -- emission ------------------------------------------------------------------------------------------------------

    def emit(self, node: Node, out: Emitter) -> bool:
        """Write a node with its epilogue; False if no family takes it with the layouts that were chosen."""
        family = self._family(node, out)
        if family:
            self.families[family] += 1
            self.offload.regions += 1
            self.offload.nodes += 1 + len(node.absorbed)
            self.offload.macs += macs_of(node)
        elif node.anchor not in ("", "tir", "view") and macs_of(node):
            self.left.append(_describe(node))
        return bool(family)

    def _family(self, node: Node, out: Emitter) -> str:
        """Emit a node by a family and return its name, or an empty one."""
        if not node.packed:
            return self._emit_plain(node, out)
        work = self._convolution(node)
        if work is not None:
            return self._emit_convolution(node, work, out)
        return self._emit_concatenation(node, out) if node.anchor == "relax.concat" else self._emit_channelwise(node, out)

    def _emit_convolution(self, node: Node, work: Conv2D, out: Emitter) -> str:
        chosen = self.selector.convolution(work)
        assert chosen is not None
        stored = replace(chosen, work=chosen.work.stored(node.inputs[0].memory, node.last.memory))
        operands = [Tensor(match.image_shape(s), v.memory, _block(s, self.machine.lanes)) for v, s in operands_of(node)]
        epilogue = epilogue_of(node, operands)
        x, w = node.inputs
        weights = self._packed_weights(chosen, [out.read(w, Tensor(work.weight_shape, w.tensor.dtype))], out)
        args = [out.read(x, stored.work.x), weights, *self._read_operands(node, operands, out)]
        result = out.call(
            _name(f"conv2d_{chosen.name}", node),
            (stored.work, chosen.plan, epilogue.key, epilogue.operands),
            self._maker(stored, epilogue),
            args,
            stored.work.y,
            [_BATCH, (), *(_BATCH for _ in operands)],
            [_reach_of(chosen), (), *(_same_places(t) for t in operands)],
        )
        out.write(node.last, stored.work.y, result)
        return chosen.name

    def _maker(self, chosen: Candidate[Conv2D], epilogue: Epilogue) -> Callable[[], Any]:
        """Return what makes the kernel of a convolution."""
        if isinstance(chosen.plan, WinogradPlan):
            return WinogradMaker(chosen.work, chosen.plan, self.machine, epilogue)
        if isinstance(chosen.plan, DirectPlan):
            return DirectMaker(chosen.work, chosen.plan, self.machine, epilogue)
        return functools.partial(chosen.kernel, self.machine, epilogue)

    def _packed_weights(self, chosen: Candidate[Any], plain: Sequence[Any], out: Emitter) -> Any:
        """Emit the packing of weights as the chosen kernel reads them; the build runs it."""
        key = ("pack", chosen.work, chosen.plan)
        return out.call(f"pack_{chosen.name}", key, lambda: chosen.pack(self.machine), plain, chosen.packed(self.machine))

    def _read_operands(self, node: Node, operands: Sequence[Tensor], out: Emitter) -> list[Any]:
        return [out.read(v, t) for (v, _), t in zip(operands_of(node), operands)]

    def _emit_channelwise(self, node: Node, out: Emitter) -> str:
        op = node.channelwise
        assert op is not None and node.output is not None
        lanes = self.machine.lanes
        inputs = [Tensor(v.tensor.shape, v.memory, lanes if v.packable else 1) for v in node.inputs]
        y = Tensor(node.output.tensor.shape, node.last.memory, lanes if node.output.packable else 1)
        operands = [Tensor(s, v.memory, _block(s, lanes)) for v, s in operands_of(node)]
        epilogue = epilogue_of(node, operands)
        args = [*(out.read(v, t) for v, t in zip(node.inputs, inputs)), *self._read_operands(node, operands, out)]
        key = (node.value.args[0].name_hint, tuple(inputs), y, epilogue.key, epilogue.operands)

        def make() -> Any:
            fn = channelwise.kernel(op, [*inputs, y], self.machine, epilogue)
            same = [k for k, t in enumerate((*inputs, *epilogue.operands)) if t == y]
            return in_place(fn, same) if node.elementwise is not None else fn

        rows = [*op.batch_rows, *(_BATCH for _ in operands)]
        reach = [*op.reach, *map(_same_places, operands)]
        masking = op.masking if not node.absorbed else ()
        out.write(node.last, y, out.call(_name(_function(node), node), key, make, args, y, rows, reach, op.choosing, masking))
        return "channelwise"

    def _emit_concatenation(self, node: Node, out: Emitter) -> str:
        lanes = self.machine.lanes
        *parts, y = (Tensor(v.tensor.shape, v.memory, lanes) for v in (*node.inputs, node.last))
        operands = [Tensor(s, v.memory, _block(s, lanes)) for v, s in operands_of(node)]
        epilogue = epilogue_of(node, operands)
        args = [*(out.read(v, t) for v, t in zip(node.inputs, parts)), *self._read_operands(node, operands, out)]
        key = ("concat", tuple(parts), y, epilogue.key, epilogue.operands)
        rows, reach = [_BATCH] * len(args), [*map(_same_places, (*parts, *operands))]
        result = out.call(_name("concatenate", node), key, lambda: concat.kernel(parts, y, self.machine, epilogue), args, y, rows, reach)
        out.write(node.last, y, result)
        return "concatenate"

    def takes_border(self, node: Node) -> bool:
        """Whether a convolution can put a border around its input."""
        return self._convolution(node) is not None

    def takes_attention(self, work: attention.Attention) -> bool:
        """Whether attention becomes one kernel."""
        return "attention" not in self._disabled and attention.wins(work, self.machine)

    def _emit_plain(self, node: Node, out: Emitter) -> str:
        if node.attention is not None:
            return self._emit_attention(node, *node.attention, out)
        if node.anchor in ("relax.nn.softmax", "relax.nn.log_softmax"):
            return self._emit_softmax(node, out)
        if node.anchor in ("relax.nn.layer_norm", "relax.nn.group_norm", rms_norm.OPERATOR):
            return self._emit_norm(node, out)
        return self._emit_product(node, out) or self._emit_matmul(node, out)

    def _emit_softmax(self, node: Node, out: Emitter) -> str:
        if "softmax" in self._disabled or len(node.inputs) != 1 or node.output is None:
            return ""
        (x,) = node.inputs
        if x.tensor.dtype != "float32" or not x.tensor.shape:
            return ""
        axis, log = int(node.value.attrs.axis), node.anchor.endswith("log_softmax")
        name = node.anchor.removeprefix("relax.nn.")
        result = out.call(
            name,
            (name, x.tensor, axis),
            lambda: softmax(x.tensor.shape, axis, self.machine, log),
            [out.read(x, x.tensor)],
            x.tensor,
            [[-1 if d == axis % len(x.tensor.shape) else d for d in range(len(x.tensor.shape))]],
        )
        out.write(node.output, x.tensor, result)
        return "softmax"

    def _emit_attention(self, node: Node, work: attention.Attention, between: Epilogue, out: Emitter) -> str:
        if self.options.accuracy == "bf16" and "bf16" not in self._disabled:
            tiles = "amx" not in self._disabled and work.may_use_tiles(self.machine)
            work = replace(work, rounded=work.may_round(self.machine), tiles=tiles)
        epilogue = epilogue_of(node, [Tensor(s, v.tensor.dtype) for v, s in operands_of(node)])
        parts, operands = node.inputs[:3], node.inputs[3:]
        args = [
            *(out.read(v, Tensor((s.size,))) for v, s in zip(parts, (work.q, work.k, work.v))),
            *(out.read(v, t) for v, t in zip(operands, between.operands)),
            *self._read_operands(node, epilogue.operands, out),
        ]
        key = ("attention", work, between.key, between.operands, epilogue.key, epilogue.operands)
        rows = [(), (), (), *(() for _ in between.operands), *(_same(t, work.y) for t in epilogue.operands)]
        make = attention.AttentionMaker(work, self.machine, between, epilogue)
        out.write(node.last, work.y, out.call(_name("attention", node), key, make, args, work.y, rows))
        return "attention"

    def _emit_norm(self, node: Node, out: Emitter) -> str:
        attrs, args = node.value.attrs, node.value.args
        centred = node.anchor != rms_norm.OPERATOR
        there = [bool(attrs.scale), bool(attrs.center)] if centred else [not rms_norm.is_ones(args[1]), False]
        wanted = [args[0], *(a for a, used in zip(args[1:], there) if used)]
        # one table may be both weight and bias
        read = [v for a in wanted for v in [i for i in node.inputs if i.relax_var.same_as(a)][:1]]
        if "normalisation" in self._disabled or node.output is None or len(read) != len(wanted):
            return ""
        x = read[0]
        shape, eps = x.tensor.shape, float(attrs.epsilon)
        rows = [0]
        if node.anchor != "relax.nn.group_norm":
            rest = len(attrs.axes)
            rows = list(range(len(shape) - rest))
            if sorted(int(a) % len(shape) for a in attrs.axes) != list(range(len(shape) - rest, len(shape))):
                return ""
            make = functools.partial(layer_norm, shape, rest, eps, self.machine, there[0], there[1], centred)
        else:
            rest = int(attrs.num_groups)
            make = functools.partial(group_norm, shape, rest, eps, self.machine, *there)
        name = node.anchor.removeprefix("relax.nn.")
        result = out.call(name, (name, x.tensor, rest, eps, *there), make, [out.read(v, v.tensor) for v in read], x.tensor, [rows])
        out.write(node.output, x.tensor, result)
        return "normalisation"

    def _emit_matmul(self, node: Node, out: Emitter) -> str:
        """Emit a product of two run-time tensors; a transposition of the right side is read in place."""
        work = match.matmul_work(node)
        if work is None or "matmul" in self._disabled or node.output is None:
            return ""
        epilogue = self._product_epilogue(node, work)
        if epilogue is None:
            return ""
        a, b = node.inputs
        source = match.transposed_source(b)
        right = (work.k, work.n) if source is None else (work.n, work.k)
        y = work.y
        args = [
            out.read(a, work.x),
            out.read(source or b, Tensor(right if work.shared else (work.batch, *right))),
            *self._read_operands(node, epilogue.operands, out),
        ]
        key = ("matmul", work, source is not None, epilogue.key, epilogue.operands)
        columns = (-1, 2) if source is None else (2, -1)
        rows = [(0, 1), columns if work.shared else (0, *columns), *(_same(t, y) for t in epilogue.operands)]
        result = out.call(_name("matmul", node), key, lambda: matmul(work, self.machine, epilogue, source is not None), args, y, rows)
        out.write(node.last, y, result)
        return "matmul"

    def _product_epilogue(self, node: Node, work: Dense) -> Epilogue | None:
        """Return the epilogue of a product, or None if its kernel cannot have it."""
        assert node.output is not None
        shapes = [match.product_operand(Tensor(s), node.output.tensor.shape, work) for _, s in operands_of(node)]
        operands = [Tensor(s, v.tensor.dtype) for s, (v, _) in zip(shapes, operands_of(node)) if s is not None]
        return epilogue_of(node, operands) if len(operands) == len(shapes) else None

    def _emit_product(self, node: Node, out: Emitter) -> str:
        # integers, if a family takes them, and else the numbers that they stand for
        works = [w for w in (match.grouped_work(node), match.dense_work(node)) if w is not None]
        work, chosen = next(((w, c) for w in works for c in [self.selector.product(w)] if c is not None), (None, None))
        if work is None or chosen is None or node.output is None:
            return ""
        epilogue = self._product_epilogue(node, work)
        if epilogue is None:
            return ""
        operands = epilogue.operands
        x, w = node.inputs
        if work.group and w.producer is not None:
            plain = [out.read(v, v.tensor) for v in w.producer.inputs]
        elif match.is_product(node):
            plain = [out.transposed(w, (work.n, work.k))]
        else:
            plain = [out.read(w, Tensor((work.k, work.n), w.tensor.dtype))]
        weights = self._packed_weights(chosen, plain, out)
        args = [out.read(x, work.x), weights, *self._read_operands(node, operands, out)]
        key = (chosen.work, chosen.plan, epilogue.key, epilogue.operands)
        result = out.call(
            _name(f"{'conv2d' if match.is_product(node) else 'matmul'}_{chosen.name}", node),
            key,
            ProductMaker(chosen, self.selector.fewer(chosen), self.machine, epilogue),
            args,
            work.y,
            [(0, 1), (), *(_same(t, work.y) for t in operands)],
        )
        out.write(node.last, work.y, result)
        return chosen.name


def macs_of(node: Node) -> int:
    """Return the multiply-accumulates of a convolution, product or attention."""
    if node.attention is not None:
        return node.attention[0].macs
    if node.output is None or len(node.inputs) != 2 or node.anchor not in ("relax.nn.conv2d", "relax.nn.conv1d", "relax.matmul"):
        return 0
    x, w = (v.tensor.shape for v in node.inputs)
    return node.output.tensor.numel * (x[-1] if node.anchor == "relax.matmul" else math.prod(w[1:]))


def _describe(node: Node) -> str:
    shapes = " x ".join(f"{v.tensor.dtype}{list(v.tensor.shape)}" for v in node.inputs)
    return f"{node.anchor.removeprefix('relax.').removeprefix('nn.')} {shapes}"


def _reach_of(chosen: Candidate[Conv2D]) -> Sequence[tuple[int, int, int]]:
    """Return how far an output of a convolution reaches into the image."""
    work, plan = chosen.work, chosen.plan
    if not isinstance(plan, (DirectPlan, WinogradPlan)):
        return ()
    # what a tile of outputs is transformed of has a part in each of them
    more = plan.m - 1 if isinstance(plan, WinogradPlan) else 0
    spatial = enumerate(zip(work.stride, work.kernel, work.dilation, work.padding))
    return [(0, 1, 0), (-1, 0, 0), *((2 + d, s, (k - 1) * dilation - before + more) for d, (s, k, dilation, before) in spatial)]


def _same_places(image: Tensor) -> Sequence[tuple[int, int, int]]:
    """Return the reach of an image that is read where the output is written."""
    return [(d, 1, 0) if d != 1 and n > 1 else (-1, 0, 0) for d, n in enumerate(image.shape)]


def _same(operand: Tensor, y: Tensor) -> Sequence[int]:
    """Return the rows of an operand that is read at the output's own index."""
    return range(len(operand.shape)) if len(operand.shape) == len(y.shape) else ()


def _block(shape: tuple[int, ...], lanes: int) -> int:
    return lanes if len(shape) > 1 and shape[1] > 1 else 1


def _name(base: str, node: Node) -> str:
    """Return a readable name of a kernel: what it computes, then what its epilogue does."""
    return "_".join([base, *(_function(a) for a in node.absorbed if a.anchor != "view")])


def _function(node: Node) -> str:
    """Return the name of a node's function, without the number that TVM appends to tell equal names apart."""
    return str(node.value.args[0].name_hint).rstrip("0123456789")
