# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's control flow operators, checks and ``Variable`` as the Python they stand for: like the user's own code, it runs rewritten."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._higher_order_ops.scan import _fake_scan
from torch.utils import _pytree as pytree

#: Whether ``scan`` along another dimension than the first stacks along it what the steps give: PyTorch 2.13 does, earlier ones do not.
_STACKS_ALONG = _fake_scan(lambda c, x: (c, x), torch.zeros(2), torch.zeros(2, 3), 1)[1].shape == (2, 3)


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, *_caller: Any, **_names: Any) -> Iterator[None]:
    """Stand for ``torch.random.fork_rng``: no other device than the CPU has random numbers here."""
    if not enabled:
        yield
        return
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def variable(data: Any = None, requires_grad: bool = False, volatile: bool = False) -> torch.Tensor:
    """Stand for ``torch.autograd.Variable``, which has given a tensor with the same memory since PyTorch 0.4."""
    if data is None:
        data = torch.tensor([])
    elif not isinstance(data, torch.Tensor):
        raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
    made = data.detach()
    return made.requires_grad_() if requires_grad else made


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """Stand for ``torch.cond``."""
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def switch(index: Any, branches: Sequence[Callable[..., Any]], operands: Sequence[Any] = ()) -> Any:
    """Stand for ``torch.switch``, of PyTorch 2.14: an index out of range means the nearest branch."""
    chosen = int(index)
    for number, branch in enumerate(branches[:-1]):
        if chosen <= number:
            return branch(*operands)
    return branches[-1](*operands)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any]) -> Any:
    """Stand for ``while_loop``, whose results are never its inputs."""
    carried = tuple([x.clone() if isinstance(x, torch.Tensor) else x for x in carried_inputs])
    while cond_fn(*carried):
        carried = tuple(body_fn(*carried))
    return carried


def scan(combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """Stand for ``scan``: a carried value goes through the slices of tensors, and what each step gives is stacked."""
    leaves, spec = pytree.tree_flatten(xs)
    if not leaves:
        return init, []
    dim %= leaves[0].dim()
    slices = [x.unbind(dim) for x in leaves]
    count = len(slices[0])
    carry, outs = init, []
    for i in range(count):
        at = count - 1 - i if reverse else i
        carry, out = combine_fn(carry, pytree.tree_unflatten([s[at] for s in slices], spec))
        outs.append(out)
    if reverse:
        outs.reverse()
    return carry, pytree.tree_map(lambda s: s.movedim(0, dim) if _STACKS_ALONG and dim < s.dim() else s, _stacked(outs))


def map_rows(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """Stand for ``map``: what a function gives for each row of tensors is stacked."""
    leaves, spec = pytree.tree_flatten(xs)
    slices = [x.unbind(0) for x in leaves]
    return _stacked([f(pytree.tree_unflatten([s[i] for s in slices], spec), *args) for i in range(len(slices[0]))])


def _stacked(outs: list[Any]) -> Any:
    """Return what steps gave, each of its tensors stacked over the steps."""
    rows, spec = [pytree.tree_flatten(out)[0] for out in outs], pytree.tree_flatten(outs[0])[1]
    return pytree.tree_unflatten([torch.stack([row[k] for row in rows]) for k in range(len(rows[0]))], spec)


def check(cond: Any, message: Callable[[], Any] | None = None, error_type: type[Exception] = RuntimeError) -> None:
    """Stand for ``torch._check``."""
    if isinstance(cond, torch.Tensor):
        raise TypeError("cond must be a bool, but got a Tensor")
    if not cond:
        raise error_type("Expected cond to be True, but got False." if message is None else str(message()))


def check_index(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Stand for ``torch._check_index``."""
    check(cond, message, IndexError)


def check_value(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Stand for ``torch._check_value``."""
    check(cond, message, ValueError)


def check_type(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Stand for ``torch._check_type``."""
    check(cond, message, TypeError)


def check_not_implemented(cond: Any, message: Callable[[], Any] | None = None) -> None:
    """Stand for ``torch._check_not_implemented``."""
    check(cond, message, NotImplementedError)


def check_tensor_all(cond: torch.Tensor, message: Callable[[], Any] | None = None) -> None:
    """Stand for ``torch._check_tensor_all``."""
    check(cond.all().item(), message)


def check_with(error_type: type[Exception], cond: Any, message: Callable[[], Any] | None) -> None:
    """Stand for ``torch._check_with``."""
    check(cond, message, error_type)


def check_tensor_all_with(error_type: type[Exception], cond: torch.Tensor, message: Callable[[], Any] | None = None) -> None:
    """Stand for ``torch._check_tensor_all_with``."""
    check(cond.all().item(), message, error_type)


def check_is_size(i: Any, message: Callable[[], Any] | None = None, *, max: Any = None) -> None:
    """Stand for ``torch._check_is_size``."""
    check(i >= 0, message)
    if max is not None:
        check(i <= max, message)


def check_assert(condition: Any, message: Any) -> None:
    """Stand for ``torch._assert``."""
    assert condition, message


def check_async(condition: torch.Tensor, message: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    """Stand for ``torch._assert_async``."""
    check(bool(condition), lambda: message)
