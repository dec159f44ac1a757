# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exported programs with open dimensions: sizes that the callers of the artefact decide, and lengths that the data decides."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional as F

import dycl_tvm
from dycl_tvm.errors import InputError, UnsupportedError, UsageError
from dycl_tvm.frontend.exported import stage_exported
from dycl_tvm.frontend.exported.graph import run_module
from dycl_tvm.frontend.exported.session import ExportedSession
from dycl_tvm.frontend.trace.values.numbers import bounds_of
from dycl_tvm.frontend.trace.values.recording import recording
from dycl_tvm.frontend.trace.values.tensors import fresh
from dycl_tvm.hcfg.nodes import Value
from dycl_tvm.hcfg.types import TensorType

N = Dim("size", min=1, max=8)
BEFORE_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


class Views(nn.Module):
    def forward(self, x: Tensor) -> Any:
        b = x.shape[0]
        y = x.view(b, -1, 2).transpose(1, 2).reshape(b * 2, -1)
        y = torch.cat([y, y + 1], 1).unsqueeze(1).expand(-1, 3, -1).permute(1, 0, 2)
        z = x[:, 1:3].clone()
        z[:, 0] = 0
        return (
            y.contiguous()[0],
            z.max(1).values,
            x.argmax(0),
            torch.where(x > 0, x, -x).amin(-1),
            torch.arange(b) * 2,
            x.to(torch.float64).cumsum(0),
        )


class Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)).relu()


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch._higher_order_ops.while_loop(lambda x: x.abs().sum() < 50, lambda x: (x * 2,), (x,))[0]


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Any:
        y = F.silu(F.hardswish(x * 2, inplace=True), inplace=True)
        windows = y.view(-1, 1, 2, 1, 4).permute(0, 1, 3, 2, 4).contiguous().view(-1, 2, 4)
        steps = torch.diff(x, prepend=x[:, :1] - 1, dim=-1)
        return y, windows.sum(1), steps, torch.einsum("bi,bi->b", x, y), x.split([3, 5], 1)[1]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, x: Tensor) -> Any:
        h = self.table((x.abs() * 5).long()[..., 0])[:, None]
        h = F.scaled_dot_product_attention(h, h, h, is_causal=True)[:, 0]
        return self.out(h[:, -1]), h.mean(1)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1))


def images() -> nn.Module:
    parts = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return nn.Sequential(*parts)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1, enable_nested_tensor=False)


#: Model, shape of the example, the dimension that is open, whether it is compared after decompositions too.
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, bool]] = {
    "layers": (layers, (3, 8), 0, True),
    "images": (images, (3, 3, 8, 8), 0, True),
    "encoder, batch": (encoder, (3, 5, 16), 0, True),
    "encoder, sequence": (encoder, (1, 5, 16), 1, True),
    "lstm": (lambda: nn.LSTM(8, 16, batch_first=True), (3, 5, 8), 0, True),
    "attention": (Attention, (1, 5, 2), 1, True),
    "views": (Views, (4, 8), 0, True),
    "in place": (InPlace, (4, 8), 0, True),
    "cond": (Cond, (4, 8), 0, True),
    "while_loop": (Loop, (4, 8), 0, True),
}


