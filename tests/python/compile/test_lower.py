# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whole graphs through :func:`lower`, run by the Python interpreter of programs, against the reference interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hcfg_utils import Kernels, host_target, new_machine, run_program
from tvm import te

from dycl_tvm.compile import Lowered, lower
from dycl_tvm.compile.weights import BuildTimeKernels, tensor_of
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Block, Value
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.passes.outline import outline


def conv_relu(gb: GraphBuilder, block: Block, x: Value, weight: torch.Tensor, bias: torch.Tensor) -> Value:
    y = gb.op(block, "aten.convolution.default", x, constant(weight), constant(bias), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return gb.op(block, "aten.relu.default", y)


def early_exit(layers: int) -> HCFG:
    """A chain of equal layers with other weights; after each one an exit if the head is sure."""
    torch.manual_seed(0)
    gb = GraphBuilder("early_exit", {"x": tensor(1, 8, 12, 12)})
    block, x = gb.entry, gb.params[0]
    for k in range(layers):
        x = conv_relu(gb, block, x, torch.randn(8, 8, 3, 3) / 8, torch.randn(8) / 4)
        pooled = gb.op(block, "aten.mean.dim", x, [2, 3])
        weight = gb.op(block, "aten.t.default", constant(torch.randn(10, 8)))
        logits = gb.op(block, "aten.addmm.default", constant(torch.randn(10)), pooled, weight)
        sure = gb.op(block, "aten.amax.default", gb.op(block, "aten._softmax.default", logits, -1, False))
        out, more = gb.block(f"exit{k}"), gb.block(f"more{k}")
        gb.branch(block, gb.host(block, "gt", gb.host(block, "item", sure), max(0.2, 0.9 - 0.22 * k)), out, more)
        gb.leave(out, logits, k)
        block = more
    gb.leave(block, gb.op(block, "aten.sum.default", x), -1)
    return gb.graph


def counted_loop() -> HCFG:
    """Two tensors that swap on every turn, the number of turns an input."""
    gb = GraphBuilder("loop", {"x": tensor(4, 4), "y": tensor(4, 4), "n": tensor(dtype="int64")})
    x, y, n = gb.params
    from dycl_tvm.hcfg.types import INT

    head, body, after = gb.block("head", INT, x.type, y.type), gb.block("body"), gb.block("after")
    gb.jump(gb.entry, head, gb.host(gb.entry, "item", n), x, y)
    k, a, b = head.params
    gb.branch(head, gb.host(head, "gt", k, 0), body, after)
    stepped = gb.op(body, "aten.add.Tensor", gb.op(body, "aten.mul.Tensor", a, 0.5), b)
    gb.jump(body, head, gb.host(body, "sub", k, 1), b, stepped)
    gb.leave(after, gb.op(after, "aten.sub.Tensor", a, b), k)
    return gb.graph


def check(graph: HCFG, lowered: Lowered, inputs: list[torch.Tensor]) -> None:
    machine = new_machine(lowered.program)
    want, _ = interpret(graph, inputs)
    _, got = run_program(machine, Kernels(lowered.library), *[t.numpy() for t in inputs])
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def test_early_exits_agree_on_every_path() -> None:
    graph = early_exit(4)
    outline(graph)
    lowered = lower(graph, host_target())
    kernels = Kernels(lowered.library)
    machine = new_machine(lowered.program)
    sites, ran = set(), {}
    for seed in range(24):
        x = torch.randn(1, 8, 12, 12, generator=torch.Generator().manual_seed(seed)) * (seed % 8) * 1.5
        want, _ = interpret(graph, [x])
        kernels.calls.clear()
        site, got = run_program(machine, kernels, x.numpy())
        assert got[1] == want[1]
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5)
        sites.add(site)
        ran[site] = len(kernels.calls)
    assert len(sites) >= 3
    assert len(set(ran.values())) >= 3  # what is not needed does not run


