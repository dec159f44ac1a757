# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's own samples of control flow: the higher-order operators of ``hop_db``, and the examples of the export database."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._export.db.examples import all_examples
from torch.testing._internal.hop_db import hop_db

from dycl_tvm import passes
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.exported import stage_exported
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify

#: What is refused, and why (the beginning of the message). The rest of the examples must agree with eager.
REFUSED_EXAMPLES = {
    "user_input_mutation": "changes its input `x` in place",
}
REFUSED_OPERATORS = {
    "while_loop_stack_output": "while_loop_stack_output is not supported",
    "auto_functionalize": "testlib.mutating_custom_op.default is not PyTorch's",
    "inline_asm_elementwise": "inline_asm_elementwise is not supported",
    "flex_gemm": "flex_gemm is not supported",  # of PyTorch 2.14
}
#: What only Dynamo can trace, or what it only does for its decorator.
STRICT = {"assume_constant_result", "flex_attention_backward"}
#: Samples that torch.export itself does not take: it says that their operators are not allowed in a program.
NOT_EXPORTABLE = {"invoke_quant", "local_map_hop"}

EXAMPLES = {name: case for name, case in all_examples().items() if case.support_level.name == "SUPPORTED"}


class Call(nn.Module):
    """Calls a function; what among its arguments is not a tensor (functions, block masks) is bound."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.args = function, args

    def forward(self, *tensors: Any, **kwargs: Any) -> Any:
        rest = iter(tensors)
        return self.function(*(next(rest) if is_input(a) else a for a in self.args), **kwargs)


def is_input(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or (isinstance(x, list) and all(isinstance(a, torch.Tensor) for a in x))


def check(model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any = None, strict: bool = False) -> None:
    exported = torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    graph = stage_exported(exported, args, kwargs, max_length=8)
    wanted = pytree.tree_leaves(exported.module()(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
    leaves = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    for _ in range(2):
        verify(graph)
        found = pytree.tree_leaves(interpret(graph, [x.clone() for x in leaves])[0])
        assert len(found) == len(wanted)
        for got, want in zip(found, wanted):
            torch.testing.assert_close(got, want)
        passes.run_passes(graph)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_of_the_export_database(name: str) -> None:
    case = EXAMPLES[name]
    if name in REFUSED_EXAMPLES:
        with pytest.raises(UnsupportedError, match=REFUSED_EXAMPLES[name]):
            check(case.model, case.example_args, case.example_kwargs, case.dynamic_shapes)
    else:
        check(case.model, case.example_args, case.example_kwargs, case.dynamic_shapes, strict=name in STRICT)


OPERATORS = {f"{info.name}-{info.variant_test_name}": info for info in hop_db if info.name not in NOT_EXPORTABLE}


@pytest.mark.parametrize("name", OPERATORS)
def test_sample_of_a_higher_order_operator(name: str) -> None:
    info = OPERATORS[name]
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        args = (sample.input, *sample.args)
        model, given = Call(info.op, args), tuple(a for a in args if is_input(a))
        if info.name in REFUSED_OPERATORS:
            with pytest.raises(UnsupportedError, match=REFUSED_OPERATORS[info.name]):
                check(model, given, sample.kwargs)
        else:
            check(model, given, sample.kwargs, strict=info.name in STRICT)


def test_every_branch_of_a_switch() -> None:
    switch = pytest.importorskip("torch._higher_order_ops.switch", reason="PyTorch 2.14 has it first").switch

    class Switched(nn.Module):
        def forward(self, x: torch.Tensor, which: torch.Tensor) -> Any:
            sides = (lambda x, y: (x.cos(), y + 1), lambda x, y: (x.sin(), y * 2), lambda x, y: (x + y, x.sum(0)))
            first, second = switch(which, sides, (x, x.sum(0)))
            return switch((first.sum() > 0).long(), (lambda x: x + 1, lambda x: -x), (first,)), second

    model, args = Switched(), (torch.ones(2, 3), torch.tensor(1))
    graph = stage_exported(torch.export.export(model, args), args, {})
    for _ in range(2):
        verify(graph)
        for which in (-9, -1, 0, 1, 2, 3, 100):
            for x in (torch.ones(2, 3), -torch.ones(2, 3), torch.randn(2, 3)):
                found, wanted = interpret(graph, [x, torch.tensor(which)])[0], model(x, torch.tensor(which))
                for got, want in zip(found, wanted, strict=True):
                    torch.testing.assert_close(got, want)
        passes.run_passes(graph)
