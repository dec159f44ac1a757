# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How fast compiled networks are, next to other ways to run them; `python -m speed` writes docs/performance.md."""
