# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make bench``: measure, and write docs/performance.md.

PYTHONPATH=benchmarks python -m speed [--quick] [--networks NAME,...] [--contenders NAME,...] [--resume | --table-only]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dycl_tvm import zoo
from speed import machine
from speed.ablations import ABLATIONS, folder_name
from speed.contenders import CONTENDERS
from speed.pool import Plan, environment, measure, run_job
from speed.results import Results, fastest_peer
from speed.tables import document

ROOT = Path(__file__).parents[2]
#: The networks of the DyCL paper come first in the list of the zoo.
PAPER = 9
#: Those of a quick run.
QUICK = ("skipnet38_ff", "blockdrop_resnet110", "sdn_resnet56", "cascade")


def options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="speed", description="Measure compiled networks next to other ways to run them.")
    parser.add_argument("--networks", help="names with commas between; 'paper' for the nine, 'all' (default)")
    parser.add_argument("--contenders", help=f"names with commas between, of {', '.join(CONTENDERS)}")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, help="of turns (default 9, quick 5)")
    parser.add_argument("--seconds", type=float, help="that one contender runs one input in one round (default 0.1, quick 0.04)")
    parser.add_argument("--paths-per-network", type=int, help="the most frequent paths (default 6, quick 3)")
    parser.add_argument("--draw", type=int, help="inputs from which the mix of paths is taken (default 64, quick 16)")
    parser.add_argument("--exported-paths", type=int, help="paths that AOTInductor compiles (default 2, quick 1)")
    parser.add_argument("--prepare-limit", type=float, help="seconds that a contender may take to be ready (default 120, quick 60)")
    parser.add_argument("--quick", action="store_true", help="few networks, paths and rounds, without torch.compile's max-autotune")
    parser.add_argument("--ablation", help="networks of the ablation, or 'none' (default: the nine; quick: none)")
    parser.add_argument("--roofline", help="networks whose kernels are timed one by one (default none)")
    parser.add_argument("--resume", action="store_true", help="keep what the results file has, measure the rest")
    parser.add_argument("--table-only", action="store_true", help="write the page from the results file, measure nothing")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench", help="folder of all files in between")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "performance.md")
    args = parser.parse_args()
    for name, full, quick in (
        ("rounds", 9, 5), ("seconds", 0.1, 0.04), ("paths_per_network", 6, 3), ("draw", 64, 16), ("exported_paths", 2, 1),
        ("prepare_limit", 120.0, 60.0),
    ):  # fmt: skip
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    return args


def chosen(text: str | None, known: list[str], default: list[str], what: str) -> list[str]:
    """Return the names of a list with commas; a wrong one ends the program."""
    if text is None:
        return default
    names = text.split(",")
    for name in names:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names


def tell(line: str) -> None:
    """Say how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def bench_network(name: str, contenders: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Prepare, compile and time one network; return its record."""
    folder = args.work / name
    env = environment(args.work, args.threads)
    tell(f"{name}: inputs, paths, static networks")
    sizes = ["--draw", str(args.draw), "--paths", str(args.paths_per_network)]
    sizes += ["--exported", str(args.exported_paths if "aoti" in contenders else 0)]
    wrong = run_job("speed.networks", [name, str(folder), *sizes], folder / "prepare.log", env, 600)
    if wrong is not None:
        raise RuntimeError(f"{name} cannot be prepared: {wrong} (see {folder / 'prepare.log'})")
    about = json.loads((folder / "about.json").read_text())
    record: dict[str, Any] = {"weights": about["weights"], "drawn": about["drawn"], "threads": args.threads}
    if "ours" in contenders or "ort-split" in contenders:
        tell(f"{name}: compile")
        record["compile"] = compile_in_process(folder, "ours", {}, args)
    found = measure(folder, contenders, len(about["weights"]), plan_of(args), args.work, tell)
    record["contenders"] = {key: value.to_json() for key, value in found.items()}
    return record


