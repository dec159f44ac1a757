# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``load``: open a compiled network. Needs neither torch nor TVM."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from dycl_tvm.errors import ArtifactError, UsageError
from dycl_tvm.runtime.classes import Classes
from dycl_tvm.runtime.library import Library, making, none_is_unloaded, open_bytes, open_library
from dycl_tvm.runtime.model import Model
from dycl_tvm.runtime.module import Module
from dycl_tvm.runtime.params_place import Mmap, ParamsPlace
from dycl_tvm.runtime.priorities import Priority
from dycl_tvm.runtime.trailer import check_asked_cpu, check_machine, check_sanitizer, levels_of, read_library, trailer_of


def load(
    library: str | os.PathLike[str] | int | Any,
    params: str | os.PathLike[str] | int | Any | None = None,
    num_threads: int | None = None,
    classes: Iterable[type] = (),
    mmap: Mmap = True,
    params_offset: int = 0,
    params_size: int = 0,
    arena: Any = None,
    largest_sizes: Mapping[str, int] | None = None,
) -> Module:
    """Load a compiled network.

    Parameters
    ----------
    library : path-like, int or buffer
        What ``Artifact.export_library`` wrote: its path; a file descriptor, which may be closed afterwards; or its bytes. Processes share
        the code of a library at a path; of others each has a copy in memory, one however often the same bytes are loaded.
    params : path-like, int or buffer, optional
        What ``Artifact.save_params`` wrote: its path; a file descriptor, such as that of a memfd or of an archive that has it inside,
        uncompressed, which may be closed afterwards; or its bytes (``bytes``, ``mmap.mmap``, a NumPy array). Left out when the weights are
        inside the library.
    num_threads : int, optional
        Threads of this module alone. Left out: the module shares the process's threads (``DYCL_NUM_THREADS``, or one for each core).
    classes : iterable of type, optional
        Classes of results (dataclasses, named tuples, containers) and of objects among the inputs, by their names, in whatever modules they
        are. Others are looked for in the modules that are loaded; nothing is imported. For what is not found a class of that name with the
        same fields, items and attributes is made.
    mmap : bool or "sealed", optional
        Map the params file, so that the processes of a machine share the weights. The file must then stay as it is: put a new one in its
        place by renaming (``save_params`` does), for one that is written over changes the weights of programs that run, and one
        that is cut short ends them. False: read it into memory; it may then be changed or removed.
    params_offset, params_size : int, optional
        Where in the file of a descriptor the params are; a size of 0 means up to its end.
    arena : buffer, optional
        Memory of the program for what a call computes (a NumPy array, ``mmap.mmap``), which may be written: ``arena_bytes`` or more,
        beginning at a multiple of 64 bytes. It is kept alive; between calls the program may use it for anything.
        Modules whose arenas overlap take turns. Left out: the module takes memory for itself.
    largest_sizes : mapping, optional
        ``{"T": 64}``: no call of this module has a larger ``T``, and one that has is an InputError. Where the library has a path for such
        sizes (``build(..., specialize=["T<=64"])``) the module takes no more memory than that needs.

    Returns
    -------
    Module
        Call it like the model.

    Raises
    ------
    ArtifactError
        If a file is damaged, of another version, for another machine, or if the two do not belong together. No code of the
        library has run by then.
    UsageError
        If ``DYCL_CPU`` is set, the library has code for several CPUs, and that one is none of them or does not run here.
    """
    known = Classes(classes)
    path, data = _named(library)
    metadata = trailer_of(read_library(path) if data is None else data, path)
    check_machine(path, metadata)
    check_asked_cpu(path, metadata)
    check_sanitizer(path, metadata)
    if params is None and metadata["weights"] and not metadata["embedded_params"]:
        raise ArtifactError(f"'{library}' has its weights in a params file; give the path of the file that was saved with it")
    place = ParamsPlace(params, mmap, params_offset, params_size)
    with ExitStack() as stack:
        with none_is_unloaded():
            opened = _open(path, metadata) if data is None else open_bytes(data, path)
            chosen = _chosen(opened, metadata)
            if chosen is None:
                raise ArtifactError(f"'{path}' changed while it was loaded, or its code and its trailer do not belong together")
            stack.enter_context(making(opened))
        model = Model(opened, chosen, place, known, path=path, reopen=_reopened if data is None else None)
        return Module(model, num_threads, arena, largest_sizes)


def _reopened(
    files: tuple[Any, ...],
    fingerprint: str,
    device_branches: bool,
    state: bytes,
    priority: Priority = "normal",
    largest_sizes: Mapping[str, int] | None = None,
) -> Module:
    """Return a module that was pickled."""
    module = partial(load, largest_sizes=largest_sizes)(*files)
    if module.metadata["fingerprint"] != fingerprint:
        raise ArtifactError(f"the module was pickled with another library than the one that is now at '{files[0]}'")
    if priority != "normal":
        module.set_priority(priority)
    module.set_device_branches(device_branches)
    module.set_state(state)
    return module


def _open(path: str, metadata: dict[str, Any]) -> Library:
    """Load the library whose trailer was checked.

    The system's loader knows files by their names: where a library of that name was loaded before, and the file was built
    again since, it hands out the old one. The new one is then loaded from its bytes.
    """
    library = open_library(path)
    return library if _chosen(library, metadata) is not None else open_bytes(read_library(path), path)


def _named(library: Any) -> tuple[str, bytes | None]:
    """Return the path of a library; for one that is elsewhere what errors call it, and its bytes."""
    if isinstance(library, (str, os.PathLike)):
        return os.path.abspath(os.fspath(library)), None
    if isinstance(library, (int, np.integer)) and not isinstance(library, bool):
        name = f"descriptor {library}"
        try:
            if not stat.S_ISREG(os.fstat(int(library)).st_mode):
                raise ArtifactError(f"'{name}' is not a library, but a folder, a pipe or a device")
            # It is the caller's, and keeps its position.
            with open(f"/proc/self/fd/{library}", "rb") as file:
                return name, file.read()
        except OSError as error:
            raise ArtifactError(f"cannot read the library '{name}': {error.strerror}") from None
    try:
        return "the given bytes", np.frombuffer(library, np.uint8).tobytes()
    except (TypeError, ValueError, BufferError) as error:
        raise UsageError(f"a library is a path, a file descriptor or a contiguous buffer of bytes: {error}") from None


def _chosen(library: Library, metadata: dict[str, Any]) -> dict[str, Any] | None:
    """Return the metadata of the code that a library has chosen for this CPU; None if it is not the library of that trailer."""
    told = library.dycl_metadata().decode()
    levels = levels_of(metadata)
    return next((level for level in levels if json.dumps(level, sort_keys=True, separators=(",", ":")) == told), None)
