# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What falls short of the aim, with its reason: kernels against the measured peaks of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from speed.contenders import CONTENDERS
from speed.results import aim_of, fastest_peer, times
from speed.text import microseconds, table

#: Rows of a table of kernels; kernels that a reason names; and the least share of a network's time of one that is named.
_ROWS, _NAMED, _SHARE = 12, 4, 0.04
#: The share of a peak from which on it is what bounds a kernel.
_BOUND = 0.6

Peaks = Sequence[float]


def shortfall(networks: dict[str, Any], rooflines: dict[str, Any], peaks: Peaks | None) -> str:
    """Return the section on the networks that are below the aim; empty if there is none.

    Parameters
    ----------
    networks, rooflines : dict
        Records by the network's name.
    peaks : (float, float) or None
        GFLOP/s and GB/s of the machine.
    """
    rows = []
    for name, network in networks.items():
        fastest = fastest_peer(network)
        if fastest is not None and fastest[1] < aim_of(name):
            peer, ratio = fastest
            reason = reason_of(network, rooflines.get(name), peaks)
            rows.append([f"`{name}`", f"{ratio:.2f} of {aim_of(name):.1f}", CONTENDERS[peer][1], reason])
    if not rows:
        return ""
    text = "## What falls short, and why\n\nTimes are of the first path; kernels were timed alone and warm, so that what the call takes "
    text += "beyond their sum is spent between them or on data that is not in a cache any more.\n\n"
    return text + table(["network", "ratio and aim", "fastest peer", "where the time goes"], rows)


def reason_of(network: dict[str, Any], record: dict[str, Any] | None, peaks: Peaks | None) -> str:
    """Return where the time of a network goes, its slowest kernels against the peaks."""
    if record is None or "error" in record or peaks is None:
        return "kernels were not timed" if record is None or peaks is None else f"kernels were not timed: {record['error']}"
    kernels = [k for k in record["kernels"] if k["runs"]]
    total = sum(k["runs"] * k["ns"] for k in kernels)
    time = times(network["contenders"]["ours"], network["weights"], [0])
    calls = sum(k["runs"] for k in kernels)
    parts = []
    if time is not None:
        parts.append(f"{microseconds(time.median)} µs, of them {microseconds(total)} in {calls} kernel calls")
    flops = sum(k["runs"] * (k["flops"] or 0) for k in kernels)
    weights = sum(k["runs"] * k["weight_bytes"] for k in kernels)
    parts.append(f"arithmetic at the FMA peak: {microseconds(flops / peaks[0])} µs")
    parts.append(f"{weights / 2**20:.1f} MiB of weights at the memory bandwidth: {microseconds(weights / peaks[1])} µs")
    named = [k for k in kernels if k["runs"] * k["ns"] > _SHARE * total][:_NAMED]
    parts += [f"{k['runs'] * k['ns'] / total:.0%} in `{k['symbol']}` ({_rates(k, peaks)})" for k in named]
    return "; ".join(parts)


def _rates(kernel: dict[str, Any], peaks: Peaks) -> str:
    memory = kernel["bytes"] / kernel["ns"] / peaks[1]
    compute = (kernel["flops"] or 0) / kernel["ns"] / peaks[0]
    bound = "arithmetic" if compute >= _BOUND else "bandwidth" if memory >= _BOUND else "neither bounds it"
    parts = [] if kernel["flops"] is None else [f"{compute:.0%} of the FMA peak"]
    return ", ".join([*parts, f"{memory:.0%} of the memory bandwidth", bound])


def roofline(rooflines: dict[str, Any], peaks: Peaks | None) -> str:
    """Return the section with the kernels of some networks."""
    parts = []
    for name, record in rooflines.items():
        parts.append(f"### `{name}`\n")
        parts += (
            [record.get("error", "no peaks were measured") + "\n"]
            if "error" in record or peaks is None
            else [_kernels(record, peaks), _sub_dnns(record, peaks)]
        )
    if not parts:
        return ""
    text = "## Kernels against the roofline\n\nEach kernel alone, warm, in the artefact's runtime, those first that take most of the first "
    text += (
        "path; bytes are those of all its arguments. Arithmetic is that of the operations as they are defined, whatever the algorithm does "
    )
    text += "(Winograd does less of it); a kernel of several operations has it in the table of sub-DNNs.\n\n"
    return text + "\n".join(parts)


def _kernels(record: dict[str, Any], peaks: Peaks) -> str:
    total = sum(k["runs"] * k["ns"] for k in record["kernels"]) or 1.0
    rows = []
    for k in record["kernels"][:_ROWS]:
        took = k["runs"] * k["ns"]
        rate = k["bytes"] / k["ns"]
        arithmetic = ["", ""] if k["flops"] is None else [f"{k['flops'] / k['ns']:.1f}", f"{k['flops'] / k['ns'] / peaks[0]:.0%}"]
        rows.append(
            [
                f"`{k['symbol']}`", str(k["runs"]), f"{k['ns'] / 1000:.2f}", f"{took / total:.0%}", *arithmetic,
                f"{k['bytes'] / 1024:.0f}", f"{rate:.1f}", f"{rate / peaks[1]:.0%}",
            ]
        )  # fmt: skip
    head = ["kernel", "runs", "µs", "share", "GFLOP/s", "of the FMA peak", "KiB", "GB/s", "of the memory bandwidth"]
    return table(head, rows)


def _sub_dnns(record: dict[str, Any], peaks: Peaks) -> str:
    rows = []
    for s in record["sub_dnns"][:_ROWS]:
        rate = s["flops"] / s["ns"]
        rows.append(
            [
                f"`{s['name']}`",
                s["operators"][:60],
                f"{s['flops'] / 1e6:.2f}",
                f"{s['ns'] / 1000:.2f}",
                f"{rate:.1f}",
                f"{rate / peaks[0]:.0%}",
            ]
        )
    return table(["sub-DNN", "operators", "MFLOP", "µs", "GFLOP/s", "of the FMA peak"], rows)