def compile_in_process(folder: Path, variant: str, build: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Compile a prepared network in a fresh process and return the record of it."""
    out = folder / variant
    (out / "compile.json").unlink(missing_ok=True)
    env = environment(args.work, args.threads)
    wrong = run_job("speed.compiling", [str(folder), str(out), json.dumps(build)], folder / f"{variant}.log", env, 900)
    if wrong is not None:
        out.mkdir(exist_ok=True)
        (out / "compile.json").write_text(json.dumps({"error": wrong}))
    found: dict[str, Any] = json.loads((out / "compile.json").read_text())
    return found


def ablate(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Compile a network with parts of the compiler left out, and time the artefacts in turns."""
    folder = args.work / name
    if not (folder / "about.json").exists():
        bench_network(name, ["ours"], args)
    about = json.loads((folder / "about.json").read_text())
    compiles = {}
    for variant, build in ABLATIONS.items():
        tell(f"{name}: {variant}")
        compiles[variant] = compile_in_process(folder, f"ours-{folder_name(variant)}", build, args)
    contenders = ["ours", *(f"ours:{folder_name(v)}" for v in ABLATIONS)]
    found = measure(folder, contenders, len(about["weights"]), plan_of(args), args.work, tell)
    return {"weights": about["weights"], "compile": compiles, "contenders": {key: value.to_json() for key, value in found.items()}}


def roofline(name: str, peaks: list[float], args: argparse.Namespace) -> dict[str, Any]:
    """Time the kernels of a network one by one."""
    folder = args.work / name
    if not (folder / "about.json").exists():
        bench_network(name, ["ours"], args)
    tell(f"{name}: kernels one by one")
    out = folder / "roofline.json"
    options = ["--threads", str(args.threads), "--peak", str(peaks[0]), "--bandwidth", str(peaks[1])]
    env = environment(args.work, args.threads)
    wrong = run_job("speed.roofline", [str(folder), str(out), *options], folder / "roofline.log", env, 900)
    if wrong is not None:
        return {"error": wrong}
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def small_case(args: argparse.Namespace) -> dict[str, Any] | None:
    """Measure the dispatch-bound case; None if that failed."""
    out = args.work / "dispatch_bound.json"
    tell("dispatch-bound: early-exit MLP")
    log = args.work / "dispatch_bound.log"
    wrong = run_job("speed.dispatch_bound", [str(args.work / "mlp"), str(out)], log, environment(args.work, 1), 600)
    if wrong is not None:
        tell(f"dispatch-bound: {wrong} (see {log})")
        return None
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def bench_and_keep(name: str, place: str, contenders: list[str], results: Results, args: argparse.Namespace) -> None:
    """Measure one network unless the results have it, and write them."""
    section = results.section("networks")
    if name in section and all(c in section[name]["contenders"] for c in contenders):
        return
    tell(place)
    try:
        section[name] = bench_network(name, contenders, args)
    except RuntimeError as error:
        tell(str(error))
        failed = {"error": str(error), "refused": {}, "prepare_seconds": 0.0, "ns": {}}
        section[name] = {"weights": [], "drawn": args.draw, "contenders": dict.fromkeys(contenders, failed)}
    fastest = fastest_peer(section[name])
    tell(f"{name}: " + ("no comparison" if fastest is None else f"{fastest[1]:.2f} times as fast as {fastest[0]}"))
    results.save()


def plan_of(args: argparse.Namespace) -> Plan:
    """Return how long and how often to measure."""
    return Plan(args.threads, args.rounds, args.seconds, args.prepare_limit)


def main() -> None:
    """Measure and write the page."""
    args = options()
    everything = zoo.names()
    default = list(QUICK) if args.quick else everything
    groups = {"all": everything, "paper": everything[:PAPER]}
    networks = groups.get(args.networks) or chosen(args.networks, everything, default, "network")
    names = [c for c in CONTENDERS if not (args.quick and c == "compile-max")]
    contenders = chosen(args.contenders, list(CONTENDERS), names, "contender")
    args.work.mkdir(parents=True, exist_ok=True)
    results = Results(args.work / "results.json")
    if not args.resume and not args.table_only:
        results.data = {}
    if not args.table_only:
        tell("the machine's peaks")
        results.data["machine"] = machine.describe(args.work, args.threads)
        if "dispatch_bound" not in results.data and (small := small_case(args)) is not None:
            results.data["dispatch_bound"] = small
        results.save()
        for number, name in enumerate(networks):
            bench_and_keep(name, f"network {number + 1} of {len(networks)}", contenders, results, args)
        paper = [] if args.quick else [n for n in networks if n in everything[:PAPER]]
        ablated = [] if args.ablation == "none" else chosen(args.ablation, everything, paper, "network")
        for name in ablated:
            if name not in results.section("ablation"):
                results.section("ablation")[name] = ablate(name, args)
                results.save()
        for name in chosen(args.roofline, everything, [], "network"):
            if "peaks" in results.data["machine"]:
                results.section("roofline")[name] = roofline(name, results.data["machine"]["peaks"], args)
                results.save()
    args.out.write_text(document(results.data, everything), encoding="utf-8")
    tell(f"wrote {args.out}")


if __name__ == "__main__":
    main()