def test_equal_layers_are_compiled_once() -> None:
    small, large = early_exit(3), early_exit(9)
    outline(small)
    outline(large)
    a, b = lower(small, host_target()).stats, lower(large, host_target()).stats
    assert a.kernels == b.kernels
    assert b.calls > 2 * a.calls
    assert a.sub_dnns == b.sub_dnns
    # activations of one layer at a time, whatever the depth
    assert b.arena_bytes <= a.arena_bytes + 64
    assert b.folded_calls >= 9  # the transposed weights


def test_without_dedup_every_place_is_compiled() -> None:
    graph = early_exit(3)
    outline(graph)
    one, many = lower(graph, host_target()), lower(graph, host_target(), dedup=False)
    assert many.stats.kernels >= one.stats.kernels


def test_loop_with_swapped_values() -> None:
    graph = counted_loop()
    outline(graph)
    for shared in (True, False):
        lowered = lower(graph, host_target(), plan=shared)
        for n in (0, 1, 2, 5):
            check(graph, lowered, [torch.randn(4, 4), torch.randn(4, 4), torch.tensor(n)])


def test_unshared_arena_is_larger() -> None:
    graph = early_exit(5)
    outline(graph)
    shared, apart = lower(graph, host_target()).stats, lower(graph, host_target(), plan=False).stats
    assert shared.arena_bytes < apart.arena_bytes
    assert shared.arena_lower_bound <= shared.arena_bytes


def test_two_builds_are_the_same_bytes() -> None:
    built = []
    for _ in range(2):
        graph = early_exit(2)
        outline(graph)
        built.append(lower(graph, host_target()))
    assert built[0].library.objects == built[1].library.objects
    assert [k.symbol for k in built[0].program.kernels] == [k.symbol for k in built[1].program.kernels]
    assert repr(built[0].program.blocks) == repr(built[1].program.blocks)


def test_ir_module_has_one_global_function_a_sub_dnn() -> None:
    graph = early_exit(2)
    outline(graph)
    lowered = lower(graph, host_target())
    for sub in graph.sub_dnns():
        assert lowered.ir_module[sub.name].attrs["global_symbol"] == sub.name


def test_equal_weights_are_stored_once() -> None:
    gb = GraphBuilder("twice", {"x": tensor(4)})
    x = gb.op(gb.entry, "aten.add.Tensor", gb.params[0], constant(torch.arange(4.0), "a"))
    gb.leave(gb.entry, gb.op(gb.entry, "aten.mul.Tensor", x, constant(torch.arange(4.0), "b")))
    outline(gb.graph)
    lowered = lower(gb.graph, host_target())
    assert [w.name for w in lowered.program.weights] == ["a"]
    check(gb.graph, lowered, [torch.randn(4)])


@pytest.mark.parametrize("layers", [200])
def test_many_blocks_are_quick(layers: int) -> None:
    graph = early_exit(layers)
    outline(graph)
    stats = lower(graph, host_target()).stats
    assert stats.sub_dnns <= 3
    assert sum(stats.seconds.values()) < 30


def test_kernels_on_numbers_run_at_build_time() -> None:
    number, vector = te.placeholder((), "float32", "number"), te.placeholder((3,), "float32", "vector")
    total = te.compute((3,), lambda i: number[()] + vector[i], "total")
    kernels = BuildTimeKernels({"add": te.create_prim_func([number, vector, total])}, ["add"])
    (result,) = kernels.run("add", [torch.tensor(2.0), torch.arange(3.0)], [TensorType((3,), "float32")])
    assert result.tolist() == [2.0, 3.0, 4.0]


def test_what_is_computed_while_building_may_have_no_elements():
    made = tensor_of(np.zeros((2, 0), np.int32))
    assert made.shape == (2, 0) and made.reshape(-1).view(torch.uint8).numel() == 0
    assert tensor_of(np.arange(6, dtype=np.int32).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
