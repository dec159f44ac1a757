# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What going on takes at the decisions at which a run may leave early, as a profile tells: by this a run keeps to a budget."""

from __future__ import annotations

import ctypes
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.profile.profile import Profile
from dycl_tvm.runtime.profile.quantiles import quantile

#: Of a decision that was not forced.
_NOT_CUT = 2**64 - 1
#: Going on is to end in time in so many of all runs.
QUANTILE = 0.99


class Budget:
    """The budget of one run: milliseconds (0: none), and what going on takes at each decision."""

    def __init__(self, milliseconds: float = 0.0, needed: ctypes.Array[ctypes.c_uint64] | None = None) -> None:
        self._milliseconds, self._needed = milliseconds, needed

    def fill(self, options: capi.RunOptions) -> None:
        """Write the budget into the options of a run, during which this object must live."""
        options.budget_ms = self._milliseconds
        if self._needed is not None:
            options.needed_ns, options.num_needed = ctypes.addressof(self._needed), len(self._needed)


NO_BUDGET = Budget()


class Budgets:
    """Makes the budgets of a module's runs; what a profile says is worked out once.

    Parameters
    ----------
    library : ctypes.CDLL
    metadata : dict
        Of the library.
    """

    def __init__(self, library: ctypes.CDLL, metadata: dict[str, Any]) -> None:
        self._library, self._metadata = library, metadata
        self._known: tuple[Profile, int, ctypes.Array[ctypes.c_uint64]] | None = None

    def of(self, milliseconds: float, profile: Profile | None) -> Budget:
        """Return a budget; if it is 0 or less the run leaves where it first may.

        Raises
        ------
        UsageError
            If there is no profile, or one that does not say what is needed.
        """
        if milliseconds != milliseconds:
            raise UsageError("'budget_ms' is not a number")
        if profile is None:
            raise UsageError("a budget needs a profile, which says what going on takes: module.profile()")
        capi.demand(self._library, "dycl_path_cut")
        if self._known is None or self._known[0] is not profile or self._known[1] != profile.runs:
            self._known = profile, profile.runs, needed_times(profile, self._metadata)
        return Budget(-1.0 if milliseconds <= 0 else milliseconds, self._known[2])

    def cut(self, session: ctypes.c_void_p) -> int | None:
        """Return which decision of the last run's path was forced by its budget; None for none."""
        if not capi.has(self._library, "dycl_path_cut"):
            return None
        at = ctypes.c_uint64()
        capi.check(self._library, self._library.dycl_path_cut(session, ctypes.byref(at)))
        return None if at.value == _NOT_CUT else at.value


def needed_times(profile: Profile, metadata: dict[str, Any], p: float = QUANTILE) -> ctypes.Array[ctypes.c_uint64]:
    """Return, for each decision, the nanoseconds that a run needs to go on there and to leave at the next one where it may.

    Parameters
    ----------
    profile : Profile
        Of the same build of the network.
    metadata : dict
        Of the artefact.
    p : float
        The quantile of measured times that is taken.

    Raises
    ------
    UsageError
        If the profile is of another network, or if it does not know a time that is needed.
    """
    if not profile.is_of(metadata):
        raise UsageError("the profile is of another build of the network; make one of this")
    leaving = profile.leaving()
    if not leaving:
        raise UsageError(
            f"'{metadata['name']}' has no decision at which a run may leave early: a branch on an item of a tensor of floats or truths, "
            "of which one side returns and the other goes on to further decisions"
        )
    sides = {s.decision: s for s in profile.stretches.values() if s.decision in leaving}
    leave = max(_leaving_time(profile, sides[decision].targets[side], p) for decision, side in leaving.items())
    needed = (ctypes.c_uint64 * len(metadata["decisions"]))()
    for decision in leaving:
        times = profile.going_on_times(decision)
        if not times:
            (where,) = profile.describe(((decision, 1 - leaving[decision]),))
            inside = "" if profile.timed == profile.runs else " and was timed inside (every=1 times all)"
            raise UsageError(f"no run of the profile went on at a decision{inside}, so that it does not know what that takes: {where}")
        needed[decision] = quantile(times, p) + leave
    return needed


def _leaving_time(profile: Profile, head: int, p: float) -> int:
    """Return what a side that leaves takes; where it never ran, the sum of its kernels' times."""
    measured = profile.stretch_times(head)
    if measured:
        return quantile(measured, p)
    times = [profile.call_times(number) for number in profile.calls_of(head)]
    if not all(times):
        raise UsageError(f"no run of the profile left the network at block {profile.block_name(head)}, and it does not know its kernels")
    return sum(quantile(one, p) for one in times)