class Written(nn.Module):
    """What is an operator of its own in a program, or becomes one by decompositions."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)

    def forward(self, x: Tensor) -> Any:
        y = x.mT
        norms = self.group(y), self.instance(y), y.var(-1), y.std(1, correction=0)
        edges = nn.functional.pad(y, (1, 2)), nn.functional.pad(y, (1, 1), mode="replicate"), nn.functional.interpolate(y, scale_factor=2)
        return norms, edges, x[0].T, x[0].H, x.mH, torch.arange(9).clamp(0, x.shape[1] - 1)


@pytest.mark.skipif(BEFORE_2_13, reason="torch.export of this version wants a size of 2 and more")
def test_operators_of_programs() -> None:
    torch.manual_seed(0)
    model = Written().eval()
    program = export(model, (torch.randn(2, 5, 4),), dynamic_shapes=({1: Dim("T", min=2, max=8)},))
    for read in (program, program.run_decompositions()):
        call = dycl_tvm.stage(read).interpret()
        for n in (2, 5, 8):
            x = of_size((2, 5, 4), 1, n)
            assert_same(call(x), model(x))


def exported(name: str) -> tuple[ExportedProgram, tuple[int, ...], int]:
    torch.manual_seed(0)
    make, shape, dim, _ = PROGRAMS[name]
    return export(make().eval(), (torch.randn(shape),), dynamic_shapes=({dim: N},)), shape, dim


def of_size(shape: tuple[int, ...], dim: int, n: int) -> Tensor:
    return torch.randn([n if d == dim else size for d, size in enumerate(shape)], generator=torch.Generator().manual_seed(n))


def assert_same(found: Any, wanted: Any) -> None:
    found, wanted = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_at_every_size(name: str) -> None:
    if BEFORE_2_13 and name == "lstm":
        pytest.skip("the LSTM of this version asks whether there is a batch: it is refused")
    program, shape, dim = exported(name)
    for read in [program, program.run_decompositions()] if PROGRAMS[name][3] else [program]:
        call = stage_exported(read, (of_size(shape, dim, 3),), dynamic_shapes=({dim: N},)).interpret()
        for n in (1, 2, 7, 8):
            x = of_size(shape, dim, n)
            assert_same(call(x), program.module()(x))


@pytest.mark.parametrize("name", ["views", "cond"])
def test_built(name: str, tmp_path: Path) -> None:
    program, shape, dim = exported(name)
    art = dycl_tvm.build(program, dynamic_shapes=({dim: N},))
    mod = dycl_tvm.load(art.export_library(tmp_path / "open.so", embed_params=True))
    for n in (1, 5, 8):
        x = of_size(shape, dim, n)
        assert_same(mod(x), program.module()(x))
    with pytest.raises(InputError, match="size = 1 to 8"):
        mod(of_size(shape, dim, 9))


class OfTheData(nn.Module):
    def forward(self, x: Tensor) -> Any:
        found = x[x > 0]
        values, counts = torch.unique((x * 2).int(), return_counts=True)
        return found * 2, found.sum(), x.nonzero(), values, counts


def test_lengths_that_the_data_decides() -> None:
    model = OfTheData()
    program = export(model, (torch.randn(4, 3),))
    call = stage_exported(program, (torch.randn(4, 3),)).interpret()
    for x in (torch.randn(4, 3), -torch.ones(4, 3), torch.ones(4, 3)):
        assert_same(call(x), model(x))


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 2).sum(1)


class Fixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.ones(4)


def test_sizes_that_the_program_does_not_leave_open() -> None:
    with pytest.raises(UsageError, match="was fixed to 4 when the program was exported"):
        stage_exported(export(Fixed(), (torch.randn(4),)), (torch.randn(4),), dynamic_shapes=({0: N},))
    program = export(layers(), (torch.randn(3, 8),), dynamic_shapes=({0: N},))
    with pytest.raises(UsageError, match="may be 1 to 8 in this program, got 9"):
        stage_exported(program, (torch.randn(3, 8),), dynamic_shapes=({0: dycl_tvm.Dim("N", max=16)},))
    half = Dim("half", min=2, max=8)
    program = export(Doubled(), (torch.randn(6),), dynamic_shapes=({0: 2 * half},))
    with pytest.raises(UsageError, match="of a whole number"):
        stage_exported(program, (torch.randn(6),), dynamic_shapes=({0: dycl_tvm.Dim("M", min=4, max=16)},))
    call = stage_exported(program, (torch.randn(6),), dynamic_shapes=({0: 2 * half},)).interpret()
    for n in (4, 16):
        assert_same(call(torch.arange(n) * 1.0), Doubled()(torch.arange(n) * 1.0))


class KeepsForGradients(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.ops.aten.native_layer_norm(x, [8], None, None, 1e-5)[:2]


def test_what_is_kept_for_gradients_is_no_result() -> None:
    program = export(KeepsForGradients(), (torch.randn(3, 8),), dynamic_shapes=({0: N},))
    with pytest.raises(UnsupportedError, match="KeptForGradients"):
        stage_exported(program, (torch.randn(3, 8),), dynamic_shapes=({0: N},))


def sizes_of(program: ExportedProgram, **options: Any) -> list[tuple[str, int, int]]:
    return [(s.name, s.least, s.most) for s in dycl_tvm.stage(program, **options).sizes]


class Related(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return torch.cat([x, y[1:]]), x[:, None] - y[None, :], x.shape[0] * 2


class Blocks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] // 8, 8, 4).sum(1)


class Images(nn.Module):
    """Operators that resize, and such as give places beside the largest elements."""

    def forward(self, x: Tensor) -> Any:
        h, w = x.shape[2:]
        pooled = (
            F.adaptive_max_pool2d(x, 2),
            F.max_pool3d(x.unsqueeze(1), (1, 2, 2)),
            F.adaptive_avg_pool2d(x, (3, 1)),
            F.pixel_shuffle(x, 2),
        )
        sizes = F.interpolate(x, size=(h + 1, w), mode="bilinear", align_corners=True), F.interpolate(x, size=(5, w), mode="nearest-exact")
        return pooled, sizes, [F.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "bilinear", "bicubic")]


def test_images_of_any_size() -> None:
    sizes = {0: Dim("B", min=2, max=3), 2: Dim("H", min=4, max=7), 3: Dim("W", min=4, max=6)}
    for kept in (sizes, {0: sizes[0]}):
        program = export(Images(), (torch.randn(2, 4, 5, 6),), dynamic_shapes=(kept,))
        call = dycl_tvm.stage(program).interpret()
        for b, h, w in [(3, 7, 6), (2, 4, 4), (2, 5, 6)] if len(kept) > 1 else [(3, 5, 6), (2, 5, 6)]:
            x = torch.randn(b, 4, h, w)
            for got, want in zip(pytree.tree_leaves(call(x)), pytree.tree_leaves(Images()(x)), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_bounds_of_the_program_are_those_of_the_artefact() -> None:
    b = Dim("B", min=1, max=8)
    program = export(Related(), (torch.randn(4), torch.randn(5)), dynamic_shapes={"x": {0: b}, "y": {0: b + 1}})
    assert sizes_of(program) == [("B", 1, 8)]
    call = dycl_tvm.stage(program).interpret()
    for n in (1, 4, 8):
        given = torch.randn(n), torch.randn(n + 1)
        assert_same(call(*given), Related()(*given))
    with pytest.raises(InputError, match="dimension 0 is 9, expected B = 1 to 8"):
        call(torch.randn(9), torch.randn(10))
    with pytest.raises(InputError, match="dimension 0 is 4, expected 5"):
        call(torch.randn(4), torch.randn(4))
    assert sizes_of(program, input_shapes={"x": (4,), "y": (5,)}) == []
    blocks = export(Blocks(), (torch.randn(16, 4),), dynamic_shapes={"x": {0: 8 * Dim("_T", min=2, max=4)}})
    call = dycl_tvm.stage(blocks).interpret()
    for n in (16, 24, 32):
        x = torch.randn(n, 4)
        assert_same(call(x), Blocks()(x))
    with pytest.raises(InputError, match=r"dimension 0 is 20, expected 8\*_T = 16 to 32, by 8"):
        call(torch.randn(20, 4))


def test_a_dimension_without_a_largest_size() -> None:
    program = export(layers(), (torch.randn(3, 8),), dynamic_shapes={"input": {0: Dim("B")}})
    with pytest.raises(UsageError, match=r"dimension 0 of the input input has no largest size, .* max_length=512"):
        dycl_tvm.stage(program)
    assert sizes_of(program, max_length=16)[0][2] == 16
    assert sizes_of(program, input_shapes={"input": (3, 8)}) == []
    assert sizes_of(program, dynamic_shapes=({0: N},)) == [("size", 1, 8)]
    with pytest.raises(UsageError, match="may be 2 or more in this program, got 1"):
        dycl_tvm.stage(
            export(layers(), (torch.randn(3, 8),), dynamic_shapes={"input": {0: torch.export.Dim.AUTO}}), dynamic_shapes=({0: N},)
        )


class Counted(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> Any:
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 6)
        return torch.arange(k) + x.sum().long(), torch.zeros(k, 2).sum(0), x[:, :k]  # type: ignore[call-overload, misc]


def test_an_assertion_bounds_a_size() -> None:
    program = export(Counted(), (torch.randn(2, 6), torch.tensor(3)))
    call = dycl_tvm.stage(program).interpret()
    for n in (0, 1, 3, 6):
        given = torch.randn(2, 6), torch.tensor(n)
        assert_same(call(*given), Counted()(*given))
    for n in (-1, 7):
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            call(torch.randn(2, 6), torch.tensor(n))


def test_an_assertion_in_a_graph_within_says_nothing_of_what_follows() -> None:
    """By hand, as PyTorch 2.13 exports no branch that takes a number: the inner graph asserts ``k <= 4``, and is left."""
    inner, outer = torch.fx.Graph(), torch.fx.Graph()
    k = inner.placeholder("k")
    inner.call_function(torch.ops.aten._assert_scalar.default, (inner.call_function(operator.le, (k, 4)), "too large"))
    inner.output(k)
    number = outer.call_function(torch.ops.aten.item.default, (outer.placeholder("n"),))
    outer.output((number,))
    session = ExportedSession({})
    n = Value(TensorType((), "int64"), "n")
    session.builder.entry.params = [n]
    with recording(session, []):
        (found,) = run_module(session, torch.fx.GraphModule({}, outer), [fresh(n)])
        before = bounds_of(found)
        assert run_module(session, torch.fx.GraphModule({}, inner), [found]) is found
        assert bounds_of(found) == before


@pytest.mark.parametrize("name", ["encoder, sequence", "views", "cond", "while_loop"])
def test_sizes_with_a_path_of_their_own(name: str) -> None:
    program, shape, dim = exported(name)
    graph = dycl_tvm.stage(program, dynamic_shapes=({dim: N},), specialize=[2, "size<=5"])
    assert graph.special_sizes == [{"size": (2, 2)}, {"size": (1, 5)}]
    call, taken = graph.interpret(), set()
    for n in (8, 2, 5, 1):
        x = of_size(shape, dim, n)
        assert_same(call(x), program.module()(x))
        taken.add(tuple(d.choice for d in call.last_path.branches if d.origin.file == "specialize"))
    assert taken == {(True,), (False, True), (False, False)}


class Recurrences(nn.Module):
    """``scan`` and ``map`` over dimensions of any length, with states and results that have lengths too."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        def cell(h: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(h + r), torch.cond(r.sum() > 0, lambda h: h * 2, lambda h: h.clone(), (h,))

        def outer(row: Tensor) -> Tensor:
            return row.softmax(0).cumsum(0) * y.sum()

        scan, map_ = torch._higher_order_ops.scan, torch._higher_order_ops.map
        return scan(cell, x.new_zeros(x.shape[1], 3), x), scan(cell, x.new_zeros(3), y, reverse=True), map_(outer, x)


