# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The C++ tool-chain: the compiler, the sources of the fixed runtime, and its objects, compiled once and kept."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dycl_tvm.errors import CompileError

#: Flags that every C++ file of a library is compiled with. Contraction off: host floats must be what Python computes.
CXX_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
#: A dispatcher is straight-line code of calls and gotos: to optimise it more costs compile time and gains nothing.
DISPATCHER_FLAGS = (*CXX_FLAGS, "-O1")
#: What every dispatcher includes, as GCC has parsed it: that is most of the time that a dispatcher takes to compile.
_PARSED = "dispatch.h.gch"
#: Every model is its own world: it exports its interface only, and never leaves memory, because its threads may live on.
LINK_FLAGS = ("-shared", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,--build-id=none")
LINK_LIBRARIES = ("-ldl", "-lpthread", "-lm")


@dataclass(frozen=True)
class RuntimeSources:
    """Where the fixed runtime is: its sources and private headers, and the public headers."""

    source: Path
    include: Path

    def units(self) -> list[Path]:
        """Return the files to compile, in a fixed order."""
        return sorted(self.source.glob("*.cc"))

    @property
    def exports(self) -> Path:
        """The linker's version script."""
        return self.source / "exports.map"


def runtime_sources() -> RuntimeSources:
    """Find the fixed runtime: in the installed package, or in the source tree.

    Raises
    ------
    CompileError
        If neither has it.
    """
    package = Path(__file__).resolve().parents[1]
    repository = package.parents[1]
    for source, include in (
        (package / "src", package / "include"),
        (repository / "src" / "runtime", repository / "src" / "runtime" / "include"),
    ):
        if (source / "exports.map").is_file() and (include / "dycl" / "dycl.h").is_file():
            return RuntimeSources(source, include)
    raise CompileError(
        f"the C++ sources of the runtime are neither in {package / 'src'} nor in {repository / 'src'}; install the package again"
    )


def runtime_source_dir() -> Path:
    """Return the directory of the fixed runtime's sources."""
    return runtime_sources().source


def cmake_dir() -> Path:
    """Return the directory of ``dycl_tvm-config.cmake``: what CMake's ``dycl_tvm_DIR`` takes."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "cmake"
    return inside if inside.is_dir() else package.parents[1] / "cmake"


def include_flags() -> list[str]:
    """Return the ``-I`` flags: the runtime, its public headers, and the headers of tvm-ffi and DLPack (no code of theirs)."""
    import tvm_ffi.libinfo

    sources = runtime_sources()
    headers = dict.fromkeys([tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path()])
    # As system headers: their warnings are not ours.
    return [f"-I{sources.source}", f"-I{sources.include}", *(flag for path in headers for flag in ("-isystem", str(path)))]


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, what it says of itself, and what it needs beside the arguments of every compiler."""

    command: tuple[str, ...]
    version: str
    environment: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    #: The library must bring the C++ library along: boards have an old one, or none.
    link_flags: tuple[str, ...] = ("-static-libstdc++", "-static-libgcc")

    @property
    def is_gcc(self) -> bool:
        """Whether it takes GCC's precompiled headers."""
        return "Free Software Foundation" in self.version

    def run(self, arguments: Sequence[str], what: str) -> None:
        """Run the compiler.

        Raises
        ------
        CompileError
            If it fails, with its own words.
        """
        run_tool([*self.command, *self.flags, *arguments], what, dict(self.environment))


def run_tool(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a tool; ``environment`` is added to that of this process.

    Raises
    ------
    CompileError
        If it is not there or fails, with its own words.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env={**os.environ, **(environment or {})}
        )
    except OSError as error:
        raise CompileError(f"{what}: cannot run {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise CompileError(f"{what} failed ({shlex.join(command)}):\n{done.stderr or done.stdout}")


@functools.lru_cache(maxsize=8)
def compiler_of(
    command: tuple[str, ...],
    environment: tuple[tuple[str, str], ...] = (),
    flags: tuple[str, ...] = (),
    link_flags: tuple[str, ...] = Compiler.link_flags,
) -> Compiler:
    """Return the compiler of a command, asked for its version.

    Raises
    ------
    CompileError
        If it cannot be run.
    """
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, env={**os.environ, **dict(environment)})
    except OSError as error:
        raise CompileError(f"the C++ compiler {command[0]!r} cannot be run: {error.strerror}; set CXX to one that can") from None
    if done.returncode != 0:
        raise CompileError(f"the C++ compiler {shlex.join(command)} does not work:\n{done.stderr}")
    return Compiler(command, done.stdout, environment, flags, link_flags)


def find_compiler() -> Compiler:
    """Return the C++ compiler: what ``CXX`` says (it may have options), or the first of g++, c++ and clang++.

    Raises
    ------
    CompileError
        If there is none.
    """
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return compiler_of(tuple(chosen))
    for name in ("g++", "c++", "clang++"):
        if path := shutil.which(name):
            return compiler_of((path,))
    raise CompileError("there is no C++ compiler: install g++ (Debian and Ubuntu: apt-get install g++), or set CXX")


def cache_dir() -> Path:
    """Return where compiled runtimes are kept: ``DYCL_CACHE_DIR``, or the user's cache directory."""
    if chosen := os.environ.get("DYCL_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dycl_tvm"


@functools.lru_cache(maxsize=8)
def _of_this_process(digest: str) -> Path:
    """Return a folder that goes when this process ends, for objects of that hash."""
    folder = tempfile.mkdtemp(prefix="dycl-runtime-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def runtime_objects(compiler: Compiler, flags: Sequence[str] = CXX_FLAGS) -> list[Path]:
    """Return the objects of the fixed runtime, compiling them if this compiler has not done so yet.

    Beside them lies what dispatchers include, as GCC has parsed it. They are kept by the hash of all that goes in, so a changed
    source, compiler or flag never meets an old object.
    """
    sources = runtime_sources()
    digest = hashlib.sha256()
    for part in (*compiler.command, compiler.version, *compiler.flags, *flags, *DISPATCHER_FLAGS, *include_flags()[4:]):
        digest.update(part.encode() + b"\0")
    for path in sorted([*sources.source.glob("*.cc"), *sources.source.glob("*.h"), *sources.include.glob("dycl/*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    made = {path.stem + ".o": [*flags, *include_flags(), "-c", str(path)] for path in sources.units()}
    names = list(made)
    if compiler.is_gcc:
        made[_PARSED] = [*DISPATCHER_FLAGS, *include_flags(), "-x", "c++-header", str(sources.source / _PARSED.removesuffix(".gch"))]
    kept = cache_dir() / f"runtime-{digest.hexdigest()[:32]}"
    if all((kept / name).is_file() for name in made):
        return [kept / name for name in names]
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="building-", dir=kept.parent))
    except OSError:
        # No place to keep them: compile for this process alone.
        scratch = kept = _of_this_process(digest.hexdigest())
        if all((kept / name).is_file() for name in made):
            return [kept / name for name in names]
    try:
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            jobs = [pool.submit(compiler.run, [*a, "-o", str(scratch / name)], f"compile {Path(a[-1]).name}") for name, a in made.items()]
            for job in jobs:
                job.result()
        if scratch != kept:
            # Another process may have been first; its objects are the same.
            with contextlib.suppress(OSError):
                os.replace(scratch, kept)
    finally:
        if scratch != kept:
            shutil.rmtree(scratch, ignore_errors=True)
    return [kept / name for name in names]
