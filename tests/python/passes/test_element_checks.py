# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which checks of elements a graph has: none that bounds prove superfluous, and none twice."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

import dycl_tvm
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.nodes import HostOp, TensorOp, Value
from dycl_tvm.hcfg.ranges import Range
from dycl_tvm.hcfg.types import BOOL, TensorType
from dycl_tvm.passes.element_bounds import _summed
from dycl_tvm.passes.element_checks import element_checks, missing_checks
from dycl_tvm.passes.scopes import Scopes
from dycl_tvm.zoo.modern.gpt import GreedyGPT

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


@pytest.mark.parametrize("last, expected", [(7, 0), (8, 1)])
def test_a_place_that_is_counted_beside_the_trips_is_bounded_by_them(last, expected):
    def model(x):
        at, total = 3, torch.zeros(4)
        for _ in range(last):
            total = total + F.embedding(torch.arange(at, at + 1), W)[0]
            at = at + 1
            if (total + x).sum() > 1e9:
                break
        return total

    assert len(checks(model, torch.ones(4))) == expected


@pytest.mark.parametrize("last, expected", [(10, 0), (11, 1)])
def test_a_number_is_bounded_by_the_branch_that_it_is_looked_at_in(last, expected):
    def model(n):
        n, total = n.item(), torch.zeros(4)
        while n > 0:
            place = torch.full((2,), n - 5) + 5
            if n < last:
                total = total + F.embedding(place, W).sum(0)
            n = n - 1
        return total

    assert len(checks(model, torch.tensor(5))) == expected


def test_a_number_of_the_trip_before_is_not_the_one_that_is_compared():
    def model(n, x):
        kept, total = torch.zeros((), dtype=torch.long), torch.zeros(4)
        while n > 0:
            if n < 10:
                total = total + F.embedding(kept, W) + F.embedding(torch.full((), n), W)
            kept = torch.full((), n)
            n = n - 1
        return total

    assert len(checks(lambda n, x: model(n.item(), x), torch.tensor(5), torch.ones(4))) == 1


def test_a_decoder_does_not_check_its_own_places():
    model = GreedyGPT(n_embd=8, n_layer=1, n_head=1)
    texts = [checks(model, torch.zeros(1, length, dtype=torch.long)) for length in (8, 13, 14)]  # 20 more tokens, and 32 places
    assert [[text.rpartition("is ")[2] for text in t] for t in texts] == [["0 to 255"], ["0 to 255"], ["0 to 255", "0 to 31"]]


@pytest.mark.parametrize("nested", [False, True])
def test_many_checks_cost_what_they_are_many(nested):
    def many(count):
        graph = GraphBuilder("many", {"i": tensor(3, dtype="int64"), "c": BOOL})
        at, end, value, rows = graph.entry, graph.block("end"), graph.params[0], constant(W)
        for k in range(count):
            value = graph.op(at, "aten.add.Tensor", value, 1)
            graph.op(at, "aten.embedding.default", rows, value)
            if nested:
                following = graph.block(str(k))
                graph.branch(at, graph.params[1], following, end)
                at = following
        graph.leave(at, graph.params[0])
        if nested:
            graph.leave(end, graph.params[0])
        return graph.graph

    def seconds(graph):
        began = time.process_time()
        missing_checks(graph)
        return time.process_time() - began

    few, more = many(100), many(400)
    assert min(seconds(more) for _ in range(5)) < 9 * min(seconds(few) for _ in range(5))


def test_what_was_learned_in_a_scope_is_forgotten_with_it():
    scopes, table = Scopes(), {}
    outer = scopes.enter()
    scopes.learn(table, "a", 1)
    inner = scopes.enter()
    scopes.conclude(table, "of a", 1)
    scopes.learn(table, "a", 2)
    scopes.conclude(table, "of both", 2)
    scopes.leave(inner)
    assert table == {"a": 1, "of a": 1}
    scopes.leave(outer)
    assert table == {}


def test_a_second_run_of_the_passes_puts_none():
    graph = dycl_tvm.stage(lambda ids: F.embedding(ids, W) + 1 // ids[:, None], (IDS,), passes=False)
    assert missing_checks(graph) == 2
    assert element_checks(graph) == 2
    assert missing_checks(graph) == element_checks(graph) == 0


def test_left_out_it_is_said():
    graph = dycl_tvm.stage(lambda ids: F.embedding(ids, W), (IDS,), disable_passes=["element_checks"])
    assert any("1 checks of elements" in line for line in graph.left_out)
    graph = dycl_tvm.stage(lambda ids: F.embedding(ids, W), (IDS,), device="cuda")
    assert any("1 checks of elements" in line for line in graph.left_out)
