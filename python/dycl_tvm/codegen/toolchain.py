# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The C++ tool-chain: the compiler, the sources of the fixed runtime, and its objects, compiled once and kept."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dycl_tvm import cache
from dycl_tvm.errors import CompileError
from dycl_tvm.runtime.trailer import this_arch

#: Flags that every C++ file of a library is compiled with. Contraction off: host floats must be what Python computes.
CXX_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
#: A dispatcher is straight-line code of calls and gotos: to optimise it more costs compile time and gains nothing.
DISPATCHER_FLAGS = (*CXX_FLAGS, "-O1")
#: What every dispatcher includes, as GCC has parsed it: that is most of the time that a dispatcher takes to compile.
_PARSED = "dispatch.h.gch"
#: Every model is its own world: it exports its interface only. As long as its threads live it holds itself in memory (library.cc).
LINK_FLAGS = ("-shared", "-Wl,-z,noexecstack", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,--build-id=none")
LINK_LIBRARIES = ("-ldl", "-lpthread", "-lm")

#: What a library for another machine may need at most, unless the target says another version: that of Ubuntu 18.04 and JetPack 4.
DEFAULT_GLIBC = "2.27"
#: What zig compiles for at most: the first glibc for 64-bit ARM. What needs no newer one runs with all of them, so that all boards share
#: one compiled runtime, and one C++ library of zig's, which takes a minute to compile.
OLDEST_GLIBC = "2.17"
#: zig checks for undefined behaviour in what it compiles unless told otherwise, and the default of clang is libc++ with debug information.
_ZIG_FLAGS = ("-fno-sanitize=undefined", "-g0")
#: At a link the level says how zig compiles its C++ library, once for each level.
_ZIG_LINK_FLAGS = ("-O2", "-s")


@dataclass(frozen=True)
class RuntimeSources:
    """Where the fixed runtime is: its sources and private headers, and the public headers."""

    source: Path
    include: Path

    def units(self) -> list[Path]:
        """Return the files to compile, in a fixed order."""
        return sorted(self.source.glob("*.cc"))

    def host_units(self) -> list[Path]:
        """Return the files of the library for C++ programs that load models, in a fixed order."""
        return [*sorted((self.source / "host").glob("*.cc")), self.source / "json.cc", self.source / "sha256.cc"]

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
    """Return the C++ compiler: what ``CXX`` says (it may have options), or the first of g++, c++ and clang++, or zig.

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
    if has_zig():
        return zig(this_arch())
    raise CompileError(
        "there is no C++ compiler: install g++ (Debian and Ubuntu: apt-get install g++), or pip install 'dycl-tvm[cross]', or set CXX"
    )


def link_shared(library: str, objects: Sequence[str]) -> None:
    """Make a shared library for this machine of object files."""
    compiler = find_compiler()
    compiler.run(["-shared", "-fPIC", *compiler.link_flags, *objects, "-o", library], "link")


def has_zig() -> bool:
    """Tell whether the Python package is there that brings zig, a C++ compiler for all machines."""
    return importlib.util.find_spec("ziglang") is not None


@functools.lru_cache(maxsize=8)
def zig(arch: str, glibc: str = OLDEST_GLIBC) -> Compiler:
    """Return the C++ compiler of the Python package ``ziglang``, for a machine and the newest glibc that a library may need."""
    # What is made for an older one also runs where a newer one is asked for.
    version = min(glibc, OLDEST_GLIBC, key=lambda text: [int(n) for n in text.split(".")])
    flags = ("-target", f"{arch}-linux-gnu.{version}", *_ZIG_FLAGS)
    # Its compiled libc++ and libunwind are kept there. Left alone it would make a folder in the current directory.
    kept = os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(cache.cache_dir() / "zig")
    environment = (("ZIG_GLOBAL_CACHE_DIR", kept), ("ZIG_LOCAL_CACHE_DIR", kept))
    return compiler_of((sys.executable, "-m", "ziglang", "c++"), environment, flags, _ZIG_LINK_FLAGS)


_making = threading.Lock()


@functools.cache
def _made_for_this_process() -> Path:
    folder = tempfile.mkdtemp(prefix="dycl-runtime-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _of_this_process() -> Path:
    """Return a folder that goes when this process ends: one, though threads that compile side by side may ask for it at once."""
    with _making:
        return _made_for_this_process()


@dataclass(frozen=True)
class Runtime:
    """The objects of the fixed runtime, and the folder of what dispatchers include, as GCC has parsed it (None for other compilers)."""

    objects: list[Path]
    parsed: Path | None


def runtime_objects(compiler: Compiler, flags: Sequence[str] = CXX_FLAGS) -> Runtime:
    """Return the objects of the fixed runtime, compiling those that this compiler has not compiled yet.

    Each is kept by the hash of all that goes in, so a changed source, header, compiler or flag never meets an old object. Processes
    that need an object at the same time compile it once.
    """
    sources = runtime_sources()
    common = hashlib.sha256()
    for part in (*compiler.command, compiler.version, *compiler.flags, importlib.metadata.version("apache-tvm-ffi")):
        common.update(part.encode() + b"\0")
    for path in sorted([*sources.source.glob("*.h"), *sources.include.glob("dycl/*.h")]):
        common.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    header = sources.source / _PARSED.removesuffix(".gch")
    includes = include_flags()
    wanted = [(path, path.stem + ".o", [*flags, "-c"]) for path in sources.units()]
    if compiler.is_gcc:
        wanted.append((header, _PARSED, [*DISPATCHER_FLAGS, "-x", "c++-header"]))

    def compiled(source: Path, name: str, arguments: Sequence[str]) -> Path:
        digest = common.copy()  # where headers lie plays no part
        digest.update("\0".join([name, *arguments]).encode() + b"\0" + source.read_bytes())

        def make(out: Path) -> None:
            compiler.run([*arguments, *includes, str(source), "-o", str(out)], f"compile {source.name}")

        key = digest.hexdigest()[:32]
        try:
            return cache.made(cache.cache_dir() / cache.RUNTIME / key / name, make)
        except OSError:  # no place to keep it: it is for this process alone
            return cache.made(_of_this_process() / key / name, make)

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        paths = list(pool.map(lambda job: compiled(*job), wanted))
    return Runtime(paths[: len(sources.units())], paths[-1].parent if compiler.is_gcc else None)
