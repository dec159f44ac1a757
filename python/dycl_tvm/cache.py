# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What builds keep on disk for the next one: files by the hash of all that they were made of, bounded in size.

Any number of processes may read, write and clear at the same time, and any of them may be killed: a file is written under another name
and renamed when it is whole. A folder that cannot be written is no error; then nothing is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dycl_tvm.errors import UsageError

#: Rooms of the cache whose files are bounded: objects of kernels, and objects of the fixed runtime.
KERNELS, RUNTIME = "kernels", "runtime"
#: Bytes that these may have, where ``DYCL_CACHE_BYTES`` says nothing.
DEFAULT_BYTES = 1 << 30
#: Seconds for which no file is removed that was used: another process may be about to link it.
_IN_USE = 3600.0
#: Seconds after which a use is noted again: far fewer than those above, and every note makes a file look like another one.
_NOTED = 300.0
#: Seconds within which the clock of a file system may not tell two changes of a file apart.
_ONE_TICK = 2.0
#: Files under these names are not whole yet; a process that was killed leaves them.
_BUILDING = "building-"


def cache_dir() -> Path:
    """Return where things are kept: ``DYCL_CACHE_DIR``, or the user's cache directory."""
    if chosen := os.environ.get("DYCL_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dycl_tvm"


def limit() -> int:
    """Return how many bytes may be kept; 0 keeps no kernels at all.

    Raises
    ------
    UsageError
        If ``DYCL_CACHE_BYTES`` is no number.
    """
    chosen = os.environ.get("DYCL_CACHE_BYTES", "").strip()
    if chosen and not chosen.isdecimal():
        raise UsageError(f"DYCL_CACHE_BYTES is a number of bytes, not {chosen!r}")
    return int(chosen) if chosen else DEFAULT_BYTES


def read(room: str, key: str) -> bytes | None:
    """Return what was written under a key, or None. What is damaged, or was written under another key, counts as not there."""
    path = _path(room, key)
    try:
        contents = path.read_bytes()
    except OSError:
        return None
    if _digest(key, contents[32:]) != contents[:32]:
        return None
    _used(path)
    return contents[32:]


def write(room: str, key: str, contents: bytes) -> None:
    """Keep something under a key; without effect where nothing can be kept."""
    path = _path(room, key)
    with contextlib.suppress(OSError), _whole(path) as scratch:
        scratch.write_bytes(_digest(key, contents) + contents)


def made(path: Path, make: Callable[[Path], None]) -> Path:
    """Return a file of the cache. If it is not there, or damaged, one process makes it, and the others wait for that.

    Parameters
    ----------
    path : Path
    make : callable
        Gets the path to write; it has the same name, in another folder.

    Raises
    ------
    OSError
        If nothing can be kept.
    """
    if not _is_sealed(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent / ".lock"):
            if not _is_sealed(path):
                with _whole(path) as scratch:
                    make(scratch)
                with _whole(_seal(path)) as scratch:
                    scratch.write_bytes(_digest(_place(path), path.read_bytes()))
    _used(path)
    _used(_seal(path))
    return path


#: Files that this process has found to be what was made, and what the system said of them and of their seals before.
_found_whole: dict[Path, tuple[tuple[int, ...], ...]] = {}


def _is_sealed(path: Path) -> bool:
    """Whether a file is what was made at its place: tools read it as it is, so its hash lies beside it.

    The parsed header has 30 MB, and every build asks twice; so contents are hashed again only after the system says something else of
    the file. The time of the last change of a file is the system's own: nobody can set it back.
    """
    try:
        asked, states = time.time(), [p.stat() for p in (path, _seal(path))]
        said = tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in states)
        if _found_whole.get(path) == said:
            return True
        whole = _seal(path).read_bytes() == _digest(_place(path), path.read_bytes())
    except OSError:
        return False
    if whole and all(asked - s.st_ctime > _ONE_TICK for s in states):
        _found_whole[path] = said
    return whole


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _digest(key: str, contents: bytes) -> bytes:
    """Return a hash of contents and of the key that they belong to."""
    return hashlib.sha256(key.encode() + b"\0" + contents).digest()


def _used(path: Path) -> None:
    """Note the time of a use, by which files are removed; a folder that is shared may not be ours to write."""
    with contextlib.suppress(OSError):
        if not 0 <= time.time() - path.stat().st_mtime < _NOTED:
            os.utime(path)


@dataclass(frozen=True)
class Contents:
    """How many files a room has, and their bytes."""

    files: int
    bytes: int


def contents() -> dict[str, Contents]:
    """Return what is kept now, by room."""
    found = {}
    for room in (KERNELS, RUNTIME):
        files = list(_files(room))
        found[room] = Contents(len(files), sum(f.bytes for f in files))
    return found


def clear() -> None:
    """Remove all that is kept in the rooms that are bounded."""
    for room in (KERNELS, RUNTIME):
        shutil.rmtree(cache_dir() / room, ignore_errors=True)


def trim() -> None:
    """Remove what was not used for longest, until the rest is within the limit."""
    files = sorted((f for room in (KERNELS, RUNTIME) for f in _files(room)), key=lambda f: f.used)
    total, most, now = sum(f.bytes for f in files), limit(), time.time()
    for file in files:
        old = now - file.used > _IN_USE
        if old and (total > most or file.path.parent.name.startswith(_BUILDING)):
            with contextlib.suppress(OSError):
                file.path.unlink()
                total -= file.bytes
            with contextlib.suppress(OSError):
                file.path.parent.rmdir()  # unless there is more in it


@dataclass(frozen=True)
class _File:
    path: Path
    bytes: int
    used: float


def _files(room: str) -> Iterator[_File]:
    for folder, _, names in os.walk(cache_dir() / room):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):  # another process may have removed it
                status = path.stat()
                yield _File(path, status.st_size, status.st_mtime)


def _path(room: str, key: str) -> Path:
    return cache_dir() / room / key[:2] / key


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Give a path to write, which takes the place of another in one step once the body has ended well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=path.parent))
    try:
        yield folder / path.name
        os.replace(folder / path.name, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes out; a process that ends, however, lets them in."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
