# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random numbers as PyTorch draws them on CUDA: published ones, and the kernels' threads played one by one."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dycl_tvm.hcfg import philox
from dycl_tvm.hcfg.cuda_draws import CUDA, moved
from dycl_tvm.hcfg.philox import DEVICE, Way

draws = CUDA.draws

#: Of Random123's file kat_vectors, "philox4x32 10": counter, key, result.
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
#: ``torch.manual_seed(0)`` and two times ``torch.rand(..., device="cuda")``, as examples of Triton's users and the tests of TensorRT-LLM
#: (``test_redrafter.py``) print them.
FIRST = [
    0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203, 0.2290, 0.9096, 0.1183, 0.0752, 0.4092, 0.9601, 0.2093, 0.1940,
    0.8909, 0.4387, 0.3570, 0.5454, 0.8299, 0.2099, 0.7684, 0.4290, 0.2117, 0.6606, 0.1654, 0.4250, 0.9927, 0.6964, 0.2472, 0.7028,
]  # fmt: skip
SECOND = [0.9722, 0.7910, 0.4690, 0.3300, 0.3345, 0.3783, 0.7640, 0.6405, 0.1103, 0.3594]
#: ``torch.manual_seed(0)`` and ``torch.randn(..., device="cuda")``, as the lectures of CUDA MODE on fused kernels print it.
NORMAL = [
    -0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284, -1.0745, -0.3631, -1.6711, 2.2655,
    0.3117, -0.1842, 1.2866, 1.1820, -0.1271, 1.2169, 1.4353, 1.0605, -0.4941, -1.4244, -0.7244, -1.2973,
    0.0697, -0.0074, 1.8969, 0.6878, -0.0779, -0.8373, 1.3506, -0.2879, -0.5965, -0.3283, -0.9086, -0.8059,
    -0.7407, -0.0504, 0.5435, 1.5150, 0.0141, 0.4532, 1.6349, 0.7124, -0.1806, 1.0252, -1.4622, -0.7554,
]  # fmt: skip


@pytest.fixture
def small_gpu() -> Iterator[None]:
    before, DEVICE.threads = DEVICE.threads, 512
    yield
    DEVICE.threads = before


@pytest.mark.parametrize("counter, key, result", KNOWN)
def test_the_generator_is_that_of_its_authors(counter: Any, key: Any, result: Any) -> None:
    assert tuple(int(w) for w in philox.philox(counter, key)) == result


def _printed(t: torch.Tensor) -> list[float]:
    return [round(x, 4) for x in t.tolist()]


def test_draws_are_those_that_were_printed_of_gpus() -> None:
    state = CUDA.of_seed(0)
    first, after = draws.uniform(state, [32], 0.0, 1.0, torch.float32)
    second, _ = draws.uniform(after, [10], 0.0, 1.0, torch.float32)
    assert _printed(first) == FIRST and _printed(second) == SECOND
    assert _printed(draws.normal(state, [48], 0.0, 1.0, torch.float32, False)[0]) == NORMAL


