# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Files that are written as a whole or not at all, and errors of the system that say of which file they are."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give errors of the system that name no file, such as a full disk, this one's name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[IO[bytes]]:
    """Write a file that takes the place of another in one step, once the body has ended well: who has the old one open keeps it.

    Parameters
    ----------
    path : path-like
    mode : int, optional
        Its permissions; by default those of a new file.
    """
    out = Path(path)
    with naming(out):
        handle, scratch = tempfile.mkstemp(prefix=out.name + ".", dir=out.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(scratch, 0o666 & ~_umask() if mode is None else mode)
            os.replace(scratch, out)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            raise


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
