# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What an artefact for a GPU does at run time, on the emulated one: results, errors, tensors on the device, waiting."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from emulation import Driver, OnDevice, compile_driver
from models import EarlyExit, Loop, example

import dycl_tvm
from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.module import Module

TARGET = "cuda -arch=sm_72"


@pytest.fixture(scope="module")
def model() -> EarlyExit:
    torch.manual_seed(0)
    return EarlyExit().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def artifact(model: EarlyExit) -> dycl_tvm.Artifact:
    return dycl_tvm.build(model, example(), target=TARGET, host="llvm")


@pytest.fixture
def net(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> Module:
    return gpu.load(artifact, tmp_path)


#: Thresholds of the two ways.
LEAVE, GO_ON = torch.tensor(0.1), torch.tensor(100.0)


def write(artifact: dycl_tvm.Artifact, folder: Path) -> tuple[Path, Path]:
    return artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params")


def test_paths_and_state_are_those_of_eager(net: Module, model: EarlyExit) -> None:
    eager = EarlyExit()
    eager.load_state_dict(model.state_dict())
    x, _ = example()
    sites = set()
    for threshold in (LEAVE, GO_ON, GO_ON, LEAVE, GO_ON):
        with torch.no_grad():
            expected = eager(x, threshold)
        actual = net(x, threshold)
        torch.testing.assert_close(actual, expected)
        sites.add(net.last_path.site)
    assert len(sites) == 2
    assert float(net(x, GO_ON)[1]) == 4
    net.reset_state()
    assert float(net(x, GO_ON)[1]) == 1


def test_a_profile_is_refused(net: Module) -> None:
    x, _ = example()
    with pytest.raises(UsageError, match="run on the CPU"), net.profile():
        pass
    with pytest.raises(UsageError, match="needs a profile"):
        net.run((x, GO_ON), budget_ms=1)
    assert float(net(x, GO_ON)[1]) == 1


def test_one_wait_for_a_branch_and_one_for_the_end(net: Module, gpu: Driver) -> None:
    x, _ = example()
    net(x, LEAVE)
    before = gpu.count("waits")
    net(x, LEAVE)
    assert gpu.count("waits") - before == 2


def test_stretches_become_graphs(net: Module, gpu: Driver) -> None:
    x, _ = example()
    results = [net(x * k, GO_ON)[0] for k in (1, 2, 3, 4)]
    assert gpu.count("graph_launches") > 0
    fresh = net.new_session()
    for k, result in zip((1, 2, 3, 4), results):
        torch.testing.assert_close(fresh(x * k, GO_ON)[0], result)


def test_numbers_go_to_the_device_and_back(gpu: Driver, tmp_path: Path) -> None:
    model = Loop()
    art = dycl_tvm.build(model, (torch.ones(4), torch.tensor(10)), target=TARGET, host="llvm")
    net = gpu.load(art, tmp_path)
    for n in (0, 10, 1000):
        x = torch.tensor([0.5, -0.25, 1.0, 2.0])
        expected, actual = model(x, torch.tensor(n)), net(x, torch.tensor(n))
        torch.testing.assert_close(actual[0], expected[0])
        assert actual[1] == expected[1]


def test_strided_inputs_are_copied(net: Module, model: EarlyExit) -> None:
    x, _ = example()
    wide = torch.stack([x, -x], dim=-1)[..., 0]
    assert not wide.is_contiguous()
    torch.testing.assert_close(net(wide, GO_ON)[0], net(x, GO_ON)[0])


def test_device_tensors_are_read_in_place_and_give_device_tensors(net: Module, gpu: Driver) -> None:
    x, _ = example()
    expected = net(x, GO_ON)
    there = OnDevice(gpu, x.numpy())
    copies = gpu.count("copies")
    value = capi.Value()
    actual = net(there, GO_ON.numpy())
    capi.check(net._library, net._library.dycl_output(net._session, 0, ctypes.byref(value)))
    assert value.u.tensor.contents.device_type == capi.DL_CUDA
    assert (
        gpu.count("copies") - copies == 6
    )  # the threshold, two items for the branch, the state, and both results when they were asked for
    np.testing.assert_allclose(actual[0], expected[0].numpy())


def _described(address: int, device: int, shape: tuple[int, ...]) -> capi.DLTensor:
    return capi.DLTensor(address, device, 0, len(shape), 2, 32, 1, (ctypes.c_int64 * len(shape))(*shape), None, 0)


@pytest.mark.parametrize("given", ["host", "gpu"])
@pytest.mark.parametrize("wanted", ["host", "gpu", "over the input"])
def test_results_in_tensors_of_the_caller(given: str, wanted: str, gpu: Driver, tmp_path: Path) -> None:
    """From and to the host and the GPU; the second result is the input, over which the first may be written."""
    x = torch.randn(8, 8)
    net = gpu.load(dycl_tvm.build(lambda x: (torch.softmax(x @ x.T, 0), x), (x,), target=TARGET, host="llvm"), tmp_path)
    arrays = [x.numpy().copy(), np.zeros((8, 8), "float32"), np.zeros((8, 8), "float32")]
    there = [OnDevice(gpu, array) for array in arrays]

    def place(k: int, where: str) -> capi.DLTensor:
        on_gpu = where == "gpu"
        return _described(there[k].address.value if on_gpu else arrays[k].ctypes.data, capi.DL_CUDA if on_gpu else capi.DL_CPU, (8, 8))

    source = place(0, given)
    targets = [source if wanted == "over the input" else place(1, wanted), place(2, wanted if wanted == "gpu" else "host")]
    value, site = capi.Value(capi.TENSOR), ctypes.c_int32()
    value.address = ctypes.addressof(source)
    addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, targets))
    for _ in range(1 if wanted == "over the input" else 3):
        capi.check(net._library, net._library.dycl_run_into(net._session, value, 1, addresses, 2, None, site))
    for target, want in zip(targets, (torch.softmax(x @ x.T, 0), x)):
        found = np.zeros((8, 8), "float32")
        if target.device_type == capi.DL_CPU:
            ctypes.memmove(found.ctypes.data, target.data, found.nbytes)
        else:
            gpu.library.cuMemcpyDtoHAsync_v2(
                found.ctypes.data_as(ctypes.c_void_p), ctypes.c_ulonglong(target.data), ctypes.c_size_t(256), there[0].stream
            )
            gpu.library.cuStreamSynchronize(there[0].stream)
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-5)


