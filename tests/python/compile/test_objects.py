# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Objects of kernels in the cache: what changes one has another key, and what is kept is what would be compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import te

import dycl_tvm
from dycl_tvm import cache
from dycl_tvm.compile import objects
from dycl_tvm.compile.objects import Compiled, Recipe, make_objects, with_plain_names
from dycl_tvm.compile.pipeline import build_kernels
from dycl_tvm.errors import UsageError

_TARGET = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYCL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DYCL_CACHE_BYTES", str(1 << 30))
    monkeypatch.setattr(objects, "_STARTED", float("inf"))  # a checkout may be younger than this process
    objects._compiler.cache_clear()


def _scaled(by: float = 2.5, size: int = 8, name: str = "x") -> Any:
    x = te.placeholder((size,), "float32", name)
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i] * tvm.tirx.FloatImm("float32", by), name="scaled")])


class _Counted:
    """Counts what is compiled, which here is a text."""

    def __init__(self, lasting: bool = True) -> None:
        self.ran, self.lasting = 0, lasting

    def __call__(self, symbol: str, fn: Any, target: Any) -> Compiled:
        self.ran += 1
        return Compiled(self, self.lasting)

    def write_to_file(self, path: str) -> None:
        Path(path).write_text(f"{self.ran}")


def _compiles(counted: _Counted, fn: Any, symbol: str = "f", target: Any = _TARGET, recipe: str = "test") -> bool:
    before = counted.ran
    make_objects({symbol: fn}, target, Recipe(recipe, counted))
    return counted.ran > before


def test_a_function_is_compiled_once() -> None:
    counted = _Counted()
    assert _compiles(counted, _scaled())
    assert not _compiles(counted, _scaled())
    assert not _compiles(counted, _scaled(name="another_name"))


