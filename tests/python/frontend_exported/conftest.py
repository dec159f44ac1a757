# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The models of these tests lie beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    """Sizes that differ between two exports of one process make PyTorch's scan take them for dynamic, and fail."""
    torch._dynamo.reset()
