# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The check of what was compiled: it is right about right kernels, says the same twice, and its bounds are neither slack nor too tight."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dycl_tvm
from dycl_tvm.artifact import Artifact
from dycl_tvm.compile.program import KernelCall, Program, Slot
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.nodes import SubDNN
from dycl_tvm.target import resolve_target
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.compiled import check_compiled
from dycl_tvm.verify.dispatcher import Dispatcher
from dycl_tvm.verify.kernels import check_kernels
from dycl_tvm.verify.memory import CompiledKernels
from dycl_tvm.verify.reference import Reference, compare


class Net(nn.Module):
    """Convolutions in packed layouts, a branch, a loop, state, integers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.linear = nn.Conv2d(3, 12, 3, padding=1), nn.Linear(12, 5)
        self.register_buffer("mean", torch.zeros(2, 5))

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = F.max_pool2d(torch.relu(self.conv(x)), 2)
        z = self.linear(y.mean((2, 3)))
        k = 0
        while z.sum() > 0.3 and k < 4:
            z = torch.softmax(z, -1) - 0.2
            k += 1
        z = z * 2 if z.max() > 0 else F.layer_norm(z, (5,))
        self.mean = self.mean * 0.5 + z
        return z.argmax(-1), self.mean, z > 0.1, k, z.topk(2).indices


@pytest.fixture(scope="module")
def built() -> Artifact:
    return dycl_tvm.build(Net().eval(), (torch.randn(2, 3, 8, 8),), verify="off")


def _check(art: Artifact, level: Any = "default", seed: int = 0) -> Any:
    return check_compiled(art.hcfg, art._lowered, art.target.target, resolve_target("llvm").target, level, seed=seed)


def test_right_kernels_pass_with_any_seed(built: Artifact) -> None:
    for seed in range(4):
        found = _check(built, seed=seed)
        assert found.checked == found.total == len(built.hcfg.sub_dnns())
        assert found.edges == found.edges_total > 0
        assert 0 < found.largest_error < 1


def test_kernels_that_the_budget_does_not_reach_are_named(built: Artifact) -> None:
    kernels = CompiledKernels(built._lowered.library)
    found = check_kernels(built.hcfg, built._lowered, kernels, accuracy="default", budget=Budget(0.0))
    assert found.checked < found.total
    assert "would have taken too long" in found.reason


def test_two_checks_say_the_same(built: Artifact) -> None:
    assert _check(built) == _check(built)


def test_a_target_that_does_not_run_here_has_a_twin() -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a57"}
    art = dycl_tvm.build(Net().eval(), (torch.randn(2, 3, 8, 8),), target=target, verify="off")
    found = _check(art)
    assert found.checked == 0
    assert "do not run" in found.reason
    assert found.edges == found.edges_total
    whole = _check(art, "full")
    assert whole.checked == whole.total
    assert whole.twin


def test_a_view_of_what_a_kernel_reads_is_not_written_where_kernels_do_not_run() -> None:
    def views(x: torch.Tensor) -> Any:
        flat = x.view(-1)
        if x.sum() > 0:
            return x, flat
        return flat, x + 1

    certificate = dycl_tvm.build(views, (torch.ones(2, 3),), target="cuda -arch=sm_72").certificate
    assert certificate is not None and certificate["kernels"]["edges"] > 0


def test_every_way_out_of_a_decision_is_taken_in_the_dispatcher(built: Artifact, tmp_path: Any) -> None:
    from dycl_tvm import codegen

    watched = Dispatcher()
    codegen.link(built._lowered.program, built._lowered.library, tmp_path / "net.so", built.target.target, watch=watched.watch)
    assert watched.runs >= 4
    assert watched.decisions == watched.decisions_total > 0


def test_a_large_weight_that_is_taken_for_another_is_found_in_the_dispatcher(tmp_path: Any) -> None:
    from dycl_tvm import codegen

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    art = dycl_tvm.build(net, (torch.randn(1, 64),), verify="off")
    program, watched = art._lowered.program, Dispatcher()
    large = {w for w, weight in enumerate(program.weights) if weight.type.nbytes > 4096}
    assert len(large) == 2

    def taken_for_another(slot: Slot) -> Slot:
        return dataclasses.replace(slot, index=sum(large) - slot.index) if slot.space == "weight" and slot.index in large else slot

    def watch(given: Program, *rest: Any) -> None:
        watched.watch(given, *rest)
        for block in given.blocks:
            block.instrs = [
                dataclasses.replace(i, args=tuple(map(taken_for_another, i.args))) if isinstance(i, KernelCall) else i for i in block.instrs
            ]
        with pytest.raises(VerificationError, match="other numbers in argument"):
            watched.watch(given, *rest)
        raise _Found

    with pytest.raises(_Found):
        codegen.link(program, art._lowered.library, tmp_path / "net.so", art.target.target, watch=watch)


class _Found(Exception):
    """The check was as it should be."""


def _sub_dnn(function: Any, *args: torch.Tensor) -> SubDNN:
    graph = dycl_tvm.stage(function, args)
    return graph.sub_dnns()[0]


def _error(sub: SubDNN, args: list[torch.Tensor], got: list[torch.Tensor]) -> float:
    reference = Reference(sub, "default")
    return compare(reference.expect(args, 4, 0), got, [reference.in_own_types(args)]).error


def test_bounds_are_those_of_float32() -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    w = torch.randn(256, 32, generator=torch.Generator().manual_seed(2))

    def product(x, w):  # type: ignore[no-untyped-def]
        return torch.tanh(x @ w * 0.1)

    sub = _sub_dnn(product, x, w)
    right = product(x, w)
    assert _error(sub, [x, w], [right]) < 0.5
    assert _error(sub, [x, w], [right * (1 + 1e-6)]) < 1
    assert _error(sub, [x, w], [right * (1 + 1e-3)]) > 1
    once = right.clone()
    once[3, 5] += 0.01
    assert _error(sub, [x, w], [once]) > 1
    once[3, 5] = torch.nan
    assert _error(sub, [x, w], [once]) > 1


def test_cancellation_widens_the_bound_and_copies_have_none() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(3)) + 1000

    def centred(x):  # type: ignore[no-untyped-def]
        return x - x.mean(), x.flip(0)

    sub = _sub_dnn(centred, x)
    difference, copy = centred(x)
    assert _error(sub, [x], [difference + 1e-4, copy]) < 1
    assert _error(sub, [x], [difference + 0.1, copy]) > 1
    assert _error(sub, [x], [difference, copy * (1 + 1e-5)]) > 1


def test_equal_numbers_may_stand_in_any_order() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0])

    def largest(x):  # type: ignore[no-untyped-def]
        values, indices = x.topk(3)
        return values * 1, indices + 0

    sub = _sub_dnn(largest, x)
    for third in (1, 2, 4):
        reference = Reference(sub, "default")
        got = [torch.tensor([2.0, 1.0, 0.0]), torch.tensor([3, 0, third])]
        assert compare(reference.expect([x], 24, 0), got).error < 1
    assert compare(reference.expect([x], 24, 0), [got[0], torch.tensor([0, 3, 1])]).error > 1


def test_a_certificate_says_what_was_compared(built: Artifact) -> None:
    found = dataclasses.asdict(_check(built))
    assert found["reason"] == ""
    assert found["worst"] in {s.name for s in built.hcfg.sub_dnns()}


def test_a_network_that_is_given_no_tensor_is_verified_too(tmp_path: Any) -> None:
    """Its results are arrays, bfloat16 as bits."""
    art = dycl_tvm.build(lambda: (torch.zeros(0), torch.ones(2, dtype=torch.bfloat16), torch.eye(3)[:1]), ())
    module = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    assert [a.tolist() for a in module()] == [[], [0x3F80, 0x3F80], [[1.0, 0.0, 0.0]]]


def test_inputs_of_one_memory_are_verified_as_one(tmp_path: Any) -> None:
    """Self-attention of equal views: the library refuses calls that give several tensors, and so its own check must not give them."""
    x = torch.randn(3, 4)
    art = dycl_tvm.build(torch.nn.MultiheadAttention(4, 2, batch_first=True).eval(), (x[None], x[None], x[None]))
    module = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    assert [tuple(t.shape) for t in module(x[None], x[None], x[None])] == [(1, 3, 4), (1, 3, 3)]


def test_the_order_of_equal_infinities_is_nobodys_promise() -> None:
    art = dycl_tvm.build(lambda x: (x.argsort(1), x.topk(5), x.sort(1)), (torch.randn(20, 400),))
    assert art.certificate["kernels"]["checked"] == art.certificate["kernels"]["total"]


def test_the_order_of_equal_whole_numbers_is_nobodys_promise() -> None:
    x = torch.randint(0, 2, (8000,))
    art = dycl_tvm.build(lambda x: (x.argsort(), x.to(torch.uint8).topk(9), (x > 0).sort()), (x,))
    assert art.certificate["kernels"]["checked"] == art.certificate["kernels"]["total"]


def test_bytes_of_bools_that_nobody_compares_may_be_anything(tmp_path: Any) -> None:
    """Of a large tensor both ends are compared; what lies between comes to the results as it was."""
    x = torch.randn(5000)
    art = dycl_tvm.build(lambda x: x > 0, (x,))
    module = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    assert torch.equal(module(x), x > 0)


def test_a_float_that_no_integer_can_hold_has_no_result() -> None:
    def net(x: torch.Tensor) -> torch.Tensor:
        y = x.long() + 0.5
        return y - 1 if x.sum() > 0 else y

    kernels = dycl_tvm.build(net, (torch.ones(2, 3),), verify="full").certificate["kernels"]
    assert kernels["checked"] == kernels["total"]


def _cut(x):  # type: ignore[no-untyped-def]
    y = x
    while y.sum() < 20:
        y = y * 1.5 + 1
    return y[:, 0:0], y[:2]


def test_results_without_elements_stand_where_they_stand() -> None:
    kernels = dycl_tvm.build(_cut, (torch.linspace(-1, 1, 12).reshape(4, 3),)).certificate["kernels"]
    assert kernels["checked"] == kernels["total"]


def test_what_stands_behind_many_checks_is_reached(tmp_path: Any) -> None:
    """Drawn numbers fail a check as often as not."""
    from dycl_tvm import codegen

    class Looked(nn.Module):
        def forward(self, ids):  # type: ignore[no-untyped-def]
            y = sum(torch.arange(9.0 - k)[i] for k, i in enumerate(ids.unbind()))
            return y * 2 if y.sum() > 9 else y

    net, ids = Looked(), torch.ones(8, 2, dtype=torch.long)
    art = dycl_tvm.build(net, (ids,), target={"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a57"})
    assert art.certificate["kernels"]["edges"] == art.certificate["kernels"]["edges_total"] == 2
    art, watched = dycl_tvm.build(net, (ids,), verify="off"), Dispatcher(calls=20)
    codegen.link(art._lowered.program, art._lowered.library, tmp_path / "net.so", art.target.target, watch=watched.watch)
    assert watched.decisions == watched.decisions_total == 2


def test_images_between_operators_may_be_stored_as_bfloat16() -> None:
    x = torch.randn(1, 8, 6, 6, generator=torch.Generator().manual_seed(4))

    def pooled(x):  # type: ignore[no-untyped-def]
        x = torch.nn.functional.max_pool2d(x, 2)
        return torch.relu(x) * 2, x[0, 0]

    sub = _sub_dnn(pooled, x)
    right = pooled(x)
    stored = [torch.relu(torch.nn.functional.max_pool2d(x, 2)).bfloat16().float() * 2, right[1]]
    for accuracy, allowed in (("bf16", True), ("default", False)):
        reference = Reference(sub, accuracy)
        assert (compare(reference.expect([x], 4, 0), stored, [reference.in_own_types([x])]).error < 1) == allowed
        assert compare(reference.expect([x], 4, 0), [r * 1.1 for r in right], [reference.in_own_types([x])]).error > 1


def test_rounded_factors_of_attention_and_of_what_looks_exact() -> None:
    """Attention is a product too; to one key, or of a large score, it gives a factor as it is, as a product with an identity does."""

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def several(scale):
        return [torch.randn(1, 2, 20, 16) * s for s in (scale, 1, 1)]

    for fn, args, off in ((attend, several(1), 1.1), (attend, several(1000), 4), (torch.matmul, [torch.randn(20, 16), torch.eye(16)], 1.1)):
        sub, wanted, rounded = _sub_dnn(fn, *args), [fn(*args)], [fn(*(a.bfloat16().float() for a in args))]
        for accuracy, allowed in (("bf16", True), ("default", False)):
            reference = Reference(sub, accuracy)
            expected, others = reference.expect(args, 8, 0), [reference.in_own_types(args)]
            assert (compare(expected, rounded, others).error <= 1) == allowed
            assert compare(expected, wanted, others).error <= 1
            assert compare(expected, [w * off for w in wanted], others).error > 1


def test_a_size_and_an_operand_may_take_turns_at_one_place() -> None:
    """On the path for four rows no kernel asks how many there are any more: the other size lies there."""

    def model(x, y):
        if x.sum() > 0:
            return x @ y, x.shape[1]
        return (x * 2).mean(1), y.view(-1)

    rows, width = dycl_tvm.Dim("B", max=4), dycl_tvm.Dim("T", max=9)
    given = torch.ones(2, 3), torch.ones(3, 3)
    artifact = dycl_tvm.build(model, given, dynamic_shapes=({0: rows, 1: width}, {0: width}), specialize=[{"B": 4}])
    kernels = artifact.certificate["kernels"]
    assert kernels["checked"] == kernels["total"] == len(artifact.hcfg.sub_dnns())
