# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A GPU artefact over TVM's RPC to our server, with an emulated GPU: tensors of the host and of the device as inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
import tvm.rpc
from servers import Server, running
from test_emulated_gpus import _cuda
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm.deploy import RemoteModule, connect
from dycl_tvm.errors import InputError, RemoteError

pytestmark = pytest.mark.xdist_group("deploy")


class Exit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, threshold: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        if (h.max() > threshold).item():
            return h
        return torch.softmax(self.second(h), 1)


X, LEAVE, GO_ON = torch.linspace(-1, 1, 32).reshape(2, 16), torch.tensor(-1.0), torch.tensor(100.0)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exit, dycl_tvm.Artifact, Path, Path]:
    torch.manual_seed(0)
    model, folder = Exit().eval().requires_grad_(False), tmp_path_factory.mktemp("net")
    artifact = dycl_tvm.build(model, (X, LEAVE), target="cuda -arch=sm_90", host="llvm")
    return model, artifact, artifact.export_library(folder / "model.so"), artifact.save_params(folder / "model.params")


@pytest.fixture(scope="module")
def server(net: tuple, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server on a machine with an emulated GPU of 8 MB."""
    folder, work = tmp_path_factory.mktemp("driver"), tmp_path_factory.mktemp("work")
    cuda = _cuda()
    gpu = cuda.Driver(cuda.compile_driver(folder), None, folder)
    settings = {**gpu.environment(net[1]), "EMULATED_CUDA_SM": "90", "EMULATED_CUDA_VERSION": "12020", "EMULATED_CUDA_MIB": "8"}
    command = ["env", *(f"{k}={v}" for k, v in settings.items()), program, "--port", 0, "--work", work]
    with running(command, work) as found:
        yield found
    assert list(work.iterdir()) == []


def test_tensors_of_the_host_and_of_the_device(net: tuple, server: Server) -> None:
    model, _, library, params = net
    module = RemoteModule(connect(server.address), library, params)
    x, leave, go_on = (module.to_device(t) for t in (X, LEAVE, GO_ON.numpy()))
    assert "cuda" in str(x.device)
    for args, named in (
        ((x, leave), (X, LEAVE)),
        ((X, leave), (X, LEAVE)),
        ((x, GO_ON), (X, GO_ON)),
        ((X, GO_ON), (X, GO_ON)),
        ((x, go_on), (X, GO_ON)),
    ):
        np.testing.assert_allclose(module(*args), model(*named).numpy(), rtol=1e-5)
    assert module.seconds(X, LEAVE, number=2, repeat=1, on_device=True) > 0
    with pytest.raises(InputError, match=r"input 'threshold': expected float32\[\], got float32\[2, 16\]"):
        module(x, x)
    module.close()  # the tensors outlive the session
    del x, leave, go_on, module


def test_by_tvms_own_habit(net: tuple, server: Server) -> None:
    model, _, library, params = net
    host, port = server.address.split(":")
    remote = tvm.rpc.connect(host, int(port))
    remote.upload(str(library))
    remote.upload(str(params))
    module = remote.load_module("model.so")
    session = module["create"]("model.params")
    x, threshold = (tvm.runtime.tensor(t.numpy(), remote.cpu()) for t in (X, LEAVE))
    on_gpu = [module["to_device"](session, t) for t in (x, threshold)]
    out = tvm.runtime.empty((2, 8), "float32", remote.cpu())
    for inputs in ((x, threshold), on_gpu):
        module["run"](session, *inputs)
        np.testing.assert_allclose(module["output"](session, 0).numpy(), model(X, LEAVE).numpy(), rtol=1e-5)
        module["copy_output"](session, 0, out)
        np.testing.assert_allclose(out.numpy(), model(X, LEAVE).numpy(), rtol=1e-5)
        assert module.time_evaluator("run", remote.cpu(), number=3)(session, *inputs).mean > 0
    # An output stays on the GPU and is the input of another run.
    there = module["to_device"](session, out)
    module["copy_output"](session, 0, there)
    with pytest.raises(tvm.error.RPCError, match="cuda"):  # TVM's device functions are not there
        tvm.runtime.tensor(X.numpy(), remote.cuda())


def test_memory_of_tensors_is_given_back_and_bounded(net: tuple, server: Server) -> None:
    _, _, library, params = net
    module = RemoteModule(connect(server.address), library, params)
    large = np.zeros((3 << 18,), "float32")  # 3 MB of 8
    for _ in range(4):
        kept = module.to_device(large)
        del kept
    kept = [module.to_device(large) for _ in range(2)]
    with pytest.raises(RemoteError, match=r"no room for the tensor of 'Exit'.*bytes"):
        module.to_device(large)
    del kept
    module.to_device(large)
