# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The models of these tests lie beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
