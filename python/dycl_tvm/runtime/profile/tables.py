# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A profile as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dycl_tvm.runtime.path import Decision
from dycl_tvm.runtime.profile.profile import PathTimes, Profile, Row

#: Rows of a table that are shown; the rest is one row.
MOST = 12
_WIDTH = 110


def tables(profile: Profile, most: int = MOST) -> Iterator[str]:
    """Yield the lines of all tables."""
    yield from heading(profile)
    if not profile.runs:
        return
    for title, rows in (
        ("kernels", profile.by_kernel()),
        ("sub-DNNs (a time is that of one kernel)", profile.by_sub_dnn()),
        ("blocks", profile.by_block()),
        ("lines (a kernel's time is told of all lines of its sub-DNN)", profile.by_line()),
    ):
        yield ""
        yield from table(title, rows, most)
    yield ""
    yield from path_table(profile.paths(), most)
    yield "       * the largest time: it ran too rarely to tell that quantile"


def heading(profile: Profile) -> Iterator[str]:
    """Yield what the profile is of, and what is missing."""
    runs = profile.runs
    yield f"{profile.metadata['name']}: {runs} runs, " + (f"{micros(profile.total / runs)} µs on average" if runs else "none ended well")
    if profile.timed < runs:
        share = f"{profile.timed} of these were timed inside ({profile.timed / runs:.1%} on average)"
        yield f"{share}: totals and shares are estimated from them but for paths; counts are exact"
    if profile.failed:
        yield f"{profile.failed} runs ended in an error and are not counted"
    if profile.lost or profile.cut:
        yield f"{profile.lost} events were lost: {profile.cut} runs whose end alone is left, and runs of which nothing is, are not counted"


def table(title: str, rows: Sequence[Row], most: int = MOST) -> Iterator[str]:
    """Yield the lines of one table."""
    yield f"{'share':>6} {'total ms':>10} {'times':>8} {'p50 µs':>10} {'p99 µs':>10}  {title}"
    for row in rows[:most]:
        one = f"{_quantile(row.p50, 0.5, row.timed)} {_quantile(row.p99, 0.99, row.timed)}" if row.p50 or row.p99 else f"{'':21}"
        yield f"{row.share:6.1%} {row.total / 1e6:10.3f} {row.runs:8} {one}  {_short(row.name)}"
    rest = rows[most:]
    if rest:
        share, total, times = sum(r.share for r in rest), sum(r.total for r in rest), sum(r.runs for r in rest)
        yield f"{share:6.1%} {total / 1e6:10.3f} {times:8} {'':>21}  {len(rest)} more"


def path_table(paths: Sequence[PathTimes], most: int = MOST) -> Iterator[str]:
    """Yield the lines of the table of paths."""
    yield f"{'share':>6} {'runs':>8} {'p50 µs':>10} {'p99 µs':>10} {'p99.9 µs':>10} {'kernels':>8} {'bytes':>13}  paths"
    for path in paths[:most]:
        shown = " ".join(_quantile(path.quantile(p), p, len(path.times)) for p in (0.5, 0.99, 0.999))
        yield f"{path.share:6.1%} {len(path.times):8} {shown} {path.kernels:8} {path.bytes:13,}  {_short(_ways(path))}"
    if paths[most:]:
        rest = paths[most:]
        yield f"{sum(p.share for p in rest):6.1%} {sum(len(p.times) for p in rest):8} {'':>56}  {len(rest)} more"


def _quantile(value: int, p: float, times: int) -> str:
    return f"{micros(value) + ('' if times * (1 - p) >= 1 else '*'):>10}"


def _ways(path: PathTimes) -> str:
    return f"{ways(path.decisions)} return {path.origin}"


def ways(decisions: Sequence[Decision], most: int = 40) -> str:
    """Return the sides of a path's decisions in one word: T, F or the number of a case."""
    letters = [_letter(d) for d in decisions]
    return "".join(letters[:most]) + (f"... ({len(letters)})" if len(letters) > most else "") or "-"


def _letter(decision: Decision) -> str:
    choice = decision.choice
    return ("T" if choice else "F") if isinstance(choice, bool) else f"[{choice}]"


def micros(nanoseconds: float) -> str:
    """Return nanoseconds as microseconds; a kernel may take few nanoseconds."""
    return f"{nanoseconds / 1e3:,.1f}" if nanoseconds >= 1e4 else f"{nanoseconds / 1e3:.3f}"


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
