# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Faults that are planted in the compiler are found by the check that every build does; ``make faults`` plants all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_harness import Fault, Program, clean, prove
from fault_list import FAULTS

ROOT = Path(__file__).resolve().parents[4]

#: Of those that need a whole build, one of each kind.
_BUILT = frozenset(
    (
        "the epilogue is dropped",
        "the padding of a maximum is zero",
        "tensors are not live across edges",
        "weights of one size are one",
        "an edge forgets its moves",
    )
)
_CHOSEN = [f for f in FAULTS if not f.compiled or f.name in _BUILT]
_clean: dict[tuple[str, bool], str] = {}


def _checked(program: Program, compiled: bool) -> str:
    """Return why a program cannot show a fault: without one, it is not what it should be."""
    key = (program.name, compiled)
    if key not in _clean:
        try:
            clean(program, compiled)
            _clean[key] = ""
        except Exception as error:
            _clean[key] = f"{type(error).__name__}: {error}"
    return _clean[key]


@pytest.mark.parametrize("fault", _CHOSEN, ids=[f"{f.room}: {f.name}" for f in _CHOSEN])
def test_the_default_check_finds_it(fault: Fault) -> None:
    reason = _checked(fault.program, fault.compiled)
    if reason.startswith("VerificationError"):
        return  # the compiler has this fault as it is, and the check has just found it
    assert not reason
    outcome = prove(fault, ["default"])
    assert outcome.wrong, "the fault makes nothing wrong: another program must show it"
    assert outcome.found["default"]


def test_every_fault_can_be_planted() -> None:
    """Most of them are edits of the source, which changes; the others are planted by `make faults` only."""
    for fault in FAULTS:
        if fault.plant is not None:
            with fault.plant():
                pass


def test_there_are_faults_in_every_room() -> None:
    assert len(FAULTS) >= 60
    assert f"There are {len(FAULTS)} faults." in (ROOT / "docs" / "verification.md").read_text()
    assert {f.room for f in FAULTS} == {"front end", "graph", "passes", "import", "kernels", "lowering", "dispatcher", "runtime"}
