# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A Python that TVM takes on the system of every board, and TVM in it.

The systems of the boards have Python 3.6, 3.8 and 3.10, Debian's newer ones need a newer glibc. But TVM's aarch64 wheel and those that it
needs ask for glibc 2.27 and no more, and the wheel of cx_Freeze has an interpreter for glibc 2.17: what frozen programs start with. Its
library in Python is Debian's, whose packages are signed.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from emulated_boards import Apt, Board, kept, unpack
from servers import Server, running

_CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
_DEBIAN = "http://deb.debian.org/debian bookworm main"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: The library in Python, and what its extension modules and NumPy need beside glibc.
_PACKAGES = ("libpython3.11-minimal", "libpython3.11-stdlib", "zlib1g")
_WHEELS = ("apache-tvm", "apache-tvm-ffi", "numpy", "psutil", "ml_dtypes", "typing_extensions", "cloudpickle", "tornado")
_INTERPRETER = "cx_Freeze==7.2.10"
_INTERPRETER_SHA256 = "2bc61c1c2d874f883bb7aae724abe84e3a36d97b679fd02d2bf33313afbbc975"

#: The interpreter imports this and calls both functions. It makes the command line that of Python, as far as TVM uses it.
_STARTUP = """\
import os, runpy, sys

def init():
    sys.path[:0] = [folder for folder in os.environ["PYTHONPATH"].split(os.pathsep) if folder]

def run():
    _, option, what, *sys.argv[1:] = sys.argv
    if option == "-c":
        exec(what, sys.modules["__main__"].__dict__)
    elif option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.exit(f"no option of this Python: {option}")
"""


def python_command(board: Board, site: Path | None = None, **environment: object) -> list[str]:
    """Return the command of Python on a board, with TVM or with the packages of another folder."""
    folder = _python()
    return board.command(folder / "python3.11", PYTHONPATH=site or folder / "site", PYTHONUNBUFFERED=1, **environment)


def install(site: Path, wheel: Path, *beside: str) -> None:
    """Install a wheel for aarch64 into a folder as pip there would, and packages that the Python with TVM has."""
    wrong = _pip("install", "--no-index", "--target", str(site), "--platform", "manylinux_2_17_aarch64", str(wheel))
    assert not wrong, wrong
    for name in beside:
        for item in (_python() / "site").glob(f"{name}*"):
            (site / item.name).symlink_to(item)


def _python() -> Path:
    """Return the folder of Python, its files fetched once; skip the test where they cannot be."""
    contents = _CONSTRAINTS.read_text() + _DEBIAN + " ".join((*_WHEELS, *_PACKAGES, _INTERPRETER)) + _STARTUP
    return kept("Python", contents, _fetch)


def python_server(board: Board, work: Path, key: str, **environment: object) -> contextlib.AbstractContextManager[Server]:
    """Run TVM's own server on a board."""
    command = python_command(board, **environment)
    # The server starts another Python, which the system of this machine cannot run by itself.
    again = work / "python"
    again.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    again.chmod(0o755)
    start = f"import runpy, sys; sys.executable = {str(again)!r}; runpy.run_module('tvm.exec.rpc_server', None, '__main__', True)"
    options = ["--host", "127.0.0.1", "--port", "27100", "--port-end", "27900", "--key", key]
    return running([*command, "-c", start, *options], work, ready=r"bind to 127.0.0.1:(\d+)", seconds=240)


def _fetch(scratch: Path) -> Path | str:
    made = scratch / "python"
    return _fetch_library(scratch, made / "lib") or _fetch_interpreter(scratch, made) or _fetch_wheels(made / "site") or made


def _fetch_library(scratch: Path, out: Path) -> str:
    if not _KEYRING.is_file():
        return f"there is no {_KEYRING}"
    apt = Apt(scratch, f"deb [signed-by={_KEYRING} arch=arm64] {_DEBIAN}", "arm64")
    for arguments in (["update"], ["download", *_PACKAGES]):
        if wrong := apt.run(*arguments):
            return wrong
    files = unpack(scratch, sorted(scratch.glob("*.deb")))
    if isinstance(files, str):
        return files
    # The extension modules of Debian are for a newer glibc.
    shutil.copytree(files / "usr" / "lib" / "python3.11", out, ignore=shutil.ignore_patterns("lib-dynload"))
    shutil.copy(files / "lib" / "aarch64-linux-gnu" / "libz.so.1", out)
    return ""


def _fetch_interpreter(scratch: Path, out: Path) -> str:
    if wrong := _pip("download", "--dest", str(scratch), "--platform", "manylinux_2_17_aarch64", _INTERPRETER):
        return wrong
    (wheel,) = scratch.glob("*.whl")
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != _INTERPRETER_SHA256:
        return f"{wheel.name} is another file than expected"
    shutil.unpack_archive(wheel, scratch / "wheel", "zip")
    files = scratch / "wheel" / "cx_Freeze" / "bases"
    for folder in ("lib", "lib-dynload"):
        shutil.copytree(files / folder, out / "lib", dirs_exist_ok=True)
    shutil.copy(files / "console-cpython-311-aarch64-linux-gnu", out / "python3.11")
    (out / "python3.11").chmod(0o755)
    (out / "lib" / "__startup__.py").write_text(_STARTUP)
    return ""


def _fetch_wheels(out: Path) -> str:
    tags = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_aarch64")]
    return _pip("install", "--target", str(out), *platforms, "-c", str(_CONSTRAINTS), *_WHEELS)


def _pip(*arguments: str) -> str:
    """Run pip for Python 3.11 and return what went wrong, or nothing."""
    command, *words = arguments
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp"]
    options += ["--abi", "cp311", "--abi", "abi3", "--abi", "none"]
    done = subprocess.run([sys.executable, "-m", "pip", command, *options, *words], capture_output=True, text=True, check=False)
    return f"pip {command}: {done.stderr.strip()[-300:]}" if done.returncode != 0 else ""
