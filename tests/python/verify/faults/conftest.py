# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Puts the helpers of this folder on the import path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
