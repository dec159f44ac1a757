# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Results whose shape depends on where a loop stopped: one return site, whose tensors are the first elements of buffers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dycl_tvm
from dycl_tvm.runtime.structure import first, leaf_types, parts_of
from dycl_tvm.verify.same import difference

X = torch.tensor([[0.5, 1.5, -2.0], [3.0, 0.25, 1.0]])
LIMITS = [0.0, 6.0, 9.0, 14.0, 30.0, 500.0, 6.0]


def grows(x, limit):
    c, d = x, x[None]
    while c.shape[1] < 9 and c.sum() < limit:
        c = torch.cat([c, c[:, -1:] + 1], 1)
        d = torch.cat([d, d[:, :, -1:] * 1.1], 2)
    return c, {"d": d, "n": c.shape[1]}, c[:1] * 2, c.t()


@pytest.fixture(scope="module")
def artifact():
    return dycl_tvm.build(grows, (X, torch.tensor(9.0)))


def test_one_return_site_for_all_lengths(artifact):
    assert len(artifact.hcfg.return_sites()) == 1


def test_shapes_of_a_library(artifact, tmp_path):
    module = dycl_tvm.load(artifact.export_library(tmp_path / "n.so"), artifact.save_params(tmp_path / "n.params"))
    lengths = set()
    for limit in LIMITS:
        given = (X, torch.tensor(limit))
        want = grows(*given)
        assert difference(want, module(*given)) is None
        arrays = module(*(t.numpy() for t in given))
        assert isinstance(arrays[0], np.ndarray) and np.allclose(arrays[0], want[0]) and arrays[3].shape == want[3].shape
        lengths.add(want[1]["n"])
    assert len(lengths) == 5


def test_the_code_does_not_grow_with_the_bound():
    def steps(bound):
        def f(x, limit):
            while x.shape[1] < bound and x.sum() < limit:
                x = torch.cat([x, x[:, -1:] + 1], 1)
            return x

        graph = dycl_tvm.stage(f, (X, torch.tensor(9.0)))
        return len(graph.blocks), sum(len(b.steps) for b in graph.blocks)

    assert steps(9) == steps(60)


def test_the_first_elements():
    whole = torch.arange(12).reshape(2, 6)
    assert torch.equal(first(whole, [(1, 2)]), torch.tensor([[0, 1], [2, 3]]))
    assert first(whole.numpy(), [(0, 1)]).shape == (1, 6) and first(whole, [(1, 0)]).shape == (2, 0)
    assert torch.equal(first(whole, [(0, 1), (1, 3)]), torch.tensor([[0, 1, 2]]))
    for length in (7, -1):
        with pytest.raises(IndexError):
            first(whole, [(0, 1), (1, length)])
    length = {"leaf": 0, "type": "int"}
    leaf = {"leaf": 1, "type": "tensor", "along": 0, "length": length}
    assert parts_of({"list": [leaf]}) == {1: [(0, 0)]} and leaf_types(leaf) == ["int", "tensor"]
    both = {"leaf": 2, "type": "tensor", "along": [0, 1], "length": [length, {"leaf": 1, "type": "int"}]}
    assert parts_of({"list": [both]}) == {2: [(0, 0), (1, 1)]} and leaf_types(both) == ["int", "int", "tensor"]
