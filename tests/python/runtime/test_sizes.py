# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Libraries whose callers decide sizes of the inputs."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dycl_tvm
import pages
from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import InputError
from dycl_tvm.runtime import capi


class Net(nn.Module):
    """Takes a batch of any size, and one row more of weights than there are rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.conv, self.head = nn.Embedding(9, 6), nn.Conv1d(6, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, ids, weights):
        y = self.conv(self.embed(ids).transpose(1, 2)).relu().mean(-1)
        y = self.head(y) * weights[1:].unsqueeze(1)
        if y.sum() > 0:
            return y, ids.shape[0]
        return y.softmax(-1).sum(0), -1


def given(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, 9, (n, 7), generator=generator), torch.randn(n + 1, generator=generator)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, dycl_tvm.Module, Path]:
    model, size = Net().eval(), dycl_tvm.Dim("N", min=1, max=5)
    artifact = dycl_tvm.build(model, given(2), dynamic_shapes={"ids": {0: size}, "weights": {0: size + 1}})
    folder: Path = tmp_path_factory.mktemp("sizes")
    artifact.export_library(folder / "net.so")
    artifact.save_params(folder / "net.params")
    return model, dycl_tvm.load(folder / "net.so", folder / "net.params"), folder


def test_all_sizes_in_any_order(built: tuple[Net, dycl_tvm.Module, Path]) -> None:
    model, module, _ = built
    paths = set()
    for n in (5, 1, 2, 4, 3, 5, 1):
        for sign in (1, -1):
            ids, weights = given(n)
            want, got = model(ids, sign * weights), module(ids, sign * weights)
            assert got[1] == want[1]
            torch.testing.assert_close(got[0], want[0])
            paths.add(want[1] < 0)
    assert paths == {True, False}
    assert module.metadata["inputs"][0]["sized"] == {"0": "N"} and module.metadata["inputs"][1]["sized"] == {"0": "N+1"}
    assert module.metadata["sizes"] == [{"name": "N", "min": 1, "max": 5}]


def test_rows_that_lie_apart(built: tuple[Net, dycl_tvm.Module, Path]) -> None:
    model, module, _ = built
    ids, weights = given(4)
    ids, weights = ids.t().contiguous().t(), weights.repeat_interleave(2)[::2]
    assert not ids.is_contiguous() and not weights.is_contiguous()
    torch.testing.assert_close(module(ids, weights)[0], model(ids, weights)[0])
    torch.testing.assert_close(torch.from_numpy(module(ids.numpy()[1:3], weights.numpy()[1:4])[0]), model(ids[1:3], weights[1:4])[0])


@pytest.mark.parametrize(
    ("ids", "weights", "message"),
    [
        ((6, 7), 7, "'ids': dimension 0 is 6, expected N = 1 to 5"),
        ((0, 7), 1, "'ids': dimension 0 is 0, expected N = 1 to 5"),
        ((3, 7), 3, "'weights': dimension 0 is 3, expected 4, because dimension 0 of 'ids' is 3"),
        ((3, 8), 4, r"'ids': expected int64\[<=5, 7\], got int64\[3, 8\]"),
        ((3,), 4, r"'ids': expected int64\[<=5, 7\], got int64\[3\]"),
        ((1 << 40, 7), 4, "'ids': dimension 0 is 1099511627776"),
    ],
)
def test_other_sizes_are_errors(built: tuple[Net, dycl_tvm.Module, Path], ids: tuple[int, ...], weights: int, message: str) -> None:
    _, module, _ = built
    x = np.broadcast_to(np.zeros((), np.int64), ids)
    with pytest.raises(InputError, match=message):
        module(x, np.zeros(weights, np.float32))
    with pytest.raises(InputError, match=r"expected a tensor int64\[N<=5, 7\]"):
        module(3, np.zeros(weights, np.float32))


class Scores(nn.Module):
    """Takes a batch of sequences, each of which has a length of its own; what it returns has the sizes twice, once, and not at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.key, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, ids, mask):
        x = self.embed(ids)
        scores = (x @ self.key(x).mT).masked_fill(~mask[:, None], -9.0).softmax(-1)
        y = self.head((scores @ x).mean(1))
        if y.sum() > 0:
            return scores, y, ids.shape[1]
        return scores.transpose(1, 2), y.mean(0), x.view(-1, 6).sum(0)


