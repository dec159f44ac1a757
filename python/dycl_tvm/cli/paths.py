# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm paths``: the paths of a network, inputs that take them, and which ones given inputs exercise."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dycl_tvm.cli.arguments import MODEL_FORMS, model_options, new_parser, positive
from dycl_tvm.cli.exit_codes import FAILURE, OK
from dycl_tvm.cli.models import is_graph_file
from dycl_tvm.errors import UsageError

if TYPE_CHECKING:
    from dycl_tvm.coverage import Coverage, Key, Runner

_EPILOG = f"""\
An artefact is run itself, which needs neither torch nor TVM; a model is staged and run by a slow reference interpreter, without compiling.
Every run begins in the initial state. Inputs are searched at random (many scales, and changes of inputs that took new paths): a path
that is not found may still be possible. A loop is listed with up to --max-trips trips; runs with more are counted apart.

{MODEL_FORMS}
exit codes: 0, or 1 with --require-all if a listed path was not exercised

examples:
  dycl-tvm paths model.so
  dycl-tvm paths model.so --exercised a.npz --exercised b.npz --search 0 --require-all
  dycl-tvm paths model.so --search 5000 --save inputs/
  dycl-tvm paths my_model.py:net --input 1x3x32x32 --limit 50 --json
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "paths", "list the paths of a network, find inputs for them, say which ones inputs exercise", _EPILOG)
    command.add_argument("what", metavar="ARTEFACT_OR_MODEL", help="a .so written by dycl-tvm compile, or a model as below")
    model_options(command)
    command.add_argument("--params", metavar="FILE", help="of an artefact: its weights; by default the library's name with .params")
    command.add_argument(
        "-e",
        "--exercised",
        action="append",
        default=[],
        metavar="FILE",
        help="inputs of one call: an .npz by the inputs' names, or an .npy for a network of one input; once for each call",
    )
    command.add_argument("--search", type=_not_negative, default=500, metavar="N", help="search with at most N runs (default 500)")
    command.add_argument("--seconds", type=float, default=60.0, metavar="S", help="search for at most S seconds (default 60)")
    command.add_argument("--seed", type=int, default=0, help="of the search (default 0)")
    command.add_argument("--int-high", type=positive, default=2, metavar="N", help="searched integers are under N (default 2)")
    command.add_argument("--save", metavar="FOLDER", help="write the inputs that were found, path0001.npz and so on")
    command.add_argument("--limit", type=positive, default=1000, metavar="N", help="list at most N paths (default 1000)")
    command.add_argument(
        "--max-trips", type=positive, default=1, metavar="N", help="list paths with up to N trips through a loop (default 1)"
    )
    command.add_argument("--brief", action="store_true", help="one line a path")
    command.add_argument("--json", action="store_true", help="print all as JSON")
    command.add_argument("--require-all", action="store_true", help="fail if a listed path was not exercised")
    command.set_defaults(handler=_handle)


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.coverage import Coverage, list_paths, search

    runner = _runner(args)
    listing = list_paths(runner.flow, args.limit, args.max_trips)
    coverage = Coverage(runner.flow, listing)
    for file in args.exercised:
        leaves = _read(file, runner)
        coverage.note(runner.run(leaves), leaves, file)
    runs = 0
    if args.search:
        if not args.quiet:
            print(f"dycl-tvm: searching inputs, at most {args.search} runs or {args.seconds:g} s", file=sys.stderr)
        runs = search(runner, coverage, args.search, seed=args.seed, seconds=args.seconds, int_high=args.int_high)
    if args.save:
        _save(args.save, coverage, runner)
    print(json.dumps(_as_json(coverage, runs), indent=2) if args.json else "\n".join(_as_text(coverage, runs, args.brief)))
    return FAILURE if args.require_all and not (coverage.done and listing.complete) else OK


def _runner(args: argparse.Namespace) -> Runner:
    from dycl_tvm.coverage import ArtifactRunner, GraphRunner

    if args.what.endswith(".so") or (":" not in args.what and not is_graph_file(args.what) and Path(args.what).is_file()):
        from dycl_tvm.cli.run import find_params
        from dycl_tvm.runtime import load

        return ArtifactRunner(load(args.what, find_params(args.what, args.params)))
    if args.params:
        raise UsageError("--params is for artefacts; for a model use --state-dict")
    from dycl_tvm.cli.inspect import stage_and_simplify

    return GraphRunner(stage_and_simplify(args))


def _read(file: str, runner: Runner) -> list[Any]:
    """Return the leaves of one call from a file."""
    from dycl_tvm.cli.arrays import read_leaves

    return read_leaves({"input_names": runner.names, "inputs": runner.types}, file)


def _save(folder: str, coverage: Coverage, runner: Runner) -> None:
    import numpy as np

    Path(folder).mkdir(parents=True, exist_ok=True)
    number = {p.key: k for k, p in enumerate(coverage.listing.paths, 1)}
    others = len(number)
    for key, seen in coverage.seen.items():
        if seen.found is None:
            continue
        if key not in number:
            others += 1
        with open(Path(folder) / f"path{number.get(key, others):04d}.npz", "wb") as file:
            np.savez(file, **{name: np.asarray(leaf) for name, leaf in zip(runner.names, seen.found)})  # type: ignore[arg-type]


# -- the report -------------------------------------------------------------------------------------------------------------
def _status(coverage: Coverage, key: Key) -> str:
    seen = coverage.seen.get(key)
    if seen is None:
        return "not exercised"
    if seen.given:
        shown = ", ".join(seen.given[:4]) + (f" and {len(seen.given) - 4} more" if len(seen.given) > 4 else "")
        return f"exercised by {shown}"
    return f"found, {seen.runs} runs"


def _as_text(coverage: Coverage, runs: int, brief: bool) -> list[str]:
    flow, listing = coverage.flow, coverage.listing
    how_many = f"{len(listing.paths)}" if listing.complete else f"the first {len(listing.paths)} of {listing.total}"
    loops = ", loops cut short" if listing.loops else ""
    lines = [f"{flow.name}: {how_many} paths{loops}, {len(flow.decisions)} decisions"]
    for k, path in enumerate(listing.paths, 1):
        end = flow.blocks[path.end]
        what = f"raise {end.detail}, {end.origin}" if end.end == "raise" else f"return {end.origin}"
        lines.append(f"path {k}: {_status(coverage, path.key)}" + (f"; {what}" if brief else ""))
        if not brief:
            lines += [f"    {d}" for d in _shortened(flow.describe(path.key))]
            lines.append(f"    {what}")
    taken, sides = len(coverage.taken()), flow.sides()
    on_sides = f"{len(coverage.sides)} of {len(sides)} sides of decisions"
    lines.append(f"exercised {taken} of {len(listing.paths)} listed paths, {on_sides}, {runs} runs of searching")
    if coverage.unlisted():
        lines.append(f"and {len(coverage.unlisted())} paths that are not listed (more trips through a loop, or beyond the limit)")
    for d, side in sides:
        if (d, side) not in coverage.sides:
            lines.append(f"never taken: decision {d}, {flow.describe(((d, side),))[0]}")
    for name, error in coverage.failures[:10]:
        lines.append(f"failed: {name}: {error}")
    return lines


def _shortened(decisions: list[Any], most: int = 40) -> list[str]:
    if len(decisions) <= most:
        return [str(d) for d in decisions]
    return [*map(str, decisions[: most // 2]), f"... {len(decisions) - most} more ...", *map(str, decisions[-most // 2 :])]


def _as_json(coverage: Coverage, runs: int) -> dict[str, Any]:
    flow, listing = coverage.flow, coverage.listing
    paths = []
    for k, path in enumerate(listing.paths, 1):
        end, seen = flow.blocks[path.end], coverage.seen.get(path.key)
        paths.append(
            {
                "path": k,
                "decisions": [
                    {"file": d.origin.file, "line": d.origin.line, "code": d.origin.code, "choice": d.choice}
                    for d in flow.describe(path.key)
                ],
                "end": {"kind": end.end, "file": end.origin.file, "line": end.origin.line, "detail": end.detail},
                "exercised": seen is not None,
                "given": [] if seen is None else seen.given,
                "found": seen is not None and seen.found is not None,
            }
        )
    return {
        "name": flow.name,
        "complete": listing.complete,
        "total": listing.total,
        "loops": listing.loops,
        "paths": paths,
        "unlisted": len(coverage.unlisted()),
        "sides": {"taken": len(coverage.sides), "all": len(flow.sides())},
        "failures": [{"input": name, "error": error} for name, error in coverage.failures],
        "runs": runs,
    }
