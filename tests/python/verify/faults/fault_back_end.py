# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Faults behind the graph: import, kernels, layouts, the memory plan, the lowered program, and the generated dispatcher."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fault_graphs import GATES
from fault_harness import Fault, Program, edit
from torch import nn

from dycl_tvm.codegen import toolchain
from dycl_tvm.hcfg.sizes import Dim

X = torch.tensor([[0.5, -1.0, 0.25], [0.125, 0.75, -0.5]])
CALLS = [(X,), (X + 1,), (-X - 1,), (X + 3,), (X * 0.1,)]


def program(name: str, function: Callable[..., object], calls: Any = CALLS) -> Program:
    """Return a function as a program."""
    return Program(name, lambda: function, calls)


class Convolutions(nn.Module):
    """Convolutions of several kinds with what is fused to them, an exit, and channels that do not fill vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1)
        self.down, self.wise = nn.Conv2d(12, 20, 3, stride=2, padding=1), nn.Conv2d(20, 20, 3, padding=1, groups=20)
        self.out, self.exit = nn.Linear(20, 5), nn.Linear(12, 5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = torch.relu(self.first(x))
        y = torch.relu(self.second(y) + y)
        z = self.exit(y.mean((2, 3)))
        if z.max() > 0.35:
            return torch.softmax(z, 1)
        y = F.max_pool2d(torch.relu(self.down(y)), 2)
        y = self.wise(y)
        return F.log_softmax(self.out(y.mean((2, 3))), 1)


def _images(count: int) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(1, 3, 12, 12, generator=generator) * (0.3 + k),) for k in range(count)]


def _layer(x: torch.Tensor) -> Any:
    h = torch.tanh(x @ torch.linspace(-1, 1, 64).view(8, 8))
    return h.softmax(0) * 2, h.mean(0)


SIZED = Program(
    "rows of any number",
    lambda: _layer,
    [(torch.linspace(-2, 2, 8 * n).view(n, 8) ** 3,) for n in (3, 1, 6, 5)],
    options={"dynamic_shapes": ({0: Dim("N", min=1, max=6)},)},
)
CONVOLUTIONS = Program("convolutions", lambda: Convolutions().eval(), _images(5))


class Winograd(nn.Module):
    """A convolution that is large enough for Winograd's algorithm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.conv = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = torch.relu(self.conv(x))
        return y * 2 if y.mean() > 0.3 else y


def _waves(*ends: float) -> list[tuple[torch.Tensor]]:
    return [(torch.linspace(-1, end, 32 * 32 * 32).sin().reshape(1, 32, 32, 32),) for end in ends]


WINOGRAD = Program(
    "winograd", lambda: Winograd().eval(), [(torch.linspace(-1, k, 32 * 32 * 32).sin().reshape(1, 32, 32, 32),) for k in (2, 90)]
)


def arithmetic(x):  # type: ignore[no-untyped-def]
    y = 2 - x
    z = torch.div(x * 3, 0.7, rounding_mode="floor") + x**3
    return y, z, F.layer_norm(x.double(), (3,), eps=0.1)


def pooled(x):  # type: ignore[no-untyped-def]
    y = x.repeat(4, 3)[None, None] - 5
    return F.max_pool2d(y, 3, 2, 1), F.avg_pool2d(y, 3, 2, 1, count_include_pad=False)


def whole(n):  # type: ignore[no-untyped-def]
    return n // 3, n % -4


def windows(x):  # type: ignore[no-untyped-def]
    return F.max_pool2d(x[None, None], 2, return_indices=True)[1]


def wide(x):  # type: ignore[no-untyped-def]
    y = x.repeat(3, 14) * 40
    return torch.softmax(y, 1), torch.softmax(y, 0).sum(1)