@pytest.mark.parametrize(
    "changed",
    [
        {"fn": _scaled(2.5000002)},
        {"fn": _scaled(-2.5)},
        {"fn": _scaled(size=16)},
        {"fn": _scaled().with_attr("tirx.noalias", False)},
        {"fn": _scaled().with_attr("dycl.scheduled", 1)},
        {"symbol": "g"},
        {"recipe": "another"},
        {"target": tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4"})},
        {"target": tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "mattr": ["-fma"]})},
        {"target": tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "carmel"})},
        {"target": tvm.target.Target(_TARGET, tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_what_decides_an_object_has_another_key(changed: dict[str, Any]) -> None:
    counted = _Counted()
    assert _compiles(counted, _scaled())
    assert _compiles(counted, **{"fn": _scaled(), **changed})
    assert not _compiles(counted, _scaled())


def test_constants_that_differ_in_one_bit_are_told_apart() -> None:
    values = [0.0, -0.0, 0.1, 0.1 + 2**-56, 5e-324, 1e-323, 1.7e308, float("inf"), float("-inf"), float("nan")]
    texts = {tvm.ir.save_json(tvm.tirx.FloatImm("float64", value)) for value in values}
    assert len(texts) == len(values)
    assert tvm.ir.save_json(tvm.tirx.IntImm("int64", 2**53)) != tvm.ir.save_json(tvm.tirx.IntImm("int64", 2**53 + 1))


def test_code_that_makes_objects_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(dycl_tvm.__file__).parent
    copy = tmp_path / "package"
    shutil.copytree(package / "backends", copy / "backends")
    shutil.copytree(package / "compile", copy / "compile")
    monkeypatch.setattr(objects, "__file__", str(copy / "compile" / "objects.py"))
    keys = [objects._compiler()]
    changed = copy / "backends" / "tir_cpu" / "generic.py"
    changed.write_text(changed.read_text() + "\n")
    monkeypatch.setattr(tvm, "__version__", tvm.__version__)
    for change in (lambda: None, lambda: setattr(tvm, "__version__", "0.27.1"), lambda: (copy / "compile" / "more.py").touch()):
        change()
        objects._compiler.cache_clear()
        keys.append(objects._compiler())
    library = tmp_path / "libtvm_compiler.so"
    library.touch()
    monkeypatch.setattr(objects, "_libraries", lambda: [library])
    for size in range(2):
        library.write_bytes(bytes(size))
        objects._compiler.cache_clear()
        keys.append(objects._compiler())
    assert all(keys)
    assert len(set(keys)) == len(keys)


def test_sources_younger_than_the_process_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_STARTED", 0.0)
    objects._compiler.cache_clear()
    counted = _Counted()
    assert _compiles(counted, _scaled())
    assert _compiles(counted, _scaled())


def test_the_way_out_of_a_failure_is_not_kept() -> None:
    counted = _Counted(lasting=False)
    assert _compiles(counted, _scaled())
    assert _compiles(counted, _scaled())


def test_a_limit_of_nothing_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYCL_CACHE_BYTES", "0")
    counted = _Counted()
    assert _compiles(counted, _scaled())
    assert _compiles(counted, _scaled())
    assert cache.contents()[cache.KERNELS].files == 0


def test_a_damaged_object_is_compiled_again() -> None:
    counted = _Counted()
    assert _compiles(counted, _scaled())
    (kept,) = (path for path in (cache.cache_dir() / cache.KERNELS).rglob("*") if path.is_file())
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + b"?" + whole[41:], whole + b"?"):
        kept.write_bytes(damaged)
        assert _compiles(counted, _scaled()), damaged
        assert not _compiles(counted, _scaled())


def test_what_was_written_under_another_key_is_not_read() -> None:
    cache.write(cache.KERNELS, "aaaa", b"first")
    cache.write(cache.KERNELS, "bbbb", b"second")
    paths = [cache.cache_dir() / cache.KERNELS / key[:2] / key for key in ("aaaa", "bbbb")]
    shutil.copyfile(paths[0], paths[1])
    assert cache.read(cache.KERNELS, "aaaa") == b"first"
    assert cache.read(cache.KERNELS, "bbbb") is None


def test_files_that_tools_read_are_made_again_where_they_are_damaged_or_of_another_place() -> None:
    room, made = cache.cache_dir() / cache.RUNTIME, []

    def make(path: Path) -> None:
        made.append(path.name)
        path.write_bytes(b"whole " + path.name.encode())

    def is_made(path: Path) -> bool:
        before = len(made)
        assert cache.made(path, make).read_bytes() == b"whole " + path.name.encode()
        return len(made) > before

    first, second = room / "key" / "a.o", room / "key" / "b.o"
    assert is_made(first) and is_made(second) and not is_made(first)
    for damaged in (b"", b"whole", b"whole b.o", b"?" * 100):
        first.write_bytes(damaged)
        assert is_made(first) and not is_made(first)
    seals = [path.with_name(f"{path.name}.sha256") for path in (first, second)]
    for contents in (None, b"", seals[1].read_bytes()):
        seals[0].unlink() if contents is None else seals[0].write_bytes(contents)
        assert is_made(first) and not is_made(first)
    for source, target in ((first, second), (*seals,)):
        shutil.copyfile(source, target)
    assert is_made(second) and not is_made(second)


def test_a_file_that_nobody_changed_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path, hashed = cache.cache_dir() / cache.RUNTIME / "key" / "a.o", []
    digest, now = cache._digest, time.time
    monkeypatch.setattr(cache, "_digest", lambda key, contents: hashed.append(key) or digest(key, contents))

    def hashes(later: float = 60) -> bool:
        hashed.clear()
        monkeypatch.setattr(cache.time, "time", lambda: now() + later)
        assert cache.made(path, lambda out: out.write_bytes(b"made") and None).read_bytes() == b"made"
        return bool(hashed)

    assert hashes(0) and hashes(0)  # a change in the same moment could not be seen
    assert hashes() and not hashes()
    path.write_bytes(b"edam")
    assert hashes() and hashes() and not hashes()
    os.utime(path, (1e9, 1e9))
    assert hashes() and path.stat().st_mtime > 1e9
    assert hashes() and not hashes()


@pytest.mark.parametrize("given", ["10GB", "-1", "1e9", "0x0"])
def test_a_limit_that_is_no_number_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYCL_CACHE_BYTES", given)
    with pytest.raises(UsageError, match="DYCL_CACHE_BYTES is a number of bytes"):
        cache.limit()


def test_a_source_that_came_with_an_old_time_is_younger_than_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "compile" / "objects.py"
    source.parent.mkdir()
    source.touch()
    os.utime(source, (1e9, 1e9))
    monkeypatch.setattr(objects, "__file__", str(source))
    monkeypatch.setattr(objects, "_STARTED", source.stat().st_ctime - 1)
    objects._compiler.cache_clear()
    assert not objects._compiler()
    monkeypatch.setattr(objects, "_STARTED", source.stat().st_ctime + 1)
    objects._compiler.cache_clear()
    assert objects._compiler()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DYCL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    counted = _Counted()
    assert _compiles(counted, _scaled())
    assert _compiles(counted, _scaled())
    cache.clear()


def test_what_was_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("aa", "bb", "cc"):
        cache.write(cache.KERNELS, key, bytes(1000))
    paths = {path.name: path for path in (cache.cache_dir() / cache.KERNELS).rglob("*") if path.is_file()}
    monkeypatch.setenv("DYCL_CACHE_BYTES", "2500")
    cache.trim()
    assert cache.contents()[cache.KERNELS].files == 3  # what was used a moment ago may be about to be linked
    for age, path in enumerate(paths.values()):
        os.utime(path, (1e9 - age, 1e9 - age))
    assert cache.read(cache.KERNELS, "aa")
    os.utime(paths["aa"], (1e9 + 1, 1e9 + 1))
    oldest = min(paths.values(), key=lambda path: path.stat().st_mtime)
    cache.trim()
    assert {p.name for p in paths.values() if p.exists()} == set(paths) - {oldest.name}
    cache.clear()
    assert cache.contents()[cache.KERNELS].files == 0


def test_what_a_killed_process_left_is_never_read_and_goes(tmp_path: Path) -> None:
    code = """
import os, signal
from pathlib import Path
from dycl_tvm import cache
Path.write_bytes = lambda self, contents: (open(self, "wb").write(contents[:40]), os.kill(os.getpid(), signal.SIGKILL))
cache.write(cache.KERNELS, "abcd", bytes(1000))
"""
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False)
    assert done.returncode == -9
    assert cache.read(cache.KERNELS, "abcd") is None
    (left,) = (path for path in (cache.cache_dir() / cache.KERNELS).rglob("*") if path.is_file())
    os.utime(left, (1e9, 1e9))
    cache.trim()
    assert not left.exists()
    assert not left.parent.exists()


