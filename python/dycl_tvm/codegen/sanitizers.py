# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Libraries whose C++ is checked while it runs, for those that look for a mistake in their program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dycl_tvm.codegen.toolchain import LINK_FLAGS, Compiler
from dycl_tvm.errors import UsageError

#: What ``sanitize`` may be, and what its runtime library is called.
SANITIZERS = {"address": "-lasan", "undefined": "-lubsan", "thread": "-ltsan"}


def sanitizing(compiler: Compiler, sanitize: str) -> Compiler:
    """Return the compiler with a sanitizer, and with lines in what it makes.

    Raises
    ------
    UsageError
        If there is no such sanitizer, or the compiler brings none.
    """
    if sanitize not in SANITIZERS:
        raise UsageError(f"sanitize is one of {', '.join(map(repr, SANITIZERS))}, not {sanitize!r}")
    if "ziglang" in compiler.command:
        raise UsageError(
            f"zig, which makes libraries for other machines, has no runtime of the {sanitize} sanitizer; name the board's compiler with cxx"
        )
    return replace(compiler, flags=(*compiler.flags, f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g1"))


def link_flags(compiler: Compiler, sanitize: str) -> Sequence[str]:
    """Return the linker's flags: where clang has the sanitizer's runtime in the program, the library lacks its symbols."""
    return [f for f in LINK_FLAGS if compiler.is_gcc or not sanitize or f != "-Wl,-z,defs"]
