# Licensed under the Apache License, Version 2.0; see LICENSE.
"""quantize: dynamic networks in 8 bits, calibrated by path; an artefact equals the integer reference bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.errors import RunError, UsageError
from dycl_tvm.hcfg.builder import GraphBuilder, constant, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import TensorOp
from dycl_tvm.hcfg.quantized import QUANTIZES
from dycl_tvm.quantization.layers import layers_of
from dycl_tvm.quantization.numbers import Grid, Range
from dycl_tvm.quantization.rewrite import round_layers


class Gated(nn.Module):
    """A convolution that runs on two paths, a gate, and a functional layer with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.shared = nn.Conv2d(16, 16, 3, padding=1)
        self.wise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.weight = nn.Parameter(torch.randn(5, 16) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        if x.mean() > 0.25:
            x = torch.relu(x + self.shared(x))
        else:
            x = nn.functional.hardtanh(self.wise(self.shared(3 * x)), 0, 6)
        return nn.functional.linear(nn.functional.max_pool2d(x, 4).flatten(2).mean(2), self.weight)


def _inputs(scales: list[float]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [scale * torch.randn(1, 3, 8, 8, generator=generator) for scale in scales]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return Gated().eval()


def _ops(quantised: Any) -> list[str]:
    return [s.op for b in quantised.hcfg.blocks for s in b.steps if isinstance(s, TensorOp)]


def test_the_artefact_equals_the_integer_reference_on_both_paths(network: nn.Module, tmp_path: Path) -> None:
    held_out = _inputs([0.2, 3.0, 0.3, 2.5])
    quantised = dycl_tvm.quantize(network, _inputs([0.2, 2.0, 0.4, 3.0]), held_out=held_out)
    assert not quantised.report.not_taken
    assert {loss.name for loss in quantised.report.layers} == {"stem", "shared", "wise", "weight"}
    assert all(loss.decibels is not None and loss.decibels > 25 for loss in quantised.report.layers)
    assert quantised.report.held_out is not None and quantised.report.held_out.paths == 4
    assert not [op for op in _ops(quantised) if op.startswith(("aten.conv", "aten.linear", "aten.addmm", "aten.mm"))]
    art = dycl_tvm.build(quantised, target="native")
    art.export_library(tmp_path / "model.so")
    art.save_params(tmp_path / "model.params")
    module = dycl_tvm.load(tmp_path / "model.so", tmp_path / "model.params")
    sides = set()
    for x in [*held_out, *_inputs([0.0, 100.0, 1.0])]:
        expected = quantised(x)
        assert np.array_equal(np.asarray(module(x)), expected.numpy())
        sides.add(module.last_path.branches[0].choice)
    assert sides == {False, True}
    for x in held_out:
        exact = network(x)
        assert (quantised(x) - exact).abs().max() < 0.15 * exact.abs().max()


def test_a_layer_on_two_paths_has_one_range_and_sees_both(network: nn.Module) -> None:
    quantised = dycl_tvm.quantize(network, _inputs([0.2, 3.0]))
    layer = [s for b in quantised.hcfg.blocks for s in b.steps if isinstance(s, TensorOp) and s.op == "dycl_quantized.conv2d.default"]
    weights: dict[Any, set[Any]] = {}
    made = {v: s for b in quantised.hcfg.blocks for s in b.steps if isinstance(s, TensorOp) for v in s.results()}
    for step in layer:
        quantise = made.get(step.args[0])
        if quantise is not None and quantise.op == "dycl_quantized.quantize.default":
            weights.setdefault(step.args[1].name, set()).add(quantise.args[1].data.item())
    assert len([s for s in layer if s.args[1].name == "shared.weight"]) == 2
    assert len(weights["shared.weight"]) == 1


def test_a_path_without_calibration_is_named_and_what_is_only_there_stays_float(network: nn.Module) -> None:
    quantised = dycl_tvm.quantize(network, _inputs([2.0, 3.0]))
    (side,) = quantised.report.not_taken
    assert "false" in side and "if x.mean() > 0.25:" in side
    assert [loss.name for loss in quantised.report.layers if loss.decibels is None] == ["wise"]
    assert "no calibration input comes to it" in str(quantised.report)
    assert [op for op in _ops(quantised) if op.startswith("aten.conv")] == ["aten.convolution.default"]
    assert quantised(_inputs([0.2])[0]).shape == (1, 5)


def test_layers_are_skipped_by_name(network: nn.Module) -> None:
    quantised = dycl_tvm.quantize(network, _inputs([0.2, 3.0]), skip=["shared", "weight"])
    assert {loss.name for loss in quantised.report.layers if loss.why == "skipped"} == {"shared", "weight"}
    assert sum(op == "dycl_quantized.conv2d.default" for op in _ops(quantised)) == 2
    with pytest.raises(UsageError, match=r"no layer 'share'.*there are stem, shared, wise, weight"):
        dycl_tvm.quantize(network, _inputs([0.2]), skip=["share"])


def test_usage(network: nn.Module) -> None:
    with pytest.raises(UsageError, match="calibration_inputs is empty"):
        dycl_tvm.quantize(network, [])
    quantised = dycl_tvm.quantize(network, _inputs([0.2]))
    with pytest.raises(UsageError, match="only the network to build"):
        dycl_tvm.build(quantised, _inputs([0.2])[0])


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(rows)))


