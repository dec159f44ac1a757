# Licensed under the Apache License, Version 2.0; see LICENSE.
"""NVRTC, NVIDIA's CUDA compiler as a library, through ctypes: it needs neither a GPU nor a driver nor a toolkit."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

from dycl_tvm.errors import CompileError

#: Packages of PyPI that hold it.
PACKAGES = ("nvidia-cuda-nvrtc-cu11", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
_LIBRARY_NAMES = ("libnvrtc.so.11.2", "libnvrtc.so.12", "libnvrtc.so.13")


class Nvrtc:
    """One version of the compiler.

    Attributes
    ----------
    version : (int, int)
    architectures : tuple of int
        72 for sm_72, and so on.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = library = ctypes.CDLL(path)
        library.nvrtcGetErrorString.restype = c_char_p
        library.nvrtcCreateProgram.argtypes = [POINTER(c_void_p), c_char_p, c_char_p, c_int, c_void_p, c_void_p]
        library.nvrtcCompileProgram.argtypes = [c_void_p, c_int, POINTER(c_char_p)]
        library.nvrtcDestroyProgram.argtypes = [POINTER(c_void_p)]
        for what in ("PTX", "CUBIN", "ProgramLog"):
            getattr(library, f"nvrtcGet{what}Size").argtypes = [c_void_p, POINTER(c_size_t)]
            getattr(library, f"nvrtcGet{what}").argtypes = [c_void_p, c_char_p]
        major, minor, count = c_int(), c_int(), c_int()
        self._check(library.nvrtcVersion(byref(major), byref(minor)))
        self.version = (major.value, minor.value)
        self._check(library.nvrtcGetNumSupportedArchs(byref(count)))
        found = (c_int * count.value)()
        self._check(library.nvrtcGetSupportedArchs(found))
        self.architectures = tuple(found)

    def compile(self, source: str, name: str, options: Sequence[str]) -> tuple[bytes, bytes]:
        """Compile CUDA C++.

        Parameters
        ----------
        source : str
        name : str
            For the compiler's messages.
        options : sequence of str
            With ``--gpu-architecture=sm_...``.

        Returns
        -------
        (bytes, bytes)
            PTX, without the closing NUL, and the cubin.

        Raises
        ------
        CompileError
            With the compiler's words.
        """
        program = c_void_p()
        self._check(self._library.nvrtcCreateProgram(byref(program), source.encode(), name.encode(), 0, None, None))
        try:
            words = (c_char_p * len(options))(*(o.encode() for o in options))
            with _thread_locale_kept():
                failed = self._library.nvrtcCompileProgram(program, len(options), words) != 0
            if failed:
                log = self._get(program, "ProgramLog").decode(errors="replace").rstrip("\0\n")
                raise CompileError(f"NVRTC {self.version[0]}.{self.version[1]} could not compile {name}:\n{log[:4000]}")
            return self._get(program, "PTX").rstrip(b"\0"), self._get(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(byref(program))

    def _get(self, program: c_void_p, what: str) -> bytes:
        size = c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, code: int) -> None:
        if code != 0:
            raise CompileError(f"NVRTC ({self.path}): {self._library.nvrtcGetErrorString(code).decode()}")


@contextlib.contextmanager
def _thread_locale_kept() -> Iterator[None]:
    """Give the thread its locale back: NVRTC 11.8 leaves the C locale behind, in which Python reads files as ASCII from then on."""
    libc = ctypes.CDLL(None)
    libc.uselocale.argtypes, libc.uselocale.restype = [c_void_p], c_void_p
    before = libc.uselocale(None)
    try:
        yield
    finally:
        libc.uselocale(before)


@functools.cache
def installed() -> tuple[Nvrtc, ...]:
    """Return the versions that are installed as packages or known to the system's loader, each once."""
    found: dict[tuple[int, int], Nvrtc] = {}
    for path in [*_package_files(), *_LIBRARY_NAMES]:
        try:
            compiler = Nvrtc(path)
        except (OSError, AttributeError, CompileError):
            continue
        found.setdefault(compiler.version, compiler)
    return tuple(found.values())


def _package_files() -> list[str]:
    paths = []
    for package in PACKAGES:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        paths += [str(Path(str(f.locate()))) for f in files if f.name in _LIBRARY_NAMES]
    return paths


def find(number: int, preferred_major: int) -> Nvrtc | None:
    """Return the installed compiler for an architecture: of the preferred CUDA version if there is one, else the newest."""
    able = [c for c in installed() if number in c.architectures]
    return max(able, key=lambda c: (c.version[0] == preferred_major, c.version), default=None)
