# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The command with ONNX models and torch.export programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import dycl_tvm
from dycl_tvm.cli.exit_codes import OK, USAGE
from dycl_tvm.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with an ``If`` and a symbolic batch."""

    def side(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"y_{op}", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [f"y_{op}"])], op, [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=side("Exp"), else_branch=side("Neg")),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in ("x", "y")]
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    path = tmp_path / "model.onnx"
    graph = helper.make_graph(nodes, "two_sides", values[:1], values[1:], [zero])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_an_onnx_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = model.with_suffix(".so")
    assert main(["compile", str(model), "-i", "batch=int:2", "-o", str(library), "-q", "--embed-params"]) == OK
    compiled = dycl_tvm.load(library)
    for x in (np.ones((2, 4), "float32"), -np.ones((2, 4), "float32")):
        np.testing.assert_allclose(compiled(x), np.exp(x) if x.sum() > 0 else -x, rtol=1e-6)
    assert main(["run", str(library)]) == OK
    for what in (["inspect", str(model)], ["paths", str(model)]):
        capsys.readouterr()
        assert main([*what, "-i", "x=2x4", "-q"]) == OK
        assert "If" in capsys.readouterr().out


def test_what_is_missing_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (([], "batch"), (["-i", "2x4"], "have names"), (["--state-dict", "w"], "its weights with it")):
        assert main(["compile", str(model), *arguments, "-o", str(model.with_suffix(".so")), "-q"]) == USAGE
        assert message in capsys.readouterr().err
    assert main(["inspect", str(model.with_name("none.onnx"))]) == USAGE
    model.with_suffix(".pt2").write_text("nothing")
    assert main(["inspect", str(model.with_suffix(".pt2"))]) == USAGE
    assert "torch.export.save" in capsys.readouterr().err


class Gate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x - 1, (x,))


def test_a_program_of_torch_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, library = tmp_path / "gate.pt2", tmp_path / "gate.so"
    torch.export.save(torch.export.export(Gate(), (torch.ones(3),)), path)
    assert main(["compile", str(path), "-o", str(library), "-q"]) == OK
    compiled = dycl_tvm.load(library)
    for x in (torch.ones(3), -torch.ones(3)):
        np.testing.assert_allclose(np.asarray(compiled(x.numpy())), Gate()(x).numpy(), rtol=1e-6)
    assert main(["inspect", str(path), "-q"]) == OK
    assert main(["paths", str(path), "-q"]) == OK
