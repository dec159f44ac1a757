# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What verification adds to a build, for networks of the zoo: seconds of the checks beside those of everything else, each of the processor.

    python benchmarks/verify_cost.py [NETWORK ...]

The aim is 2 seconds or a tenth of the build, whichever is more; networks beyond are marked.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.verify.dispatcher import Dispatcher

#: Seconds, and share of the build, that verification may take.
SECONDS, SHARE = 2.0, 0.1


def _seconds() -> float:
    """Return the processor's seconds of this process and of the compilers that it ran: other work on the machine does not count."""
    return sum(os.times()[:4])


class _Clock:
    """Measures the seconds of a part of the build, by its progress lines, and of the dispatcher's check, which is a part of linking."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._part, self._begin = "", 0.0

    def line(self, text: str) -> None:
        """Take a line of progress."""
        if text.startswith("verify: ") and text.endswith(" ..."):
            self._part, self._begin = text[8:-4], _seconds()
        elif text.startswith("verify: "):
            self.parts[self._part] = _seconds() - self._begin

    def watch(self, dispatcher: Dispatcher, *args: Any) -> None:
        """Check a dispatcher."""
        begin = _seconds()
        _WATCH(dispatcher, *args)
        self.parts["the dispatcher"] = _seconds() - begin


_WATCH = Dispatcher.watch


def measure(name: str) -> tuple[float, dict[str, float]]:
    """Build a network; return the seconds of all but verification, and those of each check."""
    entry = zoo.load(name)
    clock = _Clock()
    Dispatcher.watch = lambda self, *args: clock.watch(self, *args)  # type: ignore[method-assign]
    begin = _seconds()
    try:
        artifact = dycl_tvm.build(entry.model, tuple(entry.example_inputs), progress=clock.line)
        with tempfile.TemporaryDirectory() as folder:
            artifact.export_library(Path(folder) / "net.so")
    finally:
        Dispatcher.watch = _WATCH  # type: ignore[method-assign]
    return _seconds() - begin - sum(clock.parts.values()), clock.parts


def main() -> int:
    """Print a line for each network; 1 if verification of one takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="by default the whole zoo")
    beyond = 0
    for name in parser.parse_args().networks or zoo.names():
        rest, parts = measure(name)
        checks = sum(parts.values())
        over = checks > max(SECONDS, SHARE * rest)
        beyond += over
        shares = ", ".join(f"{what} {seconds:.1f}" for what, seconds in parts.items())
        print(f"{name:28}{rest:8.1f} s + {checks:5.1f} s ({checks / rest:4.0%}){' beyond' if over else ''}: {shares}", flush=True)
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main())