def swapping(x):  # type: ignore[no-untyped-def]
    a, b, i, j = x * 1.5, x - 1, 1, 2
    k = 0
    while a.abs().sum() > 2 and k < 5:
        a, b = b * 0.75, a * 0.5
        a, b = b, a
        i, j = j, i
        k = k + 1
    return a, b, i, j


def turning(x):  # type: ignore[no-untyped-def]
    a, b = x * 1.5, x - 1
    k = 0
    while k < int((x > 0).sum()) and b.sum() < 100:
        a, b = b, a
        k = k + 1
    return a, b


class Recalled(nn.Module):
    """State: a tensor that is returned as it was, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(2, 3))
        self.n, self.s = 1, 0.5

    def forward(self, x):  # type: ignore[no-untyped-def]
        old = self.h
        self.h = self.h * 0.5 + x
        self.n = self.n + (2 if x.sum() > 1 else 1)
        self.s = self.s * 1.5
        return old, self.n, self.s


RECALLED = Program("recalled", lambda: Recalled().eval(), CALLS)


class Twins(nn.Module):
    """Equal layers with other weights, and what is computed of them when a network is built."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.a, self.b = nn.Linear(3, 9), nn.Linear(3, 9)

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = self.a(x)
        if y.sum() > 0.5:
            return torch.tanh(self.b(x)), 1
        return torch.sigmoid(y), 2


TWINS = Program("twins", lambda: Twins().eval(), CALLS)


def numbers(x):  # type: ignore[no-untyped-def]
    k, n, f = int((x > 0).sum()), int(x[0, 0] * 7), float(x[1, 1])
    a, b = (n - k) // 3, (n - k) % 3
    if a > b or f < 0.28:
        return x * b, a, f / 2.55
    return x + a, b, f * k


NUMBERS = program("numbers", numbers)


