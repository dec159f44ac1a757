# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Scans, sorting and the first k against PyTorch: values equal, indices of sorting stable, NaN the largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hcfg_utils import Kernels, host_target, record, run_sub_dnn
from hypothesis import given, settings
from hypothesis import strategies as st

from dycl_tvm.backends.tir_cpu.families import scan, sort
from dycl_tvm.backends.tir_cpu.words.machine import machine_of
from dycl_tvm.compile import pipeline
from dycl_tvm.compile.call_list import call_list
from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.compile.program import KernelLibrary
from dycl_tvm.compile.templates import source_of, symbol_of
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.verify.memory import CompiledKernels

Case = tuple[Callable[..., Any], torch.Tensor]

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SPECIAL = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0]


def tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, special: bool = True) -> torch.Tensor:
    """Return numbers with ties, extremes of the dtype, and for floats NaN, infinities and both zeros."""
    g = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=g) > 0.5
    pick = torch.rand(shape, generator=g)
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)
        few = torch.tensor(SPECIAL, dtype=dtype)[torch.randint(0, len(SPECIAL), shape, generator=g)]
        return torch.where(pick < 0.3, few, x) if special else x
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, shape, generator=g, dtype=dtype)
    few = torch.tensor([info.min, info.max, 0, 1], dtype=dtype)[torch.randint(0, 4, shape, generator=g)]
    return torch.where(pick < 0.4, few, x)


def results(cases: list[Case]) -> list[list[Any]]:
    """Compile and run: one module for all cases."""
    recorded = [record(fn, [x], f"case_{k}")[0] for k, (fn, x) in enumerate(cases)]
    low = pipeline.to_kernels(pipeline.legalise(import_sub_dnns(recorded), host_target()), host_target())
    kernels = pipeline.KernelSet()
    lists = [call_list(sub.name, low, kernels, {}) for sub in recorded]
    run = Kernels(KernelLibrary(tuple(pipeline.build_kernels(kernels.functions, host_target()).objects)))
    return [run_sub_dnn(calls, [x], run) for calls, (_, x) in zip(lists, cases)]


def same(got: Any, want: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(torch.as_tensor(got).double(), nan=7e77), torch.nan_to_num(want.double(), nan=7e77))


def sorted_by_torch(x: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def check_order(cases: list[tuple[torch.Tensor, int, bool]]) -> None:
    """Check the order of each (x, dim, descending)."""
    got = results([(lambda x, rest=rest: sorted_by_torch(x, *rest), x) for x, *rest in cases])
    for (x, *rest), (values, indices) in zip(cases, got):
        want = sorted_by_torch(x, *rest)
        assert same(values, want[0]), (x.shape, x.dtype, rest)
        assert same(indices, want[1]), (x.shape, x.dtype, rest)


@pytest.mark.parametrize("dtype", [*FLOATS[:2], *INTEGERS], ids=str)
def test_order_of_every_length_and_dtype(dtype: torch.dtype) -> None:
    few = not dtype.is_floating_point or dtype == torch.float64
    cases = []
    for n in (1, 2, 33, 96, 97, 1000) if few else (1, 2, 33, 96, 97, 1000, 5000):
        cases += [(tensor((2, n), dtype, n), 1, descending) for descending in (False, True)]
    if not few:
        cases += [(tensor((2, n, 3), dtype), 1, True) for n in (20, 300)]
    check_order(cases)


def test_rows_in_order_and_rows_of_one_value() -> None:
    rising = torch.arange(3000.0)
    rows = torch.stack([rising, -rising, torch.zeros(3000), torch.full((3000,), math.nan)])
    check_order([(rows, 1, descending) for descending in (False, True)])


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(1, 150), min_size=1, max_size=3), st.data()), min_size=4, max_size=4))
def test_order_of_random_shapes(drawn: list[Any]) -> None:
    cases = []
    for shape, data in drawn:
        dim = data.draw(st.integers(0, len(shape) - 1))
        shape = [s if d == dim else 1 + s % 7 for d, s in enumerate(shape)]
        dtype = data.draw(st.sampled_from(FLOATS[:2] + INTEGERS[:2]))
        cases.append((tensor(tuple(shape), dtype, data.draw(st.integers(0, 99))), dim, data.draw(st.booleans())))
    check_order(cases)


