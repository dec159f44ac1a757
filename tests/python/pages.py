# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The programs that the pages of docs/ show, so that tests run what is written there."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def programs(page: str, heading: str, language: str) -> list[str]:
    """Return the blocks of a language under a heading such as ``## Sizes``, without those under a heading of its level or above."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, found, section = f"\n{text}".partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    blocks: list[str] = []
    inside: str | None = None  # the language of the block that a line is in
    level = len(heading) - len(heading.lstrip("#"))
    for line in section.splitlines():
        if inside is not None and line != "```":
            if inside == language:
                blocks[-1] += f"{line}\n"
        elif line.startswith("```"):
            inside = line[3:] if inside is None else None
            if inside == language:
                blocks.append("")
        elif re.match(f"#{{1,{level}}} ", line):
            break
    return blocks
