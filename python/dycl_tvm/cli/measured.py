# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The figures of a profile for the picture of the network's control flow."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dycl_tvm.hcfg.measured import Measured

if TYPE_CHECKING:
    from dycl_tvm.runtime.profile import Profile


def measured_of(profile: Profile) -> Measured:
    """Return what stands beside the blocks and edges that a profile saw."""
    total, lines, shares = max(profile.total, 1), {}, {}
    kernels = Counter(call["block"] for call in profile.metadata["calls"])
    for block, (times, took) in profile.block_runs().items():
        shares[block] = took / total
        lines[block] = [f"{took / total:.1%} of the time, {times:,} times {took / times / 1e3:,.1f} µs", f"{kernels[block]} kernels"]
    return Measured(lines, shares, profile.edges)
