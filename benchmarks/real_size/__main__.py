# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Milliseconds of a call and memory of networks of real size, in 32, 16 and 8 bits, next to PyTorch, ONNX Runtime and OpenVINO.

Each contender is a process; they take turns, so that what else the machine does meets all of them. A cell has the median of the rounds'
medians, of CPU time for one thread, and the process's peak memory while it ran. The last column is the fastest peer of the same
precision over ours.

    PYTHONPATH=benchmarks python -m real_size [--networks NAME ...] [--precisions P ...] [--batches N ...] [--threads N ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence

from real_size.contenders import PRECISIONS, Row, measure
from real_size.networks import NETWORKS


def _print(name: str, precision: str, row: Row) -> float | None:
    """Print a row; return how many times the fastest peer takes as long as ours."""
    cells = [f"{who} {row.milliseconds[who]:.2f} ms, {row.megabytes[who]:.0f} MB" for who in row.milliseconds]
    cells += [f"{who}: {why}" for who, why in row.missing.items()]
    peers = [t for who, t in row.milliseconds.items() if who != "ours"]
    ratio = min(peers) / row.milliseconds["ours"] if peers and "ours" in row.milliseconds else None
    print(f"| {name} | {precision} | " + " | ".join(cells) + f" | {'' if ratio is None else f'{ratio:.2f}'} |", flush=True)
    return ratio


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network, precision, batch and number of threads, and the geometric means."""
    parser = argparse.ArgumentParser(prog="real_size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=list(PRECISIONS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1])
    parser.add_argument("--threads", nargs="*", type=int, default=[2])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(arguments)
    for threads in args.threads:
        for batch in args.batches:
            print(f"\nbatch {batch}, {threads} thread{'s' * (threads > 1)}", flush=True)
            for precision in args.precisions:
                ratios = [_print(n, precision, measure(n, precision, batch, threads, args.rounds)) for n in args.networks]
                known = [math.log(r) for r in ratios if r is not None]
                if known:
                    print(f"{precision}: the fastest peer over ours, geometric mean {math.exp(statistics.mean(known)):.2f}", flush=True)


if __name__ == "__main__":
    main()
