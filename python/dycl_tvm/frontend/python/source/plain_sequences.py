# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's packed sequences and nested tensors, as tensors of full length whose ends do not count; like the user's own code, it runs
rewritten.

Where the lengths are known only at run time, a ``PackedSequence`` has :class:`Padded` in the place of its data: all that is asked of the
data itself, whose shape depends on the lengths, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules.transformer import _detect_is_causal_mask
from torch.nn.utils.rnn import PackedSequence

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.tensors import known_numbers, read
from dycl_tvm.hcfg.hostops import OF_SHAPE
from dycl_tvm.hcfg.types import INT


class Padded(OwnValue):
    """Steps of shape (longest, batch, ...), in the batch's own order, and the lengths, of shape (batch,)."""

    def __init__(self, steps: torch.Tensor, lengths: torch.Tensor) -> None:
        self.steps, self.lengths = steps, lengths

    def __getattr__(self, name: str) -> Any:
        if name in ("steps", "lengths"):  # they are being set
            raise AttributeError(name)
        raise _refusal()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _refusal()

    def _refuse(self, *args: Any) -> Any:
        raise _refusal()

    __len__ = __iter__ = __getitem__ = __bool__ = __eq__ = __ne__ = __add__ = __mul__ = __repr__ = __hash__ = _refuse  # type: ignore[assignment]


def _refusal() -> UnsupportedError:
    return UnsupportedError(
        "the data of a packed sequence whose lengths are known only at run time",
        current().origin(),
        "use pad_packed_sequence() before, which gives a tensor of full length",
    )


def pack_padded_sequence(input: torch.Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    """Stand for ``torch.nn.utils.rnn.pack_padded_sequence``."""
    lengths = lengths.to(dtype=torch.int64) if isinstance(lengths, torch.Tensor) else torch.as_tensor(lengths, dtype=torch.int64)
    steps = input.transpose(0, 1) if batch_first else input
    if lengths.dim() != 1 or lengths.shape[0] != steps.shape[1]:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={steps.shape[1]})")
    if (lengths <= 0).any():
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    if (lengths > steps.shape[0]).any():
        raise RuntimeError("an element in 'lengths' is greater than the number of steps")
    order = None
    if not enforce_sorted:
        order = torch.sort(lengths, descending=True)[1]
    elif (lengths[1:] > lengths[:-1]).any():
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass `enforce_sorted=False` to"
            " pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do not need ONNX exportability."
        )
    return _packed(steps.clone(), lengths, order)


def pack_sequence(sequences: Sequence[torch.Tensor], enforce_sorted: bool = True) -> Any:
    """Stand for ``torch.nn.utils.rnn.pack_sequence``."""
    lengths = torch.as_tensor([x.size(0) for x in sequences])
    return pack_padded_sequence(torch.nn.utils.rnn.pad_sequence(list(sequences)), lengths, enforce_sorted=enforce_sorted)


def pad_packed_sequence(sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: Any = None) -> Any:
    """Stand for ``torch.nn.utils.rnn.pad_packed_sequence``."""
    padded = _padded(sequence)
    steps, lengths, longest = padded.steps, padded.lengths, total_length
    if longest is None:
        longest = _longest(lengths)
    elif (lengths > longest).any():
        raise ValueError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={longest} and max sequence length being {lengths.max()}"
        )
    elif longest > steps.shape[0]:
        steps = torch.cat([steps, steps.new_zeros([longest - steps.shape[0], *steps.shape[1:]])])
    live = torch.arange(steps.shape[0]).unsqueeze(1) < lengths
    steps = torch.where(live.view(live.shape + (1,) * (steps.dim() - 2)), steps, padding_value)[:longest]
    return steps.transpose(0, 1) if batch_first else steps, lengths.clone()


def _longest(lengths: torch.Tensor) -> Any:
    """Return the longest of some lengths. A program asks no tensor for it: a packed sequence has it in its shape."""
    known = known_numbers(lengths.clone())
    return scalars.emit("item", read(lengths.max()), type_=INT, text=OF_SHAPE) if known is None else max(known)


def _packed(steps: torch.Tensor, lengths: torch.Tensor, order: torch.Tensor | None) -> Any:
    """Return a packed sequence; what is packed has ``order`` among the batch."""
    inverse = None if order is None else torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    known = known_numbers(lengths.clone())
    if known is None:
        return _sequence(Padded(steps, lengths), Padded(steps, lengths), order, inverse)
    if order is not None:
        known, steps = sorted(known, reverse=True), steps.index_select(1, order)
    sizes = [sum(n > t for n in known) for t in range(known[0])]
    return _sequence(torch.cat([steps[t, :n] for t, n in enumerate(sizes)]), torch.tensor(sizes), order, inverse)