def test_graphs_follow_inputs_that_lie_elsewhere(gpu: Driver, tmp_path: Path) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x @ x.T, 0).sum(0) @ x, 0)

    tensors = [torch.randn(8, 8) for _ in range(3)]
    there = [OnDevice(gpu, t.numpy()) for t in tensors]
    net = gpu.load(dycl_tvm.build(chain, (tensors[0],), target=TARGET, host="llvm"), tmp_path)
    for k in (0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 0, 1, 2, 2, 2, 2):
        np.testing.assert_allclose(net(there[k]), chain(tensors[k]).numpy(), rtol=1e-4)
    assert gpu.count("graph_launches") > 6


def test_a_tensor_of_another_gpu_is_refused(net: Module, gpu: Driver) -> None:
    from dycl_tvm.runtime.tensors import InputTensor

    tensor = InputTensor("x", OnDevice(gpu, example()[0].numpy()), "float32")
    tensor.struct.device_id = 3
    values = (capi.Value * 2)()
    values[0].type, values[0].u.tensor = capi.TENSOR, ctypes.pointer(tensor.struct)
    second = InputTensor("threshold", GO_ON, "float32")
    values[1].type, values[1].u.tensor = capi.TENSOR, ctypes.pointer(second.struct)
    with pytest.raises(dycl_tvm.InputError, match=r"input 'x'.*on GPU 3, the library runs on GPU 0"):
        capi.check(net._library, net._library.dycl_run(net._session, values, 2, None))


