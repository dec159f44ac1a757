# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels as objects: one each, made on all cores, and kept on disk for the next build by everything that decides what is in them.

The key of an object is the text of its function before it is scheduled, with plain names for its variables, together with the target,
the code of this package, and TVM with its LLVM. So a build of a changed model compiles what changed, and what comes from the
cache is what would have been compiled: the names of variables depend on the rest of the model, so they are plain before either.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.ir.expr import Var

from dycl_tvm import cache

#: Told of the phase, what is done and what there is.
Progress = Callable[[str, int, int], None]
#: Progress is told after so many kernels.
_TOLD = 16


@dataclass(frozen=True)
class Compiled:
    """A module of one kernel. ``lasting``: it is what every compilation of its function gives, and no way out of a failure."""

    module: Any
    lasting: bool = True


@dataclass(frozen=True)
class Recipe:
    """How functions become modules: ``name`` stands in the key of the cache, for ``compile`` is not all of this package's code."""

    name: str
    compile: Callable[[str, Any, tvm.target.Target], Compiled]


@dataclass(frozen=True)
class Object:
    """An object of one kernel, and whether it was compiled by the ordinary way."""

    code: bytes
    lasting: bool


def make_objects(
    functions: Mapping[str, Any], target: tvm.target.Target, recipe: Recipe, progress: Progress | None = None
) -> dict[str, Object]:
    """Return the objects of functions, by their symbols.

    Parameters
    ----------
    functions : mapping
        Symbol to PrimFunc.
    target : tvm.target.Target
    recipe : Recipe
    progress : callable, optional
        Called with (phase, done, total), in the thread that builds.
    """
    common = _common(target, recipe)
    new: list[str] = []

    def make(item: tuple[str, Any]) -> Object:
        symbol, fn = item
        plain = with_plain_names(fn)
        key = hashlib.sha256(f"{symbol}\0{common}\0{tvm.ir.save_json(plain)}".encode()).hexdigest()
        found = cache.read(cache.KERNELS, key) if common else None
        if found is not None:
            return Object(found, True)
        # passes have the context of their thread: a build is the same whatever that of its caller is
        with tvm.transform.PassContext(opt_level=2):
            compiled = recipe.compile(symbol, plain, target)
        code = _code(compiled.module)
        if common and compiled.lasting:
            cache.write(cache.KERNELS, key, code)
            new.append(symbol)
        return Object(code, compiled.lasting)

    objects: dict[str, Object] = {}
    with _workers() as pool:
        for symbol, made in zip(functions, pool.map(make, functions.items())):
            if progress is not None and len(objects) % _TOLD == 0:
                progress("kernels", len(objects), len(functions))
            objects[symbol] = made
    if new:
        cache.trim()
    return objects


def with_plain_names(fn: Any) -> Any:
    """Return a function whose variables are called by their numbers, in the order in which they come up."""
    named: dict[Any, Any] = {}

    def name(variable: Any) -> Any:
        if variable not in named:
            named[variable] = Var(f"v{len(named)}", variable.ty)
        return named[variable]

    return tvm_ffi.structural_map(fn, (Var, name))


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """Give threads for all cores of this process; those that still wait are given up if the body fails."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "dycl-kernels")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _code(module: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dycl-kernel-") as folder:
        path = Path(folder) / "kernel.o"
        module.write_to_file(str(path))
        return path.read_bytes()


def _common(target: tvm.target.Target, recipe: Recipe) -> str:
    """Return what objects depend on beside their functions, as text; empty if nothing may be kept."""
    code = _compiler()
    return json.dumps([recipe.name, str(target), str(target.host), code]) if code and cache.limit() else ""


@functools.cache
def _compiler() -> str:
    """Return a hash of all code that makes objects: this package, TVM and tvm-ffi. Empty if it may be other code than is running.

    All of the package counts, so that nobody has to know which part of it decides what a kernel is.
    """
    digest = hashlib.sha256(f"{tvm.__version__} {tvm_ffi.__version__}".encode())
    root = Path(__file__).resolve().parents[1]
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        if max(status.st_mtime, status.st_ctime) >= _STARTED:  # who copies a file may give it a time, but not that of its change here
            return ""
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    for library in _libraries():
        if not library.is_file():  # it was replaced since it was loaded
            return ""
        status = library.stat()
        digest.update(f"{library.name} {status.st_size} {status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _libraries() -> list[Path]:
    """Return the libraries of TVM, tvm-ffi and LLVM in this process, wherever they are; those of artefacts do not count."""
    packages = [Path(package.__file__).resolve().parent for package in (tvm, tvm_ffi)]
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    found = {Path(words[5]) for words in lines if len(words) == 6 and ".so" in words[5]}
    return sorted(p for p in found if p.name.startswith(("libtvm", "libLLVM")) or any(package in p.parents for package in packages))


def _started() -> float:
    """Return when this process began, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


#: Sources that are younger may not be those that run. Of the process that imported this: a fork has its parent's code.
_STARTED = _started()
