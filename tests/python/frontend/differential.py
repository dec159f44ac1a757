# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Comparing a staged graph, run by the reference interpreter, with eager PyTorch."""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.runtime.classes import name_of
from dycl_tvm.runtime.structure import flatten_call
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.control import check_control


def same(a: Any, b: Any) -> bool:
    """Whether an eager result and an artefact's agree: structure and Python values exactly, tensors and floats within 1e-5."""
    if isinstance(a, np.generic):
        # a number known only at run time is Python's where NumPy would make one of its own
        return type(a) is type(b) and same(a.item(), b.item()) if isinstance(b, np.generic) else same(a.item(), b)
    if isinstance(a, np.ndarray):
        return type(a) is type(b) and same(torch.tensor(a.copy()), torch.tensor(b.copy()))
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.shape == b.shape
            and a.dtype == b.dtype
            and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        )
    fields = [f.name for f in dataclasses.fields(a)] if dataclasses.is_dataclass(a) else getattr(a, "_fields", None)
    if fields is not None:
        found_again = name_of(type(a)) is not None
        alike = type(a) is type(b) if found_again else type(a).__name__ == type(b).__name__
        return alike and all(same(getattr(a, f), getattr(b, f)) for f in fields) and (not found_again or _same_attributes(a, b))
    if isinstance(a, (list, tuple, collections.deque)):
        bounds = getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return type(a) is type(b) and len(a) == len(b) and bounds and all(same(x, y) for x, y in zip(a, b)) and _same_attributes(a, b)
    if isinstance(a, dict):
        factories = getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
        return type(a) is type(b) and list(a) == list(b) and factories and all(same(a[k], b[k]) for k in a) and _same_attributes(a, b)
    if isinstance(a, float):
        if a == b == 0:
            return type(b) is float and math.copysign(1, a) == math.copysign(1, b)
        return type(b) is float and (a == b or math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) or (a != a and b != b))
    return type(a) is type(b) and a == b


def _same_attributes(a: Any, b: Any) -> bool:
    mine, others = getattr(a, "__dict__", {}), getattr(b, "__dict__", {})
    return list(mine) == list(others) and all(same(mine[k], others[k]) for k in mine)


def leaves(args: Any) -> list[Any]:
    """Return the tensors of an argument structure, in order."""
    return [x for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]


def given(graph: HCFG, args: tuple[Any, ...]) -> list[Any]:
    """Return the inputs of a graph in a call: a tensor that was given twice in the example is one input."""
    return [leaf for _, leaf in flatten_call(graph.input_structure, args, {}, graph.input_names)]


def check(
    model: Callable[..., Any], inputs: Iterable[tuple[Any, ...]], *, paths: int = 1, blocks: int | None = None, **options: Any
) -> HCFG:
    """Stage a model and compare it with eager on every input; demand that the inputs take at least ``paths`` different paths.

    Eager runs on a deep copy, so that state left by one call cannot hide a difference.
    """
    inputs = list(inputs)
    graph = stage(model, inputs[0], **options)
    verify(graph)
    check_control(model, graph, inputs[0], {}, budget=Budget(0.1))
    taken = set()
    for args in inputs:
        want: Any
        try:
            with torch.no_grad():
                want = _copy(model)(*copy.deepcopy(args))
        except Exception as error:
            want = error
        try:
            call = graph.interpret()
            got = call(*copy.deepcopy(args))
            taken.add(call.last_path.key())
        except Exception as error:
            got = error
            taken.add(type(error).__name__)
        if isinstance(want, Exception) or isinstance(got, Exception):
            assert type(want).__name__ == type(got).__name__, f"eager {want!r}, staged {got!r}"
        else:
            assert same(want, got), f"eager {want}, staged {got}"
    assert len(taken) >= paths, f"the inputs took {len(taken)} paths only"
    if blocks is not None:
        assert len(graph.blocks) <= blocks, f"{len(graph.blocks)} blocks"
    return graph


def _copy(model: Any) -> Any:
    return copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model


def compare_at_sizes(
    model: Any, call: Any, shape: Sequence[int], sizes: Iterable[int], cases: Iterable[Sequence[int]], equal_nan: bool = False
) -> bool:
    """Compare a call of one tensor with eager, each case at sizes of its dimensions ``sizes``; tell whether both raise at some."""
    refused = False
    for given in cases:
        own = [dict(zip(sizes, given)).get(d, n) for d, n in enumerate(shape)]
        x = torch.randn(own, generator=torch.Generator().manual_seed(sum(own)))
        try:
            with torch.no_grad():
                want = model(x)
        except RuntimeError:
            refused = True
            with pytest.raises(RuntimeError):
                call(x)
            continue
        told = f"at {own}: "
        torch.testing.assert_close(call(x), want, rtol=1e-4, atol=1e-5, equal_nan=equal_nan, msg=lambda text, told=told: told + text)
    return refused
