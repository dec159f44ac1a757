# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Branches that the GPU takes by itself: CUDA graphs with conditional nodes, on the emulated driver of CUDA 12.8."""

from __future__ import annotations

import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from emulation import SOURCES, Driver
from test_zoo_on_gpu import build
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.codegen.cuda import nvcc
from dycl_tvm.codegen.link import link, save_params
from dycl_tvm.compare import difference
from dycl_tvm.compile.device_branches import find_segments
from dycl_tvm.compile.program import DeviceBranch, Leave, ReadItem, Segment, Slot, SwitchGoto
from dycl_tvm.errors import CompileError
from dycl_tvm.runtime.module import Module
from dycl_tvm.target import resolve_target

TARGET = "cuda -arch=sm_90"
WITH, WITHOUT = 12080, 12060
#: Runs until a segment is a graph.
WARM = 2


class Gated(nn.Module):
    """Three skipped layers, the choice of an expert, a layer either way, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, gates: Tensor, scores: Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
        layers = self.layers
        if (gates[0] > 0).item():
            x = torch.relu(layers[0](x))
        if not (gates[1] > 0).item():
            x = x + layers[1](x)
        x = [layers[2], layers[3], layers[4]][int(scores.argmax())](x)
        x = torch.tanh(layers[5](x)) if (gates[2] > 0).item() else torch.sigmoid(layers[6](x))
        self.calls = self.calls + 1
        return (x if (gates[3] > 0).item() else torch.relu(layers[7](x))), self.calls


@pytest.fixture(scope="module")
def model() -> Gated:
    torch.manual_seed(1)
    return Gated().eval().requires_grad_(False)


def example(gates: int = 0, expert: int = 0) -> tuple[Tensor, ...]:
    bits = [(gates >> k & 1) - 0.5 for k in range(4)]
    scores = torch.nn.functional.one_hot(torch.tensor(min(max(expert, 0), 2)), 3).float()
    return torch.linspace(-1, 1, 16).reshape(2, 8), torch.tensor(bits), scores, torch.tensor(expert)


@pytest.fixture(scope="module")
def artifact(model: Gated) -> dycl_tvm.Artifact:
    return dycl_tvm.build(model, example(), target=TARGET, host="llvm")


def segments(artifact: dycl_tvm.Artifact) -> tuple[Segment, ...]:
    device = artifact._lowered.program.device
    assert device is not None
    return device.segments


def branches(segment: Segment) -> list[DeviceBranch]:
    return [step for step in segment.steps if isinstance(step, DeviceBranch)]


@pytest.fixture
def net(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> Module:
    gpu.configure(90, WITH)
    return gpu.load(artifact, tmp_path)


def eager(model: Gated) -> Gated:
    other = Gated()
    other.load_state_dict(model.state_dict())
    return other.eval().requires_grad_(False)


def test_results_paths_state_and_calls_are_those_of_the_host(net: Module, artifact: dycl_tvm.Artifact, model: Gated, gpu: Driver) -> None:
    (segment,) = segments(artifact)
    assert [len(b.sides) for b in branches(segment)] == [2, 2, 3, 2, 2]
    other, reference = net.new_session(), eager(model)
    other.set_device_branches(False)
    paths = set()
    for _ in range(WARM):
        net(*example())
    net.reset_state()
    for gates in range(16):
        for expert in range(3):
            bodies = gpu.count("bodies")
            expected, actual = reference(*example(gates, expert)), net(*example(gates, expert))
            torch.testing.assert_close(actual, expected)
            assert gpu.count("bodies") > bodies
            bodies = gpu.count("bodies")
            by_host = other(*example(gates, expert))
            torch.testing.assert_close(by_host, expected)
            assert gpu.count("bodies") == bodies
            assert net.last_path == other.last_path
            assert net.sub_dnns_run == other.sub_dnns_run
            assert net.kernels_run == other.kernels_run
            paths.add(net.last_path.key())
    assert len(paths) == 48
    assert gpu.count("conditional_nodes") == 5


def test_the_host_waits_once_a_call(net: Module, gpu: Driver) -> None:
    for _ in range(WARM):
        before = gpu.count("waits")
        net(*example(5, 1))
        assert gpu.count("waits") - before == 6  # five branches, and the end
    net(*example(5, 1))  # makes the graph
    before = gpu.count("waits")
    net(*example(2, 2))
    # One before the state is written, because an index may have no expert; one for the end.
    assert gpu.count("waits") - before == 2


@pytest.mark.parametrize("how", ["older driver", "option", "environment"])
def test_where_it_is_off_the_host_takes_all(
    how: str, artifact: dycl_tvm.Artifact, model: Gated, gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.configure(90, WITHOUT if how == "older driver" else WITH)
    if how == "environment":
        monkeypatch.setenv("DYCL_CUDA_GRAPHS", "0")
    net, reference = gpu.load(artifact, tmp_path), eager(model)
    net.set_device_branches(how != "option")
    for gates in range(4):
        torch.testing.assert_close(net(*example(gates, 1)), reference(*example(gates, 1)))
    assert (gpu.count("conditional_nodes"), gpu.count("bodies")) == (0, 0)


@pytest.mark.parametrize("index", [3, -4, 1 << 40])
def test_an_index_without_a_side_is_an_error_and_leaves_the_state(
    index: int, artifact: dycl_tvm.Artifact, model: Gated, gpu: Driver, tmp_path: Path
) -> None:
    """The index is taken from an input, because the front end checks all that it does not know to be in range."""
    lowered = artifact._lowered
    program = deepcopy(lowered.program)
    block = next(b for b in program.blocks if isinstance(b.end, SwitchGoto))
    read, expert = block.instrs[-1], program.inputs[3]
    assert isinstance(read, ReadItem) and isinstance(expert, Slot) and program.device is not None
    block.instrs[-1] = replace(read, src=expert)
    program.device = replace(program.device, segments=find_segments(program))
    link(program, artifact._code.library, tmp_path / "model.so", resolve_target(TARGET, "llvm").target)
    save_params(program, tmp_path / "model.params")
    gpu.configure(90, WITH)
    gpu.use_kernels(artifact)
    net = dycl_tvm.load(tmp_path / "model.so", tmp_path / "model.params")
    for _ in range(WARM + 1):
        net(*example())
    bodies = gpu.count("bodies")
    with pytest.raises(dycl_tvm.RunError, match=rf"IndexError: .*index {index} is out of range for 3 items") as caught:
        net(*example(1, index))
    assert gpu.count("bodies") - bodies == 5  # of the index too: what follows must not read what was never written
    assert "test_device_branches.py" in str(caught.value)
    assert [b.choice for b in net.last_path.branches] == [True, True]
    result, calls = net(*example(1, 2))
    assert float(calls) == WARM + 2
    torch.testing.assert_close(result, eager(model)(*example(1, 2))[0])


def test_inputs_on_the_device_that_move(net: Module, model: Gated, gpu: Driver) -> None:
    from test_runtime import OnDevice

    x, *others = example(3, 1)
    wanted = eager(model)(x, *others)[0]
    places = [OnDevice(gpu, x.numpy()) for _ in range(2)]
    for k in (0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1):
        actual = net(places[k], *(other.numpy() for other in others))[0]
        torch.testing.assert_close(torch.from_numpy(actual), wanted)
    assert gpu.count("bodies") > 0


def test_a_segment_in_a_loop_of_the_host(gpu: Driver, tmp_path: Path) -> None:
    """The loop's number is known to the host, so it does not wait in it but for the decisions of the round before."""

    class Loop(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            for _ in range(int(n)):
                if (x.sum() > 10).item():
                    x = x * 0.25
                x = x + 1
            return x

    x, model, seen = torch.ones(4), Loop(), set()
    gpu.configure(90, WITH)
    net = gpu.load(dycl_tvm.build(model, (x, torch.tensor(3)), target=TARGET, host="llvm"), tmp_path)
    for n in map(torch.tensor, (5, 9, 0, 6)):
        torch.testing.assert_close(net(x, n), model(x, n))
        choices = [b.choice for b in net.last_path.branches]
        host = net.new_session()
        host.set_device_branches(False)
        host(x, n)
        assert choices == [b.choice for b in host.last_path.branches]
        seen.update(choices)
    assert gpu.count("bodies") > 5
    assert seen == {True, False}


def test_a_failing_kernel_leaves_no_decisions(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(90, WITH)
    net = gpu.load(artifact, tmp_path)
    for _ in range(WARM + 1):
        net(*example(7, 1))
    gpu.configure(90, WITH, fail_kernels=True)
    fresh = net.new_session()
    with pytest.raises(dycl_tvm.DeviceError, match="LAUNCH_FAILED"):
        for _ in range(WARM + 1):
            fresh(*example(7, 1))
    assert fresh.last_path.branches == ()


@pytest.mark.parametrize("name, inputs, least_paths", [("skipnet38_ff", 4, 3), ("moe_top1", 6, 5)])
def test_networks_of_the_zoo(name: str, inputs: int, least_paths: int, gpu: Driver, tmp_path: Path) -> None:
    """After two calls the GPU takes all branches: one wait a call instead of one a branch, and no other result."""
    entry, art = build(name, "sm_90")
    (segment,) = segments(art)
    count = len(branches(segment))
    gpu.configure(90, WITH)
    net = gpu.load(art, tmp_path)
    found = set()
    for k, args in enumerate(entry.inputs(inputs)):
        with torch.no_grad():
            expected = entry.model(*args)
        before, bodies = gpu.count("waits"), gpu.count("bodies")
        actual = net(*args)
        assert gpu.count("waits") - before == (1 if k >= WARM else count + 1)
        assert (gpu.count("bodies") > bodies) == (k >= WARM)
        assert difference(expected, actual, rtol=1e-3) is None, f"input {k}"
        assert len(net.last_path.branches) == count
        found.add(net.last_path.key())
    assert len(found) >= least_paths
    assert count > 10


def test_all_gates_of_a_network_are_one_segment() -> None:
    _, art = build("blockdrop_resnet110", "sm_90")
    (segment,) = segments(art)
    assert [b.decision for b in branches(segment)] == list(range(54))
    assert isinstance(art._lowered.program.blocks[segment.end].end, Leave)


def condition_ptx(folder: Path) -> bytes:
    """Return the text that the runtime gives to the driver."""
    program = folder / "print"
    (folder / "print.cc").write_text('#include <cstdio>\n#include "cuda_condition.h"\nint main() { puts(dycl::cuda::kConditionPtx); }\n')
    runtime = SOURCES.parents[2] / "src" / "runtime"
    subprocess.run(["g++", "-std=c++17", f"-I{runtime}", str(folder / "print.cc"), "-o", str(program)], check=True)
    return subprocess.run([str(program)], capture_output=True, check=True).stdout


def test_the_ptx_of_conditions_is_valid(tmp_path: Path) -> None:
    """``ptxas`` takes it as a whole program: it knows the function of the driver, and no other that is not defined."""
    if nvcc.find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    ptx = condition_ptx(tmp_path)
    for number in (75, 80, 90, 100):
        nvcc.check_ptx(ptx, number)
    with pytest.raises(CompileError, match="Unresolved extern function 'cudaGraphSetAnything'"):
        nvcc.check_ptx(ptx.replace(b"cudaGraphSetConditional", b"cudaGraphSetAnything"), 90)
