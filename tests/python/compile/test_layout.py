# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Packed layouts cross sub-DNNs; epilogues take what follows; the results stay those of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.artifact import Artifact
from dycl_tvm.compile.program import KernelCall

torch.manual_seed(0)


def conv(i: int, o: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, size, padding=options.pop("padding", size // 2), **options)


def check(model: nn.Module, inputs: list[tuple[Tensor, ...]], folder: Path, **options: Any) -> Artifact:
    """Build a model, run it on all inputs, compare with eager, and return the artefact."""
    model = model.eval().requires_grad_(False)
    built = dycl_tvm.build(model, inputs[0], **options)
    built.export_library(folder / "m.so")
    built.save_params(folder / "m.params")
    module = dycl_tvm.load(folder / "m.so", folder / "m.params")
    for args in inputs:
        want, got = model(*args), torch.as_tensor(module(*args))
        assert got.shape == want.shape
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    return built


def kernels(built: Artifact) -> list[str]:
    return [k.symbol for k in built._lowered.program.kernels]


def calls(built: Artifact) -> list[str]:
    program = built._lowered.program
    return [program.kernels[i.kernel].symbol for b in program.blocks for i in b.instrs if isinstance(i, KernelCall)]


def reads(built: Artifact) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Return each call's kernel with the shapes of its arguments."""
    program = built._lowered.program
    found = [i for b in program.blocks for i in b.instrs if isinstance(i, KernelCall)]
    return [(program.kernels[i.kernel].symbol, [a.type.shape for a in i.args]) for i in found]


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, 2)).sum(-1)


class Gated(nn.Module):
    """A gate decides between blocks; the packed image flows past it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(16, 24), conv(24, 24), conv(24, 24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        if x.mean() > 0.35:
            x = x + torch.relu(self.a(x))
        else:
            x = torch.relu(self.b(x)) * 2
        return self.head(x.mean((2, 3)))


def test_layouts_cross_the_branch(tmp_path: Path) -> None:
    x = torch.randn(1, 16, 12, 12)
    inputs = [(x * s,) for s in (0.1, 0.3, 3.0, 9.0)]
    built = check(Gated(), inputs, tmp_path)
    relaid = [c for c in calls(built) if "pack" in c]
    assert len([c for c in relaid if "unpack" not in c]) == 1, "the input alone is packed"
    assert built._lowered.stats.generic == ()
    alone = check(Gated(), inputs, tmp_path, layout_planning=False)
    assert len([c for c in calls(alone) if "pack" in c]) > len(relaid)


class Exits(nn.Module):
    """What an exit pools is passed on as well."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(16, 32), conv(32, 32)
        self.exits = nn.ModuleList([nn.Linear(32 * 16, 3), nn.Linear(32 * 16, 3)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        y = self.exits[0](nn.functional.max_pool2d(x, 4).flatten(1))
        if y.max() > 0.5:
            return y
        return self.exits[1](nn.functional.avg_pool2d(torch.relu(self.b(x)), 4).flatten(1))


def test_an_image_that_leaves_its_sub_dnn_is_not_unpacked_for_that(tmp_path: Path) -> None:
    x = torch.randn(1, 16, 16, 16)
    built = check(Exits(), [(x * s,) for s in (0.1, 1.0, 4.0, 9.0)], tmp_path)
    unpacked = [shapes[0] for k, shapes in reads(built) if "unpack" in k]
    assert unpacked and all(s[2:4] == (4, 4) for s in unpacked), "what is flattened is unpacked after pooling"


def test_pooling_that_leaves_the_size_is_packed_too(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = conv(16, 32), nn.Linear(32 * 64, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.a(x))
            return self.head((nn.functional.max_pool2d(y, 1) * 0.5 + nn.functional.avg_pool2d(y, 1)).flatten(1))

    built = check(Net(), [(torch.randn(1, 16, 8, 8),)], tmp_path)
    read = {k: shapes for k, shapes in reads(built) if "pool" in k}
    assert len(read) == 2 and all(len(shapes[0]) == 5 for shapes in read.values())


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3), nn.MaxPool1d(5, 2)], ids=["max", "mean", "max_1d"])
def test_pooling_alone_is_packed_if_it_is_large(pool: nn.Module, tmp_path: Path) -> None:
    shape = (1, 20, 2000) if isinstance(pool, nn.MaxPool1d) else (1, 20, 46, 47)
    built = check(pool, [(torch.randn(shape),)], tmp_path)
    assert built._lowered.stats.generic_kernels == () and len(calls(built)) == 3, "packed, pooled and unpacked"


