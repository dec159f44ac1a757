# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sessions that are made for smaller sizes than the library: what they take, and what they refuse."""

from __future__ import annotations

import copy
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.cli.main import main
from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import InputError, UsageError


class Attends(nn.Module):
    """Sequences that attend to themselves, with a sum that is kept for the next call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.key = nn.Embedding(9, 8), torch.randn(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, ids, scale):
        x = self.embed(ids) * scale[:, :, None]
        y = (x @ self.key @ x.mT).softmax(-1) @ x
        if y.sum() > 0:
            y = y * y
        self.total = y[0, 0] + self.total
        return y, self.total


def given(b: int, t: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * b + t)
    return torch.randint(0, 9, (b, t), generator=generator), torch.randn(b, t, generator=generator)


@pytest.fixture(scope="module")
def artifact() -> dycl_tvm.Artifact:
    rows, steps = dycl_tvm.Dim("B", min=1, max=4), dycl_tvm.Dim("T", min=1, max=64)
    special = ["B<=2, T<=8", "B=1, T=40", "T<=8"]
    shapes = {"ids": {0: rows, 1: steps}, "scale": {0: rows, 1: steps}}
    return dycl_tvm.build(Attends().eval(), given(2, 5), dynamic_shapes=shapes, specialize=special, verify="off")


@pytest.fixture(scope="module")
def files(artifact: dycl_tvm.Artifact, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder: Path = tmp_path_factory.mktemp("sessions")
    return artifact.export_library(folder / "net.so"), artifact.save_params(folder / "net.params")


def agrees(module: dycl_tvm.Module, *sizes: tuple[int, int]) -> None:
    """All calls of some sizes are right, with what a call before left in memory and in state."""
    model = Attends().eval()
    module.reset_state()
    for b, t in sizes:
        for want, got in zip(model(*given(b, t)), module(*given(b, t)), strict=True):
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want))


def test_it_takes_what_its_paths_need(files: tuple[Path, Path]) -> None:
    whole = dycl_tvm.load(*files)
    sessions = {n: whole.new_session(largest_sizes={"T": n}) for n in (7, 8, 9, 64)}
    small = dycl_tvm.load(*files, largest_sizes={"B": 2, "T": 7})
    assert small.arena_bytes < sessions[7].arena_bytes == sessions[8].arena_bytes < whole.arena_bytes
    assert sessions[9].arena_bytes == sessions[64].arena_bytes == whole.arena_bytes
    # The numbers that kernels of the path for all sizes read are written on the way to the others, and lie before these.
    assert 8 * sessions[8].arena_bytes < whole.arena_bytes
    assert whole.session_bytes - sessions[8].session_bytes >= whole.arena_bytes - sessions[8].arena_bytes
    agrees(small, (2, 7), (1, 1), (2, 3), (1, 7), (2, 7))
    agrees(sessions[8], (4, 8), (1, 8), (2, 3), (4, 8), (3, 1))
    agrees(sessions[9], (4, 9), (1, 1), (4, 8))
    agrees(whole, (4, 64), (1, 40), (2, 8), (4, 16), (1, 64))
    assert whole.new_session(largest_sizes={"B": 1, "T": 40}).arena_bytes == whole.arena_bytes  # T = 39 takes the path for all


@pytest.mark.parametrize("size", [(2, 9), (3, 2), (4, 64), (5, 1)])
def test_larger_calls_are_refused_before_anything_runs(files: tuple[Path, Path], size: tuple[int, int]) -> None:
    small = dycl_tvm.load(*files, largest_sizes={"B": 2, "T": 8})
    small(*given(1, 2))
    state = small.get_state()
    dim, n, name, most = (1, size[1], "T", 8) if size[0] <= 2 else (0, size[0], "B", 2)
    for inputs in (given(*size), [x.numpy() for x in given(*size)], [x.t().contiguous().t() for x in given(*size)]):
        with pytest.raises(InputError, match=f"'ids': dimension {dim} is {n}, expected {name} = 1 to {most}"):
            small(*inputs)
        assert small.get_state() == state and not small.kernels_run
    with pytest.raises(InputError, match=r"expected a tensor int64\[B<=2, T<=8\]"):
        small(3, given(1, 1)[1])
    with pytest.raises(InputError, match=r"int64\[B?<=2, T?<=8\]"):
        small(given(1, 1)[0][0], given(1, 1)[1])
    agrees(small, (2, 8))


def test_it_says_its_bounds_and_copies_keep_them(files: tuple[Path, Path]) -> None:
    whole = dycl_tvm.load(*files)
    small = whole.new_session(largest_sizes={"T": 8})
    for module in (small, copy.copy(small), pickle.loads(pickle.dumps(small)), small.new_session()):
        assert module.metadata["sizes"] == [{"name": "B", "min": 1, "max": 4}, {"name": "T", "min": 1, "max": 8}]
        assert [want["shape"] for want in module.metadata["inputs"]] == [[4, 8], [4, 8]]
        assert module.arena_bytes == small.arena_bytes
        with pytest.raises(InputError, match="T = 1 to 8"):
            module(*given(1, 9))
    for module in (whole, small.new_session(largest_sizes={})):
        assert module.metadata["sizes"][1]["max"] == 64 and module.arena_bytes == whole.arena_bytes


def test_an_arena_of_the_program_is_as_small(files: tuple[Path, Path]) -> None:
    whole = dycl_tvm.load(*files)
    need = whole.new_session(largest_sizes={"T": 8}).arena_bytes
    room = np.full(need + 128, 0xA5, np.uint8)
    start = -room.ctypes.data % 64
    small = whole.new_session(arena=room[start : start + need], largest_sizes={"T": 8})
    agrees(small, (4, 8), (2, 2), (1, 8))
    assert (room[:start] == 0xA5).all() and (room[start + need :] == 0xA5).all()
    for sizes, size in (({"T": 8}, need - 64), ({"T": 9}, need), ({}, need)):
        with pytest.raises(UsageError, match=r"the arena has \d+ bytes, .* needs"):
            whole.new_session(arena=room[start : start + size], largest_sizes=sizes)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"N": 3}, "has no size 'N'"),
        ({"T": 0}, "the largest 'T' of a session is 0, expected 1 to 64"),
        ({"T": 65}, "is 65, expected 1 to 64"),
        ({"T": 1 << 70}, "largest_sizes is"),
        ({"T": True}, "write the largest value of each size by its name"),
        ("T<=8", "write the largest value"),
    ],
)
def test_what_is_no_size_is_refused(files: tuple[Path, Path], sizes: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dycl_tvm.load(*files, largest_sizes=sizes)  # type: ignore[arg-type]  # that is what is tested


def test_on_the_command_line(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    given = [*map(str, files), "--largest-sizes"]
    assert main(["run", *given, "T=8, B=2", "-q"]) == 0
    assert main(["inspect", given[0]]) == 0
    need = dycl_tvm.load(*files, largest_sizes={"T": 8}).arena_bytes
    told = capsys.readouterr().out
    assert "float32[2, 8, 8]" in told  # random inputs are of the largest sizes
    assert f"sessions for T <= 8: an arena of {need:,} bytes" in told
    for wrong in ("T", "T=x", "=3", "N=3", "T=99"):
        assert main(["run", *given, wrong, "-q"]) != 0
    assert "write the largest value of each size by its name, as T=64,B=1" in capsys.readouterr().err


def test_in_cpp_under_a_sanitizer(artifact: dycl_tvm.Artifact, tmp_path: Path) -> None:
    library, params = artifact.export_library(tmp_path / "net.so", sanitize="address"), artifact.save_params(tmp_path / "net.params")
    units = [Path(__file__).parents[2] / "cpp" / "largest_sizes_main.cc", *toolchain.runtime_sources().host_units()]
    flags = ["-std=c++17", "-O1", "-g1", "-fsanitize=address", "-Wall", "-Wextra", "-Werror", *toolchain.include_flags(), *map(str, units)]
    toolchain.find_compiler().run([*flags, "-o", str(tmp_path / "program"), "-ldl", "-lpthread"], "largest_sizes")
    done = subprocess.run([tmp_path / "program", library, params], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "done\n" and done.returncode == 0, done.stdout + done.stderr
