# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``flex_attention``: attention whose scores and mask are the user's own code.

PyTorch defines the operator by code that runs the user's graphs over all pairs of positions with ``vmap``. That code is traced on tensors
without data, and the graph of ATen operations that comes out is recorded like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.flex_attention import sdpa_dense, sdpa_dense_backward
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.unrecorded import unrecorded


@contextmanager
def _not_recording() -> Any:
    """Suspend the modes that record operations."""
    with ExitStack() as stack:
        stack.enter_context(unrecorded())
        for _ in range(torch._C._len_torch_function_stack()):
            stack.enter_context(torch.overrides._pop_mode_temporarily())
        yield


def by_definition(definition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler of an operator that is recorded as the ATen operations of its definition in Python."""

    def handler(session: Any, run: Any, *args: Any) -> Any:
        leaves, spec = pytree.tree_flatten(args)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]

        def call(*given: torch.Tensor) -> Sequence[Any]:
            rest = iter(given)
            found: Sequence[Any] = definition(
                *pytree.tree_unflatten([next(rest) if isinstance(x, torch.Tensor) else x for x in leaves], spec)
            )
            return found

        try:
            with _not_recording(), FakeTensorMode():
                fakes = [torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype) for x in tensors]
                graph = make_fx(call)(*fakes)
        except Exception as error:
            reason = f"{definition.__name__} cannot be traced: {str(error).strip()}"
            raise UnsupportedError(reason, session.origin(), "write the attention with matmul and softmax") from error
        return run(session, graph, tensors)

    return handler


HANDLERS: dict[str, Callable[..., Any]] = {
    "flex_attention": by_definition(sdpa_dense),
    "flex_attention_backward": by_definition(sdpa_dense_backward),
}