def test_epilogues_take_activation_and_residual(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv(16, 16), conv(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.nn.functional.silu(self.a(x))
            return torch.relu(self.b(y) + x)

    built = check(Block(), [(torch.randn(2, 16, 9, 7),)], tmp_path)
    work = [k for k in kernels(built) if "pack" not in k]
    assert len(work) == 2 and all("conv2d" in k for k in work), work


NETWORKS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "odd_channels": (nn.Sequential(conv(5, 13), nn.ReLU(), conv(13, 7), nn.Sigmoid(), conv(7, 3)), (2, 5, 9, 11)),
    "strided_pooled": (nn.Sequential(conv(3, 20, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), conv(20, 24)), (1, 3, 33, 31)),
    "depthwise": (nn.Sequential(conv(16, 40, 1), nn.ReLU6(), conv(40, 40, groups=40), nn.Hardswish(), conv(40, 16, 1)), (1, 16, 10, 10)),
    "grouped_dilated": (nn.Sequential(conv(32, 64, groups=4), conv(64, 32, padding=2, dilation=2)), (1, 32, 9, 9)),
    "one_dimension": (nn.Sequential(nn.Conv1d(8, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 12, 5, stride=2)), (2, 8, 30)),
    "one_pixel": (nn.Sequential(conv(16, 24), nn.AdaptiveAvgPool2d(1), conv(24, 10, 1), nn.ReLU(), nn.Flatten()), (2, 16, 6, 6)),
    "flattened": (nn.Sequential(conv(16, 20, stride=2), nn.Flatten(), nn.Linear(20 * 9, 6)), (1, 16, 6, 6)),
    "upsampled": (nn.Sequential(conv(16, 16), nn.Upsample(scale_factor=2), conv(16, 8)), (1, 16, 5, 5)),
    "transposed": (nn.Sequential(conv(16, 16), nn.ConvTranspose2d(16, 8, 2, 2), conv(8, 16)), (1, 16, 5, 5)),
    "shuffled": (nn.Sequential(conv(16, 32), nn.PixelShuffle(2), conv(8, 16)), (1, 16, 5, 5)),
    "normalised": (nn.Sequential(conv(16, 32), nn.GroupNorm(4, 32), nn.GELU(), conv(32, 8)), (1, 16, 6, 6)),
    "doubles": (nn.Sequential(conv(4, 8), nn.ReLU(), conv(8, 4)).double(), (1, 4, 6, 6)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("target", ["llvm", "native"])
def test_operators_between_packed_ones(name: str, target: str, tmp_path: Path) -> None:
    model, shape = NETWORKS[name]
    dtype = next(model.parameters()).dtype
    check(model, [(torch.randn(shape, dtype=dtype),) for _ in range(2)], tmp_path, target=target)


def test_concatenation_keeps_the_layout(tmp_path: Path) -> None:
    class Inception(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = conv(16, 32, 1), conv(16, 16), conv(48, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.relu(torch.cat([self.a(x), self.b(x)], 1)))

    built = check(Inception(), [(torch.randn(1, 16, 6, 6),)], tmp_path)
    assert len([c for c in calls(built) if "pack" in c]) == 2, "the model's input and output"


def test_what_no_family_takes_is_reported(tmp_path: Path) -> None:
    built = check(nn.Sequential(conv(4, 8)).double(), [(torch.randn(1, 4, 6, 6, dtype=torch.float64),)], tmp_path)
    report = built.report()
    assert len(report.generic) == 1 and "float64" in report.generic[0]
    assert len(report.generic_kernels) == 1 and "conv2d" in report.generic_kernels[0]
    assert f"1 kernels: {report.generic_kernels[0]}" in str(report)


def test_kernels_of_families_and_others_are_told_apart(tmp_path: Path) -> None:
    """Sums of a few neighbours have no family: they are named, although the convolution has one."""
    model = nn.Sequential(conv(16, 16), nn.ReLU(), Pairs())
    report = check(model, [(torch.randn(1, 16, 6, 6),)], tmp_path).report()
    assert report.generic == () and len(report.generic_kernels) == 1, report.generic_kernels
    assert "sum" in report.generic_kernels[0] and report.generic_kernels[0] in str(report)
    assert not check(nn.Sequential(conv(16, 16)), [(torch.randn(1, 16, 6, 6),)], tmp_path).report().generic_kernels


@pytest.mark.parametrize(
    ("model", "shape", "families"),
    [
        (nn.ConvTranspose2d(16, 8, 4, 2, 1), (1, 16, 5, 6), {"direct": 1}),
        (nn.ConvTranspose1d(16, 8, 3, 2), (2, 16, 7), {"direct": 2}),  # phases with two taps and with one
        (nn.ConvTranspose2d(16, 16, 2, 2, groups=16), (1, 16, 5, 5), {"grouped": 1}),
        (nn.Conv3d(8, 16, 3, padding=1), (1, 8, 4, 5, 6), {"winograd": 1}),
        (nn.Conv3d(8, 16, 1), (1, 8, 4, 5, 6), {"direct": 1}),
        (conv(3, 3, 5, groups=3), (1, 3, 9, 9), {"depthwise": 1}),
    ],
    ids=str,
)
def test_unusual_convolutions_have_families(model: nn.Module, shape: tuple[int, ...], families: dict[str, int], tmp_path: Path) -> None:
    report = check(nn.Sequential(model, nn.ReLU()), [(torch.randn(shape),) for _ in range(2)], tmp_path).report()
    assert (report.families, report.generic) == (families, ())


def test_strict_accuracy_and_families_can_be_chosen(tmp_path: Path) -> None:
    model, x = nn.Sequential(conv(64, 64)), (torch.randn(1, 64, 16, 16),)
    assert any("winograd" in k for k in kernels(check(model, [x], tmp_path)))
    assert not any("winograd" in k for k in kernels(check(model, [x], tmp_path, disable_families=["winograd"])))
    check(model, [x], tmp_path, accuracy="strict")


@pytest.mark.parametrize(
    ("options", "same_nan", "same_finite"),
    [({"disable_families": ["winograd"]}, True, True), ({"accuracy": "strict"}, False, True), ({}, False, False)],
    ids=["direct", "strict", "default"],
)
def test_where_infinities_go(options: dict[str, Any], same_nan: bool, same_finite: bool, tmp_path: Path) -> None:
    """As docs/accuracy.md says it: as in eager, but Winograd makes NaN of them, and its large tile spreads that over 4x4 outputs."""
    model, x = conv(64, 64).eval(), torch.randn(1, 64, 16, 16)
    x[0, 5, 6, 9] = torch.inf
    built = dycl_tvm.build(model, x, **options)
    module = dycl_tvm.load(built.export_library(tmp_path / "m.so"), built.save_params(tmp_path / "m.params"))
    want, got = model(x), torch.as_tensor(module(x))
    assert torch.equal(got.isnan(), want.isnan()) == same_nan
    assert torch.equal(got.isfinite(), want.isfinite()) == same_finite
    tiles = torch.nn.functional.max_pool2d((~want.isfinite()).float(), 4).repeat_interleave(4, 2).repeat_interleave(4, 3).bool()
    assert got[~tiles].isfinite().all()


def test_wrong_options_are_refused() -> None:
    model, x = nn.ReLU(), (torch.randn(2),)
    with pytest.raises(dycl_tvm.UsageError, match="accuracy"):
        dycl_tvm.build(model, x, accuracy="best")  # type: ignore[arg-type]
    with pytest.raises(dycl_tvm.UsageError, match="disable_families"):
        dycl_tvm.build(model, x, disable_families=["fft"])


def test_operands_may_repeat_and_be_constants(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = conv(16, 16), conv(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            y = y + y
            z = y * torch.tensor(3.0) - torch.ones(16, 1, 1) * y
            return self.b(torch.relu(z) + z * z)

    check(Twice(), [(torch.randn(1, 16, 7, 7),)], tmp_path)


class PooledAndNormalized(nn.Module):
    """What is pooled to rows is not packed, and its scale and shift by channels are."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = conv(3, channels), nn.BatchNorm1d(channels)
        self.left, self.right = nn.Linear(channels, 5), nn.Linear(channels, 5)
        nn.init.normal_(self.norm.running_mean)  # type: ignore[arg-type]  # it is there
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(torch.relu(self.conv(x)).mean((2, 3)))
        return self.left(rows) if rows.sum() > 0 else self.right(rows)


@pytest.mark.parametrize("channels", [32, 20])
def test_a_pooled_image_meets_packed_numbers(channels: int, tmp_path: Path) -> None:
    check(PooledAndNormalized(channels), [(torch.randn(1, 3, 8, 8) * s,) for s in (1.0, 5.0, -1.0)], tmp_path)
