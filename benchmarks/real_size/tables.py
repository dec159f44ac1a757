# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tables in Markdown of what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from shared import geometric_mean

from real_size.contenders import Row


class Table:
    """A table whose rows are shown as they come; a peer that is faster than ours is marked.

    Parameters
    ----------
    of : str
        What a row is.
    contenders : sequence of str
        Who has a column.
    """

    def __init__(self, of: str, contenders: Sequence[str]) -> None:
        self.contenders = contenders
        self.ratios: dict[str, list[float]] = {}
        head = [of, *contenders, "fastest peer / ours", "ready after s", "MB of the build"]
        print("\n" + "".join(f"| {h} " for h in head) + "|\n" + "| --- " * len(head) + "|", flush=True)

    def show(self, name: str, row: Row) -> None:
        """Print a row: milliseconds and megabytes of a run of each, and of all how long it took until they could run."""
        ours = row.milliseconds.get("ours")
        cells = [self._cell(who, row, ours) for who in self.contenders]
        peers = {who: ms for who, ms in row.milliseconds.items() if who != "ours"}
        if ours is not None:
            for who, ms in [*peers.items(), *([("fastest", min(peers.values()))] if peers else [])]:
                self.ratios.setdefault(who, []).append(ms / ours)
        ratio = f"{min(peers.values()) / ours:.2f}" if peers and ours is not None else ""
        seconds = ", ".join(f"{row.seconds[who]:.0f}" if who in row.seconds else "-" for who in self.contenders)
        building = f"{row.building['ours']:.0f}" if "ours" in row.building else ""
        print("".join(f"| {c} " for c in [name, *cells, ratio, seconds, building]) + "|", flush=True)

    def _cell(self, who: str, row: Row, ours: float | None) -> str:
        if who not in row.milliseconds:
            return row.missing.get(who, "").replace("|", "/")
        ms = row.milliseconds[who]
        lost = " **(loss)**" if ours is not None and ms < ours else ""
        return f"{ms:.4g} ms{lost}, {row.megabytes[who]:.0f} MB"

    def end(self) -> None:
        """Print the geometric means of what each peer took over ours."""
        means = [f"{who} {geometric_mean(r):.2f} ({sum(x < 1 for x in r)} of {len(r)} lost)" for who, r in self.ratios.items()]
        print(f"\nOver ours, geometric mean: {'; '.join(means)}", flush=True)
