# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import Any

from dycl_tvm.errors import UsageError

MODEL_HELP = """\
what to compile: model.onnx, program.pt2, zoo:NAME, path/to/file.py:OBJECT or package.module:OBJECT, where OBJECT is an nn.Module,
a function, a class (made without arguments), or NAME() to call a function that makes one or the other"""

MODEL_FORMS = """\
models:
  model.onnx                an ONNX model
  program.pt2               a program that torch.export.save wrote
  zoo:NAME                  a network of the zoo, with its example inputs (dycl-tvm zoo list)
  path/to/file.py:OBJECT    OBJECT of that file: an nn.Module, a bound method of one (net.early_exit), a function
  package.module:OBJECT     the same of an importable module
  ...:make_model()          what that function returns: a model, or a tuple (model, example_inputs)
  ...:NetClass              an instance of the class, made without arguments

inputs:
  1x3x32x32                 a tensor of that shape, float32; 1x16:int64 for another dtype; scalar:float32 for rank 0
  1xT<=512:int64            with a size that each call decides, of a name in capitals and a bound; "2<=T<=512" has both bounds
  int:5   float:0.5   bool:true   a Python number
  name=1x3x32x32            a keyword argument; of model.onnx and program.pt2, the shape of an input, sizes with bounds among them
  batch=int:4               of model.onnx, the size of a symbolic dimension
"""


def common(command: argparse.ArgumentParser) -> None:
    """Add what every command has."""
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")


def model_options(command: argparse.ArgumentParser) -> None:
    """Add what every command that takes a model has."""
    command.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="an example input, such as 1x3x32x32 or 1x16:int64; once for each",
    )
    command.add_argument(
        "--state-dict", metavar="FILE", help="load these weights first (torch.save of a state_dict; read without pickle code)"
    )
    command.add_argument("--name", help="name of the network in generated source and symbols")
    command.add_argument("--disable-pass", action="append", default=[], metavar="PASS", help="leave out a graph pass (repeatable)")
    command.add_argument(
        "--max-paths", type=positive, metavar="N", help="bound on the paths that are explored where branches cannot be merged"
    )
    command.add_argument(
        "--max-loop-trips",
        type=int,
        metavar="N",
        help="end loops of run-time length in an error after N trips; loops that collect results in a list need it",
    )
    command.add_argument(
        "--max-recursion", type=positive, metavar="N", help="end recursions whose depth tensors decide in an error after N calls (1000)"
    )
    command.add_argument(
        "--max-length", type=positive, metavar="N", help="end calls in an error in which a size that tensors decide is above N"
    )
    command.add_argument(
        "--specialize",
        action="append",
        metavar="SIZES",
        help="give calls of such sizes, T<=64 or B=1,T=128, a path of their own beside the one for all (repeatable)",
    )
    command.add_argument("--keep-print", action="store_true", help="keep the calls of print() in the forward; without it they are refused")
    command.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")


def positive(text: str) -> int:
    """Return a positive integer, for argparse."""
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def largest_sizes(written: str | None) -> dict[str, int]:
    """Return the largest sizes of a session as ``load`` takes them."""
    pairs = [part.partition("=") for part in written.split(",")] if written else []
    if not all(name.strip() and n.strip().isdecimal() for name, _, n in pairs):
        raise UsageError(f"--largest-sizes is {written!r}; write the largest value of each size by its name, as T=64,B=1")
    return {name.strip(): int(n) for name, _, n in pairs}


def new_parser(commands: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    """Return the parser of a sub-command."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common(command)
    return command


def target_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say for which machine."""
    command.add_argument(
        "-t",
        "--target",
        default="llvm",
        help='"llvm" (default: CPUs of this architecture, with AVX2 on x86-64), "portable" (AVX-512 besides, where it is), '
        '"native" (this CPU), "llvm -mcpu=...", a tag such as nvidia/jetson-tx2, or JSON (a list: CPUs that one library has code for)',
    )
    command.add_argument("--host", help="CPU that runs the dispatcher of a device target")
    command.add_argument(
        "--cxx", default="", metavar="COMMAND", help="C++ compiler with options; by default CXX, or zig for other machines"
    )
