# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lets PyPI's torchvision load beside a CPU build of PyTorch.

Its library of operators is linked with CUDA's libraries, of which its CPU operators use nothing. Where they are missing, libraries of the
same names with the missing symbols take their places; what would call one of these functions does not run on a CPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

_TRIES = 200
_NO_LIBRARY = re.compile(r"(\S+): cannot open shared object file")
_NO_SYMBOL = re.compile(r"undefined symbol: (\w+)")


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which a process can import torchvision, or none if it needs none or is not installed.

    Parameters
    ----------
    folder : Path
        Where the libraries are put.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return {}
    wanted = sorted(Path(spec.origin).parent.glob("_C*.so"))
    variables = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))}
    libraries: list[str] = []
    symbols: list[str] = []
    for _ in range(_TRIES):
        error = next(filter(None, (_load(library, {**os.environ, **variables}) for library in wanted)), "")
        if not error:
            return variables if folder.exists() else {}
        library_missing, symbol_missing = _NO_LIBRARY.search(error), _NO_SYMBOL.search(error)
        if library_missing is not None:
            libraries.append(library_missing[1].rpartition(" ")[2])
        elif symbol_missing is not None and libraries:
            symbols.append(symbol_missing[1])
        else:
            break
        folder.mkdir(parents=True, exist_ok=True)
        for k, name in enumerate(libraries):
            _compile(folder / name, symbols if k == 0 else [])
    return {}


def _load(library: Path, variables: dict[str, str]) -> str:
    """Return the error of loading a library in a process of its own, nothing if there is none."""
    code = f"import torch; torch.ops.load_library({str(library)!r})"
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True).stderr


def _compile(path: Path, symbols: list[str]) -> None:
    text = "".join(f"int {name}(void) {{ return 0; }}\n" for name in symbols)
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)
