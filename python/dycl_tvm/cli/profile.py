# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm profile``: where the time of an artefact goes, path by path, and probabilistic bounds on it. Needs neither torch nor TVM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from dycl_tvm.cli.arguments import new_parser, positive
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.errors import RunError, UsageError

if TYPE_CHECKING:
    from dycl_tvm.coverage import Listing
    from dycl_tvm.runtime import Module
    from dycl_tvm.runtime.profile import PathTimes, Profile, Recording

#: So many random inputs are made; then they come again.
_RANDOM_INPUTS = 100

_EPILOG = """\
Without --inputs the inputs are random: normal numbers, integers under --int-high, other ones in each run up to the 100th.
The written file is a trace of the last runs, which https://ui.perfetto.dev and chrome://tracing open, and the profile that
"dycl-tvm inspect model.so --profile FILE -o net.html" draws.

--bound P says for each path, and for the network, a time that at most a part 1 - P of the runs exceeds. It is probabilistic: it is true
with the probability --confidence, for inputs and a machine like those measured. It is not a worst-case execution time.

examples:
  dycl-tvm profile model.so
  dycl-tvm profile model.so -i a.npz -i b.npz -n 1000 -o trace.json
  dycl-tvm profile model.so -n 5000 --bound 0.99 --confidence 0.95 --hold-out 1000
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "profile", "time an artefact by kernel, block, line and path; bound its latency", _EPILOG)
    command.add_argument("library", metavar="LIBRARY", help="the .so written by dycl-tvm compile")
    command.add_argument("weights", nargs="?", metavar="PARAMS", help="its weights, as --params")
    command.add_argument("--params", metavar="FILE", help="its weights; by default the library's name with .params, unless they are inside")
    command.add_argument(
        *("-i", "--inputs"),
        action="append",
        default=[],
        metavar="FILE",
        help="inputs of one call: an .npz by the inputs' names, or an .npy for a network of one input; once for each call",
    )
    command.add_argument("-o", "--output", metavar="FILE", help="write the profile, which is a trace for Perfetto, to this file (.json)")
    command.add_argument("-n", "--repeat", type=positive, default=200, metavar="N", help="record N runs (default 200)")
    command.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    command.add_argument("--int-high", type=positive, default=2, metavar="N", help="random integers are under N (default 2)")
    command.add_argument("--threads", type=positive, metavar="N", help="threads of this session")
    command.add_argument("--rows", type=positive, default=12, metavar="N", help="show N rows of each table (default 12)")
    command.add_argument(
        "--limit", type=positive, default=1000, metavar="N", help="estimate at most N paths that no run took (default 1000)"
    )
    command.add_argument(
        "--max-trips", type=positive, default=1, metavar="N", help="of those with up to N trips through a loop (default 1)"
    )
    command.add_argument(
        "--every",
        type=positive,
        metavar="N",
        help="time kernels in one of N runs (default: in as many as cost little; with --bound 1, in all)",
    )
    command.add_argument("--bound", type=_part, metavar="P", help="bound the latency: at most a part 1 - P of the runs takes longer")
    command.add_argument("--confidence", type=_part, default=0.95, metavar="C", help="how sure a bound is to hold (default 0.95)")
    command.add_argument("--hold-out", type=positive, metavar="K", help="check the bounds against K more runs")
    command.add_argument(
        "--max-loop-trips",
        type=positive,
        metavar="N",
        help="for the bound of the network: no loop that nothing counts makes more",
    )
    command.set_defaults(handler=_handle)


def _part(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.cli.pictures import check_output
    from dycl_tvm.cli.run import find_params
    from dycl_tvm.coverage import flow_of_artifact, list_paths
    from dycl_tvm.runtime import load
    from dycl_tvm.runtime.profile.tables import tables

    if args.weights and args.params:
        raise UsageError("the weights are given twice, as PARAMS and as --params")
    if args.hold_out and args.bound is None:
        raise UsageError("--hold-out checks bounds; say which with --bound")
    check_output(args.output)
    module = load(args.library, find_params(args.library, args.weights or args.params), num_threads=args.threads)
    inputs = _inputs(args, module.metadata)
    # A bound by stretches needs runs that were chosen with the same chance.
    every = args.every or (1 if args.bound is not None else None)
    profile = _record(module, islice(inputs, args.repeat), every)
    print("\n".join(tables(profile, args.rows)))
    listing = list_paths(flow_of_artifact(module.metadata), args.limit, args.max_trips)
    for line in _estimates(profile, listing, args.rows):
        print(line)
    if args.output:
        profile.save(args.output)
        print(f"wrote {args.output}", file=sys.stderr)
    if args.bound is not None:
        held_out = _record(module, islice(inputs, args.hold_out), every) if args.hold_out else None
        for line in _bounds(profile, listing, args, held_out):
            print(line)
    return OK


def _inputs(args: argparse.Namespace, metadata: dict[str, Any]) -> Iterator[list[Any]]:
    """Return the leaves of each call, without an end."""
    from dycl_tvm.cli.arrays import make_inputs, read_leaves

    if args.inputs:
        return cycle([read_leaves(metadata, file) for file in args.inputs])
    return cycle([make_inputs(metadata, [], args.seed + k, args.int_high) for k in range(min(args.repeat, _RANDOM_INPUTS))])


def _record(module: Module, calls: Iterator[list[Any]], every: int | None) -> Recording:
    """Run the network on the leaves of calls; after one that ends in an error it begins in its initial state."""
    from dycl_tvm.cli.arrays import as_call

    given = [as_call(module.metadata, leaves) for leaves in calls]
    _run(module, *given[0])  # memory that is touched for the first time is not what is measured
    with module.profile(every=every) as profile:
        for k, (positional, named) in enumerate(given):
            _run(module, positional, named)
            if k % 16 == 0:
                profile.collect()
    return profile


def _run(module: Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        module(*positional, **named)
    except RunError:  # the profile counts it
        module.reset_state()


# -- the report -------------------------------------------------------------------------------------------------------------
def _estimates(profile: Profile, listing: Listing, rows: int) -> Iterator[str]:
    from dycl_tvm.coverage import estimates
    from dycl_tvm.runtime.profile.tables import micros, ways

    found = estimates(profile, listing)
    if not found:
        return
    yield ""
    more = "" if listing.complete else f", of the first {len(listing.paths)} that are listed"
    yield f"{'':>15} {'p50 µs':>10} {'p99 µs':>10} {'p99.9 µs':>10} {'kernels':>8} {'bytes':>13}  paths that no run took{more}: estimates"
    for path in found[:rows]:
        shown = (f"{'unknown' if t is None else '~' + micros(t):>10}" for t in (path.p50, path.p99, path.p999))
        yield f"{'':>15} {' '.join(shown)} {path.kernels:8} {path.bytes:13,}  {ways(path.decisions)}"
    if found[rows:]:
        yield f"{'':>71}{len(found) - rows} more"
    yield "       ~ the sum of the quantiles of its parts on other paths, which is no quantile of the sum; unknown: a kernel never ran"


def _bounds(profile: Profile, listing: Listing, args: argparse.Namespace, held_out: Profile | None) -> Iterator[str]:
    from dycl_tvm.coverage import NetworkBound, network_bound, path_bounds
    from dycl_tvm.runtime.profile.quantiles import runs_needed, upper_bound
    from dycl_tvm.runtime.profile.tables import micros, ways

    p, confidence = args.bound, args.confidence
    needed = runs_needed(p, confidence)
    yield ""
    yield f"probabilistic bounds: at most {1 - p:.4g} of the runs takes longer, with confidence {confidence:g}"
    yield "they are no worst-case execution times: another machine, load or kind of inputs has others"
    yield "method: order statistics, whatever the distribution is (Wilks 1941; MLPerf's early stopping); needs independent runs"
    if args.repeat > (kinds := len(args.inputs) or _RANDOM_INPUTS):
        yield f"the {args.repeat} runs are of {kinds} inputs: bounds are of these, and others of their kind may take longer more often"
    after = {} if held_out is None else {path.key: path.times for path in held_out.paths()}
    for path, bound in path_bounds(profile, p, confidence)[: args.rows]:
        if bound is None:
            yield f"{'none':>12}     {ways(path.decisions)}: {len(path.times)} runs, needs {needed}"
        else:
            told = _clustered(path, p) + _checked(after.get(path.key, []), bound.value, args)
            yield f"{micros(bound.value):>12} µs  {ways(path.decisions)}: {len(path.times)} runs{told}"
    times = [] if held_out is None else held_out.times()
    whole = upper_bound(profile.times(), p, confidence)
    if whole is None:
        yield f"{'none':>12}     inputs like these: {profile.runs} runs, needs {needed}"
    else:
        yield f"{micros(whole.value):>12} µs  inputs like these: {whole.count} runs" + _checked(times, whole.value, args)
    network = network_bound(profile, listing, p, confidence, args.max_loop_trips)
    if isinstance(network, NetworkBound):
        yield f"{micros(network.value):>12} µs  the network on any path: {network.how}" + _checked(times, network.value, args)
    else:
        yield f"{'none':>12}     the network on any path: {network.reason}"


def _clustered(path: PathTimes, p: float) -> str:
    """Say so where slow runs come together, so that the runs are not independent."""
    from dycl_tvm.runtime.profile.quantiles import clustering

    part = clustering(path.in_order, p)
    if part is None or part < 1.0 - 0.8 * p:
        return ""
    return f"; LESS SURE than that, as runs are not independent: {part:.0%} of the slow ones follow a slow one"


def _checked(times: list[int], bound: int, args: argparse.Namespace) -> str:
    """Say how many held-out runs exceeded a bound, and how many may."""
    from dycl_tvm.runtime.profile.quantiles import allowed

    if not times:
        return ""
    above, most = sum(t > bound for t in times), allowed(len(times), args.bound, args.confidence)
    said = "as it may" if above <= most else "MORE THAN IT SHOULD: machine or inputs have changed, or runs are not independent"
    return f"; of {len(times)} held-out runs {above} exceed it, {most} may: {said}"
