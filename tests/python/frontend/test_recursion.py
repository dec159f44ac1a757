# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recursion whose depth the data decide is a procedure with a stack; staged graphs against eager, over several calls."""

from __future__ import annotations

import pytest
import recursive_aliases as aliases
import recursive_programs as programs
import torch
from differential import check, same

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError
from dycl_tvm.hcfg.nodes import HCFG, HostOp, Raise

INPUTS = {"vectors": programs.VECTORS, "trees": programs.TREES}
RIGHT = [(kind, program) for kind, found in programs.RIGHT.items() for program in found]


def _name(x):
    return x if isinstance(x, str) else getattr(x, "__name__", type(x).__name__)


def _is_procedure(graph: HCFG) -> bool:
    return any(isinstance(b.terminator, Raise) and "max_recursion" in b.terminator.message for b in graph.blocks)


@pytest.mark.parametrize(("kind", "program"), RIGHT, ids=_name)
def test_recursion_is_a_procedure(kind, program):
    graph = check(program, INPUTS[kind], paths=2)
    assert _is_procedure(graph)
    assert len(graph.blocks) < 90


@pytest.mark.parametrize("program", aliases.RIGHT_OR_REFUSED, ids=_name)
def test_what_may_be_one_is_right_or_refused(program):
    try:
        check(program, programs.VECTORS)
    except UnsupportedError as error:
        assert error.origin.file == aliases.__file__  # noqa: PT017
        assert error.suggestion  # noqa: PT017


def test_state_goes_on_from_call_to_call():
    model = programs.Visits()
    call = dycl_tvm.stage(model, programs.VECTORS[0]).interpret()
    for _ in range(2):
        for args in programs.VECTORS:
            want, got = model(*args), call(*args)
            assert torch.allclose(want[0], got[0])
            assert torch.allclose(want[1], got[1])
            assert want[2] == got[2]


def test_a_last_call_needs_no_stack():
    graph = dycl_tvm.stage(programs.last_call, programs.VECTORS[0])
    assert _is_procedure(graph)
    assert not [s for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and s.op in ("push", "pop")]


def test_depth_is_bounded():
    def f(x):
        def down(n):
            return 0 if n <= 0 else down(n - 1) + 1

        return down(int(x))

    call = dycl_tvm.stage(f, (torch.tensor(3),), max_recursion=8).interpret()
    assert call(torch.tensor(7)) == 7
    with pytest.raises(LimitError, match="max_recursion = 8"):
        call(torch.tensor(8))
    assert call(torch.tensor(5)) == 5


def test_a_tree_that_python_knows_is_unrolled():
    def f(x):
        def walk(tree):
            if isinstance(tree, int):
                return x * tree
            if x.sum() > 3:
                return walk(tree[0])
            return walk(tree[0]) - walk(tree[1])

        return walk((1, ((2, 3), 4)))

    assert not _is_procedure(check(f, programs.VECTORS, paths=2))


def test_without_an_end_it_is_refused():
    def f(x):
        def again(y):
            return again(y * 2) if y.sum() > 4 else again(y + 1)

        return again(x)

    with pytest.raises(UnsupportedError, match="calls itself on every path"):
        dycl_tvm.stage(f, programs.VECTORS[0])


class Tree(torch.nn.Module):
    """A network over a tree that is an input; what each call leaves of its node is read at the end."""

    def __init__(self, in_a_tensor: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.u, self.in_a_tensor = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False), in_a_tensor

    def node(self, x: torch.Tensor, children: torch.Tensor, i: int) -> torch.Tensor:
        h = torch.zeros(4)
        for k in range(2):
            c = int(children[i, k])
            if c >= 0:
                h = h + self.u(self.node(x, children, c))
        h = torch.tanh(self.w(x[i]) + h)
        if self.in_a_tensor:
            self.states[self.n] = h
            self.n += 1
        else:
            self.kept.append(h)
        return h

    def forward(self, x: torch.Tensor, children: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.states, self.n, self.kept = x.new_zeros(9, 4), 0, []
        root = self.node(x, children, 0)
        return root, self.states[: self.n] if self.in_a_tensor else torch.stack(self.kept)


def test_what_calls_append_is_refused_and_what_is_said_instead_is_right() -> None:
    x, trees = torch.randn(5, 4), [[[1, 2], [3, -1], *[[-1, -1]] * 3], [[-1, -1]] * 5, [[1, -1], [2, -1], [3, 4], *[[-1, -1]] * 2]]
    with pytest.raises(UnsupportedError, match=r"self.states\[self.n\] = h; self.n \+= 1"):
        stage(Tree(False), (x, torch.tensor(trees[0])), max_recursion=20, max_length=20)
    call = stage(Tree(True), (x, torch.tensor(trees[0])), max_recursion=20, max_length=20).interpret()
    for children in trees:
        with torch.no_grad():
            want = Tree(True)(x, torch.tensor(children))
        assert same(want, call(x, torch.tensor(children)))
