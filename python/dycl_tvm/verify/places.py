# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where in the program a number is asked for: lines, instruction, column."""

from __future__ import annotations

import functools
import linecache
import sys
import types
from typing import Any, NamedTuple

import torch

_OWN = __file__.rsplit("verify", 1)[0] + "verify"
_TORCH = torch.__file__.rsplit("__init__", 1)[0]


class Place(NamedTuple):
    """The lines that are being run, the innermost first; the instruction there, and the column at which its expression begins.

    Columns count characters of the line without its indentation, as those of :class:`dycl_tvm.hcfg.nodes.Origin`; 0 if it is not known.
    """

    lines: list[tuple[str, int]]
    instruction: int = -1
    column: int = 0


def user_place() -> Place:
    """Return the place in the program that is being run now."""
    found: list[tuple[str, int]] = []
    instruction, column = -1, 0
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            if found:
                break
        elif not file.startswith(_TORCH):
            if not found:
                instruction = frame.f_lasti
                column = _column(frame.f_code, instruction, frame.f_lineno)
            found.append((file, frame.f_lineno))
        frame = frame.f_back
    return Place(found, instruction, column)


@functools.lru_cache(maxsize=4096)
def _column(code: types.CodeType, instruction: int, line: int) -> int:
    if not hasattr(code, "co_positions"):  # Python 3.10
        return 0
    begins = list(code.co_positions())[instruction // 2][2]
    text = linecache.getline(code.co_filename, line)
    return max(0, len(text.encode()[:begins].decode(errors="ignore")) - (len(text) - len(text.lstrip()))) if begins is not None else 0
