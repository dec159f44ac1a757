# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reads what a shared library says of itself: machine, needed libraries and versions, exported symbols. 64-bit little-endian ELF.

Layouts: the System V ABI, chapters 4 and 5 (https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html), and "Symbol Versioning" in the
Linux Standard Base core specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

#: e_machine of the architectures that artefacts are made for.
MACHINES = {62: "x86_64", 183: "aarch64"}

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED = 6, 11, 0x6FFFFFFE
_DT_NEEDED = 1
_PT_GNU_STACK, _PF_X = 0x6474E551, 1
_STV_VISIBLE = (0, 3)  # default and protected


class ElfError(ValueError):
    """The file is not such a library, or is damaged."""


@dataclass(frozen=True)
class Library:
    """A shared library.

    Attributes
    ----------
    machine : str
        ``x86_64``, ``aarch64``, or the number of another.
    needed : tuple of str
        Libraries that the loader must find.
    versions : frozenset of str
        Symbol versions that these must have, such as ``GLIBC_2.27``.
    exported, undefined : frozenset of str
        Dynamic symbols that it offers, and those it takes from elsewhere (weak ones left out).
    executable_stack : bool
        Whether it asks for a stack that can be executed.
    """

    machine: str
    needed: tuple[str, ...]
    versions: frozenset[str]
    exported: frozenset[str]
    undefined: frozenset[str]
    executable_stack: bool


@dataclass(frozen=True)
class _Section:
    type: int
    offset: int
    size: int
    link: int


def read_library(data: bytes) -> Library:
    """Read a shared library.

    Parameters
    ----------
    data : bytes
        The file.

    Raises
    ------
    ElfError
        If it is no 64-bit little-endian shared library with section headers, or is cut short.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError("it is not a 64-bit little-endian ELF file")
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ElfError(f"its structure is damaged: {error}") from None


def _read(data: bytes) -> Library:
    kind, machine = struct.unpack_from("<HH", data, 16)
    if kind != 3:
        raise ElfError("it is not a shared object")
    sections = _sections(data)
    entries = [entry for s in sections if s.type == _SHT_DYNAMIC for entry in _dynamic(data, s, sections[s.link])]
    symbols = [symbol for s in sections if s.type == _SHT_DYNSYM for symbol in _symbols(data, s, sections[s.link])]
    if not entries or not symbols:
        raise ElfError("it has no dynamic section or no dynamic symbols")
    return Library(
        machine=MACHINES.get(machine, f"machine {machine}"),
        needed=tuple(str(value) for tag, value in entries if tag == _DT_NEEDED),
        versions=frozenset(v for s in sections if s.type == _SHT_VERNEED for v in _versions(data, s, sections[s.link])),
        exported=frozenset(name for name, defined, _ in symbols if defined),
        undefined=frozenset(name for name, defined, weak in symbols if not defined and not weak),
        executable_stack=_executable_stack(data),
    )


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    found = []
    for k in range(count):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", data, start + k * size)
        found.append(_Section(kind, offset, length, link))
    return found


def _executable_stack(data: bytes) -> bool:
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<II", data, start + k * size) for k in range(count)]
    stacks = [flags for kind, flags in headers if kind == _PT_GNU_STACK]
    # Without the header the loader assumes the worst.
    return not stacks or any(flags & _PF_X for flags in stacks)


def _string(data: bytes, table: _Section, at: int) -> str:
    begin = table.offset + at
    return data[begin : data.index(b"\0", begin)].decode()


def _dynamic(data: bytes, section: _Section, strings: _Section) -> Iterator[tuple[int, str | int]]:
    for at in range(section.offset, section.offset + section.size, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            return
        yield tag, _string(data, strings, value) if tag == _DT_NEEDED else value


def _symbols(data: bytes, section: _Section, strings: _Section) -> Iterator[tuple[str, bool, bool]]:
    """Yield name, whether it is defined here, whether it is weak."""
    for at in range(section.offset + 24, section.offset + section.size, 24):
        name, info, other, index = struct.unpack_from("<IBBH", data, at)
        binding = info >> 4
        if binding == 0 or (index != 0 and other & 3 not in _STV_VISIBLE):
            continue
        yield _string(data, strings, name), index != 0, binding == 2


def _versions(data: bytes, section: _Section, strings: _Section) -> Iterator[str]:
    at = section.offset
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        need = at + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, need)
            yield _string(data, strings, name)
            need += step
        if following == 0:
            return
        at += following
