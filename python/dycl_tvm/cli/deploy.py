# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm deploy``: run an artefact on another machine over TVM's RPC, check what it gives, and time its paths."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from dycl_tvm.cli.arguments import new_parser, positive
from dycl_tvm.cli.exit_codes import FAILURE, OK
from dycl_tvm.cli.run import find_params
from dycl_tvm.errors import ArtifactError

if TYPE_CHECKING:
    from dycl_tvm.deploy import RemoteModule

_EPILOG = """\
The server is TVM's own (python -m tvm.exec.rpc_server) or, on boards without Python 3.10, dycl-rpc-server (dycl-tvm bundle).
With --cases the results are compared with those of eager that dycl-tvm compile --cases recorded; without, with those of this machine
where it can run the library. Each path that they take is a line of the output: how often, its time there, its branches (T, F) and choices
([index]), its return.

examples:
  dycl-tvm deploy model.so model.params --rpc 192.168.1.20:9090 --cases model.cases.npz
  dycl-tvm deploy model.so model.params --tracker 192.168.1.2:9190 --key tx2 --repeat 50
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "deploy", "run an artefact on another machine over RPC; verify and time it by path", _EPILOG)
    command.add_argument("library", metavar="LIBRARY", help="the .so written by dycl-tvm compile")
    command.add_argument("params", metavar="PARAMS", nargs="?", help="its weights; by default the library's name with .params")
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--rpc", metavar="HOST:PORT", default="", help="the RPC server")
    where.add_argument("--tracker", metavar="HOST:PORT", default="", help="a tracker that knows servers of the kind KEY")
    command.add_argument("--key", default="", help="the key of the server")
    command.add_argument("--cases", metavar="FILE", help="recorded calls (dycl-tvm compile --cases)")
    command.add_argument(
        "-n", "--inputs", type=positive, default=16, metavar="N", help="random inputs where nothing was recorded (default 16)"
    )
    command.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    command.add_argument("--repeat", type=positive, default=10, metavar="N", help="time each path by the mean of N runs (default 10)")
    command.add_argument("--threads", type=positive, metavar="N", help="threads of the session")
    command.add_argument("--rtol", type=float, default=1e-4, help="relative error that is allowed (default 1e-4)")
    command.add_argument("--timeout", type=positive, default=0, metavar="SECONDS", help="after which the server ends the session")
    command.add_argument(
        "--wait", type=positive, default=60, metavar="SECONDS", help="how long to wait for a place on the server (default 60)"
    )
    command.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.compare import difference
    from dycl_tvm.deploy import RemoteModule, connect

    params = find_params(args.library, args.params)
    calls = _calls(args, params)
    size = sum(os.path.getsize(path) for path in (args.library, params) if path is not None)
    # Said before each step that may take long: a server whose places are taken lets one wait.
    print(f"connecting to {args.rpc or args.tracker}", file=sys.stderr, flush=True)
    remote = connect(args.rpc, key=args.key, tracker=args.tracker, timeout=args.timeout, wait=args.wait)
    print(f"uploading {size / 1e6:.1f} MB", file=sys.stderr, flush=True)
    module = RemoteModule(remote, args.library, params)
    if args.threads:
        module.set_num_threads(args.threads)
    print(f"{module.metadata['name']} for {module.metadata['target']['triple']} is loaded")
    firsts: dict[str, tuple[Any, Any]] = {}
    counts: dict[str, int] = {}
    wrong = []
    for k, (positional, named, expected) in enumerate(calls):
        actual = module(*positional, **named)
        firsts.setdefault(module.last_path, (positional, named))
        counts[module.last_path] = counts.get(module.last_path, 0) + 1
        found = None if expected is _UNKNOWN else difference(expected, actual, rtol=args.rtol)
        if found is not None:
            wrong.append(f"call {k}: {found}")
    compared = sum(expected is not _UNKNOWN for _, _, expected in calls)
    if compared:
        print(f"{compared - len(wrong)} of {compared} calls agree")
    else:
        print("the results were compared with nothing: record calls (dycl-tvm compile --cases FILE) and give --cases FILE", file=sys.stderr)
    for line in wrong[:10]:
        print(f"  {line}", file=sys.stderr)
    _print_times(module, firsts, counts, args.repeat)
    module.close()
    return FAILURE if wrong else OK


#: What is expected of a call where nobody knows.
_UNKNOWN = object()


def _calls(args: argparse.Namespace, params: str | None) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]]:
    """Return (positional arguments, keyword arguments, expected result) of each call."""
    from dycl_tvm.cli.arrays import as_call, make_inputs
    from dycl_tvm.deploy import read_cases
    from dycl_tvm.runtime import load
    from dycl_tvm.runtime.trailer import read_trailer

    if args.cases:
        return [(case.inputs, case.keywords, case.output) for case in read_cases(args.cases)]
    metadata = read_trailer(args.library)
    inputs = [as_call(metadata, make_inputs(metadata, [], args.seed + k, 2)) for k in range(args.inputs)]
    try:
        local = load(args.library, params)
    except ArtifactError:
        return [(positional, named, _UNKNOWN) for positional, named in inputs]
    return [(positional, named, local(*positional, **named)) for positional, named in inputs]


def _print_times(module: RemoteModule, firsts: dict[str, tuple[Any, Any]], counts: dict[str, int], repeat: int) -> None:
    """Print a line for each path: how often it was taken, its time there, and where it left."""
    print(f"{len(firsts)} paths:")
    for path, (positional, named) in sorted(firsts.items(), key=lambda item: -counts[item[0]]):
        seconds = module.seconds(*positional, number=repeat, **named)
        *decisions, left = path.splitlines() or [""]
        print(f"  {counts[path]:>4} calls  {seconds * 1e3:>10.4f} ms  {_shortly(decisions)}{left}")


def _shortly(decisions: list[str], most: int = 32) -> str:
    """Return what tells a path from others: a letter for each branch, the number of each case, dots for what was not kept."""
    words = [line.split()[:2] for line in decisions]
    letters = "".join({"true": "T", "false": "F", "case": f"[{value}]"}.get(kind, "...") for kind, value in words)
    return f"{letters if len(letters) <= most else f'{letters[:most]}... of {len(decisions)} decisions'}  " if letters else ""
