# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Dynamic networks of today: transformers, mixtures of experts, adaptive computation."""

from __future__ import annotations
