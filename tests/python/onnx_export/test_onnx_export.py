# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks as ONNX, both forms, run by ONNX Runtime against eager and against the interpreter of HCFGs."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from onnx_zoo import assert_same, back, both, depth, graph_of, out
from torch import nn

import dycl_tvm
from dycl_tvm import zoo
from dycl_tvm.errors import ArtifactError, InputError, RunError, UnsupportedError
from dycl_tvm.hcfg.builder import GraphBuilder, tensor
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.nodes import HCFG, Edge, StateVar
from dycl_tvm.hcfg.types import BOOL, FLOAT, INT
from dycl_tvm.onnx_export import OnnxModel, SplitModel, export_model, export_split, run
from dycl_tvm.zoo.calibrate import calibrate_captioning
from dycl_tvm.zoo.calibrate.modern import calibrate_lightglue
from dycl_tvm.zoo.captioning import ShowAttendTell
from dycl_tvm.zoo.images import batch_of_images, random_images
from dycl_tvm.zoo.modern.lightglue import LightGlue
from dycl_tvm.zoo.modern.samples import image_pairs


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run on one thread: the layers are small, and on a busy machine the threads of one layer wait long for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- the zoo -----------------------------------------------------------------------------------------------------------
# All networks as they are are in `make onnx-zoo`; here are those whose graphs are unlike, the two captioning ones as a small one.
def small_captioning() -> zoo.Entry:
    """Return show, attend and tell, of few words, on an encoder of one layer."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 16, 8, stride=8), nn.BatchNorm2d(16), nn.ReLU())
    model = ShowAttendTell(trunk, 16, vocab_size=40, attention_dim=16, embed_dim=16, decoder_dim=32, grid=3, max_steps=8)
    model = model.eval().requires_grad_(False)
    calibrate_captioning(model, batch_of_images(16, 64, generator))
    return zoo.Entry("caption_small", model, (torch.zeros(1, 3, 64, 64),), "", lambda g: ((x,) for x in random_images(64, g)))


def small_matcher() -> zoo.Entry:
    """Return the matcher with adaptive depth, of three narrow layers; the head of the last layer that ran is chosen by its number."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = LightGlue(descriptor_dim=16, num_heads=2, n_layers=3).eval().requires_grad_(False)
    samples = partial(image_pairs, 6, 16)
    calibrate_lightglue(model, list(itertools.islice(samples(generator), 24)))
    return zoo.Entry("matcher_small", model, next(samples(generator)), "", samples)


SMALL = {"caption_small": small_captioning, "matcher_small": small_matcher}


@pytest.mark.parametrize(
    ("name", "runs", "paths"),
    [
        ("sdn_mobilenet", 4, 3),
        ("skipnet38_rnn", 4, 3),
        ("blockdrop_resnet110", 4, 3),
        ("caption_small", 8, 3),
        ("gpt_greedy_static_cache", 4, 2),
        ("act_rnn", 4, 2),
        ("early_bert_patience", 4, 3),
        ("matcher_small", 6, 2),
        ("moe_top1", 4, 3),
        ("tree_lstm_gated", 4, 2),
    ],
)
def test_zoo_network_out_and_back(name: str, runs: int, paths: int, tmp_path: Path) -> None:
    entry = SMALL[name]() if name in SMALL else zoo.load(name)
    row = out(entry, runs, tmp_path)
    again = back(entry, row.graph, runs, tmp_path)
    assert len(row.ways) >= paths
    assert len(row.graph.return_sites()) == 1 or len(row.sites) >= 2
    assert again.one_to_one
    assert again.paths[0] == again.paths[1]


# -- shapes of control flow --------------------------------------------------------------------------------------------
def early_exits(x: torch.Tensor) -> Any:
    total, seen = x * 0, []
    for k in range(6):
        total = total + x * k
        seen.append(total.sum())
        if total.max() > 3 + k:
            return {"at": k, "value": total}
        if total.min() < -20:
            return None
    return total, len(seen), (total.mean() > 0).item()


def loops(x: torch.Tensor) -> Any:
    rounds = 0
    while x.sum() < 40:
        inner = 0
        while x.max() < 3:
            x = x + 0.5
            inner += 1
            if inner > 7 and x.min() < -9:
                return x, rounds, inner
        rounds += inner
        if x.min() < -4:
            break
        x = x * 1.5 + inner
        if x[0] < 0:
            continue
        rounds += 1
    else:
        x = x - 1
    y = x * rounds
    if rounds > 3:
        y = y + x.mean()
    return y, rounds


