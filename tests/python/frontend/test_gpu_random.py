# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks for GPUs draw what eager draws there, on every path; what is not known to be drawn alike is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from differential import same
from programs_random import PROGRAMS, made
from test_random import INPUTS
from torch import nn

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, VerificationError
from dycl_tvm.hcfg.cuda_draws import CUDA
from dycl_tvm.hcfg.nodes import TensorOp
from dycl_tvm.verify.as_on_gpu import drawing_as_on
from dycl_tvm.verify.control import check_control

#: Of the programs, those with what is refused.
_REFUSED = {
    "seeded_by_data": "randperm",
    "forked": "fork_rng",
    "states": "get_rng_state",
    "whole_numbers": "randperm",
    "multinomials": "several samples",
    "parameters": "random numbers of this distribution",
}


def check(program: Any, seed: int, inputs: list[tuple[Any, ...]] = INPUTS) -> None:
    """Compare calls in succession with eager."""
    call = dycl_tvm.stage(program, inputs[0], device="cuda").interpret()
    call.manual_seed(seed)
    torch.manual_seed(seed)
    eager = copy.deepcopy(program)
    for args in inputs * 2:
        with torch.no_grad(), drawing_as_on("cuda"):
            want = eager(*copy.deepcopy(args))
        state = torch.get_rng_state()
        got = call(*args)
        torch.set_rng_state(state)
        assert same(want, got), f"eager {want}, graph {got}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_are_those_of_eager_on_a_gpu(name: str) -> None:
    if name in _REFUSED:
        with pytest.raises(UnsupportedError, match=_REFUSED[name]):
            dycl_tvm.stage(made(name), INPUTS[0], device="cuda")
    else:
        check(made(name), 2**40 + 7)


def _forked(x: Any) -> Any:
    torch.manual_seed(3)
    with torch.random.fork_rng():
        if x.sum() > 0:
            x = x + torch.rand_like(x)
    return x, torch.rand(2)


def _seeded_by_data(x: Any) -> Any:
    torch.manual_seed(int(x.abs().sum()))
    return torch.randn(3)


def _sampled(x: Any) -> Any:
    picked = torch.multinomial(x.softmax(-1), 1)
    if (picked > 2).any():
        return torch.multinomial(x.softmax(-1).t(), 1, True), picked
    return torch.distributions.Categorical(logits=x, validate_args=False).sample(), picked


def _whole_numbers(x: Any) -> Any:
    small = torch.randint(-5, 100, (2, 3))
    return small, torch.randint(0, (1 << 28) - 1, (4,)), torch.randint(-(1 << 40), 1 << 40, (5,)), x.clone().random_(0, 9)


def _decided_while_staged(x: Any) -> Any:
    torch.manual_seed(5)
    return x[:, torch.randint(0, 5, (2,)).tolist()] if float(torch.rand(1)) > 0.5 else x


def _dropouts(x: Any) -> Any:
    wide = torch.cat([x.flatten()] * 90)
    return F.dropout(x, 0.3, True), F.dropout(x[:, :3].clone(), 0.5, True), F.dropout(wide, 0.2), F.dropout(x.clone(), 0.4, True, True)


def _dropouts_of_features(x: Any) -> Any:
    return (
        F.dropout1d(x[None], 0.5),
        F.alpha_dropout(x, 0.4, True),
        F.dropout(x, 0.5, False),
        F.dropout(x, 0.0, True),
        F.dropout(x, 1.0, True),
    )


@pytest.mark.parametrize(
    "program", [_forked, _seeded_by_data, _sampled, _whole_numbers, _decided_while_staged, _dropouts, _dropouts_of_features]
)
def test_programs_of_gpus(program: Any) -> None:
    check(program, 11)


def test_a_generator_of_the_model_begins_with_its_seed() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator().manual_seed(5)

        def forward(self, x: Any) -> Any:
            kept = self.generator.get_state()
            first = torch.rand(3, generator=self.generator)
            if x.sum() > 0:
                self.generator.set_state(kept)
            return first, x + torch.rand(2, generator=torch.Generator().manual_seed(1))[0]

    model = Own()
    call = dycl_tvm.stage(model, INPUTS[0], device="cuda").interpret()
    seeded = CUDA.draws.uniform(CUDA.of_seed(5), [3], 0.0, 1.0, torch.float32)
    assert torch.equal(call(*INPUTS[0])[0], seeded[0])
    torch.rand(1, generator=model.generator)
    with pytest.raises(UnsupportedError, match="drawn on the CPU"):
        dycl_tvm.stage(model, INPUTS[0], device="cuda")


LSTM = nn.LSTM(5, 5, 2, dropout=0.5).eval().requires_grad_(False)


def _training(x: Any) -> Any:
    return torch.lstm(x[:, None], (torch.zeros(2, 4, 5),) * 2, LSTM._flat_weights, True, 2, 0.5, True, False, True)[0]


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "permutation": (lambda x: x[torch.randperm(4)], "randperm"),
    "several samples": (lambda x: torch.multinomial(x.softmax(-1), 2), "several samples"),
    "with replacement": (lambda x: torch.multinomial(x.softmax(-1), 3, True), "several samples"),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), "scaled_dot_product_attention.* a way of its own"),
    "recurrent": (_training, "lstm.* a way of its own"),
    "an operator": (lambda x: torch.ops.aten.dropout(x, 0.5, True), "a way of its own"),
    "columns": (lambda x: F.dropout(x.t(), 0.5, True), "not contiguous"),
    "a part": (lambda x: F.dropout(x[1:], 0.5, True), "begins within another"),
    "halves": (lambda x: F.dropout(x.half(), 0.5, True), "float16"),
    "probabilities in columns": (lambda x: torch.empty(5, 4).t().bernoulli_(x.sigmoid()), "not contiguous"),
    "the CPU's state": (lambda x: (torch.get_rng_state(), x), "get_rng_state"),
    "the CPU's seed": (lambda x: (torch.default_generator.manual_seed(1), x)[1], "manual_seed"),
    "a part of the generators": (lambda x: (torch.random.fork_rng([]).__enter__(), x)[1], "fork_rng"),
    "as many as the data decide": (lambda x: torch.rand(int((x > 0).sum())), "as the data decide, on a GPU"),
    "huge": (lambda x: x + torch.rand(1 << 29).sum(), "2\\*\\*31"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_of_gpus_is_refused(name: str) -> None:
    program, words = REFUSED[name]
    with pytest.raises(UnsupportedError, match=words):
        dycl_tvm.stage(program, INPUTS[0], device="cuda")


def _other_state(graph: Any, draw: TensorOp) -> None:
    draw.args = (graph.entry.params[-1], *draw.args[1:])


def _as_bernoulli(graph: Any, draw: TensorOp) -> None:
    draw.op = draw.op.replace("dropout", "bernoulli")


@pytest.mark.parametrize("change", [_other_state, _as_bernoulli])
def test_the_check_of_builds_sees_what_is_drawn_otherwise(change: Callable[[Any, TensorOp], None]) -> None:
    def program(x: Any) -> Any:
        y = F.dropout(x, 0.5, True)
        return F.dropout(y, 0.5, True) if y.sum() > 0 else y

    graph = dycl_tvm.stage(program, INPUTS[0], device="cuda", passes=False)
    check_control(program, graph, INPUTS[0], {}, device="cuda")
    draws = [s for b in graph.blocks for s in b.steps if isinstance(s, TensorOp) and s.op == "dycl_philox.dropout.default"]
    change(graph, draws[-1])
    with pytest.raises(VerificationError):
        check_control(program, graph, INPUTS[0], {}, device="cuda")
