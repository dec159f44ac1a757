# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``build`` and ``Artifact`` as users call them: forms of models and inputs, refusals, files, the report."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import dycl_tvm
from dycl_tvm import TargetError, TensorSpec, UnsupportedError, UsageError
from dycl_tvm.compare import difference
from dycl_tvm.example_inputs import check_model, identifier, name_of, normalise
from dycl_tvm.progress import Phases
from dycl_tvm.staging import stage_model


class TwoExits(nn.Module):
    """Leaves early if the mean of the first layer is high."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)
        self.early = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, threshold: float = 0.0) -> Any:
        h = torch.relu(self.first(x))
        if (h.mean() - 0.35).item() > threshold:
            return self.early(h), 0, True
        return self.second(h) + h[:, :4], 1, False

    def early_only(self, x: torch.Tensor) -> torch.Tensor:
        return self.early(torch.relu(self.first(x)))


@pytest.fixture(scope="module")
def net() -> TwoExits:
    torch.manual_seed(0)
    return TwoExits().eval()


def _both_sides(net: TwoExits) -> list[torch.Tensor]:
    """Return inputs that leave early and inputs that do not."""
    generator = torch.Generator().manual_seed(1)
    found: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    while min(map(len, found.values())) < 3:
        x = 2 * torch.randn(2, 8, generator=generator)
        found[net(x)[1]].append(x)
    return found[0][:3] + found[1][:3]


@pytest.fixture(scope="module")
def artifact(net: TwoExits) -> dycl_tvm.Artifact:
    return dycl_tvm.build(net, (torch.zeros(2, 8),))


# -- the artefact


def test_the_road_from_model_to_results(net: TwoExits, artifact: dycl_tvm.Artifact, tmp_path: Path) -> None:
    library = artifact.export_library(tmp_path / "model.so")
    params = artifact.save_params(tmp_path / "model.params")
    module = dycl_tvm.load(library, params)
    sites = set()
    for x in _both_sides(net):
        assert difference(net(x), module(x)) is None
        sites.add(str(module.last_path))
    assert len(sites) == 2


def test_embedded_weights_make_one_file(net: TwoExits, artifact: dycl_tvm.Artifact, tmp_path: Path) -> None:
    library = artifact.export_library(str(tmp_path / "one.so"), embed_params=True)
    module = dycl_tvm.load(library)
    x = _both_sides(net)[0]
    assert difference(net(x), module(x)) is None


def test_the_report_counts_what_is_there(artifact: dycl_tvm.Artifact) -> None:
    report = artifact.report()
    assert report.return_sites == 2
    assert report.branches == 1
    assert report.paths == 2
    assert report.loops == 0
    assert report.sub_dnns >= 3
    assert 0 < report.kernels <= report.kernel_calls
    assert sum(report.kernels_by_backend.values()) == report.kernels
    assert report.arena_bytes > 0
    assert report.weights_bytes >= 4 * (8 * 8 + 8 + 2 * (8 * 4 + 4))
    assert {"stage", "passes", "compile"} <= set(report.seconds)
    for word in ("TwoExits", "2 to 2 return sites", "arena", "weights", "seconds"):
        assert word in str(report)


def test_hcfg_and_ir_module_can_be_looked_at(artifact: dycl_tvm.Artifact) -> None:
    assert Path(__file__).name in str(artifact.hcfg)
    assert artifact.hcfg.to_dot().lstrip().startswith("digraph")
    assert len(artifact.ir_module.functions) >= len(artifact.hcfg.sub_dnns())


def test_two_builds_give_the_same_source(net: TwoExits, artifact: dycl_tvm.Artifact) -> None:
    again = dycl_tvm.build(net, (torch.ones(2, 8),))
    assert again.source() == artifact.source()


# -- forms of models


def test_bound_methods_functions_and_partials(net: TwoExits) -> None:
    x = torch.zeros(2, 8)

    def closes_over(x: torch.Tensor) -> Any:
        return net.second(x) if x.sum() > 0 else net.early(x)

    for model, name in (
        (net.early_only, "TwoExits_early_only"),
        (net.forward, "TwoExits"),
        (closes_over, "closes_over"),
        (functools.partial(net.forward, threshold=0.5), "TwoExits"),
    ):
        graph = stage_model(model, (x,), phases=Phases())
        assert graph.name == name
    assert len(stage_model(net.early_only, (x,), phases=Phases()).return_sites()) == 1
    assert stage_model(net, (x,), name="my net-2", phases=Phases()).name == "my_net_2"


def test_inputs_are_given_as_the_model_takes_them(tmp_path: Path) -> None:
    def model(a: torch.Tensor, *rest: torch.Tensor, scale: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        for r in rest:
            a = a + r
        return a * scale + more["bias"]

    a, b, c, scale, bias = (torch.full((3,), float(k)) for k in range(1, 6))
    artifact = dycl_tvm.build(model, (a, b, c), example_kwargs={"scale": scale, "bias": bias})
    module = dycl_tvm.load(artifact.export_library(tmp_path / "model.so"), artifact.save_params(tmp_path / "model.params"))
    assert difference(model(a, b, c, scale=scale, bias=bias), module(a, b, c, scale=scale, bias=bias)) is None
    for args, kwargs in (((a, b), {"scale": scale, "bias": bias}), ((a, b, c), {"scale": scale})):
        with pytest.raises(dycl_tvm.InputError):
            module(*args, **kwargs)
    assert difference(model(a, a, a, scale=scale, bias=a), module(a, a, a, bias=a, scale=scale)) is None


@pytest.mark.parametrize(
    "model, words",
    [
        (TwoExits, ["class TwoExits", "TwoExits(...).eval()"]),
        ("resnet", ["str"]),
        (torch.jit.script(nn.Linear(2, 2)), ["TorchScript"]),
        (nn.Linear(2, 2, device="meta"), ["weight", "no values"]),
    ],
)
def test_what_is_no_model_is_refused(model: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        check_model(model)
    for word in words:
        assert word in str(caught.value)


class _LooksAtTraining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.training else x


@pytest.mark.parametrize(
    "module, depends",
    [
        (nn.BatchNorm1d(4), True),
        (nn.Dropout(0.5), True),
        (nn.Dropout(0.0), False),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), True),
        (nn.LSTM(4, 4, num_layers=2, dropout=0.5), True),
        (nn.LSTM(4, 4), False),
        (nn.LayerNorm(4), False),
        (_LooksAtTraining(), True),
        (TwoExits(), False),
    ],
)
def test_training_mode_is_refused_where_it_matters(module: nn.Module, depends: bool) -> None:
    def wrapped(x: torch.Tensor) -> torch.Tensor:
        return module(x)

    for model in (module, module.forward, wrapped, functools.partial(wrapped)):
        if depends:
            with pytest.raises(UsageError, match=r"model\.eval\(\)"):
                check_model(model)
        else:
            check_model(model)
    module.eval()
    check_model(module)


# -- forms of inputs


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(2, 8)


@pytest.mark.parametrize(
    "example",
    [
        (torch.randn(2, 8),),
        [torch.randn(2, 8)],
        torch.randn(2, 8),
        (TensorSpec((2, 8)),),
        TensorSpec((2, 8), torch.float32),
        (torch.empty(2, 8, device="meta"),),
        _fake(),
        (np.zeros((2, 8), np.float32),),
        (nn.Parameter(torch.zeros(2, 8)),),
    ],
)
def test_all_forms_of_an_example_stage_the_same(net: TwoExits, example: Any) -> None:
    assert str(stage_model(net, example, phases=Phases())) == str(stage_model(net, (torch.zeros(2, 8),), phases=Phases()))


def test_nested_examples_keep_their_structure() -> None:
    pair = namedtuple("pair", "a b")
    args, kwargs = normalise(
        ({"x": TensorSpec((1,), "int64"), "y": [TensorSpec((), np.float64), 3]}, pair(TensorSpec((2,), "tvm.float16"), None)),
        {"flag": True, "mask": np.ones(3, bool)},
    )
    assert args[0]["x"].dtype == torch.int64
    assert args[0]["y"][0].dtype == torch.float64
    assert args[0]["y"][0].shape == ()
    assert args[0]["y"][1] == 3
    assert type(args[1]) is pair
    assert args[1].a.dtype == torch.float16
    assert args[1].b is None
    assert kwargs["flag"] is True
    assert kwargs["mask"].dtype == torch.bool


@pytest.mark.parametrize(
    "args, kwargs, words",
    [
        (None, None, ["no example inputs", "build(model, (torch.randn(1, 3, 32, 32),)", "TensorSpec", "example_kwargs"]),
        ({"x": torch.zeros(1)}, None, ["example_kwargs"]),
        ("1x3x32x32", None, ["str"]),
        ((TensorSpec((torch.export.Dim("batch"), 8)),), None, ["example_inputs[0]", "batch", "fixed at build time"]),
        ((TensorSpec((1, None)),), None, ["None", "fixed at build time"]),
        ((TensorSpec((1,), "float31"),), None, ["'float31'", "float32"]),
        ((), {"m": TensorSpec((-1,))}, ["example_kwargs['m']"]),
    ],
)
def test_what_is_no_example_is_refused(args: Any, kwargs: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        normalise(args, kwargs)
    for word in words:
        assert word in str(caught.value)


def test_names_are_identifiers() -> None:
    assert identifier("a b-c") == "a_b_c"
    assert identifier("3net") == "m_3net"
    assert identifier("日本") == "model"
    assert name_of(lambda x: x) == "lambda"


# -- arguments of build


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda net: dycl_tvm.build(net), UsageError, ["no example inputs"]),
        (lambda net: dycl_tvm.build(net, torch.zeros(2, 8), target="opencl"), TargetError, ["opencl", "yet", "sm_72"]),
        (lambda net: dycl_tvm.build(net, torch.zeros(2, 8), target="nvidia/jetson-tx3"), TargetError, ["jetson-tx2"]),
        (lambda net: dycl_tvm.build(net, torch.zeros(2, 8), disable_passes=["nonsense"]), UsageError, ["nonsense", "there are"]),
        (lambda net: dycl_tvm.build(net, torch.zeros(2, 8), disable_passes="dead_code"), UsageError, ["collection"]),
    ],
)
def test_arguments_that_make_no_sense(net: TwoExits, call: Callable[[nn.Module], Any], error: type, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call(net)
    for word in words:
        assert word in str(caught.value)


def test_an_unsupported_model_names_its_line() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.histogram(3)

    with pytest.raises(UnsupportedError) as caught:
        dycl_tvm.build(model, (torch.zeros(3),))
    assert Path(__file__).name in str(caught.value)
    assert "return x.histogram(3)" in str(caught.value)


def test_progress_is_told_by_phase(net: TwoExits, capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    dycl_tvm.build(net.early_only, (torch.zeros(2, 8),), progress=lines.append)
    assert capfd.readouterr().err == ""
    phases = [line.split(":")[0] for line in lines]
    assert phases[:8] == [p for p in ("stage", "verify", "passes", "verify") for _ in range(2)]
    assert phases.count("compile") >= 2
    stage_model(net, (torch.zeros(2, 8),), phases=Phases())
    assert capfd.readouterr().err == "", "quiet unless asked"
    stage_model(net, (torch.zeros(2, 8),), phases=Phases(True))
    assert "stage:" in capfd.readouterr().err


def test_max_loop_trips(tmp_path):
    def collect(x):
        out = []
        while x.abs().sum() > 0.5:
            x = x * 0.5
            out.append(x)
        return out

    art = dycl_tvm.build(collect, (torch.ones(1, 2),), target="llvm", max_loop_trips=4)
    mod = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for scale, trips in ((0.1, 0), (0.4, 1), (1.0, 2), (3.0, 4)):
        assert len(mod(torch.ones(1, 2) * scale)) == len(collect(torch.ones(1, 2) * scale)) == trips
    with pytest.raises(dycl_tvm.RunError, match="max_loop_trips = 4"):
        mod(torch.ones(1, 2) * 100)


def test_expanded_weight_of_one_element(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0).expand(1, 1))

        def forward(self, x):
            return x * self.scale if x.sum() > 0 else x - self.scale

    model = Scaled().eval()
    art = dycl_tvm.build(model, (torch.ones(1, 1),), target="llvm")
    mod = dycl_tvm.load(art.export_library(tmp_path / "m.so"), art.save_params(tmp_path / "m.params"))
    for value in (3.0, -3.0):
        assert torch.equal(mod(torch.full((1, 1), value)), model(torch.full((1, 1), value)))


def test_an_example_of_a_type_that_is_not_supported_is_refused() -> None:
    with pytest.raises(UsageError, match=r"`x` has the dtype torch.float8_e4m3fn; supported are float64"):
        dycl_tvm.stage(lambda x: x, (torch.zeros(2, dtype=torch.float8_e4m3fn),))
