# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Who runs a network at sizes that change: compiled here, ONNX Runtime, and TVM's own compiler and virtual machine.

Files are made in another process, so that what a build needs is not counted as memory of a run.
"""

from __future__ import annotations

import importlib
import json
import pickle
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import in_another_process, in_brief, loaded, onnxruntime_session

from sod2.networks import NETWORKS

Array = np.ndarray[Any, Any]
Run = Callable[[Array], Any]


def write_cases(name: str, calls: int, path: Path) -> None:
    """Write the inputs, and what eager gives for them."""
    network = NETWORKS[name]
    model = network.model()
    with torch.no_grad():
        cases = [(x.numpy(), _first(model(x))) for x in network.inputs(calls)]
    path.write_bytes(pickle.dumps(cases))


def _build_ours(name: str, folder: Path) -> None:
    import dycl_tvm

    network = NETWORKS[name]
    loaded(network.model(), (network.example(),), folder, dynamic_shapes=network.shapes(dycl_tvm.Dim))


def _load_ours(folder: Path) -> Run:
    import dycl_tvm

    return dycl_tvm.load(folder / "net.so", folder / "net.params", num_threads=1)


def _write_onnx(name: str, folder: Path) -> None:
    import dycl_tvm

    network = NETWORKS[name]
    if network.gated:  # torch.onnx.export takes no branch on a tensor
        art = dycl_tvm.build(network.model(), (network.inputs(1)[0],), verify="off")
        art.export_onnx(folder / "net.onnx")
        _open(folder / "net.onnx", network.dims)
        return
    shapes = network.shapes(torch.export.Dim)
    torch.onnx.export(network.model(), (network.inputs(1)[0],), folder / "net.onnx", dynamic_shapes=shapes, dynamo=True, verbose=False)


def _open(path: Path, dims: Iterable[int]) -> None:
    """Open dimensions of the input of a model for one size, all of whose operators take any.

    What is exported with open sizes computes at the largest one, behind which it masks, and would be no fair peer. That these networks
    have no number of the one size in them is seen by their results.
    """
    import onnx

    model = onnx.load(path)
    for d in dims:
        model.graph.input[0].type.tensor_type.shape.dim[d].dim_param = f"d{d}"
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
        graphs += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    onnx.save(model, path)


def _load_onnxruntime(folder: Path) -> Run:
    session = onnxruntime_session(folder / "net.onnx", 1)
    feed, names = session.get_inputs()[0].name, [output.name for output in session.get_outputs()]
    if "return_site" not in names:
        return lambda x: session.run(None, {feed: x})
    about = session.get_modelmeta().custom_metadata_map["dycl_tvm"]
    first = [names.index(site["outputs"][0]) for site in json.loads(about)["sites"]]

    def run(x: Array) -> Any:
        made = session.run(None, {feed: x})
        return made[first[int(made[names.index("return_site")])]]

    return run


def _build_tvm(name: str, folder: Path) -> None:
    import tvm
    from tvm.relax.frontend.torch import from_exported_program

    from dycl_tvm.target import resolve_target

    network = NETWORKS[name]
    with torch.no_grad():
        program = torch.export.export(network.model(), (network.inputs(1)[0],), dynamic_shapes=network.shapes(torch.export.Dim))
    tvm.compile(from_exported_program(program), target=resolve_target("native").target).export_library(str(folder / "net.so"))


def _load_tvm(folder: Path) -> Run:
    import tvm

    machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(folder / "net.so")), tvm.cpu())
    main = machine["main"]

    def run(x: Array) -> Any:
        made = main(tvm.runtime.tensor(x))
        return made if hasattr(made, "numpy") else made[0]

    return run


#: By contender what it needs imported, what writes its files and what loads them.
CONTENDERS: dict[str, tuple[str, Callable[[str, Path], None], Callable[[Path], Run]]] = {
    "ours": ("dycl_tvm", _build_ours, _load_ours),
    "onnxruntime": ("onnxruntime", _write_onnx, _load_onnxruntime),
    "tvm": ("tvm", _build_tvm, _load_tvm),
}


def _first(made: Any) -> Array:
    """Return the first tensor of a result."""
    while isinstance(made, (tuple, list)):
        made = made[0]
    return made if isinstance(made, np.ndarray) else made.numpy()  # type: ignore[no-any-return]  # of PyTorch or TVM


def _memory(what: str) -> float:
    """Return MiB of this process, of a kind that Linux counts."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def work(connection: Any, contender: str, name: str, at: Path, seconds: float) -> None:
    """Load a network and say the most memory that its calls take beyond that; then measure them for each message that comes.

    ``at`` is where the inputs and results of eager are. A contender whose calls would take more than so many seconds in a turn makes as
    many of them as it can.
    """
    library, prepare, load = CONTENDERS[contender]
    with tempfile.TemporaryDirectory() as made_in:
        folder = Path(made_in)
        try:
            in_another_process(prepare, name, folder)
            cases = pickle.loads(at.read_bytes())
            importlib.import_module(library)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
            before = _memory("VmRSS")
            run = load(folder)
            largest = max(range(len(cases)), key=lambda k: cases[k][0].size)
            order = [largest, *(k for k in range(len(cases)) if k != largest)]
            made, differ, start = [], 0, time.process_time()
            for k in order:
                x, expected = cases[k]
                differ += not np.allclose(_first(run(x)), expected, rtol=1e-3, atol=1e-3)
                made.append(k)
                if time.process_time() - start > seconds:
                    break
            connection.send((_memory("VmHWM") - before, len(made), differ))
        except Exception as error:  # a peer that is not installed, or that does not take the network
            connection.send(in_brief(error))
            return
        while connection.recv():
            times = {}
            for k in made:
                start = time.process_time()
                run(cases[k][0])
                times[k] = time.process_time() - start
            connection.send(times)
