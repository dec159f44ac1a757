# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Reductions over any axes against float64 and eager mode; sums of k elements with |error| <= (k + 8) 2^-24 sum |x|."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_utils import AVX2, AVX512, WIDTHS, each, guarded, machine
from torch import Tensor
from tvm import te, tirx

import dycl_tvm
from dycl_tvm.backends.tir_cpu.families import reduction
from dycl_tvm.backends.tir_cpu.reading.reduction_op import REDUCER, reduction_op
from dycl_tvm.compare import difference
from dycl_tvm.compile.ops import semantics

RNG = np.random.default_rng(0)
G = torch.Generator().manual_seed(3)
inf, nan = float("inf"), float("nan")


def int64(value: int) -> Any:
    return tirx.IntImm("int64", value)


def function(
    shape: tuple[int, ...], axes: tuple[int, ...], name: str, element: Callable[[Any], Any] = lambda v: v, dtype: str = "float32"
) -> Any:
    """Return the unscheduled function of a reduction; for pairs its outputs are index and value."""
    x = te.placeholder([int64(s) for s in shape], dtype, name="x")
    ks = [te.reduce_axis((int64(0), int64(shape[a])), name=f"k{a}") for a in axes]
    kept = [int64(s) for a, s in enumerate(shape) if a not in axes]

    def at(i: tuple[Any, ...]) -> Any:
        free, bound = iter(i), iter(ks)
        return element(x(*(next(bound) if a in axes else next(free) for a in range(len(shape)))))

    if name.startswith("arg"):
        reducer = semantics.arg_reducer(name == "argmax")
        both = te.compute(kept, lambda *i: reducer((ks[0], at(i)), axis=ks[0]), name=name, attrs={REDUCER: name})
        return te.create_prim_func([x, *both])
    product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
    folds = {"sum": te.sum, "prod": product, "max": semantics.max_reducer, "min": semantics.min_reducer}
    return te.create_prim_func([x, te.compute(kept, lambda *i: folds[name](at(i), axis=ks), name=name)])


def compiled(fn: Any, target: Any) -> Any:
    op = reduction_op(fn)
    assert op is not None
    assert reduction.takes(op, machine(target))
    kernel = reduction.kernel(op, machine(target)).with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": kernel}), target=target)["main"]


def run(kernel: Any, x: Any, *outputs: tuple[tuple[int, ...], str]) -> list[Any]:
    """Call a kernel with its input at the begin and at the end of what may be read."""
    found = []
    for at_end in (False, True):
        out = [guarded(np.full(shape, 77, dtype), at_end) for shape, dtype in outputs]
        kernel(*(tvm.runtime.from_dlpack(a) for a in (guarded(x, at_end), *out)))
        found.append([o.copy() for o in out])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    return found[0]


def hard(shape: tuple[int, ...], kind: str) -> Any:
    """Return numbers with ties, NaN or infinities in them."""
    x = RNG.standard_normal(shape).astype("float32")
    if kind == "ties":
        x = np.round(x)
    elif kind != "plain":
        some = RNG.random(shape)
        x[some < 0.1] = {"nan": nan, "inf": inf, "-inf": -inf}[kind]
        x[some > 0.95] = -inf
    return x


SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 70]), min_size=1, max_size=4).filter(
    lambda s: math.prod(s) < 40000
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    SHAPES,
    st.integers(1, 15),
    st.sampled_from(["sum", "max", "min"]),
    st.sampled_from(["plain", "nan", "inf"]),
    st.sampled_from(WIDTHS),
)
def test_any_axes(shape: list[int], chosen: int, name: str, kind: str, target: Any) -> None:
    axes = tuple(a for a in range(len(shape)) if chosen >> a & 1) or (len(shape) - 1,)
    fn = function(tuple(shape), axes, name)
    op = reduction_op(fn)
    assert op is not None
    if not reduction.takes(op, machine(target)):
        return
    x = hard(tuple(shape), kind)
    kept = tuple(s for a, s in enumerate(shape) if a not in axes)
    y = run(compiled(fn, target), x, (kept, "float32"))[0]
    t = torch.from_numpy(x)
    if name != "sum":
        np.testing.assert_array_equal(y, (t.amax if name == "max" else t.amin)(axes).numpy())
        return
    exact, size = t.double().sum(axes).numpy(), t.double().abs().sum(axes).numpy()
    finite = np.isfinite(exact)
    count = math.prod(shape[a] for a in axes)
    assert (np.abs(y - exact)[finite] <= (count + 8) * 2.0**-24 * size[finite]).all()
    np.testing.assert_array_equal(y[~finite], exact[~finite].astype("float32"))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 3), st.booleans(), st.sampled_from(["ties", "nan", "-inf"]), st.sampled_from(WIDTHS))
def test_first_index(shape: list[int], axis: int, is_max: bool, kind: str, target: Any) -> None:
    check_index(tuple(shape), axis % len(shape), is_max, kind, target)


@pytest.mark.parametrize("target", each(AVX2, AVX512))
@pytest.mark.parametrize("shape, axis", [((1, 131), 1), ((3, 19, 70), 1), ((1, 200_003), 1), ((9, 1), 1)])
@pytest.mark.parametrize("kind", ["ties", "nan", "-inf"])
def test_first_index_of_hard_shapes(shape: tuple[int, ...], axis: int, kind: str, target: Any) -> None:
    check_index(shape, axis, kind != "-inf", kind, target)


