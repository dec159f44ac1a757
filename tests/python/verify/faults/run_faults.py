# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``python run_faults.py [WORD ...]``: plant every fault (or those whose room or name has a word), and print who finds it."""

from __future__ import annotations

import sys
import traceback

from fault_harness import Outcome, clean, prove, table
from fault_list import FAULTS

from dycl_tvm.errors import VerificationError


def main() -> int:
    """Return 1 if a fault that counts is found by no check, or if one could not be planted."""
    chosen = [f for f in FAULTS if not sys.argv[1:] or any(word in f"{f.room}: {f.name}" for word in sys.argv[1:])]
    outcomes, broken = [], 0
    checked: set[tuple[str, bool]] = set()
    for fault in chosen:
        print(f"{fault.room}: {fault.name}", flush=True)
        try:
            if (fault.program.name, fault.compiled) not in checked:
                checked.add((fault.program.name, fault.compiled))
                clean(fault.program, fault.compiled)
            outcome = prove(fault)
        except VerificationError:  # nobody needs to plant it
            outcome = Outcome(fault, "is in the compiler as it is", dict.fromkeys(("default", "full"), "found without planting it"), 0.0)
        except Exception:
            traceback.print_exc(limit=8)
            broken += 1
            continue
        outcomes.append(outcome)
        print(f"    wrong: {outcome.wrong or 'no'}\n    default: {outcome.found['default'] or 'MISSED'}", flush=True)
        print(f"    full: {outcome.found['full'] or 'MISSED'}", flush=True)
    print(table(outcomes))
    if broken:
        print(f"{broken} could not be planted")
    return 1 if broken or not all(o.found["full"] for o in outcomes if o.wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
