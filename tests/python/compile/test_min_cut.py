# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The minimum cut against all labellings."""

from __future__ import annotations

import itertools
import random

import pytest

from dycl_tvm.compile.min_cut import MinCut


@pytest.mark.parametrize("seed", range(40))
def test_no_labelling_is_cheaper(seed: int) -> None:
    rng = random.Random(seed)
    cut = MinCut()
    nodes = [cut.node() for _ in range(rng.randint(1, 8))]
    pairs = [(a, b, float(rng.randint(1, 9))) for a, b in itertools.combinations(nodes, 2) if rng.random() < 0.5]
    groups = [(nodes[0], rng.sample(nodes[1:], min(len(nodes) - 1, 3)), float(rng.randint(1, 9))) for _ in range(2)]
    wishes = [(n, rng.random() < 0.5, float(rng.randint(1, 9))) for n in nodes if rng.random() < 0.7]
    for pair in pairs:
        cut.different(*pair)
    for group in groups:
        cut.any_different(*group)
    for wish in wishes:
        cut.fix(*wish)

    def cost(label: dict[int, bool]) -> float:
        total = sum(c for a, b, c in pairs if label[a] != label[b]) + sum(c for n, want, c in wishes if label[n] != want)
        return total + sum(c for a, others, c in groups if any(label[a] != label[o] for o in others))

    best = min(cost(dict(zip(nodes, labels))) for labels in itertools.product((False, True), repeat=len(nodes)))
    found = cut.solve()
    assert cost({n: found[n] for n in nodes}) == best


def test_fixed_labels_hold_and_ties_are_false() -> None:
    cut = MinCut()
    a, b, c, alone = (cut.node() for _ in range(4))
    cut.fix(a, True)
    cut.fix(c, False)
    cut.different(a, b, 5.0)
    cut.different(b, c, 5.0)
    found = cut.solve()
    assert (found[a], found[b], found[c], found[alone]) == (True, False, False, False)


def test_a_contradiction_is_an_error() -> None:
    cut = MinCut()
    a = cut.node()
    cut.fix(a, True)
    cut.fix(a, False)
    with pytest.raises(ValueError, match="contradict"):
        cut.solve()
