# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The files of an artefact: what is damaged, foreign or of another machine is refused before any of its code runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch

from dycl_tvm import codegen
from dycl_tvm.compile.program import KernelLibrary
from dycl_tvm.errors import ArtifactError
from dycl_tvm.runtime import load
from dycl_tvm.runtime.params import ParamTensor, read_params, write_params
from dycl_tvm.runtime.trailer import MAGIC, append_trailer, read_trailer

X = np.arange(4, dtype="float32")


def _elf_size(library: Path) -> int:
    data = library.read_bytes()
    return len(data) - 48 - int.from_bytes(data[-48:-40], "little")


@pytest.mark.parametrize("where", ["elf header", "code", "elf end", "json", "size", "digest", "magic"])
def test_every_part_of_a_library_is_checked(files: tuple[Path, Path], tmp_path: Path, where: str) -> None:
    data = bytearray(files[0].read_bytes())
    elf = _elf_size(files[0])
    place = {"elf header": 1, "code": elf // 2, "elf end": elf - 1, "json": elf + 30, "size": -48, "digest": -20, "magic": -1}[where]
    data[place] ^= 0x20
    broken = tmp_path / "broken.so"
    broken.write_bytes(data)
    with pytest.raises(ArtifactError, match="broken.so"):
        load(broken, files[1])


def test_truncated_library(files: tuple[Path, Path], tmp_path: Path) -> None:
    data = files[0].read_bytes()
    broken = tmp_path / "broken.so"
    for size in (0, 3, 40, _elf_size(files[0]), len(data) - 1):
        broken.write_bytes(data[:size])
        with pytest.raises(ArtifactError, match="broken.so"):
            load(broken, files[1])
    with pytest.raises(ArtifactError, match="cannot read"):
        load(tmp_path / "missing.so")


def _with_metadata(library: Path, out: Path, **changes: object) -> Path:
    """A library with a valid trailer of other contents: what another version or machine would have written."""
    metadata = {**read_trailer(library), **changes}
    out.write_bytes(library.read_bytes()[: _elf_size(library)])
    append_trailer(out, metadata)
    return out


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"abi_version": 99}, "ABI version 99"),
        ({"format_version": 2}, "format version 2"),
        ({"format": "other"}, "not of dycl_tvm"),
        ({"target": {"arch": "riscv64", "triple": "riscv64-linux-gnu", "mcpu": "", "cpu_flags": []}}, "built for riscv64"),
    ],
)
def test_foreign_library(files: tuple[Path, Path], tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        load(_with_metadata(files[0], tmp_path / "other.so", **changes), files[1])


def test_missing_cpu_feature(files: tuple[Path, Path], tmp_path: Path) -> None:
    target = {**read_trailer(files[0])["target"], "cpu_flags": ["avx9000", "fpu"], "mcpu": "future"}
    with pytest.raises(ArtifactError, match="mcpu future.*avx9000"):
        load(_with_metadata(files[0], tmp_path / "other.so", target=target), files[1])


def _rewrite_header(params: Path, out: Path, change) -> Path:
    data = params.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    out.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return out


@pytest.mark.parametrize("place", ["size", "header", "data", "padding", "end"])
def test_every_part_of_a_params_file_is_checked(files: tuple[Path, Path], tmp_path: Path, place: str) -> None:
    data = bytearray(files[1].read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[{"size": 6, "header": 9, "data": header + 1, "padding": header + 20, "end": -1}[place]] ^= 0xFF
    broken = tmp_path / "broken.params"
    broken.write_bytes(data)
    with pytest.raises(ArtifactError, match="broken.params"):
        load(files[0], broken)
    with pytest.raises(ArtifactError, match="broken.params"):
        read_params(broken)


def test_truncated_params(files: tuple[Path, Path], tmp_path: Path) -> None:
    data = files[1].read_bytes()
    broken = tmp_path / "broken.params"
    for contents in (b"", data[:7], data[:8], data[:100], data[:-1], data + b"x"):
        broken.write_bytes(contents)
        with pytest.raises(ArtifactError, match="broken.params"):
            load(files[0], broken)
        with pytest.raises(ArtifactError, match="broken.params"):
            read_params(broken)
    with pytest.raises(ArtifactError, match="cannot open"):
        load(files[0], tmp_path / "missing.params")
    with pytest.raises(ArtifactError):
        load(files[0], tmp_path)
    with pytest.raises(ArtifactError, match="give the path"):
        load(files[0])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda h: h["__metadata__"].update(fingerprint="0" * 64), "does not belong"),
        (lambda h: h["__metadata__"].update(format_version="7"), "version '7'"),
        (lambda h: h["__metadata__"].update(format="pickle"), "not a params file of"),
        (lambda h: h.pop("__metadata__"), "not a params file of"),
        (lambda h: h.pop("bias"), "no tensor 'bias'"),
        (lambda h: h["bias"].update(shape=[2, 2]), r"'bias' is F32\[2, 2\], expected F32\[4\]"),
        (lambda h: h["bias"].update(dtype="I32"), "'bias' is I32"),
        (lambda h: h["bias"].update(data_offsets=[64, 10**12]), "wrong place"),
        (lambda h: h["bias"].update(data_offsets=[-64, -48]), "wrong place"),
        (lambda h: h["bias"].update(data_offsets=[4, 20]), "wrong place"),
        (lambda h: h["bias"].update(data_offsets="x"), "no tensor 'bias'"),
    ],
)
def test_foreign_params(files: tuple[Path, Path], tmp_path: Path, change, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        load(files[0], _rewrite_header(files[1], tmp_path / "other.params", change))


def test_params_of_other_weights_or_code(files: tuple[Path, Path], tmp_path: Path) -> None:
    program = handmade.zoo_program()
    program.weights[0] = replace(program.weights[0], data=torch.zeros(4))
    codegen.save_params(program, tmp_path / "weights.params")
    program = handmade.zoo_program()
    program.name = "Other"
    codegen.save_params(program, tmp_path / "code.params")
    for name in ("weights.params", "code.params"):
        with pytest.raises(ArtifactError, match=f"{name}' does not belong to this library"):
            load(files[0], tmp_path / name)


def test_embedded(tmp_path: Path) -> None:
    library, _ = handmade.build(handmade.zoo_program(), tmp_path, embed=True, name="whole")
    np.testing.assert_array_equal(load(library)(X, 0)["y"], (X + [10, 20, 30, 40]) * 2)
    assert read_trailer(library)["embedded_params"]


def test_a_library_that_was_built_again_is_loaded_again(tmp_path: Path) -> None:
    """The system's loader would hand out the old library of that name; its code stays in memory."""
    old = load(*handmade.build(handmade.straight_program("k_inc"), tmp_path))
    new = load(*handmade.build(handmade.straight_program("k_inc", "k_inc"), tmp_path))
    assert (old(X)[0], new(X)[0]) == (1, 2)
    # Other kernels under the same dispatcher are another library too.
    kernels = handmade.LIBRARY.sources[0][1].replace("F(args, 0)[i] + 1", "F(args, 0)[i] + 50")
    library = KernelLibrary((), (("kernels.cc", kernels),))
    codegen.link(handmade.straight_program("k_inc", "k_inc"), library, tmp_path / "model.so", handmade.MACHINE)
    newest = load(tmp_path / "model.so")
    assert (old(X)[0], new(X)[0], newest(X)[0]) == (1, 2, 100)


def test_code_and_trailer_must_belong_together(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="do not belong together"):
        load(_with_metadata(files[0], tmp_path / "other.so", name="Other"), files[1])


def test_two_builds_are_equal(files: tuple[Path, Path], tmp_path: Path) -> None:
    library, params = handmade.build(handmade.zoo_program(), tmp_path)
    assert params.read_bytes() == files[1].read_bytes()
    assert library.read_bytes() == files[0].read_bytes()


def test_params_layout(tmp_path: Path) -> None:
    """The layout is that of safetensors: no holes, and everything at a multiple of 64."""
    arrays = {"a": np.arange(3, dtype="int8"), "b": np.ones((2, 5), "float64"), "empty": np.zeros((0, 2), "float32"), "s": np.float32(7)}
    tensors = [ParamTensor(n, a.dtype.name, a.shape, memoryview(np.asarray(a).tobytes())) for n, a in arrays.items()]
    write_params(tmp_path / "p", tensors, "f" * 64)
    data = (tmp_path / "p").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    meta = header.pop("__metadata__")
    at = 0
    for name, entry in header.items():
        assert entry["data_offsets"][0] == at
        assert name.startswith("__pad_") or (8 + size + at) % 64 == 0
        at = entry["data_offsets"][1]
    assert 8 + size + at == len(data)
    assert hashlib.sha256(data[8 + size :]).hexdigest() == meta["sha256"]
    read = read_params(tmp_path / "p")
    assert read.fingerprint == "f" * 64
    for name, array in arrays.items():
        np.testing.assert_array_equal(read.tensors[name], array)
    assert not list(tmp_path.glob("p.*"))


def test_weights_are_mapped_and_not_copied(tmp_path: Path) -> None:
    """Read-only, so that all processes with one params file share its pages."""
    library, params = handmade.build(handmade.zoo_program(), tmp_path)
    module = load(library, params)
    found = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(params))]
    assert [words[1][:2] for words in found] == ["r-"]
    first, last = (int(word, 16) for word in found[0][0].split("-"))
    assert last - first >= params.stat().st_size
    del module


def test_exports_are_few(files: tuple[Path, Path]) -> None:
    import subprocess

    listing = subprocess.run(["nm", "-D", "--defined-only", str(files[0])], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    assert all(name.startswith(("dycl_", "__tvm_ffi_")) for name in names), names
    assert not any("k_inc" in name or "Backend" in name for name in names)
    needed = subprocess.run(["readelf", "-d", str(files[0])], capture_output=True, text=True, check=True).stdout
    assert "tvm" not in needed
    assert "libstdc++" not in needed
    assert files[0].read_bytes().endswith(MAGIC)
