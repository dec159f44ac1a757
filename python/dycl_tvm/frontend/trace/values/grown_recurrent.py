# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recurrent networks over as many steps as are known only at run time, or of a batch of which that is known.

A batch is computed row by row. Of steps there are as many as the buffer has, each a call of PyTorch's function for one step: a state stays
what it is at those that there are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dycl_tvm.frontend.trace.values.aligned import equalized, equalized_buffers
from dycl_tvm.frontend.trace.values.grown import Grown, cut, grown, number
from dycl_tvm.frontend.trace.values.grown_math import Handler, buffer_of, new, refuse_call
from dycl_tvm.frontend.trace.values.grown_rules import named
from dycl_tvm.frontend.trace.values.indices import require
from dycl_tvm.frontend.trace.values.lengths import Length
from dycl_tvm.frontend.trace.values.recorder import to_tensor

_VF = torch._C._VariableFunctions


def network(
    func: Any,
    x: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """A network of some layers: its outputs, and the last states."""
    states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    if type(has_biases) is not bool or (dropout and train) or any(isinstance(p, Grown) for p in params):
        return refuse_call(func, x, states, params)
    batch = 0 if batch_first else 1
    steps = x.lengths.get(1 - batch) if isinstance(x, Grown) else None
    known = [{batch, 1 - batch}, *[{1}] * len(states)]
    if any(isinstance(t, Grown) and set(t.lengths) - dims for t, dims in zip([x, *states], known)):
        return refuse_call(func, x, states)
    (whole, *begin), length = equalized_buffers([x, *states], [batch, *[1] * len(states)])
    if steps is not None:
        made = _over_steps(func, new(whole, 1 - batch, steps), begin, params, has_biases, num_layers, bidirectional, batch)
    else:
        given = begin[0] if isinstance(hx, torch.Tensor) else tuple(begin)
        made = func(whole, given, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    if not isinstance(length, Length):
        return made
    out = {batch: length} if steps is None else {batch: length, 1 - batch: steps}
    return cut(buffer_of(made[0]), out), *[new(state, 1, length) for state in made[1:]]


def _over_steps(
    func: Any, t: Grown, states: list[Any], params: Sequence[torch.Tensor], has_biases: bool, layers: int, bidirectional: bool, batch: int
) -> Any:
    if t.length.bounds[0] < 1:
        require(number(t.length) >= 1, RuntimeError("Expected sequence length to be larger than 0 in RNN"))
    steps, directions = t.padded().transpose(0, 1) if batch == 0 else t.padded(), 2 if bidirectional else 1
    each, there, last = len(params) // (layers * directions), to_tensor(number(t.length), torch.int64), []
    for layer in range(layers):
        sides = []
        for k in range(layer * directions, (layer + 1) * directions):
            state, outputs = [s[k : k + 1] for s in states], {}
            order = range(int(steps.shape[0]))
            for at in order if k % directions == 0 else reversed(order):
                given = state[0] if len(state) == 1 else tuple(state)
                weights = params[k * each : (k + 1) * each]
                outputs[at], *after = func(steps[at : at + 1], given, weights, has_biases, 1, 0.0, False, False, False)
                state = [torch.where(there > at, a, b) for a, b in zip(after, state)]
            sides.append(torch.cat([outputs[at] for at in order]))
            last.append(state)
        steps = sides[0] if directions == 1 else torch.cat(sides, 2)
    out = grown(steps.transpose(0, 1) if batch == 0 else steps, t.along, t.length)
    return out, *[torch.cat([state[k] for state in last]) for k in range(len(states))]


def cell(func: Any, x: torch.Tensor, hx: Any, *weights: Any) -> Any:
    """One step of as many rows as there are."""
    states = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    if any(isinstance(t, Grown) and t.along for t in (x, *states)) or any(isinstance(w, Grown) for w in weights):
        return refuse_call(func, x, states, weights)
    (whole, *begin), length = equalized([x, *states], [0] * (1 + len(states)))
    made = func(whole, begin[0] if isinstance(hx, torch.Tensor) else tuple(begin), *map(buffer_of, weights))
    if not isinstance(length, Length):
        return made
    return new(made, 0, length) if isinstance(made, torch.Tensor) else tuple([new(state, 0, length) for state in made])


HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(named("lstm gru rnn_tanh rnn_relu", torch, _VF), network),
    **dict.fromkeys(named("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", torch, _VF), cell),
}
