# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What PyTorch hands to its compiler as the Python that it is: compiled functions, and operators that take functions (``cond``)."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey  # type: ignore[attr-defined]
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch._ops import HigherOrderOperator
from torch.utils._pytree import tree_leaves, tree_map


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def _switch(index: Any, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> Any:
    return branches[int(index)](*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Sequence[Any], others: Sequence[Any]) -> Any:
    values = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)
    while cond_fn(*values, *others):
        values = tuple(body_fn(*values, *others))
    return values


def _scan(combine_fn: Callable[..., Any], init: Sequence[Any], xs: Sequence[torch.Tensor], others: Sequence[Any]) -> Any:
    carry, outs = init, []
    for row in zip(*(x.unbind(0) for x in xs)):
        carry, out = combine_fn(*tree_leaves(carry), *row, *others)
        outs.append(out)
    return carry, tree_map(lambda *steps: torch.stack(steps), *outs)


#: Operators whose code for a CPU in PyTorch refuses to run under a mode, asks one question twice, or takes only what was compiled.
_OWN: dict[HigherOrderOperator, Callable[..., Any]] = {cond_op: _cond, while_loop_op: _while_loop, scan_op: _scan}
with contextlib.suppress(ImportError):  # before PyTorch 2.14
    _OWN[importlib.import_module("torch._higher_order_ops.switch").switch_op] = _switch


class SeesFunctions:
    """A mode that looks into PyTorch's operators that take functions, instead of refusing them."""

    supports_higher_order_operators = True

    def call_functions(self, operator: HigherOrderOperator, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do what an operator does on a CPU, step by step under this mode."""
        kernel = _OWN.get(operator) or operator.py_kernels[DispatchKey.CompositeExplicitAutograd]
        with self:  # type: ignore[attr-defined]
            return kernel(*args, **kwargs)


def takes_functions(operator: Any) -> bool:
    """Tell whether an operator that a mode is given is one of those."""
    return not isinstance(operator, torch._ops.OpOverload)


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """Let compiled functions, also those that PyTorch compiles by itself, run as they were written.

    The compiler does not work under a mode, and takes seconds to import, so nothing here imports it.
    """
    before = torch.compile
    torch.compile = _as_it_is  # type: ignore[assignment]
    try:
        with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext():
            yield
    finally:
        torch.compile = before


def _as_it_is(model: Any = None, **_options: Any) -> Any:
    return (lambda function: function) if model is None else model
