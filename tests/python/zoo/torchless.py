# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Inputs and expected results on disk, and a program that runs an artefact on them without torch and TVM.

python torchless.py folder      with model.so, model.params, and what `write_cases` wrote
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_cases(folder: Path, inputs: Sequence[Sequence[Any]], outputs: Sequence[Any]) -> None:
    """Write the arguments and the result of each call: arrays to an npz file, the rest as JSON."""
    arrays: dict[str, np.ndarray] = {}
    cases = [[_encode(tuple(args), arrays), _encode(output, arrays)] for args, output in zip(inputs, outputs)]
    np.savez(folder / "cases.npz", **arrays)
    (folder / "cases.json").write_text(json.dumps(cases))


def read_cases(folder: Path) -> list[tuple[Any, Any]]:
    """Return what :func:`write_cases` wrote; tensors are NumPy arrays."""
    with np.load(folder / "cases.npz", allow_pickle=False) as arrays:
        return [(_decode(args, arrays), _decode(output, arrays)) for args, output in json.loads((folder / "cases.json").read_text())]


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if hasattr(value, "detach"):
        name = f"a{len(arrays)}"
        arrays[name] = value.detach().numpy()
        return {"array": name}
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [_encode(v, arrays) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[k, _encode(v, arrays)] for k, v in value.items()]}
    return {"value": value.item() if isinstance(value, np.generic) else value}


def _decode(node: Any, arrays: Any) -> Any:
    ((kind, value),) = node.items()
    if kind == "array":
        return arrays[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {k: _decode(v, arrays) for k, v in value}
    return {"tuple": tuple, "list": list}[kind](_decode(v, arrays) for v in value)


def main(folder: Path) -> str | None:
    """Run all cases; return what is wrong with the first that differs."""
    import dycl_tvm
    from dycl_tvm.compare import difference

    module = dycl_tvm.load(folder / "model.so", folder / "model.params", num_threads=1)
    paths = set()
    cases = read_cases(folder)
    for k, (args, expected) in enumerate(cases):
        actual = module(*args)
        found = difference(expected, actual)
        if found is not None:
            return f"input {k}: {found}"
        paths.add(module.last_path.key())
    loaded = sorted({m.partition(".")[0] for m in sys.modules} & {"torch", "tvm", "tvm_ffi"})
    if loaded:
        return f"{', '.join(loaded)} was imported"
    print(json.dumps({"cases": len(cases), "paths": len(paths)}))
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
