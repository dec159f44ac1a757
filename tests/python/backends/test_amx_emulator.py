# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The emulator of AMX: known results, and what a CPU would refuse. On a CPU with AMX the first half tests the expectations."""

from __future__ import annotations

import subprocess

import pytest
from amx_emulation import CPU, compiled

from dycl_tvm.runtime.trailer import cpu_flags


def run(case: str) -> subprocess.CompletedProcess[str]:
    program = compiled("instructions", "amx_instructions.cc")
    return subprocess.run([program, case], capture_output=True, text=True, check=False)


@CPU
@pytest.mark.parametrize("case", ["integers", "order", "quads", "specials", "addresses", "good"])
def test_results(case: str) -> None:
    done = run(case)
    assert done.returncode == 0, done.stderr


@CPU
@pytest.mark.skipif("amx_tile" in cpu_flags(), reason="this CPU has AMX, nothing is emulated")
@pytest.mark.parametrize(
    "case, why",
    [
        ("palette", "ldtilecfg: no such palette"),
        ("reserved", "ldtilecfg: a reserved byte is not 0"),
        ("rows", "ldtilecfg: more than 16 rows"),
        ("bytes", "ldtilecfg: a row of more than 64 bytes"),
        ("half", "ldtilecfg: a tile without rows or without columns"),
        ("ninth", "ldtilecfg: there are only eight tiles"),
        ("unused", "tileloadd: the tile is not configured"),
        ("left", "tdpbf16ps: the sums have not the rows of the left tile"),
        ("right", "tdpbf16ps: the sums have not the columns of the right tile"),
        ("pairs", "tdpbf16ps: the left tile has not as many words as the right one has rows"),
        ("same", "tdpbf16ps: the three tiles are not different"),
        ("released", "tilezero: tiles are not configured on this thread"),
        ("thread", "tilezero: tiles are not configured on this thread"),
        ("illegal", "an illegal instruction that is none of AMX: 0f 0b"),
    ],
)
def test_what_a_cpu_refuses_ends_the_process(case: str, why: str) -> None:
    done = run(case)
    assert done.returncode < 0 and why in done.stderr
