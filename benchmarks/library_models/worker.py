# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The process that runs models: for each line ``SUITE NAME staged|built SECONDS`` of its input it prints what became of it as JSON."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dycl_tvm
from dycl_tvm.errors import DyclError, InternalError, StagingLimitError, VerificationError
from dycl_tvm.verify.same import difference
from library_models import SUITES
from library_models.calls import Case

#: Of the random numbers that models draw.
_SEED = 1


def _answers(model: Any, case: Case) -> list[Any]:
    """Return the results of the calls, the first one twice: what a call leaves is seen by the next."""
    getattr(model, "manual_seed", torch.manual_seed)(_SEED)
    with torch.no_grad():
        calls = copy.deepcopy([case.calls[0], *case.calls])
        return [model(*args, **kwargs) for args, kwargs in calls]


def _compile(case: Case, built: bool, seconds: float, found: dict[str, Any]) -> Any:
    """Return what is called in the place of the model."""
    args, kwargs = copy.deepcopy(case.calls[0])
    begin = time.monotonic()
    if not built:
        graph = dycl_tvm.stage(case.model, args, example_kwargs=kwargs, max_seconds=seconds, **case.options)
        found["seconds"] = time.monotonic() - begin
        found["blocks"] = len(graph.blocks)
        return graph.interpret()
    artifact = dycl_tvm.build(case.model, args, example_kwargs=kwargs, max_seconds=seconds, **case.options)
    found["seconds"] = time.monotonic() - begin
    found["blocks"] = len(artifact.hcfg.blocks)
    control = artifact.certificate["control"]
    found["edges"] = None if control["method"] == "none" else f"{control['edges']} of {control['edges_total']}"
    with tempfile.TemporaryDirectory() as folder:
        library, params = Path(folder, "net.so"), Path(folder, "net.params")
        artifact.export_library(library)
        artifact.save_params(params)
        found["megabytes"] = round((library.stat().st_size + params.stat().st_size) / 1e6, 1)
        return dycl_tvm.load(library, params)


def run(suite: str, name: str, built: bool, seconds: float) -> dict[str, Any]:
    """Return what became of a model: its state, and the reason where it is not ``right``."""
    found: dict[str, Any] = {"state": "right", "built": built, "version": importlib.metadata.version(SUITES[suite].package)}
    torch.manual_seed(0)
    try:
        case = SUITES[suite].load(name)
        expected = _answers(copy.deepcopy(case.model), case)
    except Exception as error:
        return {**found, "state": "not run", "why": f"eager: {type(error).__name__}: {error}"[:500]}
    try:
        with torch.no_grad():
            compiled = _compile(case, built, seconds, found)
    except StagingLimitError as error:
        return {**found, "state": "too slow", "why": str(error)}
    except VerificationError as error:
        return {**found, "state": "stopped", "why": str(error)}
    except InternalError as error:
        return {**found, "state": "crashed", "why": str(error) + "\n" + traceback.format_exc()[-2000:]}
    except DyclError as error:
        return {**found, "state": "refused", "why": str(error)}
    except Exception:
        return {**found, "state": "crashed", "why": traceback.format_exc()[-3000:]}
    try:
        actual = _answers(compiled, case)
        differing = next((f"call {k}: {d}" for k, (e, a) in enumerate(zip(expected, actual)) if (d := difference(e, a)) is not None), None)
    except Exception:
        differing = f"an error that eager does not raise: {traceback.format_exc()[-2000:]}"
    if differing is not None and not _are_as_near(case, expected, actual):
        found.update(state="wrong", why=differing)
    return found


def _are_as_near(case: Case, expected: list[Any], actual: list[Any]) -> bool:
    """Whether results are as near to those of float64 as eager's are: deep models with large numbers differ by their rounding alone."""
    model = case.model
    if not isinstance(model, torch.nn.Module):
        return False
    try:
        exact = _answers(copy.deepcopy(model).double(), Case(model, pytree.tree_map(_widened, case.calls)))
    except Exception:  # it computes in float32 only
        return False
    sides = [pytree.tree_leaves(results) for results in (expected, actual, exact)]
    if len(set(map(len, sides))) != 1:
        return False
    return all(_is_as_near(*leaves) for leaves in zip(*sides))


def _widened(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x


def _is_as_near(expected: Any, actual: Any, exact: Any) -> bool:
    if difference(expected, actual) is None:
        return True
    if not all(isinstance(x, torch.Tensor) and x.is_floating_point() and x.shape == exact.shape for x in (expected, actual, exact)):
        return False
    return bool((actual - exact).abs().max() <= 2 * (expected - exact).abs().max())


def _child(suite: str, name: str, how: str, seconds: str, out: int) -> None:
    found = run(suite, name, how == "built", float(seconds))
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    os.write(out, (json.dumps({**found, "peak_mb": peak // 1024}) + "\n").encode())


def main() -> None:
    """Run each model that a line of the input names, in a process of its own that has all libraries loaded."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out = os.dup(1)
    os.dup2(2, 1)  # what models print is no answer
    for suite in SUITES.values():
        with contextlib.suppress(ImportError):
            importlib.import_module(suite.package)
    for line in sys.stdin:
        process = os.fork()
        if not process:
            os.setpgid(0, 0)
            _child(*line.split(), out)  # type: ignore[arg-type, call-arg]  # four words
            os._exit(0)
        with contextlib.suppress(OSError):
            os.setpgid(process, process)  # whoever comes first
        os.write(out, f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        if status:
            os.write(out, (json.dumps({"state": "crashed", "why": f"status {status}"}) + "\n").encode())


if __name__ == "__main__":
    main()
