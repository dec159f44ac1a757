# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-rpc-server`` for any machine: TVM's RPC server without Python, compiled here from the sources in the package."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from dycl_tvm.cache import cache_dir
from dycl_tvm.codegen import toolchain
from dycl_tvm.codegen.cross import compiler_for, glibc_bound
from dycl_tvm.codegen.gate import check_program
from dycl_tvm.codegen.machine import Machine, machine_of
from dycl_tvm.errors import CompileError
from dycl_tvm.target import ResolvedTarget

_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra")


def source_dir() -> Path:
    """Return the folder of the server's sources: in the installed package, or in the source tree.

    Raises
    ------
    CompileError
        If neither has it.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "rpc_server", package.parents[1] / "src" / "rpc_server"):
        if (folder / "server.cc").is_file():
            return folder
    raise CompileError(f"the sources of the RPC server are not in {package / 'rpc_server'}; install the package again")


def build_server(target: ResolvedTarget, out: str | os.PathLike[str], cxx: str = "") -> Path:
    """Compile the server for a target's host and write it.

    Parameters
    ----------
    target : ResolvedTarget
        From :func:`dycl_tvm.target.resolve_target`.
    out : path-like
        The program to write. It looks for TVM's two libraries in the folder ``lib`` beside it.
    cxx : str, optional
        The compiler, see :func:`dycl_tvm.codegen.cross.compiler_for`.

    Raises
    ------
    CompileError
        If there is no compiler, or it fails.
    """
    machine = machine_of(target.target)
    path = Path(out)
    shutil.copyfile(_kept(machine, target.glibc, cxx), path)
    path.chmod(0o755)
    return path


def _kept(machine: Machine, glibc: str, cxx: str) -> Path:
    """Return the compiled server, kept by the hash of all that goes in."""
    compiler, runtime = compiler_for(machine, glibc, cxx), toolchain.runtime_sources()
    host = [runtime.source / name for name in ("host/trailer.cc", "host/files.cc", "json.cc", "sha256.cc")]
    units = [*sorted(source_dir().glob("*.cc")), *host]
    headers = [*source_dir().glob("*.h"), *runtime.source.glob("*.h"), *runtime.source.glob("host/*.h"), *runtime.include.glob("dycl/*.h")]
    digest = hashlib.sha256("\0".join([*compiler.command, compiler.version, *compiler.flags, *_FLAGS]).encode())
    for path in sorted([*units, *headers]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    kept = cache_dir() / f"rpc-server-{digest.hexdigest()[:32]}"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        made = kept.with_name(f"{kept.name}.{os.getpid()}")
        flags = [*_FLAGS, "-pie", *compiler.link_flags, *toolchain.include_flags()]
        compiler.run([*flags, *map(str, units), "-o", str(made), "-ldl", "-lpthread"], "compile the RPC server")
        check_program(made, machine.arch, glibc_bound(machine, glibc))
        os.replace(made, kept)
    return kept
