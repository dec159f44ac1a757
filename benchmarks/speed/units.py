# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The slow work before the timing, cut into units: each is one process and leaves one record, so that it is done once.

    work/NETWORK/WHAT.json    {"key": ..., "seconds": ..., "error": why not, or null, ...}

WHAT is ``network`` (inputs, results, static networks), ``ours`` or ``ours-ABLATION`` (an artefact), ``CONTENDER-K`` (what a
contender compiles for the K-th path), or ``dispatch`` (the peers of the dispatch-bound case). A unit is done if its record has the
key that it would have now: a hash of the sources and the versions that its result depends on.

    python -m speed.units '{"folder": ..., "what": ..., "key": ..., "limit": 240, ...}'
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from speed.ablations import ABLATIONS, folder_name
from speed.contenders import CONTENDERS, make

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "python" / "dycl_tvm"
#: Rooms on which no artefact depends.
_ASIDE = ("zoo", "cli", "deploy", "onnx_export", "coverage", "__pycache__")


@dataclass(frozen=True)
class Sizes:
    """How much of each network is prepared: inputs drawn, the most frequent paths kept, and of these the ones that are compiled."""

    draw: int
    paths: int
    compiled_paths: int
    threads: int


#: Of a full run.
FULL = Sizes(draw=64, paths=4, compiled_paths=1, threads=min(2, os.cpu_count() or 1))


