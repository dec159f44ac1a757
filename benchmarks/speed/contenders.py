# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The ways to run a network. Each gives, for one of the prepared inputs, a function without arguments that runs it once.

A contender lives in a process of its own (worker.py) and imports only what it needs.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Any]


class Contender:
    """One way to run the network that lies prepared in a folder.

    Parameters
    ----------
    folder : Path
        What :mod:`speed.networks` wrote.
    threads : int
    artefact : Path
        Where :mod:`speed.compiling` put the artefact.
    """

    #: Whether :meth:`build` must have been called for an input, by another process, before :meth:`prepare`.
    slow = False

    def __init__(self, folder: Path, threads: int, artefact: Path) -> None:
        self.folder, self.threads, self.artefact = folder, threads, artefact
        self.about = json.loads((folder / "about.json").read_text())
        with (folder / "data.pickle").open("rb") as file:
            data = pickle.load(file)
        self.inputs = [tuple(map(aligned, inputs)) for inputs in data["inputs"]]
        self.expected = data["expected"]
        self.open()

    def open(self) -> None:
        """Load what all inputs share."""

    def build(self, k: int) -> None:
        """Do the slow part for input k; what it makes stays on disk, for other processes."""

    def prepare(self, k: int) -> Call:
        """Return the call that is timed for input k."""
        raise NotImplementedError

    def result(self, k: int, call: Call) -> Any:
        """Run once; return what eager would."""
        return call()

    def compiled(self) -> dict[str, Any]:
        """Return the record of the artefact."""
        found: dict[str, Any] = json.loads(self.artefact.with_name(f"{self.artefact.name}.json").read_text())
        return found

    def static(self, k: int) -> dict[str, Any]:
        """Return the description of the static network of input k."""
        found = self.about["static"][k]
        if "error" in found:
            raise RuntimeError(f"no static network: {found['error']}")
        return found

    def static_result(self, k: int, outputs: Any) -> Any:
        """Put together what the dynamic network would return."""
        from dycl_tvm.runtime.structure import unflatten

        found = self.static(k)

        def leaf(n: int, _type: str) -> Any:
            kind, value = found["leaves"][n]
            return value if kind == "number" else outputs[value] if kind == "output" else float(outputs[value])

        return unflatten(found["structure"], leaf)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a multiple of 64 bytes, as tensors of the frameworks do."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def ready(module: Any, inputs: Sequence[Any]) -> tuple[Any, int, Any]:
    """Return the inputs of a call as C takes them, in structures of their own, how many there are, and what has to live as long."""
    from dycl_tvm.runtime.inputs import Inputs

    held = Inputs(module.metadata, module._classes)
    prepared = [held.prepared(k, leaf) for k, leaf in enumerate(held.leaves(tuple(inputs), {}))]
    held.fill(prepared)
    return held.values, held.count, (held, prepared, inputs)


def direct(module: Any, inputs: Sequence[Any]) -> Callable[[], int]:
    """Return one ctypes call of the C function dycl_run() on ready arguments."""
    values, count, keep = ready(module, inputs)
    run, session, site = module._library.dycl_run, module._session, ctypes.byref(ctypes.c_int32())

    def call(_keep: Any = (module, keep)) -> int:
        return int(run(session, values, count, site))

    return call


class Ours(Contender):
    """dycl_tvm's library, by :func:`direct`."""

    def open(self) -> None:
        from dycl_tvm.runtime import load

        if wrong := self.compiled()["error"]:
            raise RuntimeError(wrong)
        self.module = load(self.artefact / "model.so", self.artefact / "model.params", self.threads)

    def prepare(self, k: int) -> Call:
        return direct(self.module, self.inputs[k])

    def result(self, k: int, call: Call) -> Any:
        if call() != 0:
            raise RuntimeError("dycl_run() failed")
        return self.module(*self.inputs[k])


class Eager(Contender):
    """PyTorch, the model as it is, in inference mode."""

    def open(self) -> None:
        import torch

        torch.set_num_threads(self.threads)
        self.torch = torch
        self.model = self.made(torch.load(self.folder / "model.pt", weights_only=False))

    def made(self, model: Any) -> Any:
        return model

    def prepare(self, k: int) -> Call:
        return self.call_of(self.model, k)

    def call_of(self, model: Any, k: int) -> Call:
        """Return the call of a model with input k."""
        inputs = tuple(map(self.torch.from_numpy, self.inputs[k]))
        # Compiled code is guarded by the mode: no_grad is what torch.compile's freezing wants, and as quick.
        no_grad = self.torch.no_grad

        def call() -> Any:
            with no_grad():
                return model(*inputs)

        return call


class Compiled(Eager):
    """torch.compile on the dynamic model, with its graph breaks; weights frozen where that serves, recompilation without bound."""

    slow = True
    mode: str | None = None

    def made(self, model: Any) -> Any:
        from torch._dynamo import config as dynamo
        from torch._inductor import config as inductor

        # A frozen tensor is a constant: a model that keeps new tensors from call to call would be compiled anew in each.
        before = self._kept(model)
        self.call_of(model, 0)()
        inductor.freezing = all(a is b for a, b in zip_longest(before, self._kept(model)))
        dynamo.recompile_limit = dynamo.accumulated_recompile_limit = 4096
        return self.torch.compile(model, mode=self.mode)

    def _kept(self, model: Any) -> list[Any]:
        """Return the tensors that are plain attributes of the model's modules."""
        return [t for m in model.modules() for t in vars(m).values() if isinstance(t, self.torch.Tensor)]

    def build(self, k: int) -> None:
        self.prepare(k)  # which fills the caches of PyTorch's compiler

    def prepare(self, k: int) -> Call:
        call = super().prepare(k)
        for _ in range(3):  # the first runs compile
            call()
        return call


