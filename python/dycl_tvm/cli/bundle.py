# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm bundle``: a folder to copy to a board that has no Python."""

from __future__ import annotations

import argparse
from typing import Any

from dycl_tvm.cli.arguments import new_parser
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.cli.run import find_params

_EPILOG = """\
The folder has dycl-rpc-server, TVM's two runtime libraries for the board and, where one is given, the model. README.txt in it says how
to start.

examples:
  dycl-tvm bundle --target nvidia/jetson-tx2 -o tx2
  dycl-tvm bundle model.so --target "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a57 -glibc=2.27" -o board
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "bundle", "make a folder with an RPC server and a model for a board without Python", _EPILOG)
    command.add_argument("library", metavar="LIBRARY", nargs="?", help="a .so written by dycl-tvm compile for the board")
    command.add_argument("params", metavar="PARAMS", nargs="?", help="its weights; by default the library's name with .params")
    command.add_argument("-t", "--target", required=True, help="the board, such as nvidia/jetson-tx2")
    command.add_argument("-o", "--output", required=True, metavar="FOLDER", help="the folder to make")
    command.add_argument("--cxx", default="", metavar="COMMAND", help="C++ compiler for the board; by default CXX or zig")
    command.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.deploy import bundle

    params = find_params(args.library, args.params) if args.library else None
    folder = bundle(args.output, args.target, args.library, params, cxx=args.cxx)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"wrote {folder} ({size / 1e6:.1f} MB); copy it to the board and see README.txt in it")
    return OK