def values_from_inside(x: torch.Tensor) -> Any:
    last, step, k = x, x.sum(), 0
    while True:
        last = x * 1.01
        step = last.abs().sum()
        if step > 20 + k:
            break
        if step < 0.1:
            step = step + 1
            break
        k += 1
        x = last * 1.02
    return last, step, k


def joins(x: torch.Tensor) -> Any:
    a = x.sum().item()
    b = a // 2.5 if a > 0 else a % 3.5
    if a > 1:
        y = x + 1
    elif a > -1:
        y = x.sin()
    else:
        if x[0] > 0:
            return a
        y = x * 2
    table = [y, y * 2, y - x, x]
    return table[int(torch.argmax(x))], b, round(a), int(a) ** 3, max(a, 0.5)


PROGRAMS = {"early_exits": early_exits, "loops": loops, "values_from_inside": values_from_inside, "joins": joins}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_agrees_with_eager(name: str, tmp_path: Path) -> None:
    function = PROGRAMS[name]
    one, split = both(graph_of(function, (torch.zeros(4),)), tmp_path)
    taken = set()
    for scale, shift in itertools.product((0.3, 1.0, 4.0), (-6.0, -1.0, 0.2, 1.5)):
        x = torch.randn(4) * scale + shift
        want = function(x)
        assert_same(one(x), want)
        assert_same(split(x), want)
        taken.add(tuple(split.last_path))
    assert len(taken) > 2


