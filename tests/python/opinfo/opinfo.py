# Licensed under the Apache License, Version 2.0; see LICENSE.
"""`make opinfo`: all of PyTorch's samples staged, those of operators with a converter compiled, random chains; prints one table."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parent))

import torch  # noqa: E402
from chains import Chains, is_stable  # noqa: E402
from check import Outcome, compiled, convertible, staged  # noqa: E402
from samples import OPERATORS, UNDEFINED, Sample, samples  # noqa: E402

_BATCH = 48
_KINDS = ("right", "refused", "wrong", "crashed")


def _told(outcomes: list[Outcome]) -> list[Outcome]:
    for outcome in outcomes:
        if outcome.kind in ("wrong", "crashed"):
            print(f"{outcome.kind}: {outcome.sample}: {outcome.text}", flush=True)
    return outcomes


def _built(chosen: list[Sample]) -> list[Outcome]:
    """Compile in batches; what cannot be imported is counted as it is."""
    outcomes, batch = [], []
    for sample in chosen:
        outcome = convertible(sample)
        if outcome.kind == "right":
            batch.append(sample)
        else:
            outcomes += _told([outcome])
        if len(batch) == _BATCH:
            outcomes += _told(compiled(batch))
            batch = []
    return outcomes + _told(compiled(batch))


def main() -> int:
    """Print the table; 1 if anything was wrong or crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="at most so many of each operator (default: all)")
    parser.add_argument("--chains", type=int, default=400)
    parser.add_argument("--dtypes", default="float32,int64,bool,float16,bfloat16")
    parser.add_argument("--seed", type=int, default=0, help="number of the first chain")
    options = parser.parse_args()
    rows: list[tuple[str, Counter[str]]] = []
    for dtype in options.dtypes.split(","):
        kind = getattr(torch, dtype)
        every = [sample for name in OPERATORS for sample in samples(name, kind, options.samples)]
        rows.append((f"staged, {dtype}", Counter(o.kind for o in _told([staged(s) for s in every]))))
        rows.append((f"compiled, {dtype}", Counter(o.kind for o in _built(every))))
    chains = Chains(sorted(set(OPERATORS) - UNDEFINED))
    stable = [c for seed in range(options.seed, options.seed + options.chains) if is_stable(c := chains.chain(seed))]
    rows.append(("chains", Counter(o.kind for o in _built(stable))))
    print(f"{'':24}" + "".join(f"{kind:>10}" for kind in _KINDS))
    for title, counts in rows:
        print(f"{title:24}" + "".join(f"{counts[kind]:>10}" for kind in _KINDS))
    return int(any(counts["wrong"] or counts["crashed"] for _, counts in rows))


if __name__ == "__main__":
    sys.exit(main())