def test_several_sizes_of_one_input(tmp_path: Path) -> None:
    model, rows, steps = Scores().eval(), dycl_tvm.Dim("B", min=1, max=3), dycl_tvm.Dim("T", min=1, max=5)

    def inputs(b: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(10 * b + t)
        return torch.randint(0, 9, (b, t), generator=generator), torch.rand(b, t, generator=generator) > 0.3

    shapes = {"ids": {0: rows, 1: steps}, "mask": {0: rows, 1: steps}}
    artifact = dycl_tvm.build(model, inputs(2, 3), dynamic_shapes=shapes)
    module = dycl_tvm.load(artifact.export_library(tmp_path / "net.so", embed_params=True))
    assert module.metadata["inputs"][0] == {"type": "tensor", "dtype": "int64", "shape": [3, 5], "sized": {"0": "B", "1": "T"}}
    paths = set()
    for b, t in ((3, 5), (1, 1), (2, 3), (3, 1), (1, 5), (2, 5), (3, 2), (2, 4)):
        given, want = inputs(b, t), model(*inputs(b, t))
        lying = [x.t().contiguous().t() for x in given]  # columns, not rows, lie one after the other
        for got in (module(*given), module(*lying), tuple(torch.as_tensor(x) for x in module(*[x.numpy() for x in lying]))):
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other))
        paths.add(isinstance(want[2], int))
        value = capi.Value()
        assert module._library.dycl_output(module._session, 0, ctypes.byref(value)) == 0
        seen = capi.DLTensor.from_address(value.address)  # as a host in C sees it
        assert (seen.shape[:3], seen.strides[:3]) == ([b, t, t], [t * t, t, 1])
    assert paths == {True, False}
    for ids, mask, message in (
        ((4, 2), (4, 2), "'ids': dimension 0 is 4, expected B = 1 to 3"),
        ((2, 6), (2, 6), "'ids': dimension 1 is 6, expected T = 1 to 5"),
        ((2, 3), (2, 4), "'mask': dimension 1 is 4, expected 3, because dimension 1 of 'ids' is 3"),
        ((2, 3, 1), (2, 3), r"'ids': expected int64\[<=3, <=5\], got int64\[2, 3, 1\]"),
    ):
        with pytest.raises(InputError, match=message):
            module(torch.zeros(ids, dtype=torch.int64), torch.ones(mask, dtype=torch.bool))


class Images(nn.Module):
    """A net that pads to a multiple, resizes to what it skipped, and makes pixels of channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.down, self.up, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(10, 8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h, w = x.shape[-2:]
        skip = self.down(F.pad(x, (0, -w % 4, 0, -h % 4))).relu()
        y = self.up(F.max_pool2d(skip, 3, 2, ceil_mode=True)).relu()
        y = torch.cat([skip, F.interpolate(y, size=skip.shape[-2:], mode="bilinear", align_corners=False)], 1)
        large = F.pixel_shuffle(self.last(y), 2)[:, :, : 2 * h, : 2 * w]
        return large, F.interpolate(x, scale_factor=0.5), F.adaptive_avg_pool2d(y, 2).flatten(1)


def test_images_of_any_size(tmp_path: Path) -> None:
    model = Images().eval()
    sizes = {0: dycl_tvm.Dim("B", max=2), 2: dycl_tvm.Dim("H", min=2, max=11), 3: dycl_tvm.Dim("W", min=2, max=9)}
    artifact = dycl_tvm.build(model, torch.randn(1, 2, 6, 5), dynamic_shapes=[sizes])
    artifact.export_library(tmp_path / "net.so", embed_params=True)
    module = dycl_tvm.load(tmp_path / "net.so")
    for b, h, w in [(2, 11, 9), (1, 2, 2), (2, 3, 8), (1, 9, 9), (2, 4, 5), (1, 11, 2)]:
        x = torch.randn(b, 2, h, w)
        for got, want in zip(module(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_rows_that_were_returned_are_given_back(tmp_path: Path) -> None:
    """What has one row lies at the front of its buffer, whatever its other sizes are."""
    shapes = {"x": {0: dycl_tvm.Dim("N", min=0, max=1), 1: dycl_tvm.Dim("T", min=1, max=5)}}
    artifact = dycl_tvm.build(lambda x: (x, x.sum()), (torch.ones(1, 2, 3),), dynamic_shapes=shapes)
    module = dycl_tvm.load(artifact.export_library(tmp_path / "net.so", embed_params=True))
    library, value = module._library, capi.Value()
    for t in (5, 1, 3):
        x = np.arange(3.0 * t, dtype=np.float32).reshape(1, t, 3)
        module(x)
        for _ in range(2):
            assert library.dycl_output(module._session, 0, ctypes.byref(value)) == 0
            capi.check(library, library.dycl_run(module._session, ctypes.byref(value), 1, ctypes.byref(ctypes.c_int32())))
        got = module._collect(0, torch_like=False)
        assert got[0].tolist() == x.tolist() and got[1] == x.sum()


def test_an_input_that_was_returned_is_given_back(tmp_path: Path) -> None:
    """The views that a host gets of such outputs lie in the session's memory for its inputs."""
    size = dycl_tvm.Dim("N", min=1, max=6)
    artifact = dycl_tvm.build(
        lambda a, b: (a, b, (a * b).sum()), (torch.ones(2), torch.ones(2)), dynamic_shapes={"a": {0: size}, "b": {0: size}}
    )
    module = dycl_tvm.load(artifact.export_library(tmp_path / "net.so", embed_params=True))
    library, values = module._library, (capi.Value * 2)()
    for n in (1, 6, 3):  # the last one is copied
        a, b = np.arange(1.0, n + 1, dtype=np.float32), np.full(n, 2, np.float32)
        module(a, b)
        for k in range(2):  # each is a tensor and its length
            assert library.dycl_output(module._session, 2 * k, ctypes.byref(values[k])) == 0
        capi.check(library, library.dycl_run(module._session, values, 2, ctypes.byref(ctypes.c_int32())))
        assert [x.tolist() for x in module._collect(0, torch_like=False)] == [a.tolist(), b.tolist(), float((a * b).sum())]
    values[0], values[1] = values[1], values[0]
    with pytest.raises(InputError, match="'a': the tensor lies where the session keeps inputs that it copied"):
        capi.check(library, library.dycl_run(module._session, values, 2, ctypes.byref(ctypes.c_int32())))


