# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The trailer of a library: what a loader must know before it may run any code of it.

Appended to the ELF file: the metadata as JSON, 8 bytes little-endian size of the JSON, 32 bytes SHA-256 of all that stands
before, and 8 bytes magic.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dycl_tvm.errors import ArtifactError, UsageError

MAGIC = b"DYCLTRL1"
ABI_VERSION = 1
FORMAT_VERSION = 1
_TAIL = 8 + 32 + len(MAGIC)


def append_trailer(path: str | os.PathLike[str], metadata: dict[str, Any]) -> None:
    """Append the trailer to a linked library."""
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode()
    tail = text + len(text).to_bytes(8, "little")
    digest = hashlib.sha256()
    with open(path, "r+b") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        digest.update(tail)
        file.write(tail + digest.digest() + MAGIC)


def read_trailer(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the metadata of a library and check its checksum and version; no code of it runs.

    Raises
    ------
    ArtifactError
        If the file is no library of dycl_tvm, is damaged, or has another version.
    """
    return trailer_of(read_library(path), path)


def read_library(path: str | os.PathLike[str]) -> bytes:
    """Read the bytes of a library.

    Raises
    ------
    ArtifactError
        If that fails.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read the library '{path}': {error.strerror}") from None


def trailer_of(data: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata of a library of these bytes, as :func:`read_trailer` does; errors call it ``path``."""
    if data[:4] != b"\x7fELF":
        raise ArtifactError(f"'{path}' is not a shared library")
    if len(data) < _TAIL or not data.endswith(MAGIC):
        raise ArtifactError(f"'{path}' is not a library of dycl_tvm, or it was cut short or stripped: it has no trailer")
    view = memoryview(data)
    body = view[: -(32 + len(MAGIC))]
    if hashlib.sha256(body).digest() != bytes(view[len(body) : len(body) + 32]):
        raise ArtifactError(f"'{path}' is damaged: its checksum does not match its contents")
    size = int.from_bytes(body[-8:], "little")
    try:
        metadata = json.loads(bytes(body[-8 - size : -8]))
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict) or metadata.get("format") != "dycl-library":
        raise ArtifactError(f"'{path}' has a trailer that is not of dycl_tvm")
    if metadata.get("format_version") != FORMAT_VERSION or metadata.get("abi_version") != ABI_VERSION:
        raise ArtifactError(
            f"'{path}' has format version {metadata.get('format_version')} and ABI version {metadata.get('abi_version')}; this version of "
            f"dycl_tvm loads {FORMAT_VERSION} and {ABI_VERSION}. Build the model again."
        )
    return metadata


def levels_of(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a library may say of itself, by the CPU that it has code for, the least first, from the metadata of its trailer.

    Where there is code for several, the trailer has the metadata of the least, and in it those of all.
    """
    levels: list[dict[str, Any]] = metadata.get("levels", [metadata])
    return levels


def check_machine(path: str | os.PathLike[str], metadata: dict[str, Any]) -> None:
    """Check that this machine can run the library.

    Raises
    ------
    ArtifactError
        If it is of another architecture, or uses instructions that this CPU lacks.
    """
    if why := why_not_here(metadata["target"]):
        raise ArtifactError(f"'{path}' {why}")


def check_asked_cpu(path: str | os.PathLike[str], metadata: dict[str, Any]) -> None:
    """Check that a library with code for several CPUs has, and this machine runs, what ``DYCL_CPU`` names. Others have no choice.

    Raises
    ------
    UsageError
        If it has not, or does not.
    """
    levels = {str(level["target"]["mcpu"]): level["target"] for level in levels_of(metadata)}
    asked = os.environ.get("DYCL_CPU", "")
    if not asked or len(levels) == 1:
        return
    if asked not in levels:
        raise UsageError(f"DYCL_CPU is '{asked}', and '{path}' has code for {', '.join(levels)}")
    if why := why_not_here(levels[asked]):
        raise UsageError(f"DYCL_CPU is '{asked}', and the code for that in '{path}' {why}")


#: What the runtime of a sanitizer begins with, which must be in the process from the beginning; not so that for undefined behaviour.
_BEGINS = {"address": "__asan_init", "thread": "__tsan_init"}


def check_sanitizer(path: str | os.PathLike[str], metadata: dict[str, Any]) -> None:
    """Check that this process can load a library that was compiled with a sanitizer, which would end another one.

    Raises
    ------
    ArtifactError
        If it cannot.
    """
    sanitize = metadata.get("sanitize", "")
    if sanitize in _BEGINS and not hasattr(ctypes.CDLL(None), _BEGINS[sanitize]):
        raise ArtifactError(
            f"'{path}' was built with sanitize='{sanitize}', for programs that are compiled with -fsanitize={sanitize}; this process is not"
        )


def why_not_here(target: Mapping[str, Any]) -> str:
    """Return why this machine cannot run code for a target, as the end of a sentence; nothing if it can.

    Parameters
    ----------
    target : mapping
        ``arch``, ``triple``, ``mcpu`` and ``cpu_flags``, as in the metadata of a library.
    """
    machine = this_arch()
    if target["arch"] != machine:
        return f"was built for {target['arch']} ({target['triple']}); this machine is {machine}"
    try:
        missing = sorted(set(target["cpu_flags"]) - cpu_flags()) if target["cpu_flags"] else []
    except OSError as error:
        return f"needs {', '.join(sorted(target['cpu_flags']))}, and what this CPU has cannot be read: {error}; mount /proc"
    if not missing:
        return ""
    cpu = f" (mcpu {target['mcpu']})" if target["mcpu"] else ""
    return (
        f"was built for a CPU{cpu} with {', '.join(missing)}, which this CPU lacks; build it for this machine's CPU, or with target 'llvm'"
    )


def canonical_arch(name: str) -> str:
    """Return an architecture's name as ``uname -m`` of Linux has it."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name.lower(), name.lower())


def this_arch() -> str:
    """Return the architecture of this machine."""
    return canonical_arch(platform.machine())


#: What AT_HWCAP (16) and AT_HWCAP2 (26) say of an aarch64 CPU, by the names of /proc/cpuinfo; arch/arm64/include/uapi/asm/hwcap.h of Linux.
_HWCAPS = {
    "atomics": (16, 8), "asimdhp": (16, 10), "asimdrdm": (16, 12), "asimddp": (16, 20), "sve": (16, 22), "asimdfhm": (16, 23),
    "sve2": (26, 1), "i8mm": (26, 13), "bf16": (26, 14),
}  # fmt: skip


def cpu_flags() -> set[str]:
    """Return what the kernel says this CPU can do."""
    if this_arch() == "aarch64":
        # Not from /proc/cpuinfo: an emulator or a container may show that of another machine.
        getauxval = ctypes.CDLL(None).getauxval
        getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        return {name for name, (kind, bit) in _HWCAPS.items() if getauxval(kind) >> bit & 1}
    found: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            found.update(value.split())
            break
    return found