#: (n, k) on both sides of what decides on PyTorch's algorithm, k * 64 <= n, and of what makes it leave most elements out.
FIRST = [(1, 1), (3, 2), (4, 2), (17, 17), (64, 1), (65, 40), (300, 4), (300, 5), (4095, 3), (4096, 3), (9000, 140), (9000, 141)]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS[:-1]], ids=str)  # PyTorch has no topk of bools
def test_the_first_k_are_those_of_torch_also_of_equal_elements(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    symbols = {(a, b): symbol_of("order", "TopK", [name], [a, b]) for a in (False, True) for b in (False, True)}
    kernels = CompiledKernels(KernelLibrary((), (("templates.cc", source_of(symbols.values())),), ()))
    for n, k in FIRST:
        for (largest, in_order), symbol in symbols.items():
            for x in (tensor((2, n, 2), dtype, n), tensor((2, n, 2), dtype, n, special=False), torch.zeros(1, n, 1, dtype=dtype)):
                values, indices = torch.topk(x, k, 1, largest, in_order)
                got = [torch.zeros_like(values), torch.zeros_like(indices)]
                kernels.call(symbol, 0, [x, *got])
                assert torch.equal(got[1], indices), (n, k, largest, in_order)
                assert torch.equal(got[0].view(torch.uint8), values.contiguous().view(torch.uint8)), (n, k, largest, in_order)


def test_argsort_and_single_results() -> None:
    x = tensor((3, 300), torch.float32)
    for fn, want in (
        (lambda x: torch.argsort(x, dim=1, stable=True), sorted_by_torch(x, 1, False)[1]),
        (lambda x: torch.sort(x, 0)[0], torch.sort(x, 0)[0]),
    ):
        ((got,),) = results([(fn, x)])
        assert same(got, want)


@pytest.mark.parametrize("op", [torch.cumsum, torch.cumprod], ids=["cumsum", "cumprod"])
def test_scans_are_those_of_torch_bit_by_bit(op: Callable[..., torch.Tensor]) -> None:
    cases: list[Case] = []
    for special in (False, True):
        for dtype in FLOATS[:2]:
            for shape, dim in [((1,), 0), ((2,), 0), ((5000,), 0), ((21, 50), 1), ((3, 40, 37), 1), ((40, 1, 3), 0)]:
                cases.append((lambda x, dim=dim: op(x, dim), tensor(shape, dtype, len(cases), special)))
    for dtype in INTEGERS:
        cases += [(lambda x, dim=dim: op(x, dim), tensor((9, 30), dtype)) for dim in (0, 1)]
    cases.append((lambda x: op(x, 0, dtype=torch.float64), tensor((30,), torch.int32)))
    cases.append((lambda x: op(x, 1), torch.full((2, 30), -0.0)))
    for (fn, x), (got,) in zip(cases, results(cases)):
        want = fn(x)
        assert str(got.dtype) == str(want.dtype).removeprefix("torch.")
        assert same(got, want), (x.shape, x.dtype)
        assert not want.is_floating_point() or torch.equal(torch.signbit(torch.as_tensor(got)[want == 0]), torch.signbit(want[want == 0]))


def test_long_axes_have_parallel_rows() -> None:
    x, y = tensor((64, 1000), torch.float32), tensor((500, 200), torch.float32)
    target = host_target()
    machine = machine_of(target)
    assert "T.parallel" in sort.kernel(64, 1000, 1, "float32", False, True, True, machine).script()
    assert "T.parallel" in scan.kernel(1, 500, 200, "float32", 0, lambda a, b: a + b, machine).script()
    assert "T.parallel" not in sort.kernel(2, 4, 1, "float32", False, True, True, machine).script()
    check_order([(x, 1, False)])
    ((got,),) = results([(lambda y: torch.cumsum(y, 0), y)])
    assert same(got, torch.cumsum(y, 0))


def _mode(x: torch.Tensor, dim: int) -> Any:
    return torch.mode(torch.where(torch.isnan(x), 1, x), dim)  # with NaN ATen's result depends on the order of its comparisons


FIRST_OF_PAIR = [torch.cummax, torch.cummin, torch.median, torch.nanmedian, _mode, lambda x, dim: torch.kthvalue(x, 3, dim)]


def test_running_extremes_and_elements_of_an_order_are_those_of_torch() -> None:
    cases: list[Case] = []
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int8):
        for k, op in enumerate(FIRST_OF_PAIR):
            cases += [(lambda x, op=op, d=d: op(x, d), tensor((5, 17, 3), dtype, k)) for d in (1, 2)]
    for number, ((fn, x), (values, places)) in enumerate(zip(cases, results(cases))):
        want, where = fn(x)
        assert same(values, want), (number, x.dtype)
        if number % (2 * len(FIRST_OF_PAIR)) < 4:  # the last of equal ones; the others may be anywhere
            assert same(places, where), (number, x.dtype)
        else:
            dim = 1 + number % 2
            given = torch.where(torch.isnan(x), 1, x) if number % 12 in (8, 9) else x  # as the mode sees it
            assert same(given.gather(dim, torch.as_tensor(places).unsqueeze(dim)).squeeze(dim), want)


def test_positions_in_rows_with_ties_and_numbers_that_are_none() -> None:
    cases: list[Case] = []
    for dtype in (torch.float32, torch.int64):
        for right in (False, True):
            cases += [
                (lambda x, right=right: torch.searchsorted(x[:, :9].sort(1)[0], x, right=right), tensor((4, 31), dtype, 5)),
                (lambda x, right=right: torch.bucketize(x, x[0].sort()[0], right=right, out_int32=True), tensor((7, 5), dtype, 6)),
                (lambda x, right=right: torch.searchsorted(x[:, :5].contiguous(), x, right=right), tensor((4, 8), dtype, 7)),
            ]
    for (fn, x), (got,) in zip(cases, results(cases)):
        assert same(got, fn(x)) and str(got.dtype) == str(fn(x).dtype).removeprefix("torch.")


def test_a_gpu_refuses_what_would_be_quadratic() -> None:
    import tvm

    x = torch.zeros(1, 20000)
    sub = record(lambda x: torch.topk(x, 3), [x], "sub")[0]
    import_sub_dnns([sub])
    with tvm.target.Target({"kind": "cuda", "arch": "sm_72"}), pytest.raises(UnsupportedError, match="on a GPU"):
        import_sub_dnns([sub])
