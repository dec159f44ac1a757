# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm profile``, and the picture that ``dycl-tvm inspect`` draws of a profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import handmade
import numpy as np
import pytest

from dycl_tvm.cli.exit_codes import OK, USAGE
from dycl_tvm.cli.main import main


@pytest.fixture(scope="module")
def calls(files: tuple[Path, Path]) -> list[str]:
    names = []
    for n in (0, 0, 1, 2):  # the last one raises
        names.append(str(files[0].with_name(f"n{n}.npz")))
        np.savez(names[-1], x=np.arange(4, dtype="float32"), n=np.array(n))
    return [word for name in names for word in ("-i", name)]


def test_tables_bounds_and_the_picture(
    files: tuple[Path, Path], calls: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library, trace, page, picture = (str(p) for p in (files[0], tmp_path / "t.json", tmp_path / "n.html", tmp_path / "n.svg"))
    assert main(["profile", library, *calls, "-n", "40", "-o", trace, "--bound", "0.8", "--hold-out", "20"]) == OK
    out = capsys.readouterr().out
    assert "Zoo: 30 runs" in out
    assert "10 runs ended in an error" in out
    for part in ("k_add", "sub_k_add", "4 sum, model.py:9", "F[0] return model.py:9: return y", "F[1]", "estimates", "~"):
        assert part in out, part
    assert re.search(r"75.0% +20 ", out) is None
    assert re.search(r"66.7% +20 .* 4 +160  F\[0\]", out)
    # 14 runs are needed for 80 % with 95 %; the other path has 10.
    assert "probabilistic" in out
    assert "no worst-case" in out
    assert re.search(r"µs  F\[0\]: 20 runs; of 10 held-out runs \d+ exceed it, 4 may", out)
    assert re.search(r"none +TF\[1\]: 10 runs, needs 14", out)
    assert re.search(r"none +the network on any path: 0 runs came through block", out)

    assert main(["inspect", library, "--profile", trace, "-o", page]) == OK
    data = json.loads(re.search(r'id="data">(.*?)</script>', Path(page).read_text(), re.DOTALL)[1])  # type: ignore[index]
    assert data["blocks"]["bb4"]["ran"][1] == "4 kernels"
    assert "20 times" in data["blocks"]["bb4"]["ran"][0]
    assert data["blocks"]["bb6"]["ran"] == ["never"]
    assert main(["inspect", library, "--profile", trace, "-o", picture]) == OK
    texts = {e.text for e in ElementTree.parse(picture).iter() if e.tag.endswith("text")}
    assert {"true ×10", "false ×30", "0 ×20", "1 ×10", "2 ×0", "×30"} <= texts


def test_what_does_not_fit_is_said(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = str(files[0])
    other = handmade.build(handmade.straight_program("k_twice"), tmp_path)
    trace = str(tmp_path / "t.json")
    assert main(["profile", str(other[0]), "-n", "3", "-o", trace]) == OK
    capsys.readouterr()
    for command, why in (
        (["profile", library, "--hold-out", "3"], "--bound"),
        (["inspect", library, "--profile", trace, "-o", str(tmp_path / "n.html")], "another build"),
        (["inspect", library, "--profile", library], "no profile"),
        (["inspect", str(other[0]), "--profile", trace, "-o", str(tmp_path / "n.dot")], "svg or html"),
        (["inspect", "zoo:sdn_mobilenet", "--profile", trace], "artefact"),
    ):
        assert main(command) == USAGE, command
        assert why in capsys.readouterr().err
