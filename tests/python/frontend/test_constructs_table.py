# Licensed under the Apache License, Version 2.0; see LICENSE.
"""docs/python-support.md names a test for every construct, and every test of a construct stands there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
DOCS = Path(__file__).resolve().parents[3] / "docs" / "python-support.md"


def functions(name: str) -> set[str]:
    path = HERE.parent / name if "/" in name else HERE / name
    return {n.name for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)}


def named() -> set[tuple[str, str]]:
    return set(re.findall(r"`((?:\w+/)?test_\w+\.py)::(\w+)`", DOCS.read_text(encoding="utf-8")))


def test_every_row_names_a_test():
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and not line.startswith(("|---", "| Construct"))]
    assert len(rows) > 80
    for row in rows:
        assert row.count("|") == 4, row
        assert re.search(r"`(?:\w+/)?test_\w+\.py::\w+` \|$", row), row


def test_the_tests_that_the_table_names_exist():
    assert {f"{file}::{test}" for file, test in named() if test not in functions(file)} == set()


def test_no_construct_is_left_out():
    files = [p.name for p in HERE.glob("test_constructs_*.py") if p.name != Path(__file__).name]
    missing = {(f, t) for f in files for t in functions(f) if t.startswith("test_")} - named()
    assert missing == set()