def test_a_size_out_of_its_bounds_leaves_results_alone(tmp_path: Path) -> None:
    """Nothing is written, neither to tensors of the caller nor to state; and the session goes on."""
    size = dycl_tvm.Dim("N", min=1, max=4)

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls = self.calls + 1
            return x * 2, self.calls + x.sum()

    artifact = dycl_tvm.build(Counting(), (torch.ones(2, 3),), dynamic_shapes={"x": {0: size}}, verify="off")
    module = dycl_tvm.load(artifact.export_library(tmp_path / "net.so", embed_params=True))
    library, value, site = module._library, capi.Value(), ctypes.c_int32()
    value.type = capi.TENSOR
    out = np.full((4, 3), 5.0, np.float32)

    def tensor(array: np.ndarray) -> capi.DLTensor:
        made = capi.DLTensor(
            array.ctypes.data, capi.DL_CPU, 0, 2, *capi.DL_DTYPES["float32"], 1, (ctypes.c_int64 * 2)(*array.shape), None, 0
        )
        made.kept = array
        return made

    target = tensor(out)
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(target))
    for n in (3, 5, 0, 1):
        given, before = tensor(np.ones((n, 3), np.float32)), out.copy()
        value.address = ctypes.addressof(given)
        status = library.dycl_run_into(module._session, ctypes.byref(value), 1, addresses, 1, None, ctypes.byref(site))
        if 1 <= n <= 4:
            capi.check(library, status)
            assert out[:n].tolist() == [[2.0] * 3] * n
        else:
            assert status == capi.ERROR_INPUT and out.tolist() == before.tolist()
    assert module(torch.ones(1, 3))[1].item() == 3 + 3


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_example_in_c(tmp_path: Path) -> None:
    """The program in docs/runtime.md, as it is written there."""
    (program,) = pages.programs("runtime.md", "## From C++ and C", "c")
    (tmp_path / "program.c").write_text(program)
    size = dycl_tvm.Dim("N", min=2, max=8)
    artifact = dycl_tvm.build(lambda x: (2 * x[1:]).t(), (torch.ones(4, 3),), dynamic_shapes={"x": {0: size}})
    library = artifact.export_library(tmp_path / "model.so", embed_params=True)
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags()]
    run("gcc", *flags, tmp_path / "program.c", library, f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / "program")
    assert run(tmp_path / "program").splitlines() == [
        "dimension 0: 2 to 8",
        "dimension 1: 3 to 3",
        "result: 3 7",
        "input 'x': dimension 0 is 9, expected N = 2 to 8",
    ]


