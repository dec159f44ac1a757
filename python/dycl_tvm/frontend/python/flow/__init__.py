# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Branches, loops and choices."""
