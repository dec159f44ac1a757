# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the checks of a build may take together.

Seconds are estimated from operations and not measured: two builds of a model make the same checks, and have the same bytes.
"""

from __future__ import annotations

from dycl_tvm.verify.certificate import Level

#: Seconds for all checks of a build, and what part of them control and passes may use; what is left is for the kernels.
_TOTAL = {"default": 1.1, "full": 180.0, "off": 0.0}
_CONTROL, _PASSES = 0.35, 0.25
#: Checks of what was compiled may take this for each kernel, where it is more: a build takes about a tenth of a second for it.
_KERNEL = 0.008


class Budget:
    """Seconds for some work. What a part of it spends is spent of the whole.

    Parameters
    ----------
    seconds : float
    whole : Budget, optional
        Of which this is a part.
    """

    def __init__(self, seconds: float, whole: Budget | None = None) -> None:
        self.seconds, self._whole = seconds, whole
        self.spent = 0.0

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - self.spent

    def allows(self, seconds: float) -> bool:
        """Whether there is enough left for a piece of work."""
        return seconds <= self.left

    def spend(self, seconds: float) -> None:
        """Count a piece of work that was done."""
        self.spent += seconds
        if self._whole is not None:
            self._whole.spend(seconds)

    def part(self, seconds: float) -> Budget:
        """Return a part: so many seconds, if they are left."""
        return Budget(min(seconds, self.left), self)


class BuildBudget(Budget):
    """Seconds for all checks of one build."""

    def __init__(self, level: Level) -> None:
        super().__init__(_TOTAL[level])

    def for_control(self) -> Budget:
        """Return the part for the program against its graph."""
        return self.part(_CONTROL * self.seconds)

    def for_passes(self) -> Budget:
        """Return the part for the graph before and after the passes."""
        return self.part(_PASSES * self.seconds)

    def for_kernels(self, kernels: int) -> Budget:
        """Return the part for what was compiled: all that is left, and more for large builds; never less than its own share."""
        share = self.seconds * (1 - _CONTROL - _PASSES)
        self.seconds = max(self.seconds, _KERNEL * kernels)
        return Budget(max(share, self.left), self)