def test_state_lives_on_from_call_to_call(tmp_path: Path) -> None:
    class Running(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            if x.sum() > 0:
                self.mean = self.mean * 0.5 + x * 0.5
            return self.mean + 0, self.calls

    graph = graph_of(Running(), (torch.zeros(3),))
    models, eager = both(graph, tmp_path), Running()
    for k in range(4):
        x = torch.randn(3) + (1 if k % 2 else -1)
        want = eager(x)
        for model in models:
            assert_same(model(x), want)
    # Without what is known of earlier calls, the model begins anew.
    assert run(tmp_path / "model.onnx", torch.zeros(3))[1] == 1


def test_errors_of_the_run_keep_their_kind(tmp_path: Path) -> None:
    def divides(x: torch.Tensor) -> Any:
        n = int(x.sum())
        if n > 10:
            raise KeyError("too much")
        return 100 // n

    models = both(graph_of(divides, (torch.zeros(2),)), tmp_path)
    for model in models:
        assert model(torch.tensor([2.0, 1.0])) == 33
        with pytest.raises(RunError) as error:
            model(torch.tensor([0.25, 0.25]))
        assert error.value.kind == "ZeroDivisionError"
        with pytest.raises(RunError, match="too much") as error:
            model(torch.tensor([9.0, 9.0]))
        assert error.value.kind == "KeyError"
        with pytest.raises(RunError):
            model(torch.tensor([float("nan"), 1.0]))
        assert model(torch.tensor([-4.0, 1.0])) == -34


ROWS = torch.arange(40.0).reshape(10, 4)


def asks_of_elements(x: torch.Tensor, i: torch.Tensor) -> Any:
    if x.sum() > 0:
        y = x.gather(1, i[:, None]) + torch.nn.functional.one_hot(i, 4)
    elif x.sum() > -10:
        y = ROWS[i] + torch.nn.functional.embedding_bag(torch.arange(2), ROWS, i.clamp(max=2)) + (7 % (i - 1))[:, None]
    else:
        y = x.masked_scatter(i[:, None] > 0, x[0])
    return y + torch.nn.functional.cross_entropy(x, i % 5)


def test_errors_of_elements_keep_their_kind(tmp_path: Path) -> None:
    models = both(graph_of(asks_of_elements, (torch.ones(2, 4), torch.tensor([0, 0]))), tmp_path)
    kinds: list[str] = []
    for x in (torch.ones(2, 4), -torch.ones(2, 4), -9 * torch.ones(2, 4)):
        for at in ([0, 0], [0, 2], [3, 1], [-1, 0], [0, 4], [0, 12], [2, -11]):
            i = torch.tensor(at)
            try:
                want = asks_of_elements(x, i)
            except Exception as error:
                for model in models:
                    with pytest.raises(RunError) as caught:
                        model(x, i)
                    assert caught.value.kind == type(error).__name__
                kinds.append(type(error).__name__)
            else:
                for model in models:
                    assert_same(model(x, i), want)
    assert {"IndexError", "RuntimeError"} == set(kinds) and len(kinds) < 18


# -- host operations ---------------------------------------------------------------------------------------------------
_NUMBERS = [-7.5, -2.0, -0.5, 0.5, 1.0, 2.5, 3.0, 17.25]
_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"]
_UNARY_FLOAT = ["neg", "abs", "to_int", "to_bool", "floor", "ceil", "round", "trunc", "exp", "sin", "cos", "tanh"]


def _host_graph() -> HCFG:
    """Every host operation, on two float inputs and their integer parts."""
    g = GraphBuilder("host", {"a": tensor(1, dtype="float64"), "b": tensor(dtype="float64")})
    block = g.entry
    a, b = (g.host(block, "item", p, type=FLOAT) for p in g.params)
    i, j = (g.host(block, "to_int", g.host(block, "add", x, 20.0, type=FLOAT)) for x in (a, b))
    p, q = g.host(block, "gt", a, 0.0), g.host(block, "gt", b, 0.0)
    found = [g.host(block, op, *pair) for op in _BINARY for pair in ((a, b), (i, j), (a, j))]
    found += [g.host(block, op, a) for op in _UNARY_FLOAT]
    found += [g.host(block, op, p, q) for op in ("and", "or", "xor", "eq", "ne")]
    found += [g.host(block, "not", p), g.host(block, "neg", i), g.host(block, "abs", i), g.host(block, "to_float", i)]
    found += [g.host(block, "select", p, x, y) for x, y in ((a, b), (i, j), (p, q))]
    found += [g.host(block, "pow", i, 5, type=INT), g.host(block, "pow", g.host(block, "abs", a), b, type=FLOAT)]
    found += [g.host(block, op, g.host(block, "abs", a)) for op in ("sqrt", "log")]
    found += [g.host(block, "to_int", q), g.host(block, "add", p, q, type=INT), g.host(block, "to_tensor", i, type=tensor(dtype="int32"))]
    g.leave(block, *found)
    assert {BOOL, INT, FLOAT} <= {v.type for v in found}
    return g.graph


def test_host_operations_have_pythons_semantics(tmp_path: Path) -> None:
    graph = _host_graph()
    one, split = both(graph, tmp_path)
    for a, b in itertools.product(_NUMBERS, _NUMBERS):
        inputs = [torch.tensor([a], dtype=torch.float64), torch.tensor(b, dtype=torch.float64)]
        want, _ = interpret(graph, inputs)
        assert_same(one(*inputs), want, rtol=1e-12, atol=0)
        assert_same(split(*inputs), want, rtol=1e-12, atol=0)


def _switch_graph() -> HCFG:
    g = GraphBuilder("cases", {"k": tensor(dtype="int64")}, [StateVar("count", INT, 5)])
    index = g.host(g.entry, "item", g.params[0], type=INT)
    cases = [g.block(f"case{k}") for k in range(5)]
    g.switch(g.entry, index, *(Edge(c) for c in cases))
    for k, case in enumerate(cases):
        g.leave(case, *([index] * (k % 2)), g.host(case, "mul", index, 10 + k), state=[g.host(case, "add", g.params[1], k)])
    return g.graph


def test_switch_and_an_index_outside(tmp_path: Path) -> None:
    graph = _switch_graph()
    for model in (OnnxModel(export_model(graph, tmp_path / "m.onnx")), SplitModel(export_split(graph, tmp_path / "m"))):
        for k in range(5):
            want, _ = interpret(graph, [torch.tensor(k)])
            assert model(torch.tensor(k)) == want
        for outside in (-1, 5):
            with pytest.raises(RunError) as error:
                model(torch.tensor(outside))
            assert error.value.kind == "IndexError"


def test_an_artefact_exports_itself(tmp_path: Path) -> None:
    art = dycl_tvm.build(joins, (torch.zeros(4),))
    models = OnnxModel(art.export_onnx(tmp_path / "art.onnx")), SplitModel(art.export_onnx(tmp_path / "art", split=True))
    for x in (torch.ones(4), -torch.ones(4), torch.tensor([1.0, -4.0, 0.0, 0.5])):
        for model in models:
            assert_same(model(x), joins(x))
    assert art.report().seconds["onnx"] > 0


# -- files -------------------------------------------------------------------------------------------------------------
def test_what_is_in_the_files(tmp_path: Path) -> None:
    layer = torch.nn.Linear(40, 40).eval()

    def forward(x: torch.Tensor) -> Any:
        return layer(x) if x.sum() > 0 else (x, 1)

    graph = graph_of(forward, (torch.zeros(1, 40),))
    inside = onnx.load(export_model(graph, tmp_path / "inside.onnx"))
    assert [o.name for o in inside.graph.output][0] == "return_site"
    assert [n.op_type for n in inside.graph.node].count("If") == 1
    about = json.loads({p.key: p.value for p in inside.metadata_props}["dycl_tvm"])
    assert len(about["sites"]) == 2 and about["errors"] == []
    outside = export_model(graph, tmp_path / "outside.onnx", external_data=True)
    assert outside.stat().st_size < 4000 < 40 * 40 * 4 <= (tmp_path / "outside.onnx.data").stat().st_size
    for x in (torch.ones(1, 40), -torch.ones(1, 40)):
        assert_same(run(outside, x), forward(x))
        assert_same(run(inside, x), forward(x))
        with pytest.raises(InputError, match="x"):
            run(inside)
    assert export_model(graph, tmp_path / "again.onnx").read_bytes() == (tmp_path / "inside.onnx").read_bytes()
    folder = export_split(graph, tmp_path / "split")
    described = json.loads((folder / "hcfg.json").read_text())
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["hcfg.json", "weights.params", *(f"{n}.onnx" for n in described["sub_dnns"])]
    )


