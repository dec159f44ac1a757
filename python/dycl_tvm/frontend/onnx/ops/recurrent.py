# Licensed under the Apache License, Version 2.0; see LICENSE.
"""RNN, GRU and LSTM: their steps are unrolled where their number is known, else a network of PyTorch's runs over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dycl_tvm.frontend.onnx.node import Node, op
from dycl_tvm.frontend.trace.clock import OwnValue

Tensor = torch.Tensor
Activation = Callable[[Tensor], Tensor]

_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _activations(node: Node, directions: int) -> list[Activation]:
    names = node.attr("activations") or _DEFAULTS[node.type] * directions
    alphas, betas = list(node.attr("activation_alpha") or []), list(node.attr("activation_beta") or [])
    plain: dict[str, Activation] = {
        "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "softsign": lambda x: x / (1 + torch.abs(x)),
        "softplus": lambda x: torch.clamp_min(x, 0) + torch.log1p(torch.exp(-torch.abs(x))),
    }  # fmt: skip
    found: list[Activation] = []
    for name in names:
        key = name.lower()
        if key in plain:
            found.append(plain[key])
            continue
        defaults = {"affine": (1.0, 0.0), "leakyrelu": (0.01, 0.0), "thresholdedrelu": (1.0, 0.0), "scaledtanh": (1.0, 1.0),
                    "hardsigmoid": (0.2, 0.5), "elu": (1.0, 0.0)}.get(key)  # fmt: skip
        if defaults is None:
            node.fail(f"the activation {name}")
        a = alphas.pop(0) if alphas else defaults[0]
        b = betas.pop(0) if betas and key in ("affine", "scaledtanh", "hardsigmoid") else defaults[1]
        found.append(_scaled(key, a, b))
    return found


def _scaled(key: str, a: float, b: float) -> Activation:
    made: dict[str, Activation] = {
        "affine": lambda x: a * x + b,
        "leakyrelu": lambda x: torch.where(x >= 0, x, a * x),
        "thresholdedrelu": lambda x: torch.where(x > a, x, torch.zeros((), dtype=x.dtype)),
        "scaledtanh": lambda x: a * torch.tanh(b * x),
        "hardsigmoid": lambda x: torch.clamp(a * x + b, 0, 1),
        "elu": lambda x: torch.where(x >= 0, x, a * (torch.exp(x) - 1)),
    }
    return made[key]


@op("RNN", "GRU", "LSTM")
def _recurrent(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h0: Tensor | None = None, c0: Tensor | None = None, peepholes: Tensor | None = None,
) -> Any:  # fmt: skip
    layout, hidden = node.attr("layout", 0), r.shape[2]
    if layout:
        x = x.transpose(0, 1)
        h0, c0 = (None if t is None else t.transpose(0, 1) for t in (h0, c0))
    directions, batch, steps = w.shape[0], x.shape[1], x.shape[0]
    activations = _activations(node, directions)
    if type(steps) is not int:
        y, *last_states = _over_steps(node, x, w, r, b, [h0] if node.type != "LSTM" else [h0, c0])
        y_h, y_c = (last_states * 2)[:2]
        return _in_layout(node, y, y_h, y_c)
    per = len(_DEFAULTS[node.type])
    zeros = torch.zeros((batch, hidden), dtype=x.dtype)
    rows: list[Tensor] = []
    last: list[Tensor] = []
    cells: list[Tensor] = []
    for d in range(directions):
        step = _Step(
            node, w[d], r[d], None if b is None else b[d], None if peepholes is None else peepholes[d], activations[d * per : d * per + per]
        )
        h = zeros if h0 is None else h0[d]
        c = zeros if c0 is None else c0[d]
        backwards = node.attr("direction", "forward") == "reverse" or d == 1
        outputs: list[Tensor] = [zeros] * steps
        for t in reversed(range(steps)) if backwards else range(steps):
            new_h, new_c = step(x[t], h, c)
            outputs[t] = new_h
            if lengths is not None:
                # Behind its end a sequence keeps its state and gives zeros.
                going = (lengths > t).reshape(-1, 1)
                outputs[t] = torch.where(going, new_h, zeros)
                new_h, new_c = torch.where(going, new_h, h), torch.where(going, new_c, c)
            h, c = new_h, new_c
        if lengths is not None:
            # An empty sequence ends in zeros, as in ONNX Runtime, whatever it begins with.
            some = (lengths > 0).reshape(-1, 1)
            h, c = torch.where(some, h, zeros), torch.where(some, c, zeros)
        rows.append(torch.stack(outputs, 0))
        last.append(h)
        cells.append(c)
    return _in_layout(node, torch.stack(rows, 1), torch.stack(last, 0), torch.stack(cells, 0))


def _in_layout(node: Node, y: Tensor, y_h: Tensor, y_c: Tensor) -> tuple[Tensor, ...]:
    if node.attr("layout", 0):
        y, y_h, y_c = y.permute(2, 0, 1, 3), y_h.transpose(0, 1), y_c.transpose(0, 1)
    return (y, y_h, y_c)[: max(node.outputs, 1)]


def is_usual(node: Node) -> bool:
    """Whether a network of PyTorch's does what a node does, of any number of steps."""
    names = [str(name).lower() for name in node.attr("activations") or ()]
    usual = [name.lower() for name in _DEFAULTS[node.type]] * 2
    given = [bool(name) for name in [*node.proto.input, *[""] * 8][:8]]
    return (
        names == usual[: len(names)]
        and node.attr("clip") is None
        and not node.attr("input_forget", 0)
        and not (given[4] or given[7])  # lengths, peepholes
        and (node.type != "GRU" or bool(node.attr("linear_before_reset", 0)))
    )


