# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a library tells of the user's source, and of the machine of its build."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest

from dycl_tvm import codegen
from dycl_tvm.codegen.metadata import metadata_of
from dycl_tvm.codegen.shipped import shipped_note, shipped_path
from dycl_tvm.compile.program import Program, SwitchGoto
from dycl_tvm.errors import RunError
from dycl_tvm.runtime import load


def _moved(folder: Path) -> Program:
    """The zoo's program as if its switch and its raise stood in a file of that folder."""
    program = handmade.zoo_program()
    for block in program.blocks:
        if isinstance(block.end, (SwitchGoto, handmade.Fail)) and block.end.origin is not None:
            block.end = replace(block.end, origin=replace(block.end.origin, file=str(folder / "secret_place" / "model.py")))
    program.left_out = [f"an effect is left out at {folder}/secret_place/model.py:7"]
    return program


@pytest.mark.parametrize("strip", [False, True])
def test_no_folder_of_the_build_is_in_a_library(tmp_path: Path, strip: bool) -> None:
    program = _moved(tmp_path)
    program.strip_source = strip
    library, params = handmade.build(program, tmp_path)
    data = library.read_bytes()
    assert str(tmp_path).encode() not in data
    assert b"secret_place" not in data
    assert (b"return outputs[n]" in data) is not strip
    module = load(library, params)
    module(np.zeros(4, "float32"), 0)
    code = "" if strip else ": return outputs[n]"
    assert str(module.last_path.branches[-1].origin) == f"model.py:8{code}"
    with pytest.raises(RunError, match=r'File "model.py", line 11 in Model.forward' + ("$" if strip else "\n")):
        module(np.zeros(4, "float32"), 2)
    assert module.metadata["left_out"] == ["an effect is left out at model.py:7"]


def test_builds_in_different_folders_are_equal(tmp_path: Path) -> None:
    one, other = (_moved(tmp_path / name) for name in ("one", "other"))
    assert codegen.generate(one) == codegen.generate(other)
    assert metadata_of(one, handmade.MACHINE, "", False) == metadata_of(other, handmade.MACHINE, "", False)


def test_paths_are_as_python_imports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "site" / "package" / "net.py")
    assert shipped_path(file) == "net.py"
    monkeypatch.chdir(tmp_path)
    assert shipped_path(file) == "site/package/net.py"
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "site"), "", *sys.path])
    assert shipped_path(file) == "package/net.py"
    assert shipped_path("<string>") == "<string>"
    assert shipped_note(f"print() at {file}:12") == "print() at package/net.py:12"
    assert shipped_note("without a place") == "without a place"
