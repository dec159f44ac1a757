# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where in the program a number is asked for: lines, instruction, column."""

from __future__ import annotations

import ast
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


@functools.lru_cache(maxsize=65536)
def last_operand(file: str, line: int, column: int) -> int:
    """Return the column of the last operand of the ``and``, ``or`` or chain of comparisons that begins at a place; else its own column.

    A graph asks for all operands where the whole expression begins.
    """
    return _last_operands("".join(linecache.getlines(file))).get((line, column), column)


@functools.lru_cache(maxsize=64)
def _last_operands(text: str) -> dict[tuple[int, int], int]:
    lines, found = text.splitlines(), dict[tuple[int, int], int]()
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return found
    for node in nodes:
        operands = node.values if isinstance(node, ast.BoolOp) else node.comparators if isinstance(node, ast.Compare) else []
        if isinstance(node, (ast.BoolOp, ast.Compare)) and operands[-1].lineno == node.lineno:
            place = (node.lineno, _characters(lines[node.lineno - 1], node.col_offset))
            found[place] = max(found.get(place, 0), _characters(lines[node.lineno - 1], operands[-1].col_offset))
    return found


def _characters(text: str, column: int) -> int:
    """Return how many characters of a line, without its indentation, are before a column in bytes."""
    return max(0, len(text.encode()[:column].decode(errors="ignore")) - (len(text) - len(text.lstrip())))


@functools.lru_cache(maxsize=4096)
def _column(code: types.CodeType, instruction: int, line: int) -> int:
    if not hasattr(code, "co_positions"):  # Python 3.10
        return 0
    begins = list(code.co_positions())[instruction // 2][2]
    text = linecache.getline(code.co_filename, line)
    return _characters(text, begins) if begins is not None else 0
