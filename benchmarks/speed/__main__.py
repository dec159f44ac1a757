# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make bench``: prepare, measure, and write docs/performance.md.

    PYTHONPATH=benchmarks python -m speed [prepare] [measure] [page] [--networks NAME,...] [--contenders NAME,...] [--quick]

Without a step all three. ``prepare`` compiles what the slow contenders need; it may run in the background, be ended and begun
again. ``measure`` wants a quiet machine; it leaves alone what was measured with today's sources, so it may be ended too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from dycl_tvm import zoo
from speed import machine
from speed.contenders import CONTENDERS
from speed.measuring import PARTS, Measurement
from speed.pool import Plan
from speed.preparing import prepare
from speed.results import Results
from speed.tables import document
from speed.units import FULL, Sizes, needed

ROOT = Path(__file__).parents[2]
STEPS = ("prepare", "measure", "page")
#: The networks of the DyCL paper come first in the list of the zoo.
PAPER = 9
#: Those of a quick run, and its contenders.
QUICK = ("skipnet38_ff", "blockdrop_resnet110", "sdn_resnet56", "cascade")
QUICK_CONTENDERS = ("ours", "eager", "ort", "openvino", "ort-split")
#: What a full and what a quick run take, unless the command line says it.
_FULL = {"rounds": 9, "seconds": 0.1, "paths": FULL.paths, "draw": FULL.draw, "compiled_paths": FULL.compiled_paths, "limit": 240.0}
_QUICK = {"rounds": 5, "seconds": 0.04, "paths": 2, "draw": 16, "compiled_paths": 1, "limit": 60.0}


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="speed", description="Measure compiled networks next to other ways to run them.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--networks", help="names with commas between; 'paper' for the nine, 'all' (default)")
    parser.add_argument("--contenders", help=f"names with commas between, of {', '.join(CONTENDERS)}")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, help="of turns (default 9, quick 5)")
    parser.add_argument("--seconds", type=float, help="that one contender runs one input in one round (default 0.1, quick 0.04)")
    parser.add_argument("--paths", type=int, help="of each network, the most frequent ones (default 4, quick 2)")
    parser.add_argument("--draw", type=int, help="inputs from which the mix of paths is taken (default 64, quick 16)")
    parser.add_argument("--compiled-paths", type=int, help="that AOTInductor and torch.compile run (default 1)")
    parser.add_argument("--limit", type=float, help="seconds that one unit of preparation may take (default 240, quick 60)")
    parser.add_argument("--quick", action="store_true", help="four networks, fewer paths and rounds, without what PyTorch compiles")
    parser.add_argument("--parts", help=f"of the measurement, with commas between: {', '.join(PARTS)} (default: all; quick: networks)")
    parser.add_argument("--ablation", help="networks of the ablation (default: the nine of the paper)")
    parser.add_argument("--roofline", help="networks whose kernels are timed one by one (default: those below the aim)")
    parser.add_argument("--again", action="store_true", help="measure again what is there; prepare again what failed")
    parser.add_argument("--keep", action="store_true", help="keep also what was measured with other sources of the compiler")
    parser.add_argument("--launcher", default="", metavar="COMMAND", help="starts each unit of preparation, such as 'nice -n 15'")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench", help="folder of all files in between")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "performance.md")
    args = parser.parse_args()
    for name, value in (_QUICK if args.quick else _FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def chosen(text: str | None, known: list[str], default: list[str], what: str) -> list[str]:
    """Return the names of a list with commas; a wrong one ends the program."""
    if text is None:
        return default
    if what == "network" and text in ("all", "paper"):
        return known if text == "all" else known[:PAPER]
    names = text.split(",")
    for name in names:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names


def tell(line: str) -> None:
    """Say how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Prepare, measure and write the page."""
    args = options()
    everything = zoo.names()
    steps = chosen(",".join(args.steps) or None, list(STEPS), list(STEPS), "step")
    networks = chosen(args.networks, everything, list(QUICK) if args.quick else everything, "network")
    contenders = chosen(args.contenders, list(CONTENDERS), list(QUICK_CONTENDERS if args.quick else CONTENDERS), "contender")
    parts = chosen(args.parts, list(PARTS), ["networks"] if args.quick else list(PARTS), "part")
    ablated = chosen(args.ablation, everything, [n for n in networks if n in everything[:PAPER]], "network")
    ablated = ablated if "ablation" in parts else []
    sizes = Sizes(args.draw, args.paths, args.compiled_paths, args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    results = Results(args.work / "results.json")
    if "prepare" in steps:
        units = needed(args.work, networks, contenders, ablated, "dispatch" in parts, sizes, args.limit)
        prepare(units, args.work, args.launcher, args.again, tell)
    if "measure" in steps:
        tell("the machine's peaks")
        results.data["machine"] = machine.describe(args.work, args.threads)
        results.save()
        plan = Plan(args.threads, args.rounds, args.seconds, args.limit, compiled=args.compiled_paths)
        run = Measurement(args.work, results, sizes, plan, args.again, args.keep, tell)
        wanted = None if args.roofline is None else chosen(args.roofline, everything, [], "network")
        run.run(parts, networks, contenders, ablated, wanted)
    if "page" in steps:
        args.out.write_text(document(results.data, everything), encoding="utf-8")
        tell(f"wrote {args.out}")


if __name__ == "__main__":
    main()
