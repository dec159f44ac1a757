# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Packed sequences and the fast path of transformers' encoders, whose texts have lengths of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from differential import stage
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.verify.control import check_control
from dycl_tvm.verify.same import difference

STEPS, BATCH, SIZE = 5, 3, 4
LENGTHS = [[5, 4, 2], [3, 3, 3], [1, 1, 1], [5, 1, 1]]
UNSORTED = [[2, 5, 4], [3, 3, 3], [1, 5, 5], [4, 1, 1]]


def values(k: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(k))


def compare(program: Any, calls: list[tuple[Any, ...]]) -> None:
    """Compare calls one after the other; both sides may raise."""
    with torch.no_grad():
        staged = stage(program, calls[0]).interpret()
        for args in (*calls, calls[0]):
            want, got = outcome(copy.deepcopy(program), args), outcome(staged, args)
            assert type(want) is type(got), (want, got)
            if not isinstance(want, Exception):
                assert difference(want, got) is None


def outcome(call: Any, args: tuple[Any, ...]) -> Any:
    try:
        return call(*copy.deepcopy(args))
    except (RuntimeError, ValueError) as error:
        return error


def network(kind: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return getattr(nn, kind)(SIZE, 3, **options).eval()  # type: ignore[no-any-return]


NETWORKS = {
    "LSTM": lambda: network("LSTM", batch_first=True),
    "LSTM, two layers and directions": lambda: network("LSTM", num_layers=2, bidirectional=True, batch_first=True),
    "LSTM, projected": lambda: network("LSTM", proj_size=2, batch_first=True, bias=False),
    "GRU, two directions": lambda: network("GRU", bidirectional=True, batch_first=True),
    "RNN": lambda: network("RNN", nonlinearity="relu", num_layers=2, batch_first=True),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, UNSORTED])
def test_packed_sequences(name: str, known: bool, lengths: list[list[int]]) -> None:
    net = NETWORKS[name]()

    def program(x: torch.Tensor, n: Any) -> Any:
        given = lengths[0] if known else n
        packed = pack_padded_sequence(x, given, batch_first=True, enforce_sorted=lengths is LENGTHS)
        out, state = net(packed)
        return pad_packed_sequence(out, batch_first=True, padding_value=-2.0, total_length=6), state, out.sorted_indices

    compare(program, [(values(k, BATCH, STEPS, SIZE), torch.tensor(n)) for k, n in enumerate(lengths)])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_result_as_long_as_the_longest(name: str) -> None:
    """Nobody asks a tensor for that length, also where all stands in one line with what is asked of one."""
    net = NETWORKS[name]()

    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        return pad_packed_sequence(net(pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False))[0], batch_first=True)

    calls = [(values(k, BATCH, STEPS, SIZE), torch.tensor(n)) for k, n in enumerate(UNSORTED)]
    compare(program, calls)
    check_control(program, stage(program, calls[0]), calls[0], {})


def test_packed_sequences_with_a_first_state() -> None:
    net = network("LSTM", num_layers=2)

    def program(x: torch.Tensor, n: torch.Tensor, h: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, n, enforce_sorted=False)
        _, state = net(packed, (h, h + 1))
        out, state = net(packed, state)
        return pad_packed_sequence(out, total_length=STEPS), state

    compare(program, [(values(k, STEPS, BATCH, SIZE), torch.tensor(n), values(k, 2, BATCH, 3)) for k, n in enumerate(UNSORTED)])


def test_the_data_of_a_packed_sequence_of_known_lengths() -> None:
    net = network("GRU")

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        packed = pack_sequence([a, b], enforce_sorted=False)
        twice = PackedSequence(packed.data * 2, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(net(twice)[0]), packed

    compare(program, [(values(k, 2, SIZE), values(k + 1, 4, SIZE)) for k in range(2)])


def test_lengths_that_pytorch_refuses_are_errors() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        return pad_packed_sequence(pack_padded_sequence(x, n), total_length=4)

    lengths = [[3, 2, 1], [4, 1, 1], [2, 3, 1], [2, 1, 0], [5, 2, 1]]
    compare(program, [(values(k, STEPS, BATCH, SIZE), torch.tensor(n)) for k, n in enumerate(lengths)])
    # eager packs steps that are not there
    call = stage(program, (values(0, STEPS, BATCH, SIZE), torch.tensor(lengths[0]))).interpret()
    with pytest.raises(RuntimeError, match="greater than the number of steps"):
        call(values(0, STEPS, BATCH, SIZE), torch.tensor([9, 2, 1]))


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p.data,
        lambda p: p.data * 2,
        lambda p: torch.relu(p.data),
        lambda p: p.batch_sizes,
        lambda p: p.batch_sizes[0],
        lambda p: len(p.data),
        lambda p: p.to(torch.float64),
        lambda p: p,
        lambda p: [x for x in p.data],
        lambda p: torch.zeros(2) if p.data is None else p.data.sum(),
    ],
)
def test_the_data_of_lengths_of_the_run_is_refused(use: Any) -> None:
    with pytest.raises(UnsupportedError):
        dycl_tvm.stage(lambda x, n: use(pack_padded_sequence(x, n)), (values(0, STEPS, BATCH, SIZE), torch.tensor([3, 2, 1])))


def test_a_path_packs_other_lengths() -> None:
    net = network("LSTM")

    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, n) if x.sum() > 0 else pack_padded_sequence(x, torch.ones_like(n))
        return pad_packed_sequence(net(packed)[0], total_length=STEPS)

    x = values(0, STEPS, BATCH, SIZE)
    compare(program, [(x + 1, torch.tensor([3, 2, 1])), (x - 1, torch.tensor([3, 2, 1]))])


def encoder(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, **options).eval()
    for p in net.parameters():
        nn.init.normal_(p, std=0.5)
    return net


MASKS = [[5, 5], [5, 3], [1, 4], [2, 2]]


@pytest.mark.parametrize("options", [{}, {"norm": nn.LayerNorm(8)}, {"enable_nested_tensor": False}, {"mask_check": False}])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_encoders_give_zeros_where_eager_makes_nested_tensors(options: dict[str, Any], kind: str) -> None:
    net = encoder(**options)
    masks = [torch.arange(5) >= torch.tensor(n).unsqueeze(1) for n in MASKS]
    masks += [m.flip(1) for m in masks[1:3]]
    masks[-1][0, 2] = True
    if kind == "float":
        masks = [torch.zeros(m.shape).masked_fill(m, -1e9 if k == 1 else float("-inf")) for k, m in enumerate(masks)]
    compare(lambda x, m: net(x, src_key_padding_mask=m), [(values(k, 2, 5, 8), m) for k, m in enumerate(masks)])
