# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Writes a control flow graph in the format that the file name or the user asks for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime.writing import replacing

if TYPE_CHECKING:
    from dycl_tvm.hcfg.nodes import HCFG

FORMATS = ("text", "dot", "svg", "html")
_BY_SUFFIX = {".txt": "text", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".html": "html", ".htm": "html"}


def format_of(path: str) -> str:
    """Return the format that a file name's ending means.

    Raises
    ------
    UsageError
        If it means none.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise UsageError(f"{path!r}: the ending says no format; use {', '.join(sorted(_BY_SUFFIX))}, or say --format")
    return _BY_SUFFIX[suffix]


def render(graph: HCFG, fmt: str) -> str:
    """Return the graph in one of :data:`FORMATS`."""
    if fmt == "text":
        return str(graph)
    return {"dot": graph.to_dot, "svg": graph.to_svg, "html": graph.to_html}[fmt]()


def write_graph(graph: HCFG, path: str, fmt: str | None = None) -> None:
    """Write the graph to a file."""
    text = render(graph, fmt or format_of(path))
    write_text(path, text if text.endswith("\n") else text + "\n")


def write_text(path: str, text: str) -> None:
    """Write a text file."""
    with replacing(path) as file:
        file.write(text.encode())


def check_output(path: str | None, is_picture: bool = False) -> None:
    """Check before the work begins that a file can be written there.

    Raises
    ------
    UsageError
        If there is no such folder, or if the ending is that of no picture.
    """
    if path is None:
        return
    if is_picture:
        format_of(path)
    out = Path(path)
    if out.is_dir():
        raise UsageError(f"{path!r} is a folder; give the name of a file")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {str(out.parent)!r} to write {out.name} to")
    if not os.access(out.parent, os.W_OK):
        raise UsageError(f"the folder {str(out.parent)!r} cannot be written to")
