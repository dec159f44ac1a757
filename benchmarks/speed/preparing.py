# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The step before the timing: does the units that are missing, and says how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from speed.pool import environment
from speed.units import Unit

Tell = Callable[[str], None]


def prepare(units: Sequence[Unit], work: Path, launcher: str, again: bool, tell: Tell) -> None:
    """Do the units that have no record of today's key.

    Parameters
    ----------
    units : sequence of Unit
        In the order in which they are wanted.
    work : Path
    launcher : str
        A command that starts each unit's process.
    again : bool
        Whether units that failed are tried again.
    tell : callable
    """
    unready: set[Path] = set()
    for number, unit in enumerate(units):
        place = f"[{number + 1}/{len(units)}] {unit.folder.name} {unit.what}"
        found = unit.record()
        if found is None or (again and found["error"] is not None):
            if unit.folder in unready:
                continue
            found = unit.run(launcher, environment(work, unit.sizes.threads))
            tell(f"{place}: {found['seconds']:.0f} s {found['error'] or ''}".rstrip())
        if unit.what == "network" and found["error"] is not None:
            tell(f"{place}: left out, with all that needs it")
            unready.add(unit.folder)