SPECS = """
#include <dycl/module.h>
#include <cstdio>
int main(int, char** argv) {
  auto module = dycl::Module::Load(argv[1], argv[2]);
  if (!module.ok()) return 1;
  for (const dycl::InputSpec& spec : module.value().Inputs()) {
    for (const DyclExtent& e : spec.extents) {
      std::printf("%s %d..%d by %d of %d\\n", spec.name.c_str(), (int)e.least, (int)e.most, (int)e.step, (int)e.size);
    }
  }
}
"""


def test_bounds_in_cpp(built: tuple[Net, dycl_tvm.Module, Path], tmp_path: Path) -> None:
    files = built[2]
    (tmp_path / "specs.cc").write_text(SPECS)
    units = [tmp_path / "specs.cc", *toolchain.runtime_sources().host_units()]
    toolchain.find_compiler().run(
        ["-std=c++17", *toolchain.include_flags(), *map(str, units), "-o", str(tmp_path / "specs"), "-ldl"], "specs"
    )
    assert run(tmp_path / "specs", files / "net.so", files / "net.params").splitlines() == [
        "ids 1..5 by 1 of 0",
        "ids 7..7 by 1 of -1",
        "weights 2..6 by 1 of 0",
    ]


def test_a_library_with_paths_for_some_sizes(tmp_path: Path) -> None:
    """The results are those of eager at all sizes, in C by the same numbers on all paths; the metadata says which have one."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)).eval()

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        return layers(x.softmax(1)), x.mean(1), x.shape[1]

    shapes = {"x": {0: dycl_tvm.Dim("B", min=0, max=2), 1: dycl_tvm.Dim("T", max=9)}}
    artifact = dycl_tvm.build(model, (torch.ones(2, 3, 6),), dynamic_shapes=shapes, specialize=[{"B": 1, "T": 4}, {"T": 9}, {"B": 0}])
    module = dycl_tvm.load(artifact.export_library(tmp_path / "net.so", embed_params=True))
    taken = {}
    for b, t in ((2, 3), (1, 4), (2, 4), (1, 9), (2, 9), (0, 9), (0, 2), (1, 1)):
        x = torch.randn(b, t, 6)
        got, want = module(x), model(x)
        assert got[2] == t
        for one, other in zip(got[:2], want[:2]):
            torch.testing.assert_close(one, other)
        taken[b, t] = " ".join(str(d) for d in module.last_path.branches if d.choice)
        value = capi.Value()
        for k, (shape, number) in enumerate((((b, t, 5), None), (None, b), (None, t), ((b, 6), None), (None, b), (None, t))):
            assert module._library.dycl_output(module._session, k, ctypes.byref(value)) == 0
            if shape is not None:
                assert tuple(capi.DLTensor.from_address(value.address).shape[: len(shape)]) == shape
            else:
                assert value.v_int == number
    first, second, third = (f"true  specialize: {text}" for text in ("B = 1, T = 4", "T = 9", "B = 0"))
    assert [taken[size] for size in ((1, 4), (1, 9), (2, 9), (0, 9), (0, 2))] == [first, second, second, second, third]
    assert not any(taken[size] for size in ((2, 3), (2, 4), (1, 1)))
    assert module.metadata["special_sizes"] == [{"B": [1, 1], "T": [4, 4]}, {"T": [9, 9]}, {"B": [0, 0]}]
    assert "specialised  B = 1, T = 4; T = 9; B = 0" in str(artifact.report())
    with pytest.raises(InputError, match="dimension 1 is 10, expected T = 1 to 9"):
        module(torch.randn(1, 10, 6))
    given, out = np.ones((1, 4, 6), np.float32), np.zeros((2, 9, 5), np.float32)  # the largest, which is too large on the path of its own
    tensors = [
        capi.DLTensor(x.ctypes.data, capi.DL_CPU, 0, 3, *capi.DL_DTYPES["float32"], 1, (ctypes.c_int64 * 3)(*x.shape), None, 0)
        for x in (given, out)
    ]
    value.type, value.address = capi.TENSOR, ctypes.addressof(tensors[0])
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(tensors[1]))
    arguments = module._session, ctypes.byref(value), 1, addresses, 1, None, ctypes.byref(ctypes.c_int32())
    assert module._library.dycl_run_into(*arguments) == capi.ERROR_USAGE and not out.any()
