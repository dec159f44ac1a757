# Licensed under the Apache License, Version 2.0; see LICENSE.
"""SoD2's experiment (ASPLOS 2024): latency and memory where each call has an input of another shape, and of another path.

Each contender is a process with one thread; they take turns, so that what else the machine does meets all of them. All get the same
inputs, of random shapes, one after the other. A time is CPU time, of each input the median of the rounds; memory is the most that the
process takes while it loads the network and runs all inputs, beyond what it took before. Results are compared with eager.

    PYTHONPATH=benchmarks python -m sod2 [--networks NAME ...] [--peers P ...] [--calls N] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared import geometric_mean, in_another_process, take_turns

from sod2.contenders import CONTENDERS, work, write_cases
from sod2.networks import NETWORKS

_PEERS = [c for c in CONTENDERS if c != "ours"]


def row(name: str, peers: Sequence[str], calls: int, rounds: int, seconds: float) -> tuple[str, dict[str, tuple[float, float]]]:
    """Measure a network; return its row in Markdown, and of each peer the time and the memory over ours."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder) / "cases.pickle"
        in_another_process(write_cases, name, calls, cases)
        said, found = take_turns(work, {c: (c, name, cases, seconds) for c in ("ours", *peers)}, rounds)
    times = {c: {k: statistics.median(turn[k] for turn in turns) for k in turns[0]} for c, turns in found.items()}
    cells, over, notes = [f"{name}, {NETWORKS[name].range()}"], {}, []
    ours = times.get("ours", {})
    cells.append(f"{1e3 * statistics.median(ours.values()):.2f} ms, {said['ours'][0]:.0f} MiB" if ours else said["ours"])
    for c in peers:
        if c not in times or not ours:
            cells.append(said[c] if isinstance(said[c], str) else "")
            continue
        ratios = [times[c][k] / ours[k] for k in times[c]]
        over[c] = geometric_mean(ratios), said[c][0] / said["ours"][0]
        cells.append(f"{over[c][0]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}); {said[c][0]:.0f} MiB, {over[c][1]:.2f}")
    for c in times:
        _, made, differ = said[c]
        notes += [f"{c}: {made} of {calls} shapes"] * (made < calls) + [f"{c}: {differ} results differ from eager's"] * (differ > 0)
    return "| " + " | ".join([*cells, "; ".join(notes)]) + " |", over


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table in Markdown, and the geometric means."""
    parser = argparse.ArgumentParser(prog="sod2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--peers", nargs="*", default=_PEERS, choices=_PEERS)
    parser.add_argument("--calls", type=int, default=50, help="inputs of a network (default: 50)")
    parser.add_argument("--rounds", type=int, default=5, help="how often the contenders take turns (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="CPU time after which a contender makes no more calls in a turn (default: 20)"
    )
    args = parser.parse_args(arguments)
    # of every process: PyTorch's threads wait for each other where other work runs on the machine
    os.environ.update(DYCL_NUM_THREADS="1", TVM_NUM_THREADS="1", OMP_NUM_THREADS="1")
    peers = args.peers
    print(f"| network | ours | {' | '.join(f'{c}: time over ours (range); memory, over ours' for c in peers)} | notes |")
    print("| --- " * (len(peers) + 3) + "|", flush=True)
    means: dict[str, list[tuple[float, float]]] = {c: [] for c in peers}
    for name in args.networks:
        text, over = row(name, peers, args.calls, args.rounds, args.seconds)
        print(text, flush=True)
        for c, figures in over.items():
            means[c].append(figures)
    cells = [f"{geometric_mean(t for t, _ in m):.2f}; memory {geometric_mean(n for _, n in m):.2f}" if m else "" for m in means.values()]
    print(f"| geometric mean | | {' | '.join(cells)} | |")


if __name__ == "__main__":
    main()