def check_index(shape: tuple[int, ...], axis: int, is_max: bool, kind: str, target: Any) -> None:
    fn = function(shape, (axis,), "argmax" if is_max else "argmin")
    op = reduction_op(fn)
    assert op is not None
    if not reduction.takes(op, machine(target)):
        return
    kept = tuple(s for a, s in enumerate(shape) if a != axis)
    kernel = compiled(fn, target)
    for x in (hard(shape, kind), np.full(shape, -inf if is_max else inf, "float32")):
        index, value = run(kernel, x, (kept, "int64"), (kept, "float32"))
        # the first of equal ones, and the first NaN: NumPy's rule, and that of PyTorch where it says one
        np.testing.assert_array_equal(index, (np.argmax if is_max else np.argmin)(x, axis))
        np.testing.assert_array_equal(value, (torch.amax if is_max else torch.amin)(torch.from_numpy(x), axis).numpy())


def test_one_nan_anywhere() -> None:
    kernel = compiled(function((1, 150), (1,), "argmax"), WIDTHS[-1])
    largest = compiled(function((1, 150), (1,), "max"), WIDTHS[-1])
    for k in range(150):
        x = hard((1, 150), "plain")
        x[0, k:] = nan
        assert run(kernel, x, ((1,), "int64"), ((1,), "float32"))[0][0] == k
        x[0, k + 1 :] = 1
        assert np.isnan(run(largest, x, ((1,), "float32"))[0][0])


@pytest.mark.parametrize("dtype", ["int8", "int64", "float64"])
def test_other_types(dtype: str) -> None:
    x = (RNG.standard_normal((5, 77)) * 50).astype(dtype)
    for name, axis in itertools.product(["sum", "max", "prod"], [0, 1]):
        y = run(compiled(function(x.shape, (axis,), name, dtype=dtype), WIDTHS[-1]), x, ((x.shape[1 - axis],), dtype))[0]
        exact = {"sum": np.sum, "max": np.max, "prod": np.prod}[name](x, axis, **({} if name == "max" else {"dtype": dtype}))
        np.testing.assert_allclose(y, exact, rtol=1e-12)
    for axis in (0, 1):
        shape = (x.shape[1 - axis],)
        index, value = run(compiled(function(x.shape, (axis,), "argmin", dtype=dtype), WIDTHS[-1]), x, (shape, "int64"), (shape, dtype))
        np.testing.assert_array_equal(index, x.argmin(axis))
        np.testing.assert_array_equal(value, x.min(axis))


def test_what_depends_on_the_place_is_left() -> None:
    x = te.placeholder([int64(8), int64(64)], "float32", name="x")
    k = te.reduce_axis((int64(0), int64(64)), name="k")
    fn = te.create_prim_func([x, te.compute([int64(8)], lambda i: te.sum(x(i, k) * k.var.astype("float32"), axis=k), name="moment")])
    assert reduction_op(fn) is None


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=G)


CASES: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "argmax": (lambda x: x.argmax(1), _randn(3, 1000)),
    "argmax of columns": (lambda x: x.argmax(1), _randn(1, 19, 12, 12)),
    "argmin of all": (lambda x: x.argmin(), _randn(30, 41)),
    "values and indices": (lambda x: (x * 2).max(1), _randn(4, 50)),
    "mean of space": (lambda x: x.mean((2, 3)), _randn(2, 9, 7, 7)),
    "mean, then more": (lambda x: torch.relu(x.mean((2, 3))) * 3 + 1, _randn(2, 9, 7, 7)),
    "rows": (lambda x: x.sum(0), _randn(128, 70)),
    "all": (lambda x: x.exp().sum(), _randn(40, 70)),
    "any": (lambda x: (x > 2).any(1), _randn(5, 300)),
    "all of them": (lambda x: (x < 2).all(0), _randn(70, 40)),
    "outer and inner": (lambda x: x.sum((0, 2)), _randn(5, 6, 33)),
    "norm": (lambda x: x.norm(dim=1), _randn(5, 100)),
    "logsumexp": (lambda x: x.logsumexp(1), _randn(5, 100)),
    "transposed": (lambda x: x.t().amax(1), _randn(100, 33)),
    "slice": (lambda x: x[:, 3:80].amin(1), _randn(6, 100)),
    "variance": (lambda x: x.var(1), _randn(9, 100)),
    "variance of columns": (lambda x: x.var(0), _randn(64, 40)),
    "less its mean": (lambda x: x - x.mean((1, 2), keepdim=True), _randn(6, 5, 33)),
    "how many": (lambda x: (x > 0).sum(1), _randn(5, 300)),
    "bools": (lambda x: (x.any(1), x.all(0)), _randn(40, 70) > -2),
    "standard deviation": (lambda x: x.std((1, 2)), _randn(3, 20, 31)),
    "long": (lambda x: x.sum(), _randn(700, 700)),
}


def test_builds_use_the_family(tmp_path: Path) -> None:
    def fn(*xs: Tensor) -> list[Any]:
        return [f(x) for (f, _), x in zip(CASES.values(), xs, strict=True)]

    args = tuple(x for _, x in CASES.values())
    artifact = dycl_tvm.build(fn, args)
    stats = artifact._lowered.stats
    assert stats.families["reduction"] >= len(CASES)
    assert not [k for k in stats.generic_kernels if any(w in k for w in ("argm", "sum", "mean", "max", "min"))]
    assert "reduction" in str(artifact.report())
    path, params = artifact.export_library(tmp_path / "m.so"), artifact.save_params(tmp_path / "m.params")
    for threads in (1, 2):
        module = dycl_tvm.load(path, params, num_threads=threads)
        for name, found, (f, x) in zip(CASES, module(*args), CASES.values(), strict=True):
            assert difference(f(x), found, rtol=2e-6) is None, (name, threads)


def test_the_family_can_be_disabled() -> None:
    stats = dycl_tvm.build(lambda x: x.sum(1), (_randn(3, 100),), disable_families=("reduction",))._lowered.stats
    assert "reduction" not in stats.families
    assert stats.generic_kernels
