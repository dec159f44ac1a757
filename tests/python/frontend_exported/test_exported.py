# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Exported programs against eager: the HCFG before and after the passes, and compiled."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from programs_exported import PROGRAMS, Counter
from torch import Tensor, nn

import dycl_tvm
from dycl_tvm import passes
from dycl_tvm.errors import RunError, UnsupportedError, UsageError
from dycl_tvm.frontend.exported import stage_exported
from dycl_tvm.hcfg.analysis import natural_loops
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Branch, TensorOp
from dycl_tvm.hcfg.verify import verify


def tensors(args: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(args) if isinstance(x, Tensor)]


def assert_same(got: Any, want: Any) -> None:
    found, wanted = (pytree.tree_leaves(x, is_leaf=lambda x: x is None) for x in (got, want))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        if isinstance(b, Tensor):
            np.testing.assert_allclose(np.asarray(a), b.detach().numpy(), rtol=1e-4, atol=1e-5)
        elif isinstance(b, float):
            assert a == pytest.approx(b, rel=1e-5)
        else:
            assert type(a) is type(b) and a == b


def variants(args: Any, n: int = 4) -> Sequence[Any]:
    """Return inputs of the same shapes, of both signs and several sizes."""

    def varied(x: Any, k: int) -> Any:
        return x * (-1 if k % 2 else 1) + 0.3 * k if isinstance(x, Tensor) and x.is_floating_point() else x

    return [pytree.tree_map(functools.partial(varied, k=k), args) for k in range(n)]


def graph_of(model: nn.Module, args: Any, **options: Any) -> HCFG:
    graph = stage_exported(torch.export.export(model, args, **options), args)
    verify(graph)
    return graph


CASES = [(name, False) for name in PROGRAMS] + [
    (name, True) for name in ("Aliased", "CondInWhile", "LongScan", "HostScalars", "Containers")
]


@pytest.mark.parametrize(("name", "decomposed"), CASES, ids=[f"{n}-decomposed" if d else n for n, d in CASES])
def test_agrees_with_eager(name: str, decomposed: bool) -> None:
    model, args = PROGRAMS[name]()
    exported = torch.export.export(model, args)
    if decomposed:
        exported = exported.run_decompositions()
    graph = stage_exported(exported, args)
    for stage in ("as it comes", "after the passes"):
        verify(graph)
        for given in variants(args):
            if name == "HostScalars" and tensors(given)[0].sum() < 0:
                continue
            want = model(*copy.deepcopy(given))
            got, _ = interpret(graph, [t.clone() for t in tensors(given)])
            assert_same(got, want)
        if stage == "as it comes":
            passes.run_passes(graph)


@pytest.mark.parametrize(
    "name", ["CapturedInCond", "CondInWhile", "WhileInWhile", "LongScan", "LongMap", "Prefix", "HostScalars", "Containers"]
)
def test_compiled_agrees_with_eager(name: str, tmp_path: Path) -> None:
    model, args = PROGRAMS[name]()
    art = dycl_tvm.build(torch.export.export(model, args), name=name)
    module = dycl_tvm.load(art.export_library(tmp_path / "model.so", embed_params=True))
    for given in variants(args):
        if name == "HostScalars" and tensors(given)[0].sum() < 0:
            continue
        assert_same(module(*given), model(*copy.deepcopy(given)))


def test_a_branch_is_a_branch_and_runs_one_side() -> None:
    model, args = PROGRAMS["CapturedInCond"]()
    graph = graph_of(model, args)
    assert sum(isinstance(b.terminator, Branch) for b in graph.blocks) == 1
    branch = next(b.terminator for b in graph.blocks if isinstance(b.terminator, Branch))
    assert branch.origin is not None and branch.origin.file.endswith("programs_exported.py")
    for side in (branch.then.target, branch.orelse.target):
        assert sum(isinstance(s, TensorOp) and s.op == "aten.addmm.default" for s in side.steps) == 1


LOOPS = {"WhileWithNumber": 1, "WhileInWhile": 2, "LongScan": 1, "ShortScan": 0, "LongMap": 1}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_loops(name: str) -> None:
    model, args = PROGRAMS[name]()
    assert len(natural_loops(graph_of(model, args)).loops) == LOOPS[name]


@pytest.mark.parametrize("decomposed", [False, True], ids=["exported", "decomposed"])
def test_changed_buffers_are_state(decomposed: bool, tmp_path: Path) -> None:
    eager = Counter()
    exported = torch.export.export(copy.deepcopy(eager), (torch.ones(3),))
    if decomposed:
        exported = exported.run_decompositions()
    art = dycl_tvm.build(exported)
    assert sorted(v.name for v in art.hcfg.state) == ["calls", "total"]
    module = dycl_tvm.load(art.export_library(tmp_path / "counter.so", embed_params=True))
    for k in range(4):
        x = torch.randn(3) + (1 if k % 2 else -1)
        assert_same(module(x), eager(x))


