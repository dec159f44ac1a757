# Licensed under the Apache License, Version 2.0; see LICENSE.
"""How many trips loops make at most: on graphs built by hand, and what an artefact says of a loop that really makes as many."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.nodes import Edge
from dycl_tvm.hcfg.trips import most_trips
from dycl_tvm.hcfg.types import BOOL, INT
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.runtime import load


@pytest.mark.parametrize(
    "first, limit, test, one, two, most",
    [
        (0, 10, "lt", 1, 1, 10),
        # 0, 1, ..., 9 and then 11: of the range there is room for one more.
        (0, 10, "lt", 1, 2, 11),
        (0, 10, "lt", 2, 4, 6),
        (20, 0, "gt", -2, -2, 10),
        (5, 5, "lt", 1, 1, 0),
        (0, 10, "lt", 0, 1, None),
        (0, 10, "lt", 1, -1, None),
        (0, 10, "gt", -1, -1, 0),  # never begins
        (11, 10, "gt", 1, 1, None),  # counts, and nothing ends it
    ],
)
def test_counters(first: int, limit: int, test: str, one: int, two: int, most: int | None) -> None:
    """Two ways lead back, each with a step of its own."""
    g = GraphBuilder("loop", {"c": BOOL})
    head, body, other, end = g.block("head", INT), g.block("body"), g.block("other"), g.block("end")
    g.jump(g.entry, head, first)
    g.branch(head, g.host(head, test, head.params[0], limit), body, end)
    g.branch(body, g.params[0], Edge(head, [g.host(body, "add", head.params[0], one)]), other)
    g.jump(other, head, g.host(other, "add", head.params[0], two))
    g.leave(end, head.params[0])
    verify(g.graph)
    assert most_trips(g.graph) == ({} if most is None else {head: most})


def test_loops_in_each_other() -> None:
    # i = 0; while i < 4: (j = 0; while j < 7: j += 1; c ends it); i += 1 - the outer counter is unknown to the inner loop.
    g = GraphBuilder("nest", {"c": BOOL})
    outer, inner, body, after, end = (g.block(n, *t) for n, *t in (("outer", INT), ("inner", INT), ("body",), ("after",), ("end",)))
    g.jump(g.entry, outer, 0)
    g.branch(outer, g.host(outer, "lt", outer.params[0], 4), Edge(inner, [0]), end)
    g.branch(inner, g.host(inner, "lt", inner.params[0], 7), body, after)
    g.branch(body, g.params[0], after, Edge(inner, [g.host(body, "add", inner.params[0], 1)]))
    g.jump(after, outer, g.host(after, "add", outer.params[0], 1))
    g.leave(end, outer.params[0])
    verify(g.graph)
    assert most_trips(g.graph) == {outer: 4, inner: 7}


def test_a_step_in_several_blocks() -> None:
    """Steps are added up in the order in which they are taken, whatever sets of blocks give: the same each time."""
    for _ in range(20):
        g = GraphBuilder("loop", {"c": BOOL})
        head, one, two, end = g.block("head", INT), g.block("one"), g.block("two"), g.block("end")
        g.jump(g.entry, head, 0)
        g.branch(head, g.host(head, "lt", head.params[0], 10), one, end)
        more = g.host(one, "add", head.params[0], 1)
        g.branch(one, g.params[0], two, Edge(head, [more]))
        g.jump(two, head, g.host(two, "add", more, 1))
        g.leave(end, head.params[0])
        assert most_trips(g.graph) == {head: 11}


@pytest.mark.parametrize("step, dtype", [(1, "int64"), (3, "int64"), (1, "int32"), (16, "int32")])
def test_a_counter_that_only_its_type_bounds(step: int, dtype: str) -> None:
    g = GraphBuilder("loop", {"t": tensor(dtype=dtype)})
    head, body, end = g.block("head", INT), g.block("body"), g.block("end")
    limit = g.host(g.entry, "item", g.params[0])
    g.jump(g.entry, head, 0)
    g.branch(head, g.host(head, "lt", head.params[0], limit), body, end)
    g.jump(body, head, g.host(body, "add", head.params[0], step))
    g.leave(end, head.params[0])
    assert most_trips(g.graph) == {}


def test_what_does_not_count() -> None:
    # A number that another loop moves on, one that is multiplied, one that begins anew.
    g = GraphBuilder("none", {"c": BOOL, "n": INT})
    head, body, end = g.block("head", INT, INT, INT), g.block("body"), g.block("end")
    g.jump(g.entry, head, 1, 0, g.params[1])
    g.branch(head, g.params[0], body, end)
    i, k, m = head.params
    g.jump(body, head, g.host(body, "mul", i, 2), g.host(body, "mod", g.host(body, "add", k, 1), 5), g.host(body, "add", m, 1))
    g.leave(end, i)
    assert most_trips(g.graph) == {}


class Ponder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, far: torch.Tensor) -> tuple[torch.Tensor, int]:
        steps = 0
        while x.sum() < far and steps < 25:
            x = self.lin(x).abs() + 1
            steps += 1
        return x, steps


class UntilFar(nn.Module):
    def forward(self, x: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
        while x.sum() < far:
            x = x + 1
        return x


@pytest.mark.parametrize("model, options, most", [(Ponder(), {}, 25), (UntilFar(), {"max_loop_trips": 25}, 25), (UntilFar(), {}, None)])
def test_an_artefact_says_how_many(model: nn.Module, options: dict[str, int], most: int | None, tmp_path: Path) -> None:
    far = torch.tensor(1e9)
    module = load(
        dycl_tvm.build(model.eval(), (torch.zeros(4), far), target="llvm", verify="off", **options).export_library(
            tmp_path / "net.so", embed_params=True
        )
    )  # type: ignore[arg-type]
    told = [block["trips"] for block in module.metadata["blocks"] if "trips" in block]
    assert told == ([] if most is None else [most])
    if isinstance(model, Ponder):
        assert module(torch.zeros(4), far)[1] == 25
