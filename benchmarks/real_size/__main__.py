# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Milliseconds of a call and memory of networks of real size, in 32, 16 and 8 bits, next to PyTorch, ONNX Runtime and OpenVINO.

Each contender is a process; they take turns, so that what else the machine does meets all of them. A cell has the median of the rounds'
medians, of CPU time for one thread, and the process's peak memory while it ran; then come the time of the fastest peer of the same
precision over ours, the seconds until each could run (a build or an export to ONNX, and loading), and the peak of memory of our build.
Results of float32 were compared with eager before they were timed. ``real_size.dynamic`` has networks with control flow,
``real_size.decoders`` weights of 8 and 4 bits.

    PYTHONPATH=benchmarks python -m real_size [--networks NAME ...] [--precisions P ...] [--batches N ...] [--threads N ...] [--rounds N]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from real_size.contenders import PRECISIONS, measure
from real_size.networks import NETWORKS
from real_size.tables import Table


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
            for precision in args.precisions:
                table = Table(f"{precision}, batch {batch}, {threads} thread{'s' * (threads > 1)}", list(PRECISIONS[precision]))
                for name in args.networks:
                    table.show(name, measure(name, precision, batch, threads, args.rounds))
                table.end()


if __name__ == "__main__":
    main()