@dataclass(frozen=True)
class Unit:
    """One piece of work on one network; ``folder`` is that of the network."""

    folder: Path
    what: str
    key: str
    sizes: Sizes
    limit: float

    def record(self) -> dict[str, Any] | None:
        """Return what the unit left, if it was done as it would be done now."""
        found = read_record(self.folder, self.what)
        return found if found is not None and found["key"] == self.key else None

    def run(self, launcher: str, env: dict[str, str]) -> dict[str, Any]:
        """Do the unit in a process of its own and return its record.

        Parameters
        ----------
        launcher : str
            A command that starts the process, such as ``nice -n 15``.
        env : dict
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{self.what}.json").unlink(missing_ok=True)
        order = {**vars(self.sizes), "folder": str(self.folder), "what": self.what, "key": self.key, "limit": self.limit}
        log = self.folder / f"{self.what}.log"
        with log.open("w") as file:
            # The unit ends itself when its stdin does: then nobody waits for it any more.
            command = [*shlex.split(launcher), sys.executable, "-m", "speed.units", json.dumps(order)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=env) as process:
                status = process.wait()
        return self.record() or {"error": f"the process ended (status {status}; see {log})", "seconds": 0.0, "key": ""}


def read_record(folder: Path, what: str) -> dict[str, Any] | None:
    """Return the record of a unit, whatever its key."""
    file = folder / f"{what}.json"
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def write_record(folder: Path, what: str, record: dict[str, Any]) -> None:
    """Write the record of a unit in one step."""
    draft = folder / f"{what}.json.part"
    draft.write_text(json.dumps(record))
    os.replace(draft, folder / f"{what}.json")


# -- keys --------------------------------------------------------------------------------------------------------------


def digest(paths: Iterable[Path], *words: str) -> str:
    """Return a hash of the names and contents of files, and of words."""
    state = hashlib.sha256("\0".join(words).encode())
    for path in sorted(paths):
        state.update(f"\0{path.name}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


@lru_cache
def compiler_key() -> str:
    """Return what artefacts depend on: the sources of the compiler and of the runtime."""
    files = [p for p in _PACKAGE.rglob("*") if p.suffix in (".py", ".json") and not set(_ASIDE) & set(p.relative_to(_PACKAGE).parts)]
    files += [p for p in (_ROOT / "src").rglob("*") if p.suffix in (".h", ".cc", ".cpp", ".c")]
    return digest(files, version("apache-tvm"))


@lru_cache
def network_key(sizes: Sizes) -> str:
    """Return what a prepared network depends on."""
    here = Path(__file__).parent
    files = [*(_PACKAGE / "zoo").rglob("*.py"), here / "networks.py", here / "static.py"]
    return digest(files, version("torch"), str(sizes.draw), str(sizes.paths))


def _options(what: str) -> dict[str, Any]:
    """Return the options of :func:`speed.compiling.compile_network` for a unit ``ours`` or ``ours-ABLATION``."""
    return next((dict(o) for name, o in ABLATIONS.items() if what == f"ours-{folder_name(name)}"), {})


def key_of(what: str, sizes: Sizes) -> str:
    """Return the key that a unit would have now."""
    network = network_key(sizes)
    if what == "network":
        return network
    if what == "dispatch":
        return digest([Path(__file__).with_name("dispatch_bound.py")], version("torch"))
    if what.startswith("ours"):
        options = _options(what)
        return digest([], network, compiler_key(), str(options) if options else "")
    contender = CONTENDERS[what.rpartition("-")[0]][0]
    return digest([], network, version("torch"), str(sizes.threads), *(inspect.getsource(c) for c in contender.__mro__[:-2]))


# -- which -------------------------------------------------------------------------------------------------------------


def make_unit(folder: Path, what: str, sizes: Sizes, limit: float) -> Unit:
    """Return a unit with the key that it has now."""
    return Unit(folder, what, key_of(what, sizes), sizes, limit)


def needed(
    work: Path, networks: Sequence[str], contenders: Sequence[str], ablated: Sequence[str], dispatch: bool, sizes: Sizes, limit: float
) -> list[Unit]:
    """Return the units that the measurement needs, those first without which it has least to show.

    Parameters
    ----------
    work : Path
    networks, contenders : sequence of str
    ablated : sequence of str
        Networks of the ablation.
    dispatch : bool
        Whether the dispatch-bound case is measured.
    sizes : Sizes
    limit : float
        Seconds for one unit.
    """

    def names() -> Iterator[tuple[str, str]]:
        yield from ((n, "network") for n in networks)
        yield from [("mlp", "dispatch")] * dispatch
        for k in range(sizes.compiled_paths):
            for c in contenders:
                yield from ((n, f"{c}-{k}") for n in networks if CONTENDERS[c][0].slow)
        if {"ours", "ort-split"} & set(contenders):
            yield from ((n, "ours") for n in networks)
        yield from ((n, f"ours-{folder_name(a)}") for n in ablated for a in ABLATIONS)

    return [make_unit(work / network, what, sizes, limit) for network, what in names()]


# -- the process -------------------------------------------------------------------------------------------------------


def do(order: dict[str, Any]) -> dict[str, Any]:
    """Do a unit and return what its record says beside key, seconds and error."""
    folder, what = Path(order["folder"]), order["what"]
    if what == "network":
        from speed.networks import prepare

        prepare(folder.name, folder, order["draw"], order["paths"])
        return {}
    if what == "dispatch":
        from speed.dispatch_bound import build_peers

        build_peers(folder)
        return {}
    if what.startswith("ours"):
        from speed.compiling import compile_network

        return compile_network(folder, folder / what, _options(what))
    contender, _, k = what.rpartition("-")
    if int(k) < len(json.loads((folder / "about.json").read_text())["weights"]):
        make(contender, folder, order["threads"]).build(int(k))
        return {}
    return {"absent": True}  # the network has fewer paths


def _watch(order: dict[str, Any], begin: float) -> None:
    """End this process and those that it started when its time is over, or when stdin ends."""
    while time.monotonic() < begin + order["limit"]:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 1):
            os.killpg(0, signal.SIGKILL)
    record = {"key": order["key"], "seconds": order["limit"], "error": f"not ready within {order['limit']:.0f} s (--limit)"}
    write_record(Path(order["folder"]), order["what"], record)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Do one unit."""
    order, begin = json.loads(sys.argv[1]), time.monotonic()
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    threading.Thread(target=_watch, args=(order, begin), daemon=True).start()
    record: dict[str, Any] = {"error": None}
    try:
        record |= do(order)
    except Exception as error:
        text = next((t.strip() for t in str(error).splitlines() if t.strip()), "")
        record["error"] = f"{type(error).__name__}: {text[:300]}"
    record |= {"key": order["key"]}
    record.setdefault("seconds", time.monotonic() - begin)
    write_record(Path(order["folder"]), order["what"], record)


if __name__ == "__main__":
    main()
