# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Measured choices of kernels: a JSON file that comes with the package, and one of the user's own that tuning writes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dycl_tvm.backends.tir_cpu.options import Accuracy
from dycl_tvm.backends.tir_cpu.words.machine import Machine
from dycl_tvm.backends.tir_cpu.words.workload import FLOAT32, Conv2D, Dense
from dycl_tvm.errors import UsageError

#: Changes when plans of older files no longer mean the same.
FORMAT = 3
SHIPPED = Path(__file__).with_name("tuned.json")


def default_path() -> Path:
    """Return the user's own file: ``$DYCL_TUNING_FILE``, or ``dycl_tvm/tuned.json`` in the cache folder."""
    given = os.environ.get("DYCL_TUNING_FILE")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else cache / "dycl_tvm" / "tuned.json"


def key_of(work: Conv2D | Dense, machine: Machine, accuracy: Accuracy, cold: bool = False) -> str:
    """Return the name of a workload in the file; the epilogue is not part of it. ``cold``: its weights come from memory.

    Plans are cut for a description of a CPU, so a change of the description makes other names.
    """
    isa = machine.isa
    if accuracy in ("bf16", "bf16x3"):
        isa += "+bf16" * machine.bf16 + "+amx" * machine.amx
    if work.dtypes.weights == "int8":
        isa += "+amx" * machine.amx_int8
    caches = "+".join(f"{size >> 10}K" for size in (machine.l1, machine.l2, machine.l3))
    cpu = f"{isa} {machine.registers}x{machine.vector_bytes} {caches} {machine.cores} cores"
    types = "" if work.dtypes == FLOAT32 else f" {work.dtypes.x}*{work.dtypes.weights}+{work.dtypes.accumulator}->{work.dtypes.y}"
    head = f"{cpu} {accuracy}{' cold' if cold else ''}{types}"
    if isinstance(work, Dense):
        return f"{head} dense {work.batch}x{work.m}x{work.n}x{work.k}" + (f" g{work.group}" if work.group else "")
    x, y = ("x".join(map(str, t.shape)) + f"/{t.block}" for t in (work.x, work.y))
    window = " ".join(
        f"{word}{','.join(map(str, v))}" for word, v in (("k", work.kernel), ("s", work.stride), ("p", work.padding), ("d", work.dilation))
    )
    return f"{head} conv2d {x} {y} {window} g{work.groups}" + (f" b{work.border}" if work.border else "")


@dataclass(frozen=True)
class Choice:
    """A plan as the file has it: the family's name, the tile sizes by name, the seconds that were measured."""

    family: str
    params: tuple[tuple[str, int], ...]
    seconds: float


class Database:
    """Choices by workload. The user's file comes before the shipped one.

    Parameters
    ----------
    path : path-like
        The user's file; empty for :func:`default_path`. It need not exist.
    shipped : path-like, optional
        By default the file that comes with the package.

    Raises
    ------
    UsageError
        For a file that is no such database.
    """

    def __init__(self, path: str | os.PathLike[str] = "", shipped: Path | None = None) -> None:
        self.path = Path(path) if path else default_path()
        self._own = _read(self.path)
        self._shipped = _read(shipped or SHIPPED)

    def find(self, key: str) -> Choice | None:
        """Return the choice for a workload."""
        entry = self._own.get(key) or self._shipped.get(key)
        if entry is None:
            return None
        return Choice(entry["family"], tuple((k, int(v)) for k, v in entry["params"].items()), float(entry["seconds"]))

    def own(self, key: str) -> bool:
        """Whether the user's file has the workload: then it need not be measured again."""
        return key in self._own

    def keep(self, key: str, choice: Choice) -> None:
        """Remember a measured choice; :meth:`save` writes it."""
        self._own[key] = {"family": choice.family, "params": dict(choice.params), "seconds": float(f"{choice.seconds:.3g}")}

    def save(self) -> None:
        """Write the user's file, in one step; what others wrote meanwhile is kept."""
        write_choices(self.path, {**_read(self.path), **self._own})


def write_choices(path: Path, choices: Mapping[str, Any]) -> None:
    """Write a file of choices by workload, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(choices[k])}" for k in sorted(choices))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        file.write(f'{{"format": {FORMAT}, "choices": {{\n{lines}\n}}}}\n')
    os.replace(name, path)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        contents = json.loads(path.read_text())
        if contents["format"] != FORMAT:
            return {}
        choices = contents["choices"]
        assert all({"family", "params", "seconds"} <= set(e) for e in choices.values())
        return dict(choices)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(f"{path} is no database of tuned kernels ({error}); delete it, or give another file") from None
