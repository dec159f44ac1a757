# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a build says that it has proved, where it says it, and the graph that is called like the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dycl_tvm
from dycl_tvm.cli.main import main
from dycl_tvm.errors import InputError, VerificationError
from dycl_tvm.frontend.python import stage as stage_python
from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.digest import digest
from dycl_tvm.hcfg.nodes import Branch, TensorOp
from dycl_tvm.hcfg.sizes import Dim
from dycl_tvm.passes import run_passes
from dycl_tvm.verify.passes import check_passes
from dycl_tvm.verify.staged_with import as_json, from_json

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x, scale=None):
        self.n += 1
        if x.sum() > 0:
            return x * 2, self.n
        return x + WEIGHT, self.n

net = Net().eval()
"""


def _program(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def test_a_graph_is_called_like_the_model() -> None:
    def model(x, more):
        if x.sum() > 0:
            return {"y": x * more[0]}
        return x

    x = torch.ones(2, 3)
    for passes in (True, False):
        graph = dycl_tvm.stage(model, (x, [x * 3]), passes=passes)
        assert any(isinstance(s, TensorOp) for b in graph.blocks for s in b.steps) != passes
        call = graph.interpret()
        assert call.last_path.site is None
        assert torch.equal(call(x, more=[x * 3])["y"], x * 3)
        assert [b.choice for b in call.last_path.branches] == [True]
        assert torch.equal(call(-x, [x * 3]), -x)
        assert [b.choice for b in call.last_path.branches] == [False]
        with pytest.raises(InputError, match="'x'"):
            call(torch.ones(1), [x])


def test_the_certificate_is_in_the_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "certified.py"
    source.write_text(MODEL.replace("WEIGHT", "1.0"))
    library = str(tmp_path / "net.so")
    assert main(["compile", f"{source}:net", "-i", "2x3", "-o", library, "-q"]) == 0
    assert "verified" in capsys.readouterr().out
    module = dycl_tvm.load(library)
    proved = module.certificate
    assert proved["level"] == "default" and proved["control"]["edges"] == proved["control"]["edges_total"] == 2
    assert proved["passes"]["runs"] > 0 and proved["kernels"]["checked"] == proved["kernels"]["total"]
    assert "seconds" not in str(proved)
    assert main(["inspect", library]) == 0
    assert "of 2 edges" in capsys.readouterr().out
    assert main(["verify", library, f"{source}:net", "-i", "2x3", "--seconds", "0", "-q"]) == 0
    assert "2 of 2 edges" in capsys.readouterr().out
    other = tmp_path / "other.py"
    other.write_text(MODEL.replace("WEIGHT", "1.5"))
    assert main(["verify", library, f"{other}:net", "-i", "2x3", "--seconds", "0", "-q"]) == 1
    assert "was not made of" in capsys.readouterr().err


BOUNDED = """
def net(x):
    out = []
    while x.sum() < 10:
        x = x + 1
        print("once more")
        out.append(x)
    return out
"""


def test_a_library_is_verified_with_the_options_it_was_staged_with(tmp_path: Path) -> None:
    source, library = tmp_path / "bounded.py", str(tmp_path / "net.so")
    source.write_text(BOUNDED)
    options = ["--max-loop-trips", "3", "--keep-print", "--name", "other"]
    assert main(["compile", f"{source}:net", "-i", "2x3", "-o", library, "-q", *options]) == 0
    assert dycl_tvm.load(library, tmp_path / "net.params").certificate["staging"] == {
        "name": "other",
        "max_loop_trips": 3,
        "keep_print": True,
    }
    assert main(["verify", library, f"{source}:net", "-i", "2x3", "--seconds", "0", "-q"]) == 0


def test_options_of_staging_are_the_same_after_json() -> None:
    given = {
        "input_shapes": {"x": (1, 3), "seq": [(2, 3), (4, 3)], "N": 4, "rest": None},
        "input_values": {"n": np.array([3, 4]), "t": torch.tensor(0.5), "none": np.zeros((0, 2), "float32")},
        "name": None,
        "max_seconds": 2.5,
        "keep_print": False,
    }
    found = from_json(json.loads(json.dumps(as_json(given))))
    assert found["input_shapes"] == {"x": [1, 3], "seq": [[2, 3], [4, 3]], "N": 4, "rest": None} and found["max_seconds"] == 2.5
    assert set(found) == {"input_shapes", "input_values", "max_seconds"}
    for key, value in given["input_values"].items():
        array = np.asarray(value)
        assert np.array_equal(found["input_values"][key], array) and found["input_values"][key].dtype == array.dtype


def test_sizes_that_each_call_decides_are_kept() -> None:
    shapes = {"pair": [{0: Dim("N", max=4)}, None], "x": {1: 2 * torch.export.Dim("T", min=2, max=5) + 1}}
    found = from_json(json.loads(json.dumps(as_json({"dynamic_shapes": shapes, "name": "net"}))))
    assert (
        repr(found) == "{'dynamic_shapes': {'pair': [{0: N with N from 1 to 4}, None], 'x': {1: 2*T+1 with T from 2 to 5}}, 'name': 'net'}"
    )


def test_verification_can_be_left_out() -> None:
    graph = dycl_tvm.build(_program, (torch.ones(2, 3),), verify="off")
    assert graph.certificate["control"] is None and graph.certificate["level"] == "off"
    with pytest.raises(dycl_tvm.UsageError, match="verify"):
        dycl_tvm.build(_program, (torch.ones(2, 3),), verify="yes")


def test_a_wrong_pass_is_found() -> None:
    x = torch.ones(2, 3)
    before = stage_python(_program, (x,))
    after = copied_graph(before)
    assert digest(after) == digest(before)
    run_passes(after)
    assert check_passes(before, after, ((x,), {})).edges == 2
    term = next(b.terminator for b in after.blocks if isinstance(b.terminator, Branch))
    term.then, term.orelse = term.orelse, term.then
    with pytest.raises(VerificationError, match="the passes change what"):
        check_passes(before, after, ((x,), {}))


def test_an_exported_program_is_compared_with_its_eager_module() -> None:
    class Net(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))

    art = dycl_tvm.build(torch.export.export(Net(), (torch.ones(2, 3),)))
    assert art.certificate["control"]["method"] == "inputs"
    assert art.certificate["control"]["edges"] == 2
