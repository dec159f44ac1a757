# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How much of a network a backend took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Offload:
    """How much of the network went to one backend; ``rejected``: regions that matched, but not the cost hook, with their work."""

    nodes: int = 0
    macs: int = 0
    regions: int = 0
    rejected: int = 0
    rejected_nodes: int = 0
    rejected_macs: int = 0
