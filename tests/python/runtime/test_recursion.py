# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Recursion whose depth the data decide, compiled: results, state, the path, the bound of the depth."""

from __future__ import annotations

import copy

import pytest
import torch

import dycl_tvm
from dycl_tvm.errors import RunError, UnsupportedError


class Tree(torch.nn.Module):
    """Two functions that call each other, numbers and tensors that outlive a call, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.Linear(8, 4)
        self.visited = 0
        self.register_buffer("sum", torch.zeros(4))

    def even(self, words, left, right, node, depth):
        self.visited += 1
        if left[node] < 0:
            self.sum = self.sum + words[node]
            return words[node], depth
        a, n = self.odd(words, left, right, int(left[node]), depth + 1)
        b, m = self.even(words, left, right, int(right[node]), depth + 1)
        return torch.tanh(self.cell(torch.cat([a, b]))) + depth, max(n, m)

    def odd(self, words, left, right, node, depth):
        if left[node] < 0:
            return words[node] * 2, depth
        a, n = self.odd(words, left, right, int(left[node]), depth + 1)
        b, m = self.even(words, left, right, int(right[node]), depth + 1)
        return a * b - self.sum, n + m

    def forward(self, words, left, right):
        return self.even(words, left, right, 0, 0)


def _comb(leaves: int) -> tuple[torch.Tensor, ...]:
    """Return a tree whose right children are leaves."""
    size = 2 * leaves - 1
    left = torch.tensor([k + 2 if k % 2 == 0 and k + 2 < size else -1 for k in range(size)])
    right = torch.where(left < 0, -1, torch.arange(size) + 1)
    return torch.linspace(-1, 1, 4 * 63).reshape(63, 4), *(torch.nn.functional.pad(t, (0, 63 - size), value=-1) for t in (left, right))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    torch.manual_seed(0)
    model = Tree()
    artefact = dycl_tvm.build(model, _comb(3), max_recursion=20)
    path = tmp_path_factory.mktemp("recursion") / "tree.so"
    artefact.export_library(path, embed_params=True)
    return model, artefact, dycl_tvm.load(path)


def test_results_and_state_of_every_call(built):
    model, _, loaded = built
    model = copy.deepcopy(model)
    loaded.reset_state()
    for leaves in (1, 2, 7, 18, 3):
        with torch.no_grad():
            want, depth = model(*_comb(leaves))
        got, reached = loaded(*_comb(leaves))
        torch.testing.assert_close(torch.as_tensor(got), want)
        assert reached == depth


def test_too_deep_is_an_error_and_changes_nothing(built):
    model, _, loaded = built
    model = copy.deepcopy(model)
    loaded.reset_state()
    for leaves in (4, 31, 4):
        if leaves == 31:
            with pytest.raises(RunError, match="max_recursion = 20"):
                loaded(*_comb(leaves))
            continue
        with torch.no_grad():
            want, _ = model(*_comb(leaves))
        torch.testing.assert_close(torch.as_tensor(loaded(*_comb(leaves))[0]), want)


def test_the_build_has_proved_itself(built):
    certificate = built[1].certificate
    assert certificate["control"]["calls"] > 0
    assert certificate["kernels"]["calls"] > 0
    assert certificate["staging"] == {"max_recursion": 20}


def test_on_a_gpu_it_is_refused():
    with pytest.raises(UnsupportedError, match="not supported on GPUs"):
        dycl_tvm.build(Tree(), _comb(3), target="cuda -arch=sm_80", verify="off")
