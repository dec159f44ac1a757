# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``bundle``: a folder to copy to a board. It needs nothing there but glibc and libstdc++: no Python, no compiler, no package."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from dycl_tvm.cache import cache_dir
from dycl_tvm.codegen.cross import glibc_bound
from dycl_tvm.codegen.elf import ElfError, read_library
from dycl_tvm.codegen.gate import newest_glibc
from dycl_tvm.codegen.machine import Machine, machine_of
from dycl_tvm.deploy.server import build_server
from dycl_tvm.errors import BuildGateError, CompileError, UsageError
from dycl_tvm.runtime.params import read_params
from dycl_tvm.runtime.trailer import read_trailer
from dycl_tvm.target import TargetsLike, check_buildable, resolve_target, resolve_targets

#: The libraries that the server loads: distribution, and where they are in its wheels.
_LIBRARIES = (("apache-tvm-ffi", "tvm_ffi/lib/libtvm_ffi.so"), ("apache-tvm", "tvm/lib/libtvm_runtime.so"))

_README = """\
{name} for {triple}

Start the server on the board, reachable from this machine alone:

    ./dycl-rpc-server --port 9090

and open a tunnel on the machine that deploys (or say --host 0.0.0.0 --key SOME_KEY in a network that you trust):

    ssh -L 9090:127.0.0.1:9090 BOARD
    dycl-tvm deploy {model} --rpc 127.0.0.1:9090

./dycl-rpc-server --help lists the options. It runs with glibc {glibc} and newer.
"""


def bundle(
    out: str | os.PathLike[str],
    target: TargetsLike,
    library: str | os.PathLike[str] | None = None,
    params: str | os.PathLike[str] | None = None,
    *,
    cxx: str = "",
) -> Path:
    """Make a folder with the RPC server, TVM's runtime libraries and a model.

    Parameters
    ----------
    out : path-like
        The folder; it must not exist yet, or be empty.
    target : str, dict or tvm.target.Target, or a sequence of them
        The board, such as ``nvidia/jetson-tx2``; only its host matters, and of several CPUs the least.
    library, params : path-like, optional
        The model, to run it on the board without uploading.
    cxx : str, optional
        The compiler, see :func:`dycl_tvm.codegen.cross.compiler_for`.

    Raises
    ------
    UsageError
        If the folder is in use, the model is for another machine, or the params are of another model.
    ArtifactError
        If the library or the params are damaged.
    CompileError
        If the server cannot be compiled, or TVM's libraries for the board cannot be had.
    """
    board = resolve_targets(target)
    glibc = board.glibc
    resolved = dataclasses.replace(resolve_target(board.host), glibc=glibc)
    check_buildable(resolved)
    machine, folder = machine_of(resolved.target), Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"'{folder}' is there already; give the name of a new folder")
    if library is not None:
        metadata = _checked(library, params, machine)
    (folder / "lib").mkdir(parents=True)
    build_server(resolved, folder / "dycl-rpc-server", cxx)
    for source in tvm_libraries(machine, glibc):
        shutil.copyfile(source, folder / "lib" / source.name)
    names = []
    for given, name in ((library, "model.so"), (params, "model.params")):
        if given is not None:
            shutil.copyfile(given, folder / name)
            names.append(name)
    title = "dycl-rpc-server" if library is None else str(metadata["name"])
    text = _README.format(
        name=title,
        triple=machine.triple,
        model=" ".join(names) or "model.so model.params",
        glibc=glibc_bound(machine, glibc) or "of this machine",
    )
    (folder / "README.txt").write_text(text, encoding="utf-8")
    return folder


def _checked(library: str | os.PathLike[str], params: str | os.PathLike[str] | None, machine: Machine) -> dict[str, Any]:
    """Return what a model says of itself; an error if the board would refuse it."""
    metadata, name = read_trailer(library), f"'{os.fspath(library)}'"
    target = metadata["target"]
    if target["arch"] != machine.arch:
        raise UsageError(f"{name} is for {target['arch']}, the target is {machine.arch}")
    if lacking := sorted(set(target["cpu_flags"]) - set(machine.cpu_flags)):
        raise UsageError(f"{name} is for {target['mcpu']}; the target, {machine.mcpu or machine.triple}, lacks {', '.join(lacking)}")
    if params is None and metadata["weights"] and not metadata["embedded_params"]:
        raise UsageError(f"{name} has its weights in a params file; give that too")
    if params is not None and read_params(params).fingerprint != metadata["fingerprint"]:
        raise UsageError(f"'{os.fspath(params)}' does not belong to {name}")
    return metadata


def tvm_libraries(machine: Machine, glibc: str = "") -> list[Path]:
    """Return libtvm_ffi.so and libtvm_runtime.so for a machine, of the installed versions: for this one the installed files, for others
    those of the wheels that pip gets, kept for the next time.

    Raises
    ------
    CompileError
        If pip cannot get them.
    BuildGateError
        If they need a newer glibc than the target has.
    """
    found = []
    for distribution, member in _LIBRARIES:
        path = _installed(member)
        if read_library(path.read_bytes()).machine != machine.arch:
            path = _fetched(distribution, member, machine.arch)
        try:
            needed = newest_glibc(read_library(path.read_bytes()))
        except ElfError as error:
            raise CompileError(f"{distribution} has no usable {path.name} for {machine.arch}: {error}") from None
        bound = glibc_bound(machine, glibc)
        if bound is not None and needed > tuple(int(n) for n in bound.split(".")):
            raise BuildGateError(f"{path.name} of {distribution} needs glibc {'.'.join(map(str, needed))}, the target has {bound}")
        found.append(path)
    return found


def _installed(member: str) -> Path:
    package, _, inside = member.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / inside


def _fetched(distribution: str, member: str, arch: str) -> Path:
    version = importlib.metadata.version(distribution)
    kept = cache_dir() / "wheels" / f"{distribution}-{version}-{arch}" / Path(member).name
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    platforms = [f"manylinux_2_{minor}_{arch}" for minor in (17, 24, 27, 28)] + [f"manylinux2014_{arch}"]
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", scratch]
        command += [word for name in platforms for word in ("--platform", name)]
        done = subprocess.run([*command, f"{distribution}=={version}"], capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise CompileError(f"pip cannot get {distribution} {version} for {arch}:\n{done.stderr.strip()[-2000:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            made = Path(scratch) / kept.name
            try:
                made.write_bytes(wheel.read(member))
            except KeyError:
                raise CompileError(f"{wheels[0].name} has no {member}") from None
        os.replace(made, kept)
    return kept
