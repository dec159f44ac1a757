# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm run``: run an artefact. Needs neither torch nor TVM."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from dycl_tvm.cli.arguments import largest_sizes, new_parser, positive
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.errors import UsageError

_EPILOG = """\
inputs:
  x.npy  x.bin            the next input, in the order of the network; .bin is raw memory
  mask=m.npy              the input of that name (dycl-tvm inspect shows the names)
  all.npz                 arrays by the names of the inputs
  steps=5  flag=true      a Python number
Inputs that are not given are random: normal numbers, integers under --int-high.

examples:
  dycl-tvm run model.so model.params
  dycl-tvm run model.so -i image.npy -o outputs.npz
  dycl-tvm run model.so --seed 7 --repeat 100 --threads 2
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "run", "run an artefact on files or random inputs; print outputs, path and latency", _EPILOG)
    command.add_argument("library", metavar="LIBRARY", help="the .so written by dycl-tvm compile")
    command.add_argument("weights", nargs="?", metavar="PARAMS", help="its weights, as --params")
    command.add_argument("--params", metavar="FILE", help="its weights; by default the library's name with .params, unless they are inside")
    command.add_argument("-i", "--input", action="append", default=[], metavar="INPUT", help="an input as below; once for each")
    command.add_argument("-o", "--output", metavar="FILE", help="write the outputs to an .npz file")
    command.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")
    command.add_argument("--int-high", type=positive, default=2, metavar="N", help="random integers are under N (default 2)")
    command.add_argument("-n", "--repeat", type=positive, default=1, metavar="N", help="time N runs after the first")
    command.add_argument("--threads", type=positive, metavar="N", help="threads of this session")
    command.add_argument("--largest-sizes", metavar="T=64,..", help="sizes of which no call has a larger one, by their names: less memory")
    command.add_argument("-q", "--quiet", action="store_true", help="print the outputs only")
    command.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.cli.arrays import as_call, describe_leaf, leaves_of, make_inputs, save_outputs
    from dycl_tvm.cli.pictures import check_output
    from dycl_tvm.runtime import load

    if args.weights and args.params:
        raise UsageError("the weights are given twice, as PARAMS and as --params")
    if args.output:
        check_output(args.output)
    params, sizes = find_params(args.library, args.weights or args.params), largest_sizes(args.largest_sizes)
    module = load(args.library, params, num_threads=args.threads, largest_sizes=sizes)
    positional, named = as_call(module.metadata, make_inputs(module.metadata, args.input, args.seed, args.int_high))
    result = module(*positional, **named)
    path, kernels = module.last_path, sum(module.kernels_run.values())
    seconds = []
    for _ in range(args.repeat):
        begin = time.perf_counter()
        module(*positional, **named)
        seconds.append(time.perf_counter() - begin)
    for name, value in leaves_of(result):
        print(f"{name} = {describe_leaf(value)}")
    if args.output:
        save_outputs(args.output, result)
        print(f"wrote {args.output}", file=sys.stderr)
    if not args.quiet:
        print(f"path, {len(path.branches)} decisions, {kernels} kernel calls:")
        for line in _shorten(str(path).splitlines()):
            print(f"  {line}")
        ordered = sorted(seconds)
        figures = [("median", ordered[len(ordered) // 2]), ("best", ordered[0]), ("worst", ordered[-1])]
        print(f"latency of {args.repeat} runs: " + ", ".join(f"{name} {took * 1e3:.3f} ms" for name, took in figures))
    return OK


def _shorten(lines: list[str], most: int = 40) -> list[str]:
    """Leave out the middle of a long path: loops make thousands of decisions."""
    if len(lines) <= most:
        return lines
    return [*lines[: most // 2], f"... {len(lines) - most} more ...", *lines[-most // 2 :]]


def find_params(library: str, given: str | None) -> str | None:
    """Return the weights file of a library: the given one, or the one beside it."""
    if given is not None:
        return given
    beside = Path(library).with_suffix(".params")
    from dycl_tvm.runtime.trailer import read_trailer

    return None if read_trailer(library)["embedded_params"] or not beside.is_file() else str(beside)