class Dynamic(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x, y: x @ y, lambda x, y: (x @ y) * x.shape[0], (x, y))


def dynamic_program() -> Any:
    n, m = torch.export.Dim("n", min=2, max=64), torch.export.Dim("m")
    return torch.export.export(Dynamic(), (torch.randn(4, 6), torch.randn(6, 3)), dynamic_shapes={"x": {0: n, 1: m}, "y": {0: m}})


def test_dynamic_dimensions_take_given_values(tmp_path: Path) -> None:
    exported = dynamic_program()
    art = dycl_tvm.build(exported, input_shapes={"x": (5, 2), "y": (2, 3)})
    module = dycl_tvm.load(art.export_library(tmp_path / "dynamic.so", embed_params=True))
    for sign in (1, -1):
        x, y = torch.rand(5, 2) * sign, torch.randn(2, 3)
        assert_same(module(x, y), Dynamic()(x, y))
    by_example = dycl_tvm.build(exported, (torch.randn(8, 7), torch.randn(7, 3)))
    (size,) = by_example.hcfg.sizes  # m has no bound: it is that of the example
    assert (size.name, size.least, size.most) == ("n", 2, 64)
    assert [p.type.shape for p in by_example.hcfg.inputs[:2]] == [(64, 7), (7, 3)]
    with pytest.raises(UsageError, match="dimension 1 of the input x has no largest size"):
        dycl_tvm.build(exported)
    # a size that one input settles is settled in the others
    assert dycl_tvm.stage(exported, input_shapes={"x": (5, 6)}).sizes == []
    (size,) = dycl_tvm.stage(exported, input_shapes={"y": (6, 3)}).sizes
    assert (size.name, size.least, size.most) == ("n", 2, 64)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (5, 2)}, "dimension 0 of the input y must be that of dimension 1 of the input x"),
        ({"x": (80, 6)}, "may be 2 to 64"),
        ({"y": (6, 4)}, "was fixed to 3"),
        ({"z": (1,)}, "names 'z'; the program has the inputs x, y"),
        ({"x": (5, 2, 1)}, "rank 2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dycl_tvm.build(dynamic_program(), input_shapes=shapes)


def test_an_assertion_that_fails_is_an_error_of_the_run(tmp_path: Path) -> None:
    model, args = PROGRAMS["HostScalars"]()
    art = dycl_tvm.build(torch.export.export(model, args))
    module = dycl_tvm.load(art.export_library(tmp_path / "host.so", embed_params=True))
    with pytest.raises(RunError, match="Runtime assertion failed"):
        module(-args[0])
    assert_same(module(*args), model(*args))


class ChangesInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + torch.rand(3), lambda x: x - 1, (x,))


class Stacked(nn.Module):
    def forward(self, n: Tensor, x: Tensor) -> Any:
        return torch._higher_order_ops.while_loop_stack_output(lambda n, x: n > 0, lambda n, x: (n - 1, x.cos()), (n, x), ())


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (ChangesInput(), (torch.randn(3),), "changes its input `x` in place"),
        (Random(), (torch.randn(3),), "another result at every call"),
        (Stacked(), (torch.tensor(3), torch.randn(3)), "while_loop_stack_output is not supported"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_what_cannot_be_compiled_is_refused(model: nn.Module, args: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        dycl_tvm.build(torch.export.export(model, args))


def test_decomposed_mutation_of_an_input_is_refused() -> None:
    exported = torch.export.export(ChangesInput(), (torch.randn(3),)).run_decompositions()
    with pytest.raises(UnsupportedError, match="changes its input `x` in place"):
        dycl_tvm.build(exported)


def test_memory_of_a_program_that_something_else_has_allocated() -> None:
    """As a file that was mapped, or NumPy, which a build before has asked for the same tensor."""
    program = torch.export.export(Counter(), (torch.ones(3),))
    for name, tensor in program.state_dict.items():
        program.state_dict[name] = torch.from_numpy(tensor.detach().numpy().copy())
    assert [v.name for v in dycl_tvm.stage(program).state] == ["calls", "total"]


def test_a_length_that_tensors_decide_without_open_sizes() -> None:
    class Repeats(nn.Module):
        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            return torch.repeat_interleave(x, times, dim=0)

    x, times = torch.randn(3, 2), torch.tensor([1, 0, 2])
    graph = dycl_tvm.stage(torch.export.export(Repeats(), (x, times)), max_length=20)
    for repeats in ([1, 0, 2], [0, 0, 0], [4, 5, 6]):
        found, _ = interpret(graph, [x, torch.tensor(repeats)])
        torch.testing.assert_close(found, torch.repeat_interleave(x, torch.tensor(repeats), dim=0))