def test_scans_over_any_length(tmp_path: Path) -> None:
    torch._dynamo.reset()  # it remembers sizes of other exports in the process, and guards against them in this one
    sizes = ({0: Dim("T", min=2, max=12), 1: Dim("B", min=2, max=4)}, {0: Dim("U", min=2, max=6)})
    program = export(Recurrences(), (torch.randn(5, 3, 3), torch.randn(4, 3)), dynamic_shapes=sizes)
    mod = dycl_tvm.load(dycl_tvm.build(program).export_library(tmp_path / "scans.so", embed_params=True))
    for read in (program, program.run_decompositions()):
        call = dycl_tvm.stage(read).interpret()
        for t, b, u in ((2, 2, 6), (12, 4, 2), (7, 3, 5)):
            given = torch.randn(t, b, 3), torch.randn(u, 3)
            assert_same(call(*given), Recurrences()(*given))
            assert_same(mod(*given), Recurrences()(*given))


class OtherLengths(nn.Module):
    """Both sides give lengths that are computed there, and that may differ."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        both = torch.cond(x.sum() > 0, lambda x, y: torch.cat([x, y]), lambda x, y: torch.cat([y, x]), (x, y))
        return both, torch.cond(x.sum() > 0, lambda x: x[:1].clone(), lambda x: torch.cat([x, x]), (x,)) * 2


@pytest.mark.skipif(BEFORE_2_13, reason="torch.cond of this version wants results of one shape")
def test_branches_that_give_other_lengths() -> None:
    program = export(OtherLengths(), (torch.randn(4, 3), torch.randn(5, 3)), dynamic_shapes=({0: N}, {0: Dim("M", min=1, max=6)}))
    call = dycl_tvm.stage(program).interpret()
    for n, m in ((1, 6), (8, 1), (3, 3)):
        for sign in (1, -1):
            given = sign * torch.rand(n, 3), torch.randn(m, 3)
            assert_same(call(*given), OtherLengths()(*given))