def _threads(numel: int, state: torch.Tensor, per_call: int, neighbours: int) -> tuple[list[tuple[Any, int]], int]:
    """Play the loops of PyTorch's kernels: each thread draws call after call; return words and component by element, and the calls made."""
    seed, offset = philox.unpacked(state.clone().numpy())
    blocks = min((numel + 255) // 256, DEVICE.threads // 256)
    total, calls = blocks * 256, 0
    found: list[Any] = [None] * numel
    for thread in range(total):
        turn, start = 0, thread * neighbours
        while start < numel:
            counter = offset // 4 + turn
            words = philox.philox((counter & 0xFFFFFFFF, counter >> 32, thread, 0), (seed & 0xFFFFFFFF, seed >> 32))
            for k in range(neighbours if neighbours > 1 else per_call):
                element = start + k if neighbours > 1 else start + total * k
                if element < numel:
                    found[element] = (words, k)
            turn += 1
            start += total * (neighbours if neighbours > 1 else per_call)
        calls = max(calls, turn)
    return found, calls


@pytest.mark.parametrize(
    "numel, per_call, neighbours",
    [(1, 4, 1), (255, 4, 1), (512, 4, 1), (513, 4, 1), (5001, 4, 1), (3000, 2, 1), (4400, 4, 4), (4402, 4, 2)],
)
def test_each_element_is_drawn_by_the_thread_and_call_of_pytorchs_kernels(
    small_gpu: None, numel: int, per_call: int, neighbours: int
) -> None:
    state = moved(CUDA.of_seed(2**40 + 3), (1 << 35) + 4)
    way = Way(numel, per_call, neighbours)
    words, component = philox.drawn(state.clone().numpy(), way)
    played, calls = _threads(numel, state, per_call, neighbours)
    for element, (expected, k) in enumerate(played):
        assert [int(w[element]) for w in words] == [int(w) for w in expected]
        assert int(np.broadcast_to(component, (numel,))[element]) == k
    if neighbours in (1, 4):  # of two neighbours PyTorch counts half of the calls
        assert way.advance(DEVICE.threads) == 4 * calls


def test_products_and_sums_are_rounded_once() -> None:
    noise = np.random.default_rng(0)
    for _ in range(500):
        a, b, c = noise.standard_normal(3) * [1, 1, 10.0 ** noise.integers(-18, 18)]
        assert philox.fused(np.array([a]), b, c)[0] == float(Fraction(a) * Fraction(b) + Fraction(c))
        x, y, z = np.float32(a), np.float32(b), np.float32(c)
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        got = philox.fused(np.array([x]), y, z)[0]
        beside = [np.nextafter(got, np.float32(s)) for s in (-np.inf, np.inf)]
        assert all(abs(Fraction(float(got)) - exact) <= abs(Fraction(float(n)) - exact) for n in beside)


@pytest.mark.parametrize("numel", [1, 1023, 1024, 1025, 4000])
def test_offsets_move_on_by_fours(small_gpu: None, numel: int) -> None:
    state = CUDA.of_seed(1)
    for op, rest in (
        (draws.uniform, (0.0, 1.0, torch.float32)),
        (draws.normal, (0.0, 1.0, torch.float64, False)),
        (draws.integers, (0, 1 << 40, torch.int64)),
        (draws.dropout, (0.5, torch.float32)),
    ):
        made, state = op(state, [numel], *rest)
        assert made.shape == (numel,)
        assert philox.unpacked(state.clone().numpy())[1] % 4 == 0
    turns = -(-numel // (4 * min(-(-numel // 256) * 256, 512)))
    wide = -(-numel // (2 * min(-(-numel // 256) * 256, 512)))
    assert philox.unpacked(state.clone().numpy())[1] == 4 * (2 * turns + 2 * wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_numbers_have_their_distributions(dtype: torch.dtype) -> None:
    state, n = CUDA.of_seed(3), 20000
    uniform = draws.uniform(state, [n], -1.0, 3.0, dtype)[0].double()
    normal = draws.normal(state, [n], 0.5, 2.0, dtype, False)[0].double()
    exponential = draws.exponential(state, [n], 2.0, dtype)[0].double()
    assert uniform.min() >= -1 and uniform.max() < 3 and abs(uniform.mean() - 1) < 0.05
    assert abs(normal.mean() - 0.5) < 0.05 and abs(normal.std() - 2) < 0.05
    assert abs(exponential.mean() - 0.5) < 0.02 and exponential.min() > 0
    assert abs(draws.bernoulli(state, [n], 0.3, dtype)[0].double().mean() - 0.3) < 0.02
    assert abs(draws.geometric(state, [n], 0.25, dtype)[0].double().mean() - 4) < 0.2
    assert abs(draws.cauchy(state, [n], 0.0, 1.0, dtype)[0].double().median()) < 0.05
    assert abs(draws.log_normal(state, [n], 0.0, 1.0, dtype)[0].double().median() - 1) < 0.05
