# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls through the extension module give what calls through ctypes give; results in tensors of the caller."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
import torch

import dycl_tvm
from dycl_tvm.codegen import toolchain
from dycl_tvm.compile.program import CodeBlock, Leave, Program, Site, Slot
from dycl_tvm.errors import DyclError, InputError, UsageError
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import Module, calls, load

X = np.arange(4, dtype="float32")
SOURCE = Path(__file__).parents[3] / "src" / "python" / "calls.cc"


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compiled of the source as it is now."""
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        pytest.skip("Python's headers are not installed")
    path = tmp_path_factory.mktemp("extension") / "_calls.abi3.so"
    flags = [*toolchain.CXX_FLAGS, "-Werror", "-shared", *toolchain.include_flags(), "-isystem", headers]
    toolchain.find_compiler().run([*flags, str(SOURCE), "-o", str(path)], "compile the extension")
    loader = importlib.machinery.ExtensionFileLoader("dycl_tvm.runtime._calls", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


@pytest.fixture
def both(extension: Any, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Module, Module]:
    """A module with the extension and one without."""
    monkeypatch.setattr(calls, "_extension", extension)
    fast = load(*files)
    monkeypatch.setattr(calls, "_extension", None)
    return fast, load(*files)


def _identity(dtype: str, shape: tuple[int, ...], folder: Path) -> tuple[Path, Path]:
    return handmade.build(handmade.straight_program(type_=TensorType(shape, dtype)), folder)


def _told(module: Module, args: tuple[Any, ...]) -> Any:
    try:
        result: Any = module(*args)
    except DyclError as error:
        result = (type(error), str(error))
    return result, module.last_path, module.kernels_run


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
    if type(a) in (tuple, list):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, torch.Tensor):
        return type(b) is torch.Tensor and a.dtype == b.dtype and torch.equal(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, np.ndarray):
        return type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


class _Own(torch.Tensor):
    """A subclass of tensors."""


_FROZEN = X.copy()
_FROZEN.flags.writeable = False
_CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "array": lambda: (X, 0),
    "tensor": lambda: (torch.arange(4.0), 1),
    "that needs a gradient": lambda: (torch.arange(4.0, requires_grad=True), 0),
    "read only": lambda: (_FROZEN, 0),
    "strided array": lambda: (np.zeros((4, 3), "float32")[:, 1], 0),
    "strided tensor": lambda: (torch.arange(12.0).reshape(4, 3)[:, 1], 0),
    "negated view": lambda: (torch._neg_view(torch.arange(4.0)), 0),
    "view with an offset": lambda: (torch.arange(9.0)[3:7], 0),
    "subclass": lambda: (torch.arange(4.0).as_subclass(_Own), 0),
    "big endian": lambda: (X.astype(">f4"), 0),
    "list": lambda: ([0.0] * 4, 0),
    "none": lambda: (None, 0),
    "number for a tensor": lambda: (1.5, 0),
    "tensor for a number": lambda: (X, X),
    "wrong dtype": lambda: (X.astype("float64"), 0),
    "wrong dtype of a tensor": lambda: (torch.arange(4), 0),
    "wrong shape": lambda: (np.zeros((4, 1), "float32"), 0),
    "wrong shape of a tensor": lambda: (torch.zeros(5), 0),
    "sparse": lambda: (torch.zeros(4).to_sparse(), 0),
    "no data": lambda: (torch.zeros(4, device="meta"), 0),
    "bool for an int": lambda: (X, True),
    "float for an int": lambda: (X, 1.5),
    "number of NumPy's": lambda: (X, np.int32(1)),
    "too large": lambda: (X, 2**63),
    "too few": lambda: (X,),
    "too many": lambda: (X, 0, 0),
    "network fails": lambda: (X, 2),
}


@pytest.mark.parametrize("case", _CASES)
def test_they_are_as_through_ctypes(both: tuple[Module, Module], case: str) -> None:
    fast, slow = both
    assert _same(_told(fast, _CASES[case]()), _told(slow, _CASES[case]()))
    assert _same(_told(fast, (X, 0)), _told(slow, (X, 0)))


_DTYPES = ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]


@pytest.mark.parametrize("dtype, shape", [*((d, ()) for d in _DTYPES), ("float64", (2, 3)), ("bfloat16", (0, 3)), ("float32", (1, 1, 4))])
def test_every_dtype(dtype: str, shape: tuple[int, ...], extension: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_extension", extension)
    module = load(*_identity(dtype, shape, tmp_path))
    x = torch.arange(7)[: int(np.prod(shape))].reshape(shape).to(getattr(torch, dtype))
    array = x.view(torch.int16).numpy().view("uint16") if dtype == "bfloat16" else x.numpy()
    arrays = module(array)
    monkeypatch.setattr(module, "_any", None)
    assert _same(module(x), x)
    assert _same(arrays, array)
    if dtype != "bfloat16":
        assert _same(module(array), array)


def test_usual_calls_do_not_go_through_ctypes(both: tuple[Module, Module], monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = both
    for args in ((X, 0), (torch.from_numpy(X), 0)):
        want = slow(*args)
        monkeypatch.setattr(fast, "_any", None)
        got = fast(*args)
        assert _same(got, want)
        before = got["y"].clone() if isinstance(got["y"], torch.Tensor) else got["y"].copy()
        fast(args[0] * 0, 0)
        assert _same(got["y"], before)  # not a view of the session


def test_a_closed_module_is_not_called(both: tuple[Module, Module]) -> None:
    for module in both:
        module(X, 0)
        module.close()
        with pytest.raises(UsageError, match="closed"):
            module(X, 0)


@pytest.mark.parametrize("make", [np.empty, torch.empty])
@pytest.mark.parametrize("with_extension", [True, False])
def test_results_in_tensors_of_the_caller(
    make: Any, with_extension: bool, extension: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_extension", extension if with_extension else None)
    module = handmade.build_and_load(handmade.straight_program("k_inc"), tmp_path)
    out = make((4,), dtype=(torch if make is torch.empty else np).float32)
    bound = module.bind(out=out)
    for x in (X, torch.from_numpy(X) * 2, np.zeros((4, 2), "float32")[:, 0]):
        assert bound(x) is out
        np.testing.assert_array_equal(np.asarray(out), np.asarray(x) + 1)
    with pytest.raises(InputError, match="expected float32"):
        bound(np.zeros(4))
    np.testing.assert_array_equal(np.asarray(out), [1] * 4)  # a refused call writes nothing
    assert module(X).tolist() == [1, 2, 3, 4]
    module.close()
    with pytest.raises(UsageError, match="closed"):
        bound(X)


@pytest.mark.parametrize(
    "out, message",
    [
        (np.empty(4), r"out: expected float32\[4\], got float64\[4\]"),
        (np.empty(5, "float32"), r"out: expected float32\[4\], got float32\[5\]"),
        (np.empty((4, 2), "float32")[:, 0], "one element after the other"),
        (np.empty((4, 2), "float32").view("float32")[::2, 0], r"got float32\[2\]"),
        (_FROZEN, "may be written"),
        (torch.empty(4, requires_grad=True), "may be written"),
        (torch.empty(8)[::2], "one element after the other"),
        ([0.0] * 4, r"out: expected a tensor float32\[4\], got a list"),
        (None, "got a NoneType"),
    ],
)
def test_tensors_that_results_do_not_fit_in(out: Any, message: str, tmp_path: Path) -> None:
    module = handmade.build_and_load(handmade.straight_program("k_inc"), tmp_path)
    with pytest.raises((UsageError, InputError), match=message):
        module.bind(out=out)


def _two_results() -> Program:
    """``forward(x)`` returns (x + 1, x)."""
    x, y = Slot(handmade.F4, "input", 0), handmade.arena(0)
    return Program(
        "Two", handmade.call_structure("tensor"), ["x"], [x], [CodeBlock("entry", [handmade.call(0, "k_inc", x, y)], Leave(0, (y, x)))],
        [Site(handmade.leaves("tensor", "tensor"), [handmade.F4, handmade.F4])], handmade.KERNELS, [], [], 64,
    )  # fmt: skip


@pytest.mark.parametrize("make", [np.array, torch.from_numpy])
def test_an_input_that_is_returned_is_read_before_a_result_is_written_over_it(
    make: Any, extension: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = handmade.build(_two_results(), tmp_path)
    for chosen in (extension, None):
        monkeypatch.setattr(calls, "_extension", chosen)
        module = load(*files)
        for first, second in ((0, 8), (8, 0), (1, 8), (8, 1), (0, 4), (4, 0)):
            memory = np.zeros(12, "float32")
            memory[:4] = X + 5
            places = [make(memory[at : at + 4]) if make is torch.from_numpy else memory[at : at + 4] for at in (0, first, second)]
            module.bind(out=tuple(places[1:]))(places[0])
            np.testing.assert_array_equal(memory[first : first + 4], X + 6)
            np.testing.assert_array_equal(memory[second : second + 4], X + 5)


def test_results_that_would_lie_in_each_other_are_refused(tmp_path: Path) -> None:
    module = handmade.build_and_load(_two_results(), tmp_path)
    memory = torch.zeros(8)
    for first, second in ((0, 0), (0, 3), (3, 0)):
        with pytest.raises(UsageError, match=r"out\[.\] and out\[.\] share memory"):
            module.bind(out=(memory[first : first + 4], memory[second : second + 4]))
    module.bind(out=(memory[:4], memory[4:]))


def _replaced(out: torch.Tensor) -> None:
    out.data = torch.zeros(4)


@pytest.mark.parametrize(
    "move", [lambda out: out.resize_(1 << 16), torch.Tensor.share_memory_, _replaced, lambda out: out.untyped_storage().resize_(0)]
)
def test_a_tensor_whose_memory_has_moved_is_not_written(move: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    module = handmade.build_and_load(handmade.straight_program("k_inc"), tmp_path)
    out = torch.zeros(4)
    bound = module.bind(out=out)
    move(out)
    with pytest.raises(UsageError, match=r"out: the tensor has got other memory since bind\(\)"):
        bound(X)


def test_results_without_elements_have_a_place(tmp_path: Path) -> None:
    module = handmade.build_and_load(handmade.straight_program(type_=TensorType((0, 3), "float32")), tmp_path)
    for out in (torch.empty(0, 3), np.empty((0, 3), "float32")):
        assert module.bind(out=out)(np.empty((0, 3), "float32")) is out


def test_tensors_without_memory_are_refused_by_name(both: tuple[Module, Module]) -> None:
    nested = torch.nested.as_nested_tensor([torch.zeros(4)])
    for module in both:
        with pytest.raises(InputError, match="input 'x': expected a tensor with memory of its own"):
            torch.func.vmap(lambda x, module=module: module(x, 0)["y"])(torch.zeros(2, 4))
        for given in (nested, torch._efficientzerotensor(4), torch.zeros(4, device="meta")):
            with pytest.raises(InputError, match="input 'x'"):
                module(given, 0)


def test_a_call_that_waits_while_the_module_is_closed_is_refused(both: tuple[Module, Module]) -> None:
    for module in both:
        told: list[Any] = []
        thread = threading.Thread(target=lambda told=told, module=module: told.append(_refusal(lambda: module(X, 0))))
        with module._turn.lock:
            thread.start()
            while not _waits_for_the_lock(thread):
                time.sleep(0.001)
            module.close()
        thread.join()
        assert told == ["the module 'Zoo' is closed"]


def _waits_for_the_lock(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name in ("_usual", "_call")


def _refusal(do: Callable[[], Any]) -> str:
    try:
        do()
    except UsageError as error:
        return str(error)
    return ""


def test_results_that_differ_by_the_path_have_no_place(both: tuple[Module, Module]) -> None:
    with pytest.raises(UsageError, match="call it without bind"):
        both[0].bind(out={"y": np.empty(4, "float32")})


class _Parts(torch.nn.Module):
    """Results whose lengths a size of the caller and the data decide, in one structure and alone."""

    def forward(self, x: torch.Tensor, alone: torch.Tensor) -> Any:
        if alone:
            return x * 2
        kept = x[:, 0] > 0
        return {"kept": x[kept], "grid": (x @ x.T, [x[kept][:, :1], x.shape[0]]), "whole": x.sum()}


def test_results_that_are_cut_do_not_go_through_ctypes(extension: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = (torch.randn(5, 3), torch.tensor(True))
    artifact = dycl_tvm.build(_Parts().eval(), example, dynamic_shapes={"x": {0: dycl_tvm.Dim("n", min=0, max=9)}}, verify="off")
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    monkeypatch.setattr(calls, "_extension", extension)
    fast = load(tmp_path / "net.so", tmp_path / "net.params")
    fast(*example)
    monkeypatch.setattr(calls, "_extension", None)
    slow = load(tmp_path / "net.so", tmp_path / "net.params")
    for way in ("_any", "_collect"):
        monkeypatch.setattr(fast, way, None)
    for n in (0, 1, 4, 9):
        x = torch.randn(n, 3)
        for alone in (True, False):
            given = (x, torch.tensor(alone))
            assert _same(fast(*given), slow(*given))
            arrays = tuple(t.numpy() for t in given)
            assert _same(fast(*arrays), slow(*arrays))


def test_an_extension_of_another_version_is_left_out(both: tuple[Module, Module], extension: Any, files: Any, monkeypatch: Any) -> None:
    assert both[0]._caller is not None
    assert both[1]._caller is None
    monkeypatch.setattr(extension, "TAKES", extension.TAKES - 1)
    monkeypatch.setattr(calls, "_extension", extension)
    assert load(*files)._caller is None
