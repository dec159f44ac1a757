# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which C++ compiler makes a library for which machine: this machine's own, one that the user names, or zig for other machines."""

from __future__ import annotations

import os
import shlex
import subprocess

from dycl_tvm.codegen.machine import Machine
from dycl_tvm.codegen.toolchain import DEFAULT_GLIBC, OLDEST_GLIBC, Compiler, compiler_of, find_compiler, has_zig, zig
from dycl_tvm.errors import CompileError
from dycl_tvm.runtime.trailer import canonical_arch, this_arch


def glibc_bound(machine: Machine, glibc: str = "") -> str | None:
    """Return the newest glibc that a library may need; None for a library for this machine where the target does not say it."""
    return glibc or (None if machine.arch == this_arch() else DEFAULT_GLIBC)


def compiler_for(machine: Machine, glibc: str = "", cxx: str = "") -> Compiler:
    """Return the compiler for a machine.

    Parameters
    ----------
    machine : Machine
        Of the target's host.
    glibc : str, optional
        Version that the target asks for.
    cxx : str, optional
        The compiler to take, with options. Without it: ``CXX`` of the environment where that compiler makes code for the machine; for
        this machine the first of g++, c++, clang++ and zig; for another machine, or another glibc, zig.

    Raises
    ------
    CompileError
        If there is none; the message says how to get it.
    """
    if cxx:
        named = compiler_of(tuple(shlex.split(cxx)))
        if (made := _machine_of(named)) != machine.arch:
            raise CompileError(f"the compiler {cxx!r} makes code for {made or 'an unknown machine'}, the target is {machine.arch}")
        return named
    if machine.arch == this_arch() and not glibc:
        return find_compiler()
    if chosen := tuple(shlex.split(os.environ.get("CXX", ""))):
        compiler = compiler_of(chosen)
        if _machine_of(compiler) == machine.arch:
            return compiler
    if not has_zig():
        raise CompileError(
            f"a library for {machine.triple} with glibc {glibc or DEFAULT_GLIBC} needs a cross-compiler: pip install 'dycl-tvm[cross]', or "
            f"set CXX to a C++ compiler that makes code for {machine.arch}"
        )
    return zig(machine.arch, glibc or OLDEST_GLIBC)


def _machine_of(compiler: Compiler) -> str:
    """Return the architecture that a compiler makes code for."""
    done = subprocess.run([*compiler.command, "-dumpmachine"], capture_output=True, text=True, check=False)
    return canonical_arch(done.stdout.strip().split("-")[0])
