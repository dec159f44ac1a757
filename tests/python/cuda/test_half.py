# Licensed under the Apache License, Version 2.0; see LICENSE.
"""float16 on GPUs: weights stored and multiplied in it, tensor cores where there are some, models that are float16 themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from emulation import DRIVERS, Driver
from models import Several
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.codegen.cuda import compile_images
from dycl_tvm.compare import difference
from dycl_tvm.errors import UsageError

torch.set_num_threads(1)

#: Rounding of a factor to float16 is 2^-11 of it; sums are float32.
UNIT = 2.0**-11


def build(model: nn.Module, inputs: tuple[Tensor, ...], arch: str = "sm_72", accuracy: str = "fp16") -> dycl_tvm.Artifact:
    return dycl_tvm.build(model.eval(), inputs, target=f"cuda -arch={arch}", host="llvm", accuracy=accuracy)


def check_products(
    gpu: Driver,
    folder: Path,
    functions: list[Callable[..., Tensor]],
    inputs: tuple[Tensor, ...],
    weights: list[Tensor],
    arch: str = "sm_72",
) -> dycl_tvm.Artifact:
    """Compare with eager in float32: the difference is within the rounding of both factors, times the sum of magnitudes."""
    model = Several(functions, weights)
    art = build(model, inputs, arch)
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    actual = gpu.load(art, folder)(*inputs)
    magnitudes = Several(functions, [w.abs() for w in weights])(*(x.abs() for x in inputs))
    for k, (got, want, most) in enumerate(zip(actual, model(*inputs), magnitudes)):
        assert got.dtype == torch.float32
        error = (got - want).abs()
        assert bool((error <= 2.1 * UNIT * most + 1e-6).all()), f"function {k}: {(error / most.clamp_min(1e-9)).max() / UNIT} units"
        assert float(error.max()) > 0, f"function {k} was not computed in float16"
    return art


def conv_weights() -> list[Tensor]:
    shapes = [(24, 12, 3, 3), (23, 12, 1, 1), (9, 12, 5, 3), (24,)]
    return [torch.randn(shape) for shape in shapes]


CONVOLUTIONS: list[Callable[..., Tensor]] = [
    lambda x, a, b, c, bias: F.conv2d(x, a, bias, padding=1),
    lambda x, a, b, c, bias: F.conv2d(x, b, stride=2),
    lambda x, a, b, c, bias: F.conv2d(x, c, stride=(1, 2), padding=(2, 0), dilation=(1, 2)),
]


@pytest.mark.parametrize("arch", ["sm_72", "sm_62"])
def test_convolutions_of_all_kinds_are_within_the_rounding_of_their_factors(arch: str, gpu: Driver, tmp_path: Path) -> None:
    art = check_products(gpu, tmp_path, CONVOLUTIONS, (torch.randn(2, 12, 13, 10),), conv_weights(), arch)
    assert (art._lowered.stats.families.get("tensor_cores", 0) == 3) == (arch != "sm_62"), art._lowered.stats.families


def test_products_of_all_forms(gpu: Driver, tmp_path: Path) -> None:
    inputs = (torch.randn(33, 70), torch.randn(2, 3, 17, 20), torch.randn(2, 3, 9, 20))
    functions: list[Callable[..., Tensor]] = [
        lambda a, b, c, w, bias: F.linear(a, w, bias),
        lambda a, b, c, w, bias: a @ a.T,
        lambda a, b, c, w, bias: b @ c.transpose(-1, -2),
        lambda a, b, c, w, bias: b.transpose(-1, -2) @ b,
    ]
    art = check_products(gpu, tmp_path, functions, inputs, [torch.randn(45, 70), torch.randn(45)])
    assert art._lowered.stats.families["tensor_cores"] == 4


def test_terms_are_split_among_blocks_and_what_follows_is_computed_once(gpu: Driver, tmp_path: Path) -> None:
    x, weight, bias = torch.randn(1, 256, 4, 4), torch.randn(64, 256, 3, 3) / 48, torch.randn(64)
    model = Several([lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)) + x[:, :64]], [weight, bias])
    art = build(model, (x,))
    device = art._lowered.program.device
    assert device is not None and [len(launches) for launches in device.launches] == [2]
    (got,), (want,) = gpu.load(art, tmp_path)(x), model(x)
    assert torch.allclose(got, want, atol=5e-3)


def test_a_few_vectors_and_depthwise_convolutions_read_weights_of_float16(gpu: Driver, tmp_path: Path) -> None:
    functions: list[Callable[..., Tensor]] = [
        lambda x, w, d: F.linear(x.flatten(1)[:, :96], w),
        lambda x, w, d: F.conv2d(x, d, padding=1, groups=12),
    ]
    art = check_products(gpu, tmp_path, functions, (torch.randn(1, 12, 9, 9),), [torch.randn(64, 96), torch.randn(12, 1, 3, 3)])
    assert {w.type.dtype for w in art._lowered.program.weights} == {"float16"}
    assert "tensor_cores" not in art._lowered.stats.families


def instructions(cubin: bytes) -> set[int]:
    """Return the operation codes in the machine code of a cubin: 9 bits of each 16 bytes (sm_70 and newer)."""
    table = int.from_bytes(cubin[40:48], "little")
    size, count, names = (int.from_bytes(cubin[at : at + 2], "little") for at in (58, 60, 62))

    def section(k: int) -> tuple[int, int, int]:
        at = table + k * size
        return int.from_bytes(cubin[at : at + 4], "little"), *(int.from_bytes(cubin[at + o : at + o + 8], "little") for o in (24, 32))

    found = set()
    for k in range(count):
        name, offset, length = section(k)
        if cubin[section(names)[1] + name :].startswith(b".text."):
            found |= {int.from_bytes(cubin[at : at + 2], "little") & 0x1FF for at in range(offset, offset + length, 16)}
    return found


#: HMMA with sums of float32: 884 of Volta (sm_70, sm_72), and 16816.
HMMA = {"sm_72": 0x036, "sm_87": 0x03C, "sm_90": 0x03C}


@pytest.mark.parametrize("arch", ["sm_62", "sm_72", "sm_87", "sm_90"])
def test_the_code_has_instructions_of_tensor_cores_where_there_are_some(arch: str) -> None:
    model, inputs = Several(CONVOLUTIONS[:1], conv_weights()), (torch.randn(1, 12, 8, 8),)
    images = {accuracy: compile_images(build(model, inputs, arch, accuracy)._lowered.program.device) for accuracy in ("fp16", "default")}
    has_cores = arch != "sm_62"
    assert (b"wmma.mma.sync.aligned" in images["fp16"].ptx) == has_cores
    assert b"wmma" not in images["default"].ptx
    if has_cores:
        assert HMMA[arch] in instructions(images["fp16"].cubin) - instructions(images["default"].cubin)
        assert not re.search(rb"\.local|__local_depot", images["fp16"].ptx), "sums are not in registers"
    else:
        assert b"cvt.f32.f16" in images["fp16"].ptx


def test_only_gpus_take_fp16() -> None:
    with pytest.raises(UsageError, match=r"accuracy='fp16' is for GPUs, not for this target.*model\.half\(\)"):
        dycl_tvm.build(nn.Linear(4, 4), (torch.randn(1, 4),), target="llvm", accuracy="fp16")


@pytest.mark.parametrize("name, bound, arch", [("early_bert_entropy", 5e-3, "sm_87")])
def test_networks_of_the_zoo(name: str, bound: float, arch: str, gpu: Driver, tmp_path: Path) -> None:
    entry = zoo.load(name)
    art = build(entry.model, entry.example_inputs, arch)
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    module = gpu.load(art, tmp_path)
    assert art._lowered.stats.families["tensor_cores"] > 0
    compared = 0
    for args in entry.inputs(4):
        with torch.no_grad():
            expected = entry.model(*args)
        compared += difference(expected, module(*args), rtol=bound) is None
    assert compared == 4


class Halves(nn.Module):
    """A network of everything that adds up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear, self.norm = nn.Conv2d(3, 10, 3, stride=2, padding=1), nn.Linear(10, 17), nn.LayerNorm(17)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = torch.relu(self.conv(x)).mean((2, 3))
        z = self.norm(F.gelu(self.linear(y)))
        if z.sum().item() > 1e4:
            z = z * 2
        return torch.softmax(z, -1), torch.tanh(z) + torch.exp(z) * torch.sqrt(z.abs()), z.argmax(-1), z.amax(), z @ z.T, x.sum(), z.float()


@pytest.mark.parametrize("arch", ["sm_62", "sm_72"])
def test_models_of_float16(arch: str, gpu: Driver, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Halves().half(), torch.randn(9, 3, 9, 9).half()
    art = build(model, (x,), arch, "default")
    gpu.configure(int(arch[3:]), DRIVERS[arch])
    expected, actual = model(x), gpu.load(art, tmp_path)(x)
    assert [a.dtype for a in actual] == [e.dtype for e in expected]
    for k, (want, got) in enumerate(zip(expected, actual)):
        assert torch.allclose(want.double(), got.double(), rtol=4e-3, atol=4e-3), f"output {k}"


def test_special_values_of_float16(gpu: Driver, tmp_path: Path) -> None:
    x = torch.tensor([[65504.0, 6e-8, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, 2049.0]]).half()
    model = Several([lambda x: x * 2, lambda x: x / 3, lambda x: x + x, lambda x: x.float() * 1.5, lambda x: (x.float() * 0.3).half()], [])
    want, got = model(x), gpu.load(build(model, (x,), accuracy="default"), tmp_path)(x)
    for w, g in zip(want, got):
        assert torch.equal(w, g) or bool(((w == g) | (w.isnan() & g.isnan())).all()), (w, g)
