# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Lets the tests of this folder share their helpers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
