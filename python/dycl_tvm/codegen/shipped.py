# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a library tells of the user's source: lines and code, but nothing of where on the machine of the build it lay."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path, PurePath

from dycl_tvm.hcfg.nodes import Origin

_AT_THE_END = re.compile(r"(?<= at )(/[^:]*)(:\d+)$")


def shipped_path(file: str) -> str:
    """Return the name of a source file for a library: as Python imports it, else from the current folder, else the bare name.

    Two builds of one model in different folders then give the same library.
    """
    path = PurePath(file)
    if not path.is_absolute():
        return file
    roots = [PurePath(entry) for entry in sys.path if entry and path.is_relative_to(entry)]
    if roots:
        return str(path.relative_to(max(roots, key=lambda root: len(root.parts))))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def shipped_origin(origin: Origin, strip_source: bool) -> Origin:
    """Return an origin as a library tells it; ``strip_source`` leaves out the code and keeps the line."""
    return replace(origin, file=shipped_path(origin.file), code="" if strip_source else origin.code)


def shipped_note(text: str) -> str:
    """Return a note of a build that may end in a place of the source."""
    return _AT_THE_END.sub(lambda match: shipped_path(match[1]) + match[2], text)
