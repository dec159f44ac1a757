# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``return``, ``break``, ``continue`` and ``raise`` out of every structure, at every position, in every other structure, on every path.

``make test`` takes a share of the 7,320 programs; DYCL_JUMP_SHARE=1 takes all.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import random

import jump_programs
import pytest
import torch
from differential import check

from dycl_tvm.errors import UnsupportedError

#: Every so many programs one is checked.
SHARE = int(os.environ.get("DYCL_JUMP_SHARE", "60"))
INPUTS = [(torch.tensor(v),) for v in itertools.product([1.0, -1.0], [2.0, 0.5, -1.0], [2.0, 0.0])]


def module_of(chosen, folder):
    path = folder / "chosen_programs.py"
    path.write_text(jump_programs.source(chosen))
    spec = importlib.util.spec_from_file_location("chosen_programs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("part", range(4))
def test_jumps_do_what_they_do_in_eager_or_are_refused(part, tmp_path):
    every = list(jump_programs.programs())
    random.Random(0).shuffle(every)
    chosen = every[part :: 4 * SHARE]
    module = module_of(chosen, tmp_path)
    refused = 0
    for number, (name, body) in enumerate(chosen):
        try:
            check(getattr(module, f"program_{number}"), INPUTS)
        except UnsupportedError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}\n{body}") from error
    # what is refused stands in a loop whose trip count is known only at run time, with a try or with around the jump
    assert refused < 0.55 * len(chosen), f"{refused} of {len(chosen)} refused"


@pytest.mark.parametrize(
    "name",
    [
        "for: for else: plain: if x[0] > 0: return r",
        "for: for else: plain: if x[0] > 0: break",
        "while: for else: plain: if x[0] > 0: continue",
        "in a function: while else: plain: if x[0] > 0: continue",
        "range: if: for: if x[0] > 0: raise KeyError('k')",
        "for: finally: if: always return r",
        "for: with: finally: if x[0] > 0: break",
        "in a function: try, finally: plain: always return r",
    ],
)
def test_these_are_not_refused(name, tmp_path):
    check(module_of([(name, dict(jump_programs.programs())[name])], tmp_path).program_0, INPUTS)


def continues_in_every_trip(x):
    y, seen = x, x[:1]
    for _ in range(8):
        seen = torch.cat([seen, y.sum().reshape(1)], 0)
        y = y * 0.9 + x * 0.2 + 0.3
        try:
            if isinstance(x, torch.Tensor):
                continue
        finally:
            y = y + 0.1
    return y, seen


def breaks_by_a_test(x):
    y, seen = x, x[:1]
    for _ in range(8):
        try:
            if y.sum() > 8:
                break
        finally:
            y = y + 0.1
        y = y * 0.9 + x * 0.2 + 0.3
        seen = torch.cat([seen, y.sum().reshape(1)], 0)
    return y, seen


def continues_on_one_of_two_paths(x):
    y, i = x, 0
    while i < 30 and y.sum() < 50:
        i += 1
        mean = None if (y > 2).all() else y * 2
        y = y * 0.9 + x.abs() * 0.2 + 0.3
        for k in range(2):
            try:
                try:
                    if mean is None:
                        continue
                    y = y + mean.mean() * 0.01
                finally:
                    y = y + 0.1
            finally:
                y = y * 1.01 + k
        y = y + 0.2
    return y, i


@pytest.mark.parametrize("program", [continues_in_every_trip, breaks_by_a_test, continues_on_one_of_two_paths], ids=lambda f: f.__name__)
def test_what_a_finally_makes_of_variables_goes_with_the_jump(program):
    check(program, INPUTS)
