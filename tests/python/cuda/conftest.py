# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The emulated driver, once for each test process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from emulation import Driver, build_driver  # noqa: E402


@pytest.fixture(scope="session")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpu(_driver: Driver) -> Iterator[Driver]:
    """An emulated GPU: sm_72 with a driver of CUDA 11.4."""
    _driver.configure()
    yield _driver
    _driver.configure()
