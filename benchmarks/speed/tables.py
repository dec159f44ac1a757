# Licensed under the Apache License, Version 2.0; see LICENSE.
"""docs/performance.md from the results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from speed.contenders import CONTENDERS
from speed.results import MEAN_AIM, RESNET_AIM, RESNET_LIKE, aim_of, fastest_peer, geometric_mean, speedup, times
from speed.shortfall import roofline, shortfall
from speed.text import microseconds, table

_INTRODUCTION = """\
# Performance

Written by `make bench`; do not edit. Time of one call in microseconds, batch 1, float32: the mean over the paths, weighted by how many
of the inputs drawn took each; median over rounds (quartiles in brackets). In a round each contender, in a process of its own,
runs each input for a short while; rounds take turns. Results were compared with eager before they were timed.

ONNX Runtime, OpenVINO and AOTInductor *on the static path* are oracles: they run the straight network of the path that the
input takes, loops unrolled, batch norms folded, and are told the path for free; what only a decision needed (such as the
classifier of an exit that is not taken) is not even computed. **(loss)** marks a contender that is faster than dycl-tvm.
What PyTorch compiles takes minutes a network, so it runs the most frequent paths only; two contenders are compared on the paths
that both ran.
dycl-tvm is timed as one ctypes call of `dycl_run` on ready arguments, ONNX Runtime by bound inputs and outputs, OpenVINO by
`start_async` and `wait` on shared tensors.
"""


def document(data: dict[str, Any], order: Sequence[str]) -> str:
    """Return the page.

    Parameters
    ----------
    data : dict
        Of the results file.
    order : sequence of str
        The networks in the order of the table.
    """
    networks = {n: data["networks"][n] for n in order if n in data.get("networks", {})}
    parts = [_INTRODUCTION, *_machine(data.get("machine", {}))]
    if networks:
        rooflines = {n: data["roofline"][n] for n in networks if n in data.get("roofline", {})}
        peaks = data.get("machine", {}).get("peaks")
        parts += [_summary(networks), shortfall(networks, rooflines, peaks), _speed(networks), _failures(networks), _compile(networks)]
        parts += [_ablation({n: r for n, r in data.get("ablation", {}).items() if r["contenders"]})]
    parts += [_small(data.get("dispatch_bound", {}).get("mlp", {}))]
    if networks:
        parts += [roofline(rooflines, peaks), _states(networks)]
    return "\n".join(p for p in parts if p)


def _machine(machine: dict[str, Any]) -> list[str]:
    if not machine:
        return []
    lines = [f"- {key}: {value}" for key, value in machine.items() if key != "peaks"]
    return ["## Machine\n", "\n".join(lines) + "\n"]


def _names(networks: dict[str, Any]) -> list[str]:
    seen = {name for network in networks.values() for name in network["contenders"]}
    return [name for name in CONTENDERS if name in seen]


def _speed(networks: dict[str, Any]) -> str:
    names = _names(networks)
    rows = []
    for key, network in networks.items():
        weights = network["weights"]
        row = [f"`{key}`", f"{len(weights)} paths, {sum(weights)} of {network['drawn']} inputs"]
        row += [_cell(network, name) for name in names]
        rows.append(row)
    head = ["network", "measured", *(CONTENDERS[n][1] for n in names)]
    return "## Time of a call, in µs\n\n" + table(head, rows)


def _cell(network: dict[str, Any], name: str) -> str:
    record = network["contenders"].get(name)
    if record is None:
        return "not asked for"
    time = times(record, network["weights"])
    if time is None:
        return "failed, see below"
    text = f"{microseconds(time.median)} [{microseconds(time.low)}, {microseconds(time.high)}]"
    ran, paths = len([v for v in record["ns"].values() if v]), len(network["weights"])
    if ran < paths:
        text += f" on {ran} of {paths} paths"
    if name != "ours":
        ratio = speedup(network, "ours", name)
        if ratio is not None:
            text += f", {ratio:.2f}x" + (" **(loss)**" if ratio < 1 else "")
    return text


def _summary(networks: dict[str, Any]) -> str:
    rows, ratios = [], {}
    for key, network in networks.items():
        fastest = fastest_peer(network)
        if fastest is None:
            rows.append([f"`{key}`", "", "", "", "no comparison"])
            continue
        ratios[key] = fastest[1]
        rows.append([f"`{key}`", CONTENDERS[fastest[0]][1], f"{fastest[1]:.2f}", f"{aim_of(key):.1f}", _verdict(fastest[1], aim_of(key))])
    if ratios:
        losses = sum(r < 1 for r in ratios.values())
        mean = geometric_mean(list(ratios.values()))
        lost = f"{losses} of {len(ratios)} lost"
        rows.append(["geometric mean", "", f"{mean:.2f}", f"{MEAN_AIM:.1f}", ", ".join(filter(None, (_verdict(mean, MEAN_AIM), lost)))])
        if like := [r for n, r in ratios.items() if n in RESNET_LIKE]:
            mean = geometric_mean(like)
            head = f"geometric mean of the {len(like)} like ResNet"
            rows.append([head, "", f"{mean:.2f}", f"{RESNET_AIM:.1f}", _verdict(mean, RESNET_AIM)])
    peers = []
    for name in _names(networks):
        found = [r for network in networks.values() if name != "ours" and (r := speedup(network, "ours", name)) is not None]
        if found:
            lost = str(sum(r < 1 for r in found))
            mean = f"{geometric_mean(found):.2f}"
            peers.append([CONTENDERS[name][1], str(len(found)), mean, f"{min(found):.2f}", f"{max(found):.2f}", lost])
    text = "## Summary\n\nHow many times as fast as the fastest peer of each network (on the paths that both ran):\n\n"
    text += table(["network", "fastest peer", "dycl-tvm is faster by", "aim", ""], rows)
    head = ["peer", "networks", "geometric mean", "least", "greatest", "losses"]
    return text + "\nand as each peer:\n\n" + table(head, peers)


def _verdict(ratio: float, aim: float) -> str:
    return "**loss**" if ratio < 1 else "below the aim" if ratio < aim else ""


def _reason(text: str) -> str:
    """Return an error without the folders of this machine, as a cell of a table."""
    return re.sub(r"(?:/[\w.+-]+){2,}/", ".../", text).replace("|", "\\|")


def _failures(networks: dict[str, Any]) -> str:
    rows = []
    for key, network in networks.items():
        for name, record in network["contenders"].items():
            if record["error"] is not None:
                rows.append([f"`{key}`", CONTENDERS[name][1], "all", _reason(record["error"])])
            for reason in dict.fromkeys(record["refused"].values()):
                which = ", ".join(k for k, v in record["refused"].items() if v == reason)
                rows.append([f"`{key}`", CONTENDERS[name][1], which, _reason(reason)])
    return "" if not rows else "## Not timed, and why\n\n" + table(["network", "contender", "paths", "reason"], rows)


def _compile(networks: dict[str, Any]) -> str:
    rows = []
    for key, network in networks.items():
        record = network.get("compile")
        if record is None:
            continue
        if record["error"] is not None:
            rows.append([f"`{key}`", _reason(record["error"]), *[""] * 8])
            continue
        phases = record["phases"]
        share = (phases.get("stage", 0) + phases.get("passes", 0) + record["dispatcher_seconds"]) / record["seconds"]
        rows.append(
            [
                f"`{key}`", f"{record['seconds']:.1f}", *(f"{phases.get(p, 0.0):.1f}" for p in ("stage", "passes", "compile", "link")),
                f"{100 * share:.0f} %", f"{record['peak_mb']:.0f} ({record['before_mb']:.0f})", str(record["kernels"]),
                f"{record['arena_bytes'] / 1024:.0f} ({record['arena_lower_bound'] / 1024:.0f})",
            ]
        )  # fmt: skip
    if not rows:
        return ""
    head = ["network", "seconds", "stage", "passes", "compile", "link", "analysis and dispatcher", "peak RSS in MiB (before)", "kernels",
            "arena in KiB (lower bound)"]  # fmt: skip
    text = "## Compiling\n\nEach network in a fresh process, untuned; analysis and dispatcher are staging, passes and printing of C++.\n\n"
    return text + table(head, rows)


def _ablation(ablation: dict[str, Any]) -> str:
    if not ablation:
        return ""
    variants = list(dict.fromkeys(v for network in ablation.values() for v in network["contenders"]))
    rows = []
    for key, network in ablation.items():
        row = [f"`{key}`"]
        for variant in variants:
            record = network["contenders"].get(variant)
            time = None if record is None else times(record, network["weights"])
            if time is None:
                row.append("" if record is None else str(record["error"] or next(iter(record["refused"].values()), "failed")))
                continue
            ratio = speedup(network, "ours", variant)
            row.append(microseconds(time.median) + (f" ({ratio:.2f}x)" if variant != "ours" and ratio is not None else ""))
        rows.append(row)
    heads = [v.removeprefix("ours:") if v != "ours" else "all on" for v in variants]
    text = "## Ablation\n\nMicroseconds; in brackets, times the full compiler's.\n\n"
    text += table(["network", *heads], rows)
    sizes = [[f"`{key}`", *(_size(network["compile"].get(v)) for v in variants)] for key, network in ablation.items()]
    return text + "\nKernels, and KiB of the library:\n\n" + table(["network", *heads], sizes)


def _size(record: dict[str, Any] | None) -> str:
    return "" if record is None or record["error"] is not None else f"{record['kernels']}, {record['library_bytes'] / 1024:,.0f}"


def _small(small: dict[str, Any]) -> str:
    if not small:
        return ""
    if "error" in small:
        return f"## Dispatch-bound: early-exit MLP\n\nNot measured: {_reason(small['error'])}\n"
    rows = [[name, *(c if isinstance(c, str) else f"{c / 1000:.2f}" for c in cells)] for name, cells in small["rows"].items()]
    return "## Dispatch-bound: early-exit MLP, 6 stages, 128 wide, in µs\n\n" + small["how"] + "\n\n" + table(["", *small["columns"]], rows)


def _states(networks: dict[str, Any]) -> str:
    """Say so if not all networks were measured with the same sources."""
    groups: dict[str, list[str]] = {}
    for name, network in networks.items():
        groups.setdefault(network.get("key", ""), []).append(f"`{name}`")
    if len(groups) < 2:
        return ""
    lines = [f"- {', '.join(names)}" for names in groups.values()]
    return "## States of the sources\n\nNetworks that were measured with the same sources of the compiler:\n\n" + "\n".join(lines) + "\n"