def test_sizes_that_callers_decide_stay_open() -> None:
    model = Scores().eval()
    calls = [{"rows": torch.randn(n, 6)} for n in (3, 7, 2)]
    quantised = dycl_tvm.quantize(model, calls, dynamic_shapes={"rows": {0: dycl_tvm.Dim("n", max=8)}})
    assert [loss.decibels is not None for loss in quantised.report.layers] == [True, True]
    for n in (1, 5, 8):
        rows = torch.randn(n, 6)
        torch.testing.assert_close(quantised(rows=rows), model(rows), rtol=0.1, atol=0.05)


class Loop(nn.Module):
    """A loop whose trips the data decides, over one layer; the tensor grows from trip to trip."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.step.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 90:
            x = self.step(x) * 1.5
        return x


def test_every_trip_of_a_loop_counts() -> None:
    quantised = dycl_tvm.quantize(Loop().eval(), [torch.ones(1, 4)])
    (scale,) = {s.args[1].data.item() for b in quantised.hcfg.blocks for s in b.steps if getattr(s, "op", "").endswith("quantize.default")
                and "dequantize" not in s.op}  # fmt: skip
    assert 1 / scale > 17 / 255
    assert torch.allclose(quantised(torch.ones(1, 4)), Loop()(torch.ones(1, 4)), rtol=0.05)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_layer_of_what_is_no_number_stays_float_and_says_so(bad: float) -> None:
    model, rows = Scores().eval(), torch.randn(3, 6)
    nn.init.constant_(model.first.weight[0, :1].detach(), bad)
    quantised = dycl_tvm.quantize(model, [rows])
    assert {loss.name: loss.why for loss in quantised.report.layers if loss.why}["first"].startswith("its weights are infinite or not")
    assert torch.equal(quantised(rows).isnan(), model(rows).isnan())


def test_calibration_without_numbers_gives_no_range_wherever_it_comes() -> None:
    model, rows = Scores().eval(), torch.randn(3, 6)
    for calls in ([rows, rows / 0], [rows / 0, rows], [rows * float("nan"), rows], [rows, rows * float("nan")]):
        quantised = dycl_tvm.quantize(model, calls)
        whys = {loss.name: loss.why for loss in quantised.report.layers}
        assert whys["first"] == "its input was infinite or not a number in calibration"


def test_one_weight_that_is_read_in_two_ways_has_scales_of_its_own_in_each() -> None:
    weight = constant(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 2, 8)[:, None])
    b = GraphBuilder("both", {"x": tensor(3, 8)})
    (x,) = b.params
    b.leave(b.entry, b.op(b.entry, "aten.linear.default", x, weight), b.op(b.entry, "aten.mm.default", x, weight))
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    exact, _ = interpret(b.graph, [rows])
    layers = layers_of(b.graph)
    round_layers(b.graph, layers, {x: Grid.of(Range(float(rows.min()), float(rows.max())))})
    for found, expected in zip(interpret(b.graph, [rows])[0], exact):
        assert (found - expected).abs().max() < 0.02 * expected.abs().max()
        assert ((found - expected).abs().amax(0) < 0.1 * expected.abs().amax(0)).all()


class LooksUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.up, self.down = nn.Embedding(10, 16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.relu(self.up(x + self.rows(i))))
        return x.gather(1, i[:, None]) if i.sum() > 3 else x[:, :1] + 7 // (i - 1)[:, None]


def test_errors_of_elements_are_those_of_the_network_in_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = LooksUp().eval(), torch.randn(2, 16)
    given = [(x, torch.tensor(i)) for i in ([0, 0], [2, 3], [0, 2], [5, 9])]
    quantised = dycl_tvm.quantize(network, given)
    art = dycl_tvm.build(quantised, target="native", verify="off")
    module = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for i in ([0, 0], [3, 3], [1, 0], [-1, 2], [9, 10], [2, -11], [9, 5]):
        try:
            expected = quantised(x, torch.tensor(i))
        except Exception as error:
            with pytest.raises(type(error)), torch.no_grad():
                network(x, torch.tensor(i))
            with pytest.raises(RunError) as caught:
                module(x, torch.tensor(i))
            assert caught.value.kind == type(error).__name__
        else:
            assert np.array_equal(np.asarray(module(x, torch.tensor(i))), expected.numpy())
    failing = (x, torch.tensor([0, 10]))
    with pytest.raises(RunError, match="calibration input 4: .*embedding") as caught:
        dycl_tvm.quantize(network, [*given, failing])
    assert caught.value.kind == "IndexError"
    with pytest.raises(RunError, match="held-out input 0: .*embedding"):
        dycl_tvm.quantize(network, given, held_out=[failing])


class Experts(nn.Module):
    """Layers of which each input takes one, and one that is used on small and on large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.twice = nn.ModuleList(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.twice(x)
        return self.twice(1000 * self.experts[int(x.sum() > 0)](x))


def test_a_layer_that_never_ran_stays_float_though_others_read_its_input() -> None:
    torch.manual_seed(0)
    network = Experts().eval()
    x = torch.randn(1, 8)
    quantised = dycl_tvm.quantize(network, [x])
    never = next(f"experts.{k}" for k in range(2) if k != int(network.twice(x).sum() > 0))
    losses = {loss.name: loss for loss in quantised.report.layers}
    assert losses[never].decibels is None and losses[never].why == "no calibration input comes to it"
    assert any(op.startswith("aten.linear") or op.startswith("aten.addmm") for op in _ops(quantised))
    # the step of its grid is larger than all that it reads the first time, and the report does not hide it behind the second
    assert losses["twice"].places == 2 and losses["twice"].decibels is not None and losses["twice"].decibels < 5


class Level(nn.Module):
    """One level of a U-Net: a tensor is read behind a pool, and behind a concatenation with what is so many times larger."""

    def __init__(self, larger: float) -> None:
        super().__init__()
        self.down, self.deep, self.up = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(32, 16, 1)
        self.larger = larger

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.down(x))
        deep = torch.relu(self.deep(nn.functional.max_pool2d(x, 2)))
        deep = deep * (self.larger * x.max() / deep.max())
        return self.up(torch.cat([nn.functional.interpolate(deep, scale_factor=2.0), x], 1)) if x.mean() > 0 else x


@pytest.mark.parametrize(("larger", "grids"), [(0.5, 1), (1.9, 1), (2.1, 2)])
def test_what_is_made_of_one_tensor_is_on_one_grid_unless_that_costs_over_a_bit(larger: float, grids: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = _inputs([1.0, 1.5])
    quantised = dycl_tvm.quantize(Level(larger).eval(), inputs)
    steps = [s for b in quantised.hcfg.blocks for s in b.steps if isinstance(s, TensorOp) and s.op in QUANTIZES]
    assert len({(float(s.args[1].data), float(s.args[2].data)) for s in steps}) == 1 + grids  # the image has one of its own
    assert len({s.args[0] for s in steps}) == 3 and len(steps) == 2 + grids  # the image, what is small, and what the pool reads
    if larger == 1.9:
        art = dycl_tvm.build(quantised, target="native")
        art.export_library(tmp_path / "model.so")
        art.save_params(tmp_path / "model.params")
        module = dycl_tvm.load(tmp_path / "model.so", tmp_path / "model.params")
        assert all(np.array_equal(np.asarray(module(x)), quantised(x).numpy()) for x in inputs)
