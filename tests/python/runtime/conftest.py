# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lets the tests of this folder use the programs written by hand for the tests of ``codegen``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "codegen"))