def test_an_older_gpu_is_refused(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(sm=62)
    with pytest.raises(
        dycl_tvm.DeviceError, match=r"built for sm_72, but GPU 0 \(emulated\) is sm_62, which is older; build it with -arch=sm_62"
    ):
        gpu.load(artifact, tmp_path)


@pytest.mark.parametrize("how", ["a GPU of a later generation", "a driver that refuses the cubin"])
def test_where_the_cubin_is_refused_the_ptx_runs(
    how: str, artifact: dycl_tvm.Artifact, gpu: Driver, model: EarlyExit, tmp_path: Path
) -> None:
    gpu.configure(sm=87) if how.startswith("a GPU") else gpu.configure(reject_cubin=True)
    net = gpu.load(artifact, tmp_path)
    assert (gpu.count("cubin"), gpu.count("ptx")) == (0, 1)
    x, _ = example()
    torch.testing.assert_close(net(x, LEAVE)[0], torch.relu(model.first(x)))


def test_a_driver_that_takes_neither_image_is_an_error(model: EarlyExit, gpu: Driver, tmp_path: Path) -> None:
    art = dycl_tvm.build(model, example(), target="cuda -arch=sm_87", host="llvm")  # PTX 7.4
    gpu.configure(sm=87, version=10020, reject_cubin=True)
    words = r"driver of CUDA 10\.2\) takes neither the machine code for sm_87.*INVALID_IMAGE.* nor its PTX 7\.4.*UNSUPPORTED_PTX_VERSION"
    with pytest.raises(dycl_tvm.DeviceError, match=words):
        gpu.load(art, tmp_path)


def test_a_driver_that_is_too_old_is_an_error(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(version=9020)
    with pytest.raises(dycl_tvm.DeviceError, match=r"too old: it is of CUDA 9\.2, at least CUDA 10\.2 is needed"):
        gpu.load(artifact, tmp_path)


def test_no_gpu_is_an_error(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(devices=0)
    with pytest.raises(dycl_tvm.DeviceError, match="finds no GPU on this machine"):
        gpu.load(artifact, tmp_path)


def test_no_driver_is_an_error_and_needs_neither_torch_nor_tvm(artifact: dycl_tvm.Artifact, tmp_path: Path) -> None:
    library, params = write(artifact, tmp_path)
    code = f"from dycl_tvm import load\nload({str(library)!r}, {str(params)!r})\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert "DeviceError: there is no NVIDIA driver on this machine (libcuda.so.1" in done.stderr


@pytest.mark.parametrize("memory, what", [(0, "weights"), (4096, "tensors of a session")])
def test_too_little_memory_is_an_error(memory: int, what: str, artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gc.collect()
    taken = ctypes.c_size_t()
    gpu.library.cuMemGetInfo_v2(ctypes.byref(free := ctypes.c_size_t()), ctypes.byref(taken))
    used = taken.value - free.value
    gpu.configure(memory=used + memory)
    with pytest.raises(MemoryError, match=rf"no room for the {what} of 'EarlyExit'.*CUDA_ERROR_OUT_OF_MEMORY") as caught:
        gpu.load(artifact, tmp_path)
    assert "are free" in str(caught.value)


def test_a_kernel_that_fails_is_an_error_of_the_run(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(fail_kernels=True)
    net = gpu.load(artifact, tmp_path)
    with pytest.raises(dycl_tvm.DeviceError, match="in a run of 'EarlyExit': CUDA_ERROR_LAUNCH_FAILED"):
        net(*example())


def test_a_gpu_that_is_not_there_cannot_be_chosen(
    artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYCL_CUDA_DEVICE", "1")
    with pytest.raises(dycl_tvm.DeviceError, match="DYCL_CUDA_DEVICE is '1', but the GPUs here are 0 to 0"):
        gpu.load(artifact, tmp_path)
    gpu.configure(devices=2)
    gpu.load(artifact, tmp_path)


def test_contexts_and_memory_are_given_back(artifact: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    gc.collect()
    gpu.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    before, contexts = free.value, gpu.count("contexts")
    net = gpu.load(artifact, tmp_path)
    net(*example())
    gpu.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    assert free.value < before
    assert gpu.count("contexts") == contexts + 1
    del net
    gc.collect()
    gpu.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    assert free.value == before
    assert gpu.count("contexts") == contexts


@pytest.mark.parametrize("flags, graphs", [((), "1"), (("-DEMULATED_CUDA_10",), "1"), ((), "0")], ids=["CUDA 11", "CUDA 10", "no graphs"])
def test_an_artefact_runs_without_torch_and_tvm(
    flags: tuple[str, ...], graphs: str, artifact: dycl_tvm.Artifact, gpu: Driver, model: EarlyExit, tmp_path: Path
) -> None:
    library, params = write(artifact, tmp_path)
    driver = compile_driver(tmp_path, *flags)
    x, _ = example()
    np.save(tmp_path / "x.npy", x.numpy())
    code = f"""
import ctypes, sys
import numpy as np
from dycl_tvm import load
net = load({str(library)!r}, {str(params)!r})
for _ in range(4):
    y = net(np.load({str(tmp_path / "x.npy")!r}), np.array(100, "float32"))
np.save({str(tmp_path / "y.npy")!r}, y[0])
assert not {{"torch", "tvm", "tvm_ffi"}} & set(sys.modules)
assert not any("libtvm" in line for line in open("/proc/self/maps"))
assert (ctypes.CDLL("libcuda.so.1").emulated_cuda_count(b"graph_launches") > 0) == {graphs == "1"}
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **gpu.environment(artifact)}
    environment |= {"LD_LIBRARY_PATH": str(driver.parent), "DYCL_CUDA_GRAPHS": graphs}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    expected = torch.softmax(model.second(torch.relu(model.first(x))), 1)
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), expected)


def test_sessions_in_threads_have_streams_of_their_own(net: Module, model: EarlyExit) -> None:
    x, _ = example()
    expected = {k: torch.relu(model.first(x * k)) for k in range(1, 5)}
    sessions = {k: net.new_session() for k in expected}
    with ThreadPoolExecutor(max_workers=4) as pool:
        jobs = {k: pool.submit(lambda k=k: [sessions[k](x * k, torch.tensor(-1.0))[0] for _ in range(5)]) for k in expected}
        for k, job in jobs.items():
            for result in job.result():
                torch.testing.assert_close(result, expected[k])


def test_packed_functions_of_a_tvm_process(artifact: dycl_tvm.Artifact, gpu: Driver, model: EarlyExit, tmp_path: Path) -> None:
    library, params = write(artifact, tmp_path)
    gpu.use_kernels(artifact)
    module = tvm.runtime.load_module(str(library))
    session = module["create"](str(params))
    x, _ = example()
    expected = torch.relu(model.first(x)).numpy()
    module["run"](session, tvm.runtime.tensor(x.numpy()), tvm.runtime.tensor(LEAVE.numpy()))
    np.testing.assert_allclose(module["output"](session, 0).numpy(), expected, rtol=1e-5)
    target = tvm.runtime.empty((2, 8), "float32")
    module["copy_output"](session, 0, target)
    np.testing.assert_allclose(target.numpy(), expected, rtol=1e-5)
    module["destroy"](session)
    gpu.configure(sm=62)
    with pytest.raises(RuntimeError, match="built for sm_72"):
        module["create"](str(params))


def test_a_network_without_kernels(gpu: Driver, tmp_path: Path) -> None:
    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    x = torch.randn(3)
    net = gpu.load(dycl_tvm.build(Same(), (x,), target=TARGET, host="llvm"), tmp_path)
    torch.testing.assert_close(net(x), x)


def test_constants_of_doubles_keep_their_digits(gpu: Driver, tmp_path: Path) -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        return (x.double() * 1.2345678901234567e-20 + 3.0000000000000004) * (x > 1e-17)

    x = torch.tensor([0.5, -2.0, 3.0, 1e-16])
    net = gpu.load(dycl_tvm.build(small, (x,), target=TARGET, host="llvm"), tmp_path)
    torch.testing.assert_close(net(x), small(x), rtol=1e-15, atol=0)
    assert net(x)[3] == small(x)[3] > 3
