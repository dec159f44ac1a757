# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lets these tests use their own helpers, those of the compiler tests and the emulated boards."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
sys.path.insert(0, str(Path(__file__).parents[1] / "compile"))
sys.path.insert(0, str(Path(__file__).parent))
