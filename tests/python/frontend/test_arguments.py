# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Walks over the arguments of operators: as PyTorch's own ones, and keys that keep apart what operators keep apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from dycl_tvm.frontend.trace.values.arguments import key_of, leaves, map_leaves, map_tensors, tensors_of

T, U = torch.empty(2, 3), torch.empty(3, 2).t()

TREES: list[Any] = [
    T,
    None,
    (),
    [],
    {},
    (T, [U, None, 1], {"dim": [0, (U,)], "keep": True}),
    [[[]], {"a": {}}],
    (torch.float32, torch.Size([2]), immutable_list([T, immutable_list([1])]), immutable_dict({"a": T})),
]


@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_leaves_are_those_of_pytorch(tree: Any) -> None:
    expected, spec = pytree.tree_flatten(tree)
    assert [id(a) for a in leaves(tree)] == [id(a) for a in expected]
    assert [id(a) for a in tensors_of(tree)] == [id(a) for a in expected if isinstance(a, torch.Tensor)]
    numbers = iter(range(len(expected)))
    assert map_leaves(lambda _: next(numbers), tree) == pytree.tree_unflatten(list(range(len(expected))), spec)
    assert map_tensors(lambda t: t.dim(), tree) == pytree.tree_map(lambda a: a.dim() if isinstance(a, torch.Tensor) else a, tree)


def test_containers_are_copied() -> None:
    dims, named = [0, 1], {"dtype": None}
    copied = map_leaves(lambda a: a, (dims, named))
    assert copied == (dims, named)
    assert copied[0] is not dims
    assert copied[1] is not named


DIFFERENT: list[Any] = [
    *(0, 1, -1, False, True, 0.0, -0.0, 1.0, float("nan"), float("inf"), None, "None", "1"),
    *((), [], {}, (1,), [1], [True], [1.0], [[1]], {"a": 1}, {"b": 1}, {"a": True}),
    *(torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), torch.channels_last),
    *(T, U, T.double(), T[:1], T.flatten(), torch.empty(2, 3, 1)),
]


def test_keys_differ_where_an_operator_may() -> None:
    keys = [key_of(node) for node in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)


def test_keys_of_equal_arguments_are_equal() -> None:
    def make() -> Any:
        return (torch.randn(2, 3).t(), [1, float("nan"), None]), {"dtype": torch.int64, "device": torch.device("cpu")}

    assert key_of(make()) == key_of(make())
    assert key_of([1, (2,)]) == key_of(immutable_list([1, torch.Size([2])]))
