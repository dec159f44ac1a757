# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which checks of elements a graph has: none that bounds prove superfluous, and none twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dycl_tvm
from dycl_tvm.hcfg.nodes import HostOp, TensorOp, Value
from dycl_tvm.hcfg.ranges import Range
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.element_bounds import _summed

W = torch.randn(10, 4)
IDS = torch.zeros(3, dtype=torch.long)


def checks(model, *inputs, **options):
    graph = dycl_tvm.stage(model, inputs, **options)
    return [s.text for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and s.op == "check"]


PROVED = {
    "argmax": lambda x: F.embedding(x.argmax(-1), W),
    "topk": lambda x: W[x.topk(3)[1]],
    "sort": lambda x: x.gather(1, x.sort(-1)[1]),
    "max": lambda x: W.index_select(0, x.max(-1)[1]),
    "constants": lambda x: x[:, torch.tensor([0, -1, 3])],
    "positions": lambda x: x.index_select(1, torch.arange(5) % 3),
    "clamped": lambda x: W[(x[0] * 9).long().clamp(-10, 9)],
    "remainder": lambda x: F.embedding((x[0] * 9).long() % 10, W),
    "a truth": lambda x: F.embedding((x > 0).long(), W),
    "counted": lambda x: F.embedding((x > 0).sum(-1), W),
    "chosen": lambda x: F.embedding(torch.where(x[:, 0] > 0, x.argmax(-1), 9), W),
    "divided by what is not zero": lambda x: (x[0] * 9).long() // (x.argmax(-1) + 1).sum(),
}


@pytest.mark.parametrize("name", PROVED)
def test_no_check_where_bounds_prove_it(name):
    assert not checks(PROVED[name], torch.randn(3, 4))


def test_a_check_where_they_do_not():
    assert len(checks(lambda x: F.embedding(x.argmax(-1) + 7, W), torch.randn(3, 4))) == 1
    assert len(checks(lambda x: W[(x[0] * 9).long().clamp(-11, 9)], torch.randn(3, 4))) == 1
    assert len(checks(lambda x: F.embedding((x[0] * 9).long() % 11, W), torch.randn(3, 4))) == 1
    assert len(checks(lambda x: (x[0] * 9).long() // x.argmax(-1).sum(), torch.randn(3, 4))) == 1
    assert len(checks(lambda x: F.embedding((x.argmax(-1) - 5).clamp_max(3), W), torch.randn(3, 4))) == 1


def test_a_sum_of_nothing_is_zero():
    nothing, made = Value(TensorType((0, 3), "int64")), Value(TensorType((3,), "int64"))
    step = TensorOp("aten.sum.dim_IntList", (nothing, [0]), {}, (made,))
    assert _summed(step, made, lambda x: Range(0, -1)) == Range(0, 0)


def test_one_check_of_a_tensor():
    def model(ids):
        a = F.embedding(ids, W) + W[ids] + W.index_select(0, ids)
        return a + F.embedding(ids.reshape(1, 3)[0], W) + F.embedding(ids[1:].flip(0)[:1], W), W[:, ids[:, None].clamp(max=3)]

    assert len(checks(model, IDS)) == 1
    narrower = checks(lambda ids: F.embedding(ids, W) + F.embedding(ids, W[:5]), IDS)
    assert [text.rpartition("is ")[2] for text in narrower] == ["0 to 9", "0 to 4"]


def test_what_one_branch_checks_the_other_does_not_know():
    def model(ids, x):
        y = F.embedding(ids, W) if x.sum() > 0 else torch.zeros(3, 4)
        return y + F.embedding(ids, W)

    assert len(checks(model, IDS, torch.ones(1))) == 2


def test_a_decoder_checks_its_prompt_once_and_its_own_words_never():
    def model(ids, x):
        hidden = F.embedding(ids, W).sum(0)
        word, n = ids[-1], 0
        while n < x:
            hidden = hidden + F.embedding(word, W)
            word = (hidden @ W.T).argmax()
            n = n + 1
        return word

    assert len(checks(model, IDS, torch.tensor(3))) == 1


def test_what_a_trip_has_not_checked_the_next_does_not_know():
    def model(x, n):
        kept = torch.zeros(1, dtype=torch.long)
        total = torch.zeros(1, 4)
        while n > 0:
            word = (x * n).long()
            if n % 2 == 0:
                total = total + F.embedding(word, W)
                total = total + F.embedding(kept, W)  # of a trip that may have gone the other way
            kept = word
            n = n - 1
        return total

    assert len(checks(model, torch.ones(1), torch.tensor(3))) == 2


def test_a_second_run_of_the_passes_puts_none():
    graph = dycl_tvm.stage(lambda ids: F.embedding(ids, W) + 1 // ids[:, None], (IDS,), passes=False)
    from dycl_tvm.passes.element_checks import element_checks, missing_checks

    assert missing_checks(graph) == 2
    assert element_checks(graph) == 2
    assert missing_checks(graph) == element_checks(graph) == 0


def test_left_out_it_is_said():
    graph = dycl_tvm.stage(lambda ids: F.embedding(ids, W), (IDS,), disable_passes=["element_checks"])
    assert any("1 checks of elements" in line for line in graph.left_out)
    graph = dycl_tvm.stage(lambda ids: F.embedding(ids, W), (IDS,), device="cuda")
    assert any("1 checks of elements" in line for line in graph.left_out)
