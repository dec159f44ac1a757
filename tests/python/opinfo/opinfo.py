# Licensed under the Apache License, Version 2.0; see LICENSE.
"""`make opinfo`: all of PyTorch's samples staged, those of operators with a converter compiled, random chains; prints one table."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parent))

import torch  # noqa: E402
from chains import Chains, is_stable  # noqa: E402
from check import Outcome, compiled, convertible, staged  # noqa: E402
from samples import OPERATORS, UNDEFINED, Sample, samples  # noqa: E402

_BATCH = 48
#: So many reasons for refusals are printed.
_REASONS = 25
_KINDS = ("right", "refused", "wrong", "crashed")


def _counted(title: str, outcomes: Iterable[Outcome]) -> tuple[str, Counter[str]]:
    """Count outcomes, and print those that are a defect as they come."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for outcome in outcomes:
        counts[outcome.kind] += 1
        if outcome.kind in ("wrong", "crashed"):
            print(f"{outcome.kind}: {outcome.sample}: {outcome.text}", flush=True)
        elif outcome.kind == "refused":
            reasons[_reason(outcome.text)] += 1
    print(f"{title}: {dict(counts)}", *(f"\n    {n:5} {reason}" for reason, n in reasons.most_common(_REASONS)), flush=True)
    return title, counts


def said(text: str) -> str:
    """Return what is said below the user's line."""
    lines = text.splitlines()
    below = [k for k, line in enumerate(lines) if line.strip() and not line.strip().strip("^~")]
    rest = lines[below[-1] + 1 :] if below else [line for line in lines if 'File "' not in line]
    return next(iter(rest), "")[:140]


def _reason(text: str) -> str:
    return re.sub(r"\d+", "N", said(text))[:100]


def _samples(dtype: str, limit: int | None) -> Iterator[Sample]:
    for name in OPERATORS if limit != 0 else ():
        yield from samples(name, getattr(torch, dtype), limit)


def _defined(chosen: Iterable[Sample]) -> Iterator[Sample]:
    return (sample for sample in chosen if sample.operator not in UNDEFINED)


def _built(chosen: Iterable[Sample]) -> Iterator[Outcome]:
    """Compile in batches; what cannot be imported is counted as it is."""
    batch: list[Sample] = []
    for sample in chosen:
        outcome = convertible(sample)
        if outcome.kind == "right":
            batch.append(sample)
        else:
            yield outcome
        if len(batch) == _BATCH:
            yield from compiled(batch)
            batch = []
    yield from compiled(batch)


def main() -> int:
    """Print the table; 1 if anything was wrong or crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="stage at most so many of each operator (default: all)")
    parser.add_argument("--compiled", type=int, help="compile at most so many of each operator (default: all)")
    parser.add_argument("--chains", type=int, default=400)
    parser.add_argument("--dtypes", default="float32,int64,bool,float16,bfloat16")
    parser.add_argument("--chain-dtypes", default="float32", help="types that the operators of one chain are drawn from")
    parser.add_argument("--seed", type=int, default=0, help="number of the first chain")
    options = parser.parse_args()
    rows: list[tuple[str, Counter[str]]] = []
    for dtype in options.dtypes.split(","):
        rows.append(_counted(f"staged, {dtype}", (staged(s) for s in _samples(dtype, options.samples))))
        rows.append(_counted(f"compiled, {dtype}", _built(_defined(_samples(dtype, options.compiled)))))
    types = [getattr(torch, dtype) for dtype in options.chain_dtypes.split(",")]
    chains = Chains(sorted(set(OPERATORS) - UNDEFINED), types)
    numbers = range(options.seed, options.seed + options.chains)
    rows.append(_counted("chains", _built(c for seed in numbers if is_stable(c := chains.chain(seed)))))
    print(f"{'':24}" + "".join(f"{kind:>10}" for kind in _KINDS))
    for title, counts in rows:
        print(f"{title:24}" + "".join(f"{counts[kind]:>10}" for kind in _KINDS))
    return int(any(counts["wrong"] or counts["crashed"] for _, counts in rows))


if __name__ == "__main__":
    sys.exit(main())
