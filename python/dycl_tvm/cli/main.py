# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The command ``dycl-tvm``: sub-commands, and how errors become exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from dycl_tvm._version import __version__
from dycl_tvm.cli import bundle, cache, compile, deploy, inspect, paths, profile, run, serve, verify, zoo
from dycl_tvm.cli.exit_codes import FAILURE, INTERRUPTED, OK, UNSUPPORTED, USAGE
from dycl_tvm.errors import DyclError, UnsupportedError, UsageError

_EPILOG = f"""\
exit codes:
  {OK}  done
  {FAILURE}  failed: a tool, a file or the network at run time; or results that differ
  {USAGE}  wrong arguments: the message says what to give
  {UNSUPPORTED}  the model's control flow cannot be compiled: the message shows the file, line and code

examples:
  dycl-tvm zoo list
  dycl-tvm compile zoo:sdn_mobilenet -o model.so --params model.params
  dycl-tvm run model.so --params model.params --repeat 100
  dycl-tvm profile model.so -o trace.json
  dycl-tvm inspect my_model.py:net --input 1x3x32x32 -o net.html
  dycl-tvm deploy model.so model.params --rpc 192.168.1.20:9090
  dycl-tvm serve model.so model.params
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="dycl-tvm",
        description="Compiles dynamic PyTorch networks into one shared library, and runs and inspects such libraries.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"dycl-tvm {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for module in (compile, run, profile, inspect, verify, paths, zoo, deploy, bundle, cache, serve):
        module.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    args = parser().parse_args(argv)
    try:
        return int(args.handler(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left (`dycl-tvm inspect ... | head`); nothing is wrong.
        sys.stderr.close()
        return OK
    except ModuleNotFoundError as err:
        if args.debug or not (err.name or "").startswith("dycl_tvm."):
            raise
        print("dycl-tvm: error: dycl-tvm-runtime is installed here, which cannot do this: pip install dycl-tvm", file=sys.stderr)
        return USAGE
    except (DyclError, OSError) as err:
        if args.debug:
            raise
        print(f"dycl-tvm: error: {err}", file=sys.stderr)
        if isinstance(err, UsageError):
            return USAGE
        return UNSUPPORTED if isinstance(err, UnsupportedError) else FAILURE


if __name__ == "__main__":
    sys.exit(main())
