# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs on a CUDA stream of the caller's, on the emulated driver: where their work goes, and who waits for what."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from emulation import Driver, OnDevice, Stream
from models import EarlyExit, Loop, example
from torch import nn

import dycl_tvm
import pages
from dycl_tvm.codegen import toolchain
from dycl_tvm.errors import DeviceError, UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.module import Module
from dycl_tvm.runtime.streams import stream_handle

TARGET = "cuda -arch=sm_72"


class Straight(nn.Module):
    """Several kernels, no branch, and a state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("total", torch.zeros(2, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.last(torch.softmax(self.first(x), -1)), -1)
        self.total = self.total + y
        return self.total * 2


@pytest.fixture(scope="module")
def straight() -> dycl_tvm.Artifact:
    return dycl_tvm.build(Straight().eval(), (torch.zeros(2, 16),), target=TARGET, host="llvm")


@pytest.fixture
def net(straight: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> Module:
    return gpu.load(straight, tmp_path)


def run_into(net: Module, inputs: list[OnDevice], outputs: list[OnDevice]) -> None:
    """Run with tensors on the device only, by the C API."""
    values = (capi.Value * len(inputs))()
    tensors = [t.described() for t in inputs]
    for value, tensor in zip(values, tensors):
        value.type, value.u.tensor = capi.TENSOR, ctypes.pointer(tensor)
    targets = [t.described() for t in outputs]
    addresses = (ctypes.c_void_p * len(outputs))(*map(ctypes.addressof, targets))
    given = net._session, values, len(inputs), addresses, len(outputs), None, ctypes.c_int32()
    capi.check(net._library, net._library.dycl_run_into(*given))


DONE = ("launches", "copies", "fills", "graph_launches", "waits")


def test_all_work_goes_to_the_stream_and_nobody_waits(net: Module, gpu: Driver) -> None:
    """Six runs, of which the last are graphs, before anybody looks; then all results are there, in order."""
    stream, eager = Stream(gpu), Straight().eval()
    xs = [torch.randn(2, 16) for _ in range(6)]
    inputs, outputs = [OnDevice(gpu, x.numpy()) for x in xs], [OnDevice(gpu, np.zeros((2, 16), "float32")) for _ in xs]
    net.set_cuda_stream(stream)
    before = {what: gpu.count(what) for what in DONE}
    for given, taken in zip(inputs, outputs):
        run_into(net, [inputs[0] if given is inputs[-1] else given], [taken])
    done = {what: gpu.count(what) - before[what] for what in DONE}
    captured = done["launches"] - stream.count("launches")  # on the stream of the session, which does nothing of it
    assert done["waits"] == 0
    assert stream.count("launches") > 0 and stream.count("copies") > 0
    assert done["copies"] == stream.count("copies") and done["fills"] == stream.count("fills")
    assert done["graph_launches"] == stream.count("graph_launches")
    assert (captured > 0) == (done["graph_launches"] > 0)
    assert not any(t.read().any() for t in outputs)  # nothing of it has run: other streams wait for nothing
    stream.wait()
    for k, (x, taken) in enumerate(zip(xs, outputs)):
        with torch.no_grad():
            np.testing.assert_allclose(taken.read(), eager(xs[0] if k == 5 else x).numpy(), rtol=1e-5)


def test_graphs_are_launched_on_the_stream(net: Module, gpu: Driver) -> None:
    stream, x, out = Stream(gpu), OnDevice(gpu, np.ones((2, 16), "float32")), OnDevice(gpu, np.zeros((2, 16), "float32"))
    net.set_cuda_stream(stream)
    for _ in range(5):
        run_into(net, [x], [out])
    assert stream.count("graph_launches") == gpu.count("graph_launches") == 3
    stream.wait()
    eager = Straight().eval()
    for _ in range(5):
        want = eager(torch.ones(2, 16))
    np.testing.assert_allclose(out.read(), want.detach().numpy(), rtol=1e-5)


def test_a_branch_waits_once_and_the_end_does_not(gpu: Driver, tmp_path: Path) -> None:
    model = EarlyExit().eval()
    net, stream = gpu.load(dycl_tvm.build(model, example(), target=TARGET, host="llvm"), tmp_path), Stream(gpu)
    x, t = OnDevice(gpu, example()[0].numpy()), OnDevice(gpu, np.array(100, "float32"))
    outputs = [OnDevice(gpu, np.zeros((2, 4), "float32")), OnDevice(gpu, np.zeros(1, "float32"))]
    net.set_cuda_stream(stream)
    before = gpu.count("waits")
    net.run_leaves([x, t])
    capi.check(net._library, net._library.dycl_copy_output(net._session, 0, ctypes.byref(outputs[0].described())))
    # one for the branch; arrays of NumPy's are results of Python's call, and are waited for each
    assert gpu.count("waits") - before == stream.count("waits") == 1 + 2
    stream.wait()
    with torch.no_grad():
        np.testing.assert_allclose(outputs[0].read(), model(example()[0], torch.tensor(100.0))[0].numpy(), rtol=1e-5)


def test_numbers_of_the_host_go_the_same_way(gpu: Driver, tmp_path: Path) -> None:
    net, stream, model = (
        gpu.load(dycl_tvm.build(Loop(), (torch.ones(4), torch.tensor(10)), target=TARGET, host="llvm"), tmp_path),
        Stream(gpu),
        Loop(),
    )
    net.set_cuda_stream(stream)
    fills = gpu.count("fills")
    for n in (0, 10, 1000):
        x = np.array([0.5, -0.25, 1.0, 2.0], "float32")
        found, want = net(x, np.array(n)), model(torch.from_numpy(x), torch.tensor(n))
        np.testing.assert_allclose(found[0], want[0].numpy())
        assert found[1] == want[1]
    assert gpu.count("fills") - fills == stream.count("fills") > 0


def test_another_stream_waits_for_what_is_on_the_way(net: Module, gpu: Driver) -> None:
    """One memory for all runs of a session: whichever stream is waited for, the runs were done in order."""
    streams, eager, x = [Stream(gpu) for _ in range(2)], Straight().eval(), torch.randn(2, 16)
    there, out = OnDevice(gpu, x.numpy()), [OnDevice(gpu, np.zeros((2, 16), "float32")) for _ in range(4)]
    for k, taken in enumerate(out):
        net.set_cuda_stream(streams[k % 2])
        run_into(net, [there], [taken])
    streams[1].wait()
    wants = [eager(x).detach().numpy() for _ in range(7)]
    for taken, want in zip(out, wants):
        np.testing.assert_allclose(taken.read(), want, rtol=1e-5)
    # what looks at the session from outside comes after it too, on its own stream and on the caller's
    run_into(net, [there], [out[0]])
    np.testing.assert_allclose(np.frombuffer(net.get_state(), "float32").reshape(2, 16) * 2, wants[4], rtol=1e-5)
    run_into(net, [there], [out[0]])
    net.set_cuda_stream(None)
    waits = gpu.count("waits")
    np.testing.assert_allclose(net(x.numpy()), wants[6], rtol=1e-5)
    assert gpu.count("waits") == waits + 1


def test_a_session_ends_after_its_work(net: Module, gpu: Driver) -> None:
    stream, out = Stream(gpu), OnDevice(gpu, np.zeros((2, 16), "float32"))
    session = net.new_session()
    session.set_cuda_stream(stream)
    run_into(session, [OnDevice(gpu, np.ones((2, 16), "float32"))], [out])
    session.close()  # its memory is given back: work that came later would touch it
    assert out.read().any()


def test_the_default_stream_is_one(net: Module, gpu: Driver) -> None:
    eager, xs = Straight().eval(), [torch.randn(2, 16) for _ in range(6)]
    net.set_cuda_stream(0)
    outputs = [OnDevice(gpu, np.zeros((2, 16), "float32")) for _ in xs]
    for x, output in zip(xs, outputs):
        run_into(net, [OnDevice(gpu, x.numpy())], [output])
    assert gpu.count_on(0, "launches") > 0 and gpu.count_on(0, "graph_launches") > 0
    assert not any(output.read().any() for output in outputs)
    net.set_cuda_stream(None)
    state = net.get_state()  # comes behind all of it
    for x, output in zip(xs, outputs):
        np.testing.assert_allclose(output.read(), eager(x).detach().numpy(), rtol=1e-4, atol=1e-6)
    assert state


def test_a_failure_is_told_by_the_next_call_that_waits(straight: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    gpu.configure(fail_kernels=True)
    net, stream = gpu.load(straight, tmp_path), Stream(gpu)
    net.set_cuda_stream(stream)
    out = OnDevice(gpu, np.zeros((2, 16), "float32"))
    run_into(net, [OnDevice(gpu, np.ones((2, 16), "float32"))], [out])
    with pytest.raises(DeviceError, match="LAUNCH_FAILED"):
        net.get_state()


def test_runs_in_the_background_go_there_too(net: Module, gpu: Driver) -> None:
    stream, ended = Stream(gpu), threading.Event()
    there, out = OnDevice(gpu, np.ones((2, 16), "float32")), OnDevice(gpu, np.zeros((2, 16), "float32"))
    value, source, target = capi.Value(capi.TENSOR), there.described(), out.described()
    value.u.tensor = ctypes.pointer(source)
    done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)(lambda _, status, site: status == 0 and ended.set())
    net.set_cuda_stream(stream)
    waits = gpu.count("waits")
    run_async = net._library.dycl_run_async
    addresses = (ctypes.c_void_p * 1)(ctypes.addressof(target))
    assert run_async(net._session, ctypes.byref(value), ctypes.c_size_t(1), addresses, ctypes.c_size_t(1), None, done, None) == 0
    assert ended.wait(20)
    assert gpu.count("waits") == waits and stream.count("launches") > 0
    assert not out.read().any()
    stream.wait()
    np.testing.assert_allclose(out.read(), Straight().eval()(torch.ones(2, 16)).detach().numpy(), rtol=1e-5)


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 48


def test_streams_of_frameworks() -> None:
    assert [stream_handle(s) for s in (16, 0, _Protocol())] == [16, 0, 48]
    for other in ("stream", True, object()):
        with pytest.raises(UsageError, match="expected a CUDA stream"):
            stream_handle(other)


def test_networks_for_cpus_take_no_stream(tmp_path: Path) -> None:
    artifact = dycl_tvm.build(nn.ReLU(), (torch.zeros(2),))
    net = dycl_tvm.load(artifact.export_library(tmp_path / "model.so"), artifact.save_params(tmp_path / "model.params"))
    net.set_cuda_stream(None)
    with pytest.raises(UsageError, match="was built for CPUs; it takes no CUDA stream"):
        net.set_cuda_stream(16)
    assert float(net(torch.ones(2)).sum()) == 2


def test_the_examples_of_the_documentation(straight: dycl_tvm.Artifact, gpu: Driver, tmp_path: Path) -> None:
    """The programs in C, C++ and Python print what eager does; what they say of CUDA is the emulated driver."""
    texts = {language: pages.programs("runtime.md", "## A CUDA stream of the caller's", language) for language in ("c", "cpp", "python")}
    library = straight.export_library(tmp_path / "model.so")
    straight.save_params(tmp_path / "model.params")
    (tmp_path / "cuda.h").write_text(_CUDA_H)
    for language, (text,) in texts.items():
        (tmp_path / f"main.{language}").write_text(text)
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", *toolchain.include_flags()]
    run(["gcc", "-std=c11", *flags, "main.c", str(library), str(gpu.path), "-o", "in_c"], tmp_path)
    units = map(str, toolchain.runtime_sources().host_units())
    run(["g++", "-std=c++11", *flags, "main.cpp", *units, str(gpu.path), "-o", "in_cpp", "-ldl", "-lpthread"], tmp_path)
    variables = gpu.environment(straight) | {"LD_LIBRARY_PATH": f"{tmp_path}:{gpu.path.parent}", "PYTHONPATH": ":".join(sys.path)}
    eager = Straight().eval()
    for _ in range(3):
        want = eager(torch.ones(2, 16)).detach()
    for command in (["./in_c"], ["./in_cpp"], [sys.executable, "main.python"]):
        assert float(run(command, tmp_path, variables)) == pytest.approx(float(want[0, 0]), rel=1e-5), command


#: What the examples use of NVIDIA's header.
_CUDA_H = """
#include <stddef.h>
typedef struct CUstream_st* CUstream;
typedef struct CUctx_st* CUcontext;
typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
int cuCtxPushCurrent_v2(CUcontext);
int cuStreamCreate(CUstream*, unsigned);
int cuStreamSynchronize(CUstream);
int cuMemAlloc_v2(CUdeviceptr*, size_t);
int cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, CUstream);
int cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, CUstream);
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#ifdef __cplusplus
}
#endif
"""


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