def test_the_driver_needs_neither_torch_nor_tvm(tmp_path: Path) -> None:
    graph = graph_of(joins, (torch.zeros(4),))
    both(graph, tmp_path)
    code = f"""if True:
        import sys, numpy as np
        from dycl_tvm.onnx_export import OnnxModel, SplitModel
        x = np.array([1.0, 2.0, 3.0, 4.0], dtype="float32")
        results = [OnnxModel({str(tmp_path / "model.onnx")!r})(x), SplitModel({str(tmp_path / "split")!r})(x)]
        print(*(r[2] for r in results), not {{"torch", "tvm"}} & set(sys.modules))
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["10", "10", "True"]


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in ("a", "b")]
    body = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["a"], ["b"])], "foreign", values[:1], values[1:])
    with pytest.raises(ArtifactError, match="not written by dycl_tvm"):
        OnnxModel(onnx.helper.make_model(body, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]))
    with pytest.raises(ArtifactError, match="no folder"):
        SplitModel(tmp_path)


def many_exits(x: torch.Tensor) -> Any:
    seen = 0
    for k in range(40):
        x = x + 1
        if x.sum() > 3 * k + 50:
            return x, k, seen
        if x[0] > 5:
            seen = seen + 1
        if k > 30:
            while x.sum() < 100:
                x = x * 1.5 + 1
                if x[1] > 60:
                    return x, "inner", seen
    return x, -1, seen


def sized(x: torch.Tensor, w: torch.Tensor) -> Any:
    if x.sum() > 0:
        return {"both": torch.cat([x, w[:, 1:]], 1).mean(1), "rows": x.softmax(1), "size": x.shape[1]}
    while x.abs().sum() < 50:
        x = x * 2 - 1
    return x, (w.t() @ w.new_ones(2, 3)).half()


def picked(x: torch.Tensor) -> Any:
    return x[x[:, 0] > 0], (x > 0.5).nonzero(), x.amax(1)[x.sum(1) > 0]


def test_masks(tmp_path: Path) -> None:
    models = both(graph_of(picked, (torch.ones(4, 3),)), tmp_path)
    plain = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for k in (-2, -0.3, 0, 0.3, 2):
        x = torch.linspace(-1, 1, 12).reshape(4, 3).roll(5) + k
        want = picked(x)
        for model in models:
            assert_same(model(x.numpy()), want)
        assert {tuple(t.shape) for t in want} <= {t.shape for t in plain.run(None, {"x": x.numpy()})}


def test_sizes_that_each_call_decides_are_dimensions_of_the_model(tmp_path: Path) -> None:
    size = dycl_tvm.Dim("N", min=2, max=8)
    graph = dycl_tvm.stage(sized, (torch.ones(2, 3), torch.ones(2, 4)), dynamic_shapes={"x": {1: size}, "w": {1: size + 1}})
    models = both(graph, tmp_path)
    written = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(written)
    shapes = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in written.graph.input]
    assert shapes == [[2, "N"], [2, "N+1"]]
    plain = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    for n in (2, 3, 7, 8):
        for sign in (1, -1):
            args = torch.rand(2, n) * sign, torch.randn(2, n + 1)
            for model in models:
                assert_same(model(*(t.numpy() for t in args)), sized(*args))
            found = plain.run(None, {"x": args[0].numpy(), "w": args[1].numpy()})
            # Whoever runs the model by other means gets the shapes of eager too.
            assert {t.shape for t in found if t.size > 1} == ({(2,), (2, n)} if sign > 0 else {(2, n), (n + 1, 3)})
    for wrong in ((1, 2), (9, 10), (3, 3)):
        for model in models:
            with pytest.raises(InputError, match="'x': dimension 1|'w': dimension 1"):
                model(*(torch.ones(2, n).numpy() for n in wrong))


def ordered(x: torch.Tensor, k: torch.Tensor) -> Any:
    return torch.sort(x, dim=1), x.sort(0, descending=True), torch.sort(k, dim=1, stable=True), torch.argsort(k, dim=1, stable=True)


def test_sorting_is_stable_and_knows_what_is_no_number(tmp_path: Path) -> None:
    size = dycl_tvm.Dim("N", min=1, max=6)
    models = both(dycl_tvm.stage(ordered, (torch.ones(2, 3), torch.ones(2, 3)), dynamic_shapes={"x": {1: size}, "k": {1: size}}), tmp_path)
    for n in (1, 4, 6):
        x = torch.randn(2, n)
        x = torch.where(x > 0.5, torch.nan, x).masked_fill(x < -0.8, torch.inf)
        k = torch.randint(0, 3, (2, n)).float()
        for model in models:
            found, wanted = model(x.numpy(), k.numpy()), ordered(x, k)
            for got, want in zip(itertools.chain(*found[:3], found[3:]), itertools.chain(*wanted[:3], wanted[3:]), strict=True):
                torch.testing.assert_close(torch.as_tensor(got), want, equal_nan=True)


def test_any_number_of_exits_fits_into_the_nesting_that_readers_allow(tmp_path: Path) -> None:
    """Forty exits in one another, some out of loops: blocks that would stand too deep are put further out."""
    graph = graph_of(many_exits, (torch.zeros(2),))
    path = export_model(graph, tmp_path / "deep.onnx")
    assert depth(onnx.load(path).graph) <= 30
    model, sites = OnnxModel(path), set()
    for x in ([0.0, 0.0], [30.0, 30.0], [9.0, -9.0], [-60.0, 50.0], [6.0, -40.0], [-5.0, 20.0], [2.0, 9.0]):
        assert_same(model(torch.tensor(x)), many_exits(torch.tensor(x)))
        sites.add(model.last_site)
    assert len(sites) >= 4


def test_too_many_loops_in_one_another_are_refused_but_can_be_split(tmp_path: Path) -> None:
    g = GraphBuilder("nest", {"x": tensor()})
    headers = [g.block(f"loop{k}") for k in range(40)]
    ends = [g.block(f"end{k}") for k in range(40)]
    outside = g.block("outside")
    positive = g.host(g.entry, "gt", g.host(g.entry, "item", g.params[0], type=FLOAT), 0.0)
    g.jump(g.entry, headers[0])
    for k, header in enumerate(headers):
        g.jump(header, headers[k + 1] if k + 1 < len(headers) else ends[k])
        g.branch(ends[k], positive, ends[k - 1] if k else outside, header)
    g.leave(outside, positive)
    with pytest.raises(UnsupportedError, match="split=True"):
        export_model(g.graph, tmp_path / "nest.onnx")
    assert SplitModel(export_split(g.graph, tmp_path / "nest"))(torch.tensor(1.0))


class _Named(nn.Module):
    """State, inputs and results of one name; and a list of several lengths, whose items have names for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(3))
        self.kept: list[torch.Tensor] = []

    def forward(self, x, output_0, return_site):
        self.x = self.x + x
        self.kept.append(output_0)
        if len(self.kept) > 2:
            self.kept = self.kept[2:]
        return self.x + return_site, torch.stack(self.kept).sum(0)


def test_names_that_are_alike_are_told_apart(tmp_path: Path) -> None:
    calls = [tuple(torch.randn(3, generator=torch.Generator().manual_seed(3 * k + n)) for n in range(3)) for k in range(5)]
    artifact = dycl_tvm.build(_Named(), calls[0], verify="off", max_length=4)
    artifact.export_onnx(tmp_path / "named.onnx")
    model, eager = OnnxModel(tmp_path / "named.onnx"), _Named()
    for call in calls:
        for want, got in zip(eager(*call), model(*call), strict=True):
            torch.testing.assert_close(torch.as_tensor(got), want)
