# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Hunting: programs with effects, staged and compared with eager.

    python tests/python/frontend/hunt.py random 0 1000       seeds 0 to 999
    python tests/python/frontend/hunt.py grid                 every effect alone in every structure
    python tests/python/frontend/hunt.py grid 30 40           effects 30 to 39
    python tests/python/frontend/hunt.py growing 0 1000      loops whose tensors grow; every second one asks one thing only of them
    python tests/python/frontend/hunt.py build 0 1000         seeds 0 to 999; those that are right are built too, 8 in one library
    python tests/python/frontend/hunt.py shrink FILE ...      the smallest programs of which the same is so

What is wrong or crashes is written to ``--out`` (out/hunt), one file a program.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from effects import EFFECTS, Program, structures
from growing import READS, GrowingProgram
from hunt_builds import judge_built
from judge import Verdict, judge, shrink

#: Loops whose tensors grow say themselves how often they run at most.
UNBOUNDED = {"max_loop_trips": None}


def random_programs(begin: int, end: int) -> Iterator[tuple[str, str]]:
    """Yield names and programs of some seeds."""
    for seed in range(begin, end):
        yield f"seed_{seed}", Program(random.Random(seed).randrange).source()


def grid(begin: int, end: int) -> Iterator[tuple[str, str]]:
    """Yield names and programs of some effects, each alone in every structure."""
    for number in range(begin, min(end, len(EFFECTS))):
        for structure in range(structures(EFFECTS[number])):
            given = iter([0, number, 0, 0, (number + structure) % 8, structure])
            rest = random.Random(number * 100 + structure)

            def choose(n: int, given: Iterator[int] = given, rest: random.Random = rest) -> int:
                chosen = next(given, None)
                return rest.randrange(n) if chosen is None else chosen % n

            yield f"effect_{number}_{structure}", Program(choose).source()


def growing_programs(begin: int, end: int) -> Iterator[tuple[str, str]]:
    """Yield names and programs of some seeds whose tensors grow in loops."""
    for seed in range(begin, end):
        yield f"growing_{seed}", GrowingProgram(random.Random(seed).randrange, seed // 2 % len(READS) if seed % 2 else None).source()


def hunt(
    programs: Iterator[tuple[str, str]], out: Path | None = None, every: int = 0, **options: Any
) -> tuple[dict[str, int], dict[str, int]]:
    """Judge programs; return how many of each kind there were, and why programs were refused, the most frequent first."""
    kinds: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    for name, source in programs:
        verdict = judge(source, **options)
        kinds[verdict.kind] += 1
        if verdict.kind == "refused":
            reasons[verdict.reason] += 1
        elif verdict.kind != "right" and out is not None:
            _keep(out / f"{verdict.kind}_{name}.py", source, verdict)
        if every and sum(kinds.values()) % every == 0:
            print(dict(kinds), f"{time.monotonic() - began:.0f} s", flush=True)
    return dict(kinds), dict(reasons.most_common())


def hunt_builds(programs: Iterator[tuple[str, str]], out: Path, size: int = 8) -> dict[str, int]:
    """Build those programs that are right, some in one library; return how many of each kind there were."""
    kinds: collections.Counter[str] = collections.Counter()
    right = ((name, source) for name, source in programs if judge(source).kind == "right")
    while batch := list(itertools.islice(right, size)):
        for (name, source), verdict in zip(batch, judge_built([source for _, source in batch])):
            kinds[verdict.kind] += 1
            if verdict.kind != "right":
                _keep(out / f"built_{verdict.kind}_{name}.py", source, verdict)
        print(dict(kinds), flush=True)
    return dict(kinds)


def _keep(path: Path, source: str, verdict: Verdict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{source}# {verdict.kind}: {' '.join(verdict.reason.split())}\n")


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("random", "grid", "growing", "build", "shrink"))
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("out/hunt"))
    options = parser.parse_args()
    if options.what == "shrink":
        for name in options.arguments:
            source = Path(name).read_text()
            kind = judge(source).kind
            if kind == "right":
                print(f"== {name}: right")
                continue
            small = shrink(source, lambda s, kind=kind: judge(s).kind == kind)  # type: ignore[misc]
            _keep(Path(name).with_suffix(".small.py"), small, judge(small))
            print(f"== {name}\n{small}# {kind}: {judge(small).reason}", flush=True)
        return
    begin, end = (int(a) for a in options.arguments) if options.arguments else (0, 1000)
    programs = {"grid": grid, "growing": growing_programs}.get(options.what, random_programs)(begin, end)
    if options.what == "build":
        hunt_builds(programs, options.out)
        return
    kinds, reasons = hunt(programs, options.out, every=200, **(UNBOUNDED if options.what == "growing" else {}))
    print(kinds)
    for reason, count in list(reasons.items())[:30]:
        print(f"{count:6} {reason}")


if __name__ == "__main__":
    main()
