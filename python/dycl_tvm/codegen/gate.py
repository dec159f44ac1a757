# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The build gate: a finished library is read again, and refused if it could not run where it is meant to."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from dycl_tvm.codegen.cuda.embedded import image_faults
from dycl_tvm.codegen.elf import ElfError, Library, read_library
from dycl_tvm.compile.program import DeviceCode
from dycl_tvm.errors import BuildGateError

#: Every Linux system with glibc has these.
_SYSTEM = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
)  # fmt: skip


def check_library(
    path: Path, arch: str, glibc: str | None, exports: Path, link_flags: Sequence[str] = (), device: DeviceCode | None = None
) -> Library:
    """Check a linked library, and return what it says of itself.

    Parameters
    ----------
    path : Path
        The library.
    arch : str
        Architecture that it is for: ``x86_64``, ``aarch64``.
    glibc : str, optional
        The newest glibc that it may need, such as ``2.27``; None leaves it open (a library for the machine that builds).
    exports : Path
        The linker's version script: what it lists as global may be exported, and nothing else.
    link_flags : sequence of str
        What backends asked the linker for: ``-lNAME`` allows ``libNAME.so`` in any version, a file its name.
    device : DeviceCode, optional
        What the library must hold for a GPU: machine code of its architecture and PTX that its drivers take, with all kernels.

    Raises
    ------
    BuildGateError
        With all that is wrong.
    """
    data = path.read_bytes()
    library = _read(data, "file")
    wrong = _place_faults(library, arch, glibc, _requested(link_flags)) + _library_faults(library, exported_patterns(exports))
    wrong += image_faults(data, device) if device is not None else []
    _raise_if("the library", wrong)
    return library


def check_program(path: Path, arch: str, glibc: str | None) -> None:
    """Check a program: machine, glibc and needed libraries.

    Raises
    ------
    BuildGateError
        With all that is wrong.
    """
    _raise_if("the program", _place_faults(_read(path.read_bytes(), "program"), arch, glibc, ()))


def exported_patterns(script: Path) -> list[str]:
    """Return the patterns of the symbols that a version script makes global."""
    text = re.sub(r"/\*.*?\*/", "", script.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.search(r"global:(.*?)local:", text, flags=re.DOTALL)
    return [name.strip() for name in found[1].split(";") if name.strip()] if found else []


def newest_glibc(library: Library) -> tuple[int, ...]:
    """Return the version of glibc that a library needs at least, such as (2, 27)."""
    return max((v for name in library.versions if (v := _glibc(name)) is not None), default=(0,))


def _read(data: bytes, what: str) -> Library:
    try:
        return read_library(data)
    except ElfError as error:
        raise BuildGateError(f"the linker wrote a {what} that cannot be used: {error}") from None


def _raise_if(what: str, wrong: Sequence[str]) -> None:
    if wrong:
        raise BuildGateError(f"{what} was linked but could not run where it is meant to:\n" + "\n".join(f"  {w}" for w in wrong))


def _place_faults(library: Library, arch: str, glibc: str | None, requested: Collection[str]) -> list[str]:
    wrong = []
    if library.machine != arch:
        wrong.append(f"it is code for {library.machine}, the target is {arch}: is the compiler (CXX) one for {arch}?")
    if glibc is not None:
        bound = tuple(int(n) for n in glibc.split("."))
        late = sorted(v for name in library.versions if (v := _glibc(name)) is not None and v > bound)
        if late:
            newest = ".".join(map(str, late[-1]))
            wrong.append(
                f"it needs glibc {newest}, the target has {glibc}: use the default tool-chain (dycl-tvm[cross]) or an older sysroot"
            )
    for name in library.needed:
        if name not in _SYSTEM and not any(name.startswith(r) for r in requested):
            wrong.append(f"it needs {name}, which the target may not have")
    return wrong


def _library_faults(library: Library, patterns: Collection[str]) -> list[str]:
    wrong = []
    strange = sorted(s for s in library.exported if not any(fnmatchcase(s, p) for p in patterns))
    if strange:
        more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        wrong.append(f"it exports {', '.join(strange[:5])}{more}, which could meet symbols of the program that loads it")
    missing = sorted(p for p in patterns if "*" not in p and p not in library.exported)
    if missing:
        wrong.append(f"it does not export {', '.join(missing)}")
    if library.executable_stack:
        wrong.append("it asks for an executable stack")
    return wrong


def _requested(link_flags: Sequence[str]) -> set[str]:
    """Return what the file names of libraries that a backend asked for begin with."""
    found = set()
    for flag in link_flags:
        if flag.startswith("-l"):
            found.add(flag[3:] if flag.startswith("-l:") else f"lib{flag[2:]}.so")
        elif not flag.startswith("-"):
            found.add(Path(flag).name)
    return found


def _glibc(version: str) -> tuple[int, ...] | None:
    found = re.fullmatch(r"GLIBC_(\d+(?:\.\d+)+)", version)
    return tuple(int(n) for n in found[1].split(".")) if found else None
