# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One way to compute a workload, as a family of kernels chose it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Plan:
    """Tile sizes, and the cost model's estimate.

    Each family has a class of its own, whose further fields are its tile sizes: numbers that tuning searches and its database keeps. A
    family makes the kernel from the workload and the plan alone.

    Attributes
    ----------
    seconds : float
        The estimate with all of the machine's cores.
    """

    seconds: float

    @property
    def params(self) -> tuple[tuple[str, int], ...]:
        """The tile sizes by name."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "seconds")

    @property
    def strict(self) -> bool:
        """Whether the rounding errors are no larger than those of direct sums."""
        return True