class CompiledMax(Compiled):
    """The same with mode="max-autotune"."""

    mode = "max-autotune"


class OnnxRuntime(Contender):
    """ONNX Runtime on the static network of the path: all graph optimisations, inputs and outputs bound."""

    def options(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        return options

    def open(self) -> None:
        self.sessions: dict[str, Any] = {}
        self.outputs: dict[int, list[Any]] = {}

    def prepare(self, k: int) -> Call:
        import onnxruntime

        name = self.static(k)["file"]
        if name not in self.sessions:
            self.sessions[name] = onnxruntime.InferenceSession(
                str(self.folder / f"{name}.onnx"), self.options(), providers=["CPUExecutionProvider"]
            )
        session = self.sessions[name]
        feeds = {f"x{n}": value for n, value in enumerate(self.inputs[k])}
        feeds = {i.name: feeds[i.name] for i in session.get_inputs()}
        binding = session.io_binding()
        for key, value in feeds.items():
            binding.bind_ortvalue_input(key, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        names = [o.name for o in session.get_outputs()]
        outputs = [onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in session.run(None, feeds)]
        for key, value in zip(names, outputs):
            binding.bind_ortvalue_output(key, value)
        self.outputs[k] = outputs[1:]  # the first is the number of the return site
        run = session.run_with_iobinding
        return lambda: run(binding)

    def result(self, k: int, call: Call) -> Any:
        call()
        return self.static_result(k, [o.numpy() for o in self.outputs[k]])


class OpenVino(Contender):
    """OpenVINO on the static network of the path, float32, tuned for latency."""

    def open(self) -> None:
        import openvino

        self.core = openvino.Core()
        self.compiled: dict[str, Any] = {}
        self.requests: dict[int, Any] = {}

    def prepare(self, k: int) -> Call:
        import openvino

        name = self.static(k)["file"]
        if name not in self.compiled:
            config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": self.threads}
            self.compiled[name] = self.core.compile_model(str(self.folder / f"{name}.onnx"), "CPU", config)
        compiled = self.compiled[name]
        request = compiled.create_infer_request()
        for port in compiled.inputs:
            request.set_tensor(port, openvino.Tensor(self.inputs[k][int(port.any_name[1:])], shared_memory=True))
        self.requests[k] = request
        start, wait = request.start_async, request.wait  # infer() would copy the outputs into a dict

        def call() -> None:
            start()
            wait()

        return call

    def result(self, k: int, call: Call) -> Any:
        call()
        request, compiled = self.requests[k], self.compiled[self.static(k)["file"]]
        return self.static_result(k, [request.get_tensor(port).data for port in compiled.outputs[1:]])


class AotInductor(Contender):
    """AOTInductor on the static network of the path, weights frozen."""

    slow = True

    def build(self, k: int) -> None:
        import torch
        import torch._inductor
        import torch._inductor.config

        from speed.networks import exported

        self.static(k)
        torch._inductor.config.freezing = True
        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(exported(self.folder, k), package_path=str(self.folder / f"aoti_{k}.pt2"))

    def prepare(self, k: int) -> Call:
        import torch
        import torch._inductor

        torch.set_num_threads(self.threads)
        runner = torch._inductor.aoti_load_package(str(self.folder / f"aoti_{k}.pt2"))
        inputs = tuple(map(torch.from_numpy, self.inputs[k]))
        no_grad = torch.no_grad
        # The loader of the package, without what the Python class around it does to arguments at each call.
        run = runner.loader.boxed_run if hasattr(runner.loader, "boxed_run") else None

        def direct() -> Any:
            with no_grad():
                return run(list(inputs))

        def plain() -> Any:
            with no_grad():
                return runner(*inputs)

        return direct if run is not None else plain

    def result(self, k: int, call: Call) -> Any:
        return self.static_result(k, list(call()))


class OrtSplit(OnnxRuntime):
    """ONNX Runtime on one session for each sub-DNN, driven by Python (dycl_tvm.onnx_export.SplitModel)."""

    def open(self) -> None:
        from dycl_tvm.onnx_export import SplitModel

        if wrong := self.compiled()["error"] or self.compiled().get("split_error"):
            raise RuntimeError(wrong)
        options = self.options()
        # Each session has threads of its own: while those of many spin, none gets on (measured: 147 ms, and 7 without).
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.model = SplitModel(self.artefact / "split", options)

    def prepare(self, k: int) -> Call:
        model, inputs = self.model, self.inputs[k]
        return lambda: model(*inputs)

    def result(self, k: int, call: Call) -> Any:
        return call()


#: By the name on the command line: the class and the head of the column, in the order of the columns and of preparation.
CONTENDERS: dict[str, tuple[type[Contender], str]] = {
    "ours": (Ours, "dycl-tvm"),
    "eager": (Eager, "PyTorch eager"),
    "aoti": (AotInductor, "AOTInductor, static path"),
    "compile": (Compiled, "torch.compile"),
    "compile-max": (CompiledMax, "torch.compile max-autotune"),
    "ort": (OnnxRuntime, "ONNX Runtime, static path"),
    "openvino": (OpenVino, "OpenVINO, static path"),
    "ort-split": (OrtSplit, "ONNX Runtime, sub-DNNs by Python"),
}


def make(name: str, folder: Path, threads: int) -> Contender:
    """Return a contender; ``ours:NAME`` is the artefact of the ablation of that name."""
    kind, _, variant = name.partition(":")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    return CONTENDERS[kind][0](folder, threads, folder / (f"ours-{variant}" if variant else "ours"))