class Attends(nn.Module):
    """Attention with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.qkv = nn.Linear(3, 48)

    def forward(self, x):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(x[None].repeat(1, 6, 1)).reshape(1, 12, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y if y.sum() > 0 else y * 2


ATTENDS = Program("attends", lambda: Attends().eval(), CALLS)


def cpp(file: str, old: str, new: str) -> Callable[[], Any]:
    """Return what plants a change in a header of the runtime, with which dispatchers are compiled."""

    @contextmanager
    def plant() -> Iterator[None]:
        plain = toolchain.include_flags
        with tempfile.TemporaryDirectory() as folder:
            for header in toolchain.runtime_source_dir().glob("*.h"):
                shutil.copy(header, folder)
            path = Path(folder) / file
            text = path.read_text()
            assert text.count(old) == 1, f"{file} has changed"
            path.write_text(text.replace(old, new))
            toolchain.include_flags = lambda: [f"-I{folder}", *plain()]
            try:
                yield
            finally:
                toolchain.include_flags = plain

    return plant


ARITHMETIC, POOLED, WIDE = program("arithmetic", arithmetic), program("pooled", pooled), program("wide", wide)
WHOLE = program("whole", whole, [(torch.tensor([[-7, 5, -3]]),), (torch.tensor([[8, -9, 100]]),)])
WINDOWS = program("windows", windows, [(torch.full((2, 4), float("nan")),)])
SWAPPING, TURNING = program("swapping", swapping), program("turning", turning)
_OPS, _CPU, _KERNELS = "dycl_tvm.compile.ops.", "dycl_tvm.backends.tir_cpu.", "dycl_tvm.backends.tir_cpu.families."
_WORDS = _CPU + "words."

IMPORT = [
    ("the operands of rsub change places", ARITHMETIC, _OPS + "elementwise:_rsub", "(ctx, b, a, alpha)", "(ctx, a, b, alpha)"),
    ("floor division truncates", ARITHMETIC, _OPS + "elementwise:_div_mode", "_floor_divide if", "_trunc_divide if"),
    ("whole numbers are divided towards zero", WHOLE, _OPS + "semantics:floor_divide", "tirx.floordiv(", "tirx.truncdiv("),
    ("the first NaN of a window counts", WINDOWS, _OPS + "pooling:_max_pool", "last_nan=True", "last_nan=False"),
    ("a power has one factor too many", ARITHMETIC, _OPS + "elementwise:_power", "range(int(b) - 1)", "range(int(b))"),
    ("a norm forgets epsilon", ARITHMETIC, _OPS + "norm:normalised", "relax.const(eps, dtype)", "relax.const(0.0, dtype)"),
    ("windows begin at the wrong place", POOLED, _OPS + "pooling:_window", "- int64(p)", "+ int64(p)"),
    ("the padding of a maximum is zero", POOLED, _OPS + "pooling:_max_pool", "semantics.lowest(dtype))", "tirx.const(0, dtype))"),
    ("an average counts the padding", POOLED, _OPS + "pooling:_avg_pool", "if not count_pad:", "if count_pad:"),
]
KERNELS = [
    ("softmax without its maximum", WIDE, _WORDS + "softmax_row:softmax_row", ' + tirx.const(-1, "float32") * peak[0]', ""),
    ("the rest of a row is left out", WIDE, _WORDS + "tiles:pieces", "if total % size:", "if total % size and not whole:"),
    ("the epilogue is dropped", CONVOLUTIONS, _CPU + "fuse:epilogue_of", "if not node.absorbed:", "if True:"),
    (
        "a layout conversion mixes channels",
        CONVOLUTIONS,
        _KERNELS + "relayout:_Relayout._row",
        "channel * self.points",
        "(channel ^ 1) * self.points",
    ),
    ("padding on the wrong side", CONVOLUTIONS, _WORDS + "convolution:Axis.at", "- self.pad", "- self.pad + 1"),
    ("attention leaves out the last keys", ATTENDS, _WORDS + "tiles:pieces", "if total % size:", "if total % size > 5:"),
    (
        "Winograd's output transform has a wrong sign",
        WINOGRAD,
        _KERNELS + "conv_winograd_loops:_output_4",
        "m(0) + even_p + even_q",
        "m(0) + even_p - even_q",
    ),
]
FRONTS = [
    (
        "a trip whose first row is the last one is skipped",
        SIZED,
        "dycl_tvm.backends.tir_cpu.front:_Skips._number",
        "self.sizes[extent.size] * extent.factor + extent.constant",
        "self.sizes[extent.size] * extent.factor + extent.constant - 1",
    ),
    (
        "all along which a softmax goes is not wanted",
        SIZED,
        "dycl_tvm.backends.tir_cpu.kernels:Kernels._emit_softmax",
        "[-1 if d == axis % len(x.tensor.shape) else d",
        "[d",
    ),
    (
        "what a mask lets pass is held for less",
        SIZED,
        "dycl_tvm.compile.wanted:_Reads.needs",
        "return self.tests(condition) or []",
        "return [(p, e.scaled(1, -1)) for p, e in self.tests(condition) or []]",
    ),
]
MEMORY = [
    (
        "tensors are not live across edges",
        GATES,
        "dycl_tvm.compile.arena:_interference",
        "live |= _through(edge, entering)",
        "live |= set()",
    ),
    (
        "an operand is overwritten that is read again",
        GATES,
        "dycl_tvm.compile.arena:_interference",
        "if r not in live and r not in point.writes and",
        "if r not in point.writes and",
    ),
    ("tensors overlap by a line", CONVOLUTIONS, "dycl_tvm.compile.arena:_best_fit", "at = max(at, end)", "at = max(at, end - 64)"),
    (
        "copies on an edge are not ordered",
        TURNING,
        "dycl_tvm.compile.moves:order_copies",
        "if not any(o is not c and overlap(c[0], o[1]) for o in pending)]",
        "]",
    ),
    (
        "numbers on an edge are not ordered",
        SWAPPING,
        "dycl_tvm.compile.moves:order_sets",
        "if not any(o is not c and o[1] == c[0] for o in pending)]",
        "]",
    ),
    (
        "the old value of a state is not kept",
        RECALLED,
        "dycl_tvm.compile.lowering:Lowering._leave",
        "slot.index == w.index for w in written",
        "False for w in written",
    ),
    (
        "what was computed of one weight serves for another",
        TWINS,
        "dycl_tvm.compile.lowering:Lowering._fold",
        "key = (call.symbol, tuple(self.table.digest(c[0]) for _, c in inputs))",
        "key = (call.symbol,)",
    ),
    ("weights of one size are one", TWINS, "dycl_tvm.compile.weights:WeightTable.slot", "type_.dtype, self.digest(data))", "type_.dtype)"),
]
DISPATCHER = [
    (
        "the sides of a branch change places",
        GATES,
        "dycl_tvm.codegen.dispatcher:_Function._branch",
        "if ({scalar(end.cond)})",
        "if (!({scalar(end.cond)}))",
    ),
    (
        "an edge forgets its moves",
        SWAPPING,
        "dycl_tvm.codegen.dispatcher:_Function._goto",
        "[*self.instructions.text(edge.moves), jump]",
        "[*self.instructions.text(edge.moves[1:]), jump]",
    ),
    (
        "an edge leads to another block",
        GATES,
        "dycl_tvm.codegen.dispatcher:_Function._switch",
        '*(f"    {line}" for line in self._goto(edge))',
        '*(f"    {line}" for line in self._goto(end.targets[max(case - 1, 0)]))',
    ),
    (
        "a kernel is left out",
        CONVOLUTIONS,
        "dycl_tvm.codegen.instructions:Instructions.print_group",
        "{len(group)}",
        "{max(1, len(group) - 1)}",
    ),
    (
        "a copy is half as long",
        TURNING,
        "dycl_tvm.codegen.instructions:Instructions.one",
        "{instr.src.type.nbytes});",
        "{instr.src.type.nbytes // 2});",
    ),
    (
        "two numbers of the state change places",
        RECALLED,
        "dycl_tvm.codegen.dispatcher:_Function._leave",
        "f.state[{k}].{_MEMBER[state.home.kind]} =",
        "f.state[0].{_MEMBER[state.home.kind]} =",
    ),
    (
        "a state begins with another number",
        RECALLED,
        "dycl_tvm.codegen.tables:Tables._state_rows",
        "int_literal(int(v))",
        "int_literal(int(v) + 1)",
    ),
    (
        "results are returned in another order",
        TWINS,
        "dycl_tvm.codegen.dispatcher:_Function._leave",
        "OutTensor(f, {leaf}, {self.tables.tensor(value)});",
        "OutTensor(f, {leaf}, {max(0, self.tables.tensor(value) - 1)});",
    ),
    (
        "an argument of a kernel is another tensor",
        CONVOLUTIONS,
        "dycl_tvm.codegen.tables:Tables.definitions",
        "for slot in call.args))",
        "for slot in (*call.args[1::-1], *call.args[2:])))",
    ),
    ("a constant loses its digits", NUMBERS, "dycl_tvm.codegen.text:float_literal", "text = repr(value)", "text = repr(round(value, 1))"),
]

FAULTS = [
    *(
        Fault(name, room, shown, edit(target, old, new), compiled=True)
        for room, rows in (("import", IMPORT), ("kernels", KERNELS), ("kernels", FRONTS), ("lowering", MEMORY), ("dispatcher", DISPATCHER))
        for name, shown, target, old, new in rows
    ),
    Fault(
        "the remainder of negative numbers",
        "runtime",
        NUMBERS,
        cpp("host_ops.h", "*out = (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;", "*out = r;"),
        True,
    ),
    Fault(
        "floor division truncates", "runtime", NUMBERS, cpp("host_ops.h", "(a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;", "q;"), True
    ),
]