def test_plain_names_change_nothing_else() -> None:
    fn = _scaled(name="lv17")
    plain = with_plain_names(fn)
    assert tvm_ffi.structural_equal(fn, plain)
    assert tvm.ir.save_json(plain) == tvm.ir.save_json(with_plain_names(_scaled(name="another_name")))
    assert tvm.ir.save_json(plain) != tvm.ir.save_json(fn)


def test_objects_are_the_same_from_the_cache_and_in_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {f"f{k}": _scaled(k + 0.5, 64) for k in range(12)}
    first = build_kernels(functions, _TARGET)
    assert cache.contents()[cache.KERNELS].files == 12
    monkeypatch.setattr("dycl_tvm.compile.pipeline._compile", None)
    assert build_kernels(functions, _TARGET) == first
    monkeypatch.undo()
    monkeypatch.setenv("DYCL_CACHE_BYTES", "0")
    for cores in ({0}, set(range(8))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        assert build_kernels(functions, _TARGET) == first


def test_a_changed_model_compiles_what_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A layer in front shifts the numbers of all variables; the library is what it is without a cache."""
    compiled: list[str] = []
    compile_one = objects.Recipe

    def recipe(name: str, run: Any) -> Any:
        return compile_one(name, lambda symbol, fn, target: (compiled.append(symbol), run(symbol, fn, target))[1])

    monkeypatch.setattr("dycl_tvm.compile.pipeline.Recipe", recipe)
    torch.manual_seed(0)
    tail = [nn.Linear(16, 8), nn.Softmax(-1)]
    before, after = nn.Sequential(*tail).eval(), nn.Sequential(nn.LayerNorm(16), *tail).eval()
    dycl_tvm.build(before, torch.zeros(2, 16), verify="off")
    first = set(compiled)
    compiled.clear()
    kept = dycl_tvm.build(after, torch.zeros(2, 16), verify="off").export_library(tmp_path / "kept.so")
    assert len(first) == 2
    assert len(compiled) == 1 and "layer_norm" in compiled[0]
    monkeypatch.setenv("DYCL_CACHE_BYTES", "0")
    anew = dycl_tvm.build(after, torch.zeros(2, 16), verify="off").export_library(tmp_path / "anew.so")
    assert len(compiled) == 4
    assert kept.read_bytes() == anew.read_bytes()