def _sequence(data: Any, sizes: Any, order: torch.Tensor | None, inverse: torch.Tensor | None) -> Any:
    return tuple.__new__(PackedSequence, (data, sizes, order, inverse))


def _padded(sequence: Any) -> Padded:
    """Return what a packed sequence holds."""
    data, sizes, _, inverse = sequence
    if isinstance(data, Padded):
        return data
    known = known_numbers(sizes.clone())
    if known is None:
        raise _refusal()
    lengths = [sum(n > k for n in known) for k in range(known[0])]
    rows, begin = [], 0
    for n in known:
        row = data[begin : begin + n]
        rows.append(torch.cat([row, row.new_zeros([known[0] - n, *row.shape[1:]])]))
        begin += n
    steps, count = torch.stack(rows), torch.tensor(lengths)
    return Padded(steps, count) if inverse is None else Padded(steps.index_select(1, inverse), count.index_select(0, inverse))


def recurrent(net: Any, input: Any, hx: Any = None) -> Any:
    """Stand for ``forward`` of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` where they are given a packed sequence."""
    padded = _padded(input)
    steps, lengths = padded.steps, padded.lengths
    if net.training and net.dropout and net.num_layers > 1:
        raise UnsupportedError("dropout between the layers of a network that is given a packed sequence", current().origin(), "call eval()")
    directions, size = 2 if net.bidirectional else 1, net.proj_size or net.hidden_size
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    if states is None:
        shapes = [size, net.hidden_size][: 2 if net.mode == "LSTM" else 1]
        states = [steps.new_zeros([net.num_layers * directions, steps.shape[1], n]) for n in shapes]
    elif any(s.shape[:2] != (net.num_layers * directions, steps.shape[1]) for s in states):
        raise RuntimeError(f"Expected hidden size {(net.num_layers * directions, steps.shape[1], size)}, got {list(states[0].shape)}")
    last: list[Any] = []
    for layer in range(net.num_layers):
        sides = []
        for k in range(directions):
            at = layer * directions + k
            side, state = _direction(net, net.all_weights[at], steps, lengths, [s[at] for s in states], bool(k))
            sides.append(side)
            last.append(state)
        steps = torch.cat(sides, 2)
    hidden = tuple([torch.stack([state[k] for state in last]) for k in range(len(states))])
    return _packed(steps, lengths, input.sorted_indices), hidden if net.mode == "LSTM" else hidden[0]


def _direction(net: Any, weights: Any, steps: Any, lengths: Any, state: list[Any], backward: bool) -> Any:
    """Run one direction of a layer; a sequence's state stays what it is at the steps that it does not have."""
    projected = F.linear(steps, weights[0], weights[2] if net.bias else None)
    made: list[Any] = [None] * steps.shape[0]
    for k in range(steps.shape[0]):
        t = steps.shape[0] - 1 - k if backward else k
        live = (lengths > t).unsqueeze(1)
        new = _cell(net, projected[t], F.linear(state[0], weights[1], weights[3] if net.bias else None), state, weights[-1])
        state = [torch.where(live, a, b) for a, b in zip(new, state)]
        made[t] = state[0]
    return torch.stack(made), state


def _cell(net: Any, x: Any, h: Any, state: list[Any], projection: Any) -> list[Any]:
    """Return the next state of a cell; ``x`` and ``h`` are what the step and the state give to its gates."""
    if net.mode == "LSTM":
        i, f, g, o = (x + h).chunk(4, 1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        out = o.sigmoid() * c.tanh()
        return [F.linear(out, projection) if net.proj_size else out, c]
    if net.mode == "GRU":
        (r, z, n), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
        n = (n + (r + hr).sigmoid() * hn).tanh()
        return [(state[0] - n) * (z + hz).sigmoid() + n]
    return [(x + h).relu() if net.mode == "RNN_RELU" else (x + h).tanh()]


def encoder(net: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None) -> Any:
    """Stand for ``nn.TransformerEncoder.forward`` where PyTorch would make a nested tensor, if texts are padded at their ends only.

    A nested tensor has so many first steps of a text as its mask leaves, and gives zeros for the others.
    """
    given: Any = F._canonical_mask(src_key_padding_mask, "src_key_padding_mask", None, "mask", src.dtype)
    padded = given != 0
    ends = torch.arange(src.shape[1]) >= (~padded).sum(1, keepdim=True)
    nested = (padded == ends).all() if net.mask_check else torch.ones((), dtype=torch.bool)
    padding = torch.where(nested, torch.zeros_like(given).masked_fill(ends, float("-inf")), given)
    out = src
    for layer in net.layers:
        out = layer(out, src_mask=None, is_causal=_detect_is_causal_mask(None, is_causal, None), src_key_padding_mask=padding)
    out = out.masked_fill((ends & nested).unsqueeze(2), 0.0)
    return out if net.norm is None else net.norm(out)
