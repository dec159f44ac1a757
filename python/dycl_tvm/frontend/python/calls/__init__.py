# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which code runs rewritten, natively, or replaced."""
