# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``make models``: what becomes of a model is told rightly, results are kept, and the page counts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import library_models  # noqa: E402
from library_models import __main__ as command  # noqa: E402
from library_models import page, torchvision_cpu, worker  # noqa: E402
from library_models.calls import Case, Suite  # noqa: E402
from library_models.results import Results  # noqa: E402

X, Y = torch.ones(2, 3), -torch.ones(2, 3)


def signs(x):
    return x + 1 if x.sum() > 0 else -x


def shapes(x):
    return x.to_sparse()


def fails(x):
    raise ValueError("not on such inputs")


def endless(x):
    while True:
        x = x + 1


class Long(torch.nn.Module):
    """Rounding grows with every step."""

    def forward(self, x):
        x = x * 0.1 + 0.3
        for _ in range(32):
            x = 3.7 * x * (1 - x)
        return x


def test_rounding_is_told_from_what_is_wrong():
    case = Case(Long(), [((X * torch.linspace(0.1, 0.9, 3),), {})])
    expected = worker._answers(case.model, case)
    other = [Long().double()(case.calls[0][0][0].double() + 1e-9).float()] * 2
    assert worker.difference(expected[0], other[0]) is not None and worker._are_as_near(case, expected, other)
    assert not worker._are_as_near(case, expected, [other[0] * 2] * 2)
    assert not worker._are_as_near(case, expected, other[:1]) and not worker._are_as_near(Case(signs, case.calls), expected, other)


@pytest.fixture
def suite(monkeypatch):
    calls = [((X,), {}), ((), {"x": Y})]
    programs = {f.__name__: f for f in (signs, shapes, fails)}
    made = Suite(lambda: list(programs), lambda name: Case(programs[name], calls), lambda: list(programs), "torch", "three functions")
    monkeypatch.setitem(library_models.SUITES, "ours", made)
    return made


def test_what_becomes_of_a_model(suite, monkeypatch):
    found = {name: worker.run("ours", name, False, 20.0) for name in suite.names()}
    assert [r["state"] for r in found.values()] == ["right", "refused", "not run"]
    assert "depends on the values" in found["shapes"]["why"] and "not on such inputs" in found["fails"]["why"]
    assert found["signs"]["blocks"] > 1
    built = worker.run("ours", "signs", True, 60.0)
    assert built["state"] == "right" and built["megabytes"] > 0
    monkeypatch.setattr(worker, "_compile", lambda case, built, seconds, found: lambda x: x + 1)
    wrong = worker.run("ours", "signs", False, 20.0)
    assert wrong["state"] == "wrong" and wrong["why"].startswith("call 2: ")  # the first call is made twice


def test_results_are_kept_and_counted(suite, tmp_path):
    results = Results(tmp_path / "results.json")
    figures = {"blocks": 4, "seconds": 2.5, "peak_mb": 300, "megabytes": 0.5, "edges": "5 of 6"}
    results.put("ours", "signs", {"state": "right", "built": True, "version": "1.0", **figures})
    results.put(
        "ours",
        "shapes",
        {"state": "refused", "built": False, "why": 'File "net.py", line 3 in forward\n    x[x > 0]\n    ^\nno fixed | shape'},
    )
    results.put("ours", "fails", {"state": "not run", "built": True, "why": "eager"})
    text = page.document(Results(tmp_path / "results.json"))
    assert "Three functions: 2 models." in text
    assert "| built | 1 | 0 |" in text and "| staged | 0 | 1 |" in text
    others = Results(tmp_path / "others.json")  # results of another suite leave what the page says of this one
    other = next(name for name in library_models.SUITES if name != "ours")
    others.put(other, "net", {"state": "right", "built": False, "version": "2.0", **figures})
    both = page.document(others, text)
    assert text[text.index("## ours") :] in both and f"## {other} 2.0" in both and both == page.document(others, both)
    assert "| shapes | refused | no fixed \\| shape |" in text and "| signs | built | 4 | 5 of 6 | 2.5 | 300 | 0.5 |" in text


def test_a_model_that_takes_too_long_is_ended():
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])}
    process = command.Worker(variables)
    assert process.run("timm", "resnet18", False, 0.0)["state"] == "too slow"
    assert process.run("timm", "no such network", False, 60.0)["state"] != "right"


def test_a_library_is_loaded_without_those_it_is_linked_with(tmp_path, monkeypatch):
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").touch()
    other, folder = tmp_path / "other", tmp_path / "stand-ins"
    other.mkdir()
    compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-"]
    subprocess.run([*compiler, "-o", str(other / "libmissing_here.so")], input="int gone(void) { return 1; }", text=True, check=True)
    text = "int gone(void); int (*used)(void) = gone;"
    linked = ["-o", str(package / "_C.so"), f"-L{other}", "-Wl,--no-as-needed", "-lmissing_here"]
    subprocess.run([*compiler, *linked], input=text, text=True, check=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    variables = torchvision_cpu.environment(folder)
    assert variables["LD_LIBRARY_PATH"].startswith(str(folder)) and (folder / "libmissing_here.so").exists()
