# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Rows of five numbers of which none, one, some and all are positive: as many as masks of them select."""

from __future__ import annotations

ROWS = [
    [1.0, -2.0, 3.0, -4.0, 0.5],
    [1.0, 2.0, 3.0, 4.0, 0.5],
    [-1.0, -2.0, -3.0, -4.0, -0.5],
    [0.5, -1.0, -1.0, -1.0, -1.0],
    [-0.5, -1.0, -1.0, -1.0, 2.0],
]
