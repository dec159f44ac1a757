# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm cache``: what builds keep on disk for the next one."""

from __future__ import annotations

import argparse
from typing import Any

from dycl_tvm import cache
from dycl_tvm.cli.arguments import new_parser
from dycl_tvm.cli.exit_codes import OK

_EPILOG = """\
examples:
  dycl-tvm cache
  dycl-tvm cache clear

DYCL_CACHE_DIR is the folder, DYCL_CACHE_BYTES what may be kept there (0: no kernels). What was not used for longest goes first.
"""
_NAMES = {cache.KERNELS: "objects of kernels", cache.RUNTIME: "objects of the fixed runtime"}


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "cache", "show or clear what builds keep on disk", _EPILOG)
    command.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="show sizes (default), or remove it all")
    command.set_defaults(handler=_run)


def _run(args: argparse.Namespace) -> int:
    if args.action == "clear":
        cache.clear()
    print(f"{cache.cache_dir()}, at most {cache.limit() / 2**20:.0f} MiB")
    for room, found in cache.contents().items():
        print(f"  {_NAMES[room]}: {found.files} files, {found.bytes / 2**20:.1f} MiB")
    return OK
