# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The version, in a file of its own so that packaging can read it without importing anything."""

__version__ = "0.2.0"
