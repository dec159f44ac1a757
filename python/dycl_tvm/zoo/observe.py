# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which way an input goes through a network, seen from outside: by hooks, without a word in the network's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dycl_tvm.zoo.registry import Entry

#: The qualified names of the leaf modules in the order in which they ran, and the result without its tensors.
Path = tuple[tuple[str, ...], Any]


@contextmanager
def executed_modules(model: nn.Module) -> Iterator[list[str]]:
    """Within the context, collect the qualified names of the leaf modules that run."""
    found: list[str] = []

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _module, _args, _output: found.append(name)

    leaves = [(name, m) for name, m in model.named_modules() if not any(True for _ in m.children())]
    handles = [m.register_forward_hook(hook(name)) for name, m in leaves]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def path_of(model: nn.Module, inputs: tuple[Any, ...]) -> Path:
    """Run a network on one input and return its path."""
    with torch.no_grad(), executed_modules(model) as found:
        output = model(*inputs)
    return tuple(found), _without_tensors(output)


def observed_paths(entry: Entry, n: int, seed: int = 1) -> Counter[Path]:
    """Run a network on ``n`` of its inputs and count the paths."""
    return Counter(path_of(entry.model, inputs) for inputs in entry.inputs(n, seed))


def _without_tensors(value: Any) -> Any:
    """Return a hashable picture of a result, in which every tensor is alike."""
    if isinstance(value, Tensor):
        return Tensor
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(_without_tensors(v) for v in value)
    if isinstance(value, dict):
        return "dict", tuple((k, _without_tensors(v)) for k, v in value.items())
    return value
