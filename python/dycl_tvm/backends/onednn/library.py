# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where oneDNN is installed, and how it was built."""

from __future__ import annotations

import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

#: Threads of the library that a region can use: ``DNNL_RUNTIME_SEQ`` and ``DNNL_RUNTIME_OMP``.
_THREADS = {"SEQ": (), "OMP": ("-lgomp",)}


@dataclass(frozen=True)
class Library:
    """An installed oneDNN.

    Attributes
    ----------
    version : tuple of int
        Major, minor, patch.
    threads : str
        ``OMP`` or ``SEQ``.
    link_flags : tuple of str
        What an artefact that uses it is linked with.
    """

    version: tuple[int, int, int]
    threads: str

    @property
    def link_flags(self) -> tuple[str, ...]:
        return ("-ldnnl", *_THREADS[self.threads])


def find_library() -> Library | None:
    """Return the oneDNN that the C++ compiler finds by itself, if a region can use it.

    Headers and library are looked for where compilers do: ``CPATH`` and ``LIBRARY_PATH``, then the system's directories. Versions 2.4
    to 3 are good, built for OpenMP (GNU) or without threads.
    """
    return _find(os.environ.get("CPATH", ""), os.environ.get("LIBRARY_PATH", ""))


@functools.lru_cache(maxsize=4)
def _find(cpath: str, library_path: str) -> Library | None:
    headers = [Path(p) for p in cpath.split(":") if p] + [Path("/usr/local/include"), Path("/usr/include")]
    config = next((found for h in headers if (found := h / "oneapi" / "dnnl" / "dnnl_config.h").is_file()), None)
    if config is None or not any((d / "libdnnl.so").exists() for d in _library_dirs(library_path)):
        return None
    numbers = (config.parent / "dnnl_version.h").read_text(encoding="utf-8")
    version = tuple(_number(numbers, f"DNNL_VERSION_{part}") for part in ("MAJOR", "MINOR", "PATCH"))
    text = config.read_text(encoding="utf-8")
    threads = re.search(r"^#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_(\w+)", text, flags=re.MULTILINE)
    runtime = re.search(r"^#define DNNL_CPU_RUNTIME DNNL_RUNTIME_(\w+)", text, flags=re.MULTILINE)
    if threads is None or runtime is None or threads[1] not in _THREADS or runtime[1] != threads[1]:
        return None
    return Library((version[0], version[1], version[2]), threads[1]) if (2, 4) <= version[:2] < (4, 0) else None


def _library_dirs(library_path: str) -> list[Path]:
    system = [Path("/usr/local/lib"), Path("/usr/lib"), Path("/usr/lib64"), Path(f"/usr/lib/{platform.machine()}-linux-gnu")]
    return [Path(p) for p in library_path.split(":") if p] + system


def _number(text: str, name: str) -> int:
    found = re.search(rf"^#define {name}\s+(\d+)", text, flags=re.MULTILINE)
    return int(found[1]) if found else -1