#: Where the gates of ONNX stand among those of PyTorch.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}


def _over_steps(node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, states: Sequence[Tensor | None]) -> list[Tensor]:
    """Run over as many steps as there are: PyTorch's function of a network does, for the activations that it has."""
    directions, hidden, kind = w.shape[0], r.shape[2], node.type
    fn: Any = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_tanh}[kind]
    rows = torch.cat([torch.arange(hidden) + gate * hidden for gate in _GATES[kind]])
    weights: list[Tensor] = []
    for d in range(directions):
        weights += [w[d].index_select(0, rows), r[d].index_select(0, rows)]
        if b is not None:
            weights += [half.index_select(0, rows) for half in b[d].chunk(2)]
    begin = [torch.zeros((directions, x.shape[1], hidden), dtype=x.dtype) if s is None else s for s in states]
    backwards = node.attr("direction", "forward") == "reverse"
    x = torch.flip(x, [0]) if backwards else x
    found = fn(x, begin if kind == "LSTM" else begin[0], weights, b is not None, 1, 0.0, False, directions == 2, False)
    y = found[0].reshape(x.shape[0], x.shape[1], directions, hidden).permute(0, 2, 1, 3)
    return [torch.flip(y, [0]) if backwards else y, *found[1:]]


class _Step:
    """One step of one direction."""

    def __init__(self, node: Node, w: Tensor, r: Tensor, b: Tensor | None, p: Tensor | None, activations: list[Activation]) -> None:
        self.node, self.w, self.r, self.p, self.f = node, w.t(), r.t(), p, activations
        self.hidden = r.shape[1]
        half = r.shape[0]
        self.bw = torch.zeros(half, dtype=w.dtype) if b is None else b[:half]
        self.br = torch.zeros(half, dtype=w.dtype) if b is None else b[half:]
        self.clip = node.attr("clip")

    def act(self, k: int, x: Tensor) -> Tensor:
        """Apply activation ``k`` to a clipped sum."""
        return self.f[k](x if self.clip is None else torch.clamp(x, -self.clip, self.clip))

    def __call__(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden state and cell."""
        if self.node.type == "RNN":
            return self.act(0, torch.addmm(self.bw + self.br, x, self.w) + torch.mm(h, self.r)), c
        return self.gru(x, h, c) if self.node.type == "GRU" else self.lstm(x, h, c)

    def gru(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return a step of a GRU; its gates are update, reset, hidden."""
        n = self.hidden
        gx = torch.addmm(self.bw, x, self.w)
        gh = torch.addmm(self.br[: 2 * n], h, self.r[:, : 2 * n])
        z, r = self.act(0, gx[:, :n] + gh[:, :n]), self.act(0, gx[:, n : 2 * n] + gh[:, n:])
        if self.node.attr("linear_before_reset", 0):
            inner = r * torch.addmm(self.br[2 * n :], h, self.r[:, 2 * n :])
        else:
            inner = torch.addmm(self.br[2 * n :], r * h, self.r[:, 2 * n :])
        new = self.act(1, gx[:, 2 * n :] + inner)
        return (1 - z) * new + z * h, c

    def lstm(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return a step of an LSTM; its gates are input, output, forget, cell."""
        n = self.hidden
        gates = torch.addmm(self.bw + self.br, x, self.w) + torch.mm(h, self.r)
        i, o, f, g = (gates[:, k * n : k * n + n] for k in range(4))
        if self.p is not None:
            i, f = i + self.p[:n] * c, f + self.p[2 * n :] * c
        i = self.act(0, i)
        f = 1 - i if self.node.attr("input_forget", 0) else self.act(0, f)
        c = f * c + i * self.act(1, g)
        if self.p is not None:
            o = o + self.p[n : 2 * n] * c
        return self.act(0, o) * self.f[2](c), c


class StepOf(OwnValue):
    """A step of the directions of a node, as a function of the state and of the node's weights."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __call__(
        self, d: int, x: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, b: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the next hidden state and cell of direction ``d``."""
        per = len(_DEFAULTS[self._node.type])
        activations = _activations(self._node, w.shape[0])[d * per : d * per + per]
        step = _Step(self._node, w[d], r[d], None if b is None else b[d], None if p is None else p[d], activations)
        return step(x, h, c)
