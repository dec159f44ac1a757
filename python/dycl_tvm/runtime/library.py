# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The libraries that this process has loaded, and how they are taken out of memory again."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.log import forget_log

#: Kept while the code of any library is called by which the last of it may go. One for all libraries: a garbage collection may end objects
#: of one in the middle of what is done with another.
_lock = threading.RLock()
#: By the handles of the system's loader, each opened once.
_open: dict[int, Library] = {}
#: Who waits that no other thread makes something.
_made = threading.Condition(_lock)
#: By the same handles, the threads that are making something of a library, each as often as it does.
_makers: defaultdict[int, list[int]] = defaultdict(list)

#: How often none is to be unloaded: a signal handler comes past the lock.
_kept = 0

#: What is done with each library that is opened from now on.
_for_all: Callable[[Library], None] | None = None


class Library(ctypes.CDLL):
    """A loaded library. Once it is out of memory its functions raise :class:`~dycl_tvm.UsageError`."""

    def __init__(self, path: str) -> None:
        self._unloaded = False
        #: Of a library that is no file of the program's: its bytes' hash, and the file of ours. It stays open as long as the library, for
        #: the system's loader, which knows libraries by their names, may know it by the descriptor's number.
        self.copy: tuple[bytes, int] | None = None
        super().__init__(path)

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_unloaded"):
            raise UsageError(f"the library '{self._name}' was unloaded")
        return super().__getattr__(name)

    @property
    def is_older(self) -> bool:
        """Whether it is of a version in which libraries stayed in memory, and knew nothing of how threads are to run."""
        return not capi.has(self, "dycl_unload")

    def forget(self) -> None:
        """Forget the functions: their code is no longer there."""
        self._unloaded = True
        for name in [name for name, found in vars(self).items() if callable(found) and not isinstance(found, type)]:
            delattr(self, name)


def open_library(path: str) -> Library:
    """Load a library and declare its functions; what is open already is the same object. The caller has checked the trailer."""
    with _lock:
        try:
            library = Library(path)
        except OSError as error:
            raise ArtifactError(f"the library '{path}' cannot be loaded: {error}") from None
        known = _open.get(library._handle)
        if known is not None:
            _close(library._handle)
            return known
        capi.declare(library, path)
        if _for_all is not None and not library.is_older:
            try:
                _for_all(library)
            except UsageError:
                library.dycl_unload(None)
                _close(library._handle)
                raise
        known = _open.setdefault(library._handle, library)  # a signal handler may have loaded it meanwhile
        if known is not library:
            _close(library._handle)
        return known


def open_bytes(data: bytes, name: str) -> Library:
    """Load a library from its bytes, whose trailer was checked; the same bytes are the same object. Errors call it ``name``."""
    digest = hashlib.sha256(data).digest()
    with _lock:
        for library in _open.values():
            if library.copy is not None and library.copy[0] == digest:
                return library
        descriptor = _file_of(data, name)
        try:
            library = open_library(f"/proc/self/fd/{descriptor}")
            if library.copy is not None:
                raise ArtifactError(f"the library '{name}' cannot be loaded: the loader has another by that name")
        except BaseException:
            os.close(descriptor)
            raise
        library.copy = digest, descriptor
        return library


def _file_of(data: bytes, name: str) -> int:
    """Return the descriptor of a file without a name, in memory if the system has that."""
    try:
        try:
            descriptor = os.memfd_create("dycl-library")
        except (AttributeError, OSError):
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    except OSError as error:
        raise ArtifactError(f"the library '{name}' cannot be loaded: there is no file for it ({error.strerror})") from None
    return descriptor


def for_all(do: Callable[[Library], None]) -> None:
    """Do something with all libraries that are open, and then with each that is opened; what was to be done before is not any more."""
    global _for_all
    with _lock:
        for library in _open.values():
            if not library.is_older:
                do(library)
        _for_all = do


@contextmanager
def none_is_unloaded() -> Iterator[None]:
    """Keep all libraries in memory meanwhile; for a moment only."""
    global _kept
    with _lock:
        _kept += 1
        try:
            yield
        finally:
            _kept -= 1


@contextmanager
def making(library: Library) -> Iterator[None]:
    """Keep a library in memory while something is made of it."""
    with _lock:
        library.dycl_metadata  # noqa: B018  # it may have been unloaded
        threads, this = _makers[library._handle], threading.get_ident()
        threads.append(this)
    try:
        yield
    finally:
        with _lock:
            threads.remove(this)
            _made.notify_all()


def destroy(function: Callable[[ctypes.c_void_p], None], handle: ctypes.c_void_p) -> None:
    """Call a function of a library that frees something; the library stays until it has returned."""
    with _lock:
        function(handle)


def unload(library: Library) -> None:
    """Take a library out of memory; one that is out already is none of an error.

    Raises
    ------
    UsageError
        If anything of it is in use.
    ArtifactError
        If it was built before this was possible.
    """
    with _lock:
        handle = library._handle
        if _open.get(handle) is not library:
            return
        capi.demand(library, "dycl_unload")
        if _kept or _makers[handle]:
            makes = "a module is being made of it, in another thread or in what a signal handler has interrupted"
            raise UsageError(f"the library '{library._name}' cannot be unloaded: {makes}")
        found = _open.pop(handle, None)
        if found is not library:  # a signal handler has unloaded it just now, and perhaps loaded it anew
            if found is not None:
                _open[handle] = found
            return
        try:
            capi.check(library, library.dycl_unload(None))
        except UsageError:
            if _open.setdefault(handle, library) is not library:
                library.forget()
                _close(handle)
            raise
        library.forget()
        if handle not in _open:
            forget_log(library)
            _makers.pop(handle, None)
        _close(handle)
        if library.copy is not None:
            os.close(library.copy[1])


def _close(handle: int) -> None:
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(handle)


def _others_make() -> bool:
    return any(thread != threading.get_ident() for threads in _makers.values() for thread in threads)


def _before_fork() -> None:
    """Wait until no other thread is in the system's loader: in the child nobody would give its locks back."""
    _lock.acquire()
    _made.wait_for(lambda: not _others_make())


def _after_fork() -> None:
    _lock.release()


def _forked() -> None:
    global _lock, _made
    _lock = threading.RLock()
    _made = threading.Condition(_lock)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)
