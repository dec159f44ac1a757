# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The program that most tests of this folder run: one of those written by hand for the tests of ``codegen``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "codegen"))

import handmade  # noqa: E402


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The library and the params of ``handmade.zoo_program()``, those of each file of tests its own."""
    return handmade.build(handmade.zoo_program(), tmp_path_factory.mktemp("zoo"))
