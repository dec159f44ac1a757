# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sessions whose calls have no larger sizes than some: how one is made, and what it says of its inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.turns import Arena


def checked(sizes: Any) -> dict[str, int]:
    """Return sizes by their names, as :func:`dycl_tvm.load` takes them; None stands for none.

    Raises
    ------
    UsageError
        If they are anything else. Which there are, and between which bounds, is for the library to say.
    """
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping) or not all(
        isinstance(name, str) and "\0" not in name and type(n) is int and -(1 << 63) <= n < 1 << 63 for name, n in sizes.items()
    ):
        raise UsageError(f"largest_sizes is {sizes!r}; write the largest value of each size by its name, as {{'T': 64}}")
    return dict(sizes)


def session_options(library: ctypes.CDLL, arena: Arena | None, sizes: Mapping[str, int]) -> capi.SessionOptions | None:
    """Return how to make a session, None for the usual one.

    Raises
    ------
    ArtifactError
        If the library was built before sessions could be made for smaller sizes.
    """
    if arena is None and not sizes:
        return None
    options = capi.SessionOptions(ctypes.sizeof(capi.SessionOptions))
    if arena is not None:
        options.arena, options.arena_bytes = arena.begin, arena.size
    if sizes:
        capi.demand(library, "dycl_session_needs")
        rows = [capi.LargestSize(name.encode(errors="replace"), n) for name, n in sizes.items()]
        options.largest_sizes = (capi.LargestSize * len(rows))(*rows)
        options.num_largest_sizes = len(sizes)
    return options


def bounded(metadata: dict[str, Any], library: ctypes.CDLL, session: ctypes.c_void_p, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the metadata of a library with the bounds of a session in ``sizes`` and ``inputs``."""
    if not sizes:
        return metadata
    inputs = []
    for k, want in enumerate(metadata["inputs"]):
        if "sized" in want:
            extents = (capi.Extent * len(want["shape"]))()
            capi.check(library, library.dycl_session_input_bounds(session, k, extents, len(extents), None))
            want = {**want, "shape": [extent.most for extent in extents]}
        inputs.append(want)
    return {**metadata, "inputs": inputs, "sizes": [{**size, "max": sizes.get(size["name"], size["max"])} for size in metadata["sizes"]]}
