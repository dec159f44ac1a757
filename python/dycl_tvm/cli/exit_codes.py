# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exit codes that scripts can rely on."""

from __future__ import annotations

OK = 0
FAILURE = 1
USAGE = 2
UNSUPPORTED = 3
INTERRUPTED = 130
