# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The wheel of ``dycl-tvm-runtime`` for aarch64 on an emulated board: installed without a compiler, it runs a library of the board."""

from __future__ import annotations

import json
import pickle
import runpy
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from boards import REPOSITORY, Deployed
from emulated_boards import TX2, qemu
from emulated_python import install, python_command

from dycl_tvm.compare import difference

pytestmark = pytest.mark.xdist_group("deploy")

#: Runs each input, says what was decided, and writes the results.
PROGRAM = """
    import importlib.util, json, pickle, platform, shutil, sys
    import numpy
    import dycl_tvm
    from dycl_tvm.runtime import _calls

    for name in ("torch", "tvm", "tvm_ffi", "onnx", "cloudpickle"):
        assert importlib.util.find_spec(name) is None, name
    assert not any(map(shutil.which, ("cc", "c++", "gcc", "g++", "clang")))
    library, params, inputs, outputs = sys.argv[1:]
    module = dycl_tvm.load(library, params)
    given, results, paths = numpy.load(inputs), [], []
    for k in range(len(given.files)):
        results.append(module(given[str(k)]))
        paths.append(str(module.path_key))
    with open(outputs, "wb") as file:
        pickle.dump(results, file)
    print(json.dumps({"machine": platform.machine(), "calls": _calls.__file__, "numpy": numpy.__version__, "paths": paths}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip installs of the wheel, and NumPy."""
    qemu()
    pytest.importorskip("ziglang")
    build = runpy.run_path(str(REPOSITORY / "cmake" / "wheels.py"))["build"]
    folder = tmp_path_factory.mktemp("wheel")
    install(folder / "site", build("aarch64", True, folder), "numpy")
    return folder / "site"


def test_the_runtime_runs_a_library_of_the_board(site: Path, deployed: Callable[..., Deployed], tmp_path: Path) -> None:
    net = deployed("cascade", TX2)
    np.savez(tmp_path / "inputs.npz", **{str(k): net.leaves(k)[0] for k in range(len(net.inputs))})
    program = textwrap.dedent(PROGRAM)
    files = [str(path) for path in (net.library, net.params, tmp_path / "inputs.npz", tmp_path / "outputs.pickle")]
    command = [*python_command(TX2, site, PATH=""), "-c", program, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["machine"] == "aarch64"
    assert Path(said["calls"]).is_relative_to(site)
    assert len(set(said["paths"])) >= 2
    results = pickle.loads((tmp_path / "outputs.pickle").read_bytes())
    assert len(results) == len(net.outputs)
    for k, (expected, actual) in enumerate(zip(net.outputs, results)):
        assert difference(expected, actual, rtol=1e-4) is None, f"input {k}"
