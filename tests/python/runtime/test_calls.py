# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calls through the extension module give what calls through ctypes give; results in tensors of the caller."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
import torch

from dycl_tvm.codegen import toolchain
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return handmade.build(handmade.zoo_program(), tmp_path_factory.mktemp("calls"))


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


def test_results_that_differ_by_the_path_have_no_place(both: tuple[Module, Module]) -> None:
    with pytest.raises(UsageError, match="call it without bind"):
        both[0].bind(out={"y": np.empty(4, "float32")})
