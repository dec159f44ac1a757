# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Objects of the user's classes as inputs: they are made of their attributes, and come back as what they are."""

from __future__ import annotations

import copy

import pytest
import torch
from differential import stage

import dycl_tvm
from dycl_tvm.errors import InputError, UsageError
from dycl_tvm.verify.same import difference


class Cache:
    def __init__(self, k, kind=torch.float32):
        self.k, self.kind, self.parts, self.of = k, kind, [Part(k[:1] * 2)], Part

    def update(self, x):
        self.k = torch.cat([self.k, x.to(self.kind)])
        self.parts[0].v = self.parts[0].v + x.sum()
        return self.k


class Part:
    def __init__(self, v):
        self.v = v


def step(x, cache):
    whole = cache.update(x)
    if whole.sum() > 3:
        cache.parts.append(cache.of(whole[-1:]))
    return whole.sum(), cache


X = torch.ones(1, 2)
CALLS = [(X * a, Cache(torch.full((2, 2), b))) for a, b in ((1.0, 0.5), (-3.0, 1.0), (0.2, -2.0), (4.0, 0.0))]


def test_they_come_back_as_what_they_are(tmp_path):
    artifact = dycl_tvm.build(step, copy.deepcopy(CALLS[0]))
    module = dycl_tvm.load(artifact.export_library(tmp_path / "n.so"), artifact.save_params(tmp_path / "n.params"))
    counts = set()
    for call in CALLS:
        want, (number, cache) = step(*copy.deepcopy(call)), module(*copy.deepcopy(call))
        assert type(cache) is Cache and type(cache.parts[0]) is Part and cache.kind is torch.float32
        assert difference(want[0], number) is None and difference(want[1].k, cache.k) is None
        assert [difference(a.v, b.v) for a, b in zip(want[1].parts, cache.parts, strict=True)] == [None] * len(cache.parts)
        counts.add(len(cache.parts))
    assert counts == {1, 2}


def test_another_object_is_refused():
    call = stage(step, copy.deepcopy(CALLS[0])).interpret()
    with pytest.raises(InputError, match="must be a Cache with the attributes k, kind, parts, of"):
        call(X, Part(X))
    with pytest.raises(InputError, match="cache.kind was fixed to torch.float32"):
        call(X, Cache(torch.ones(2, 2), torch.float64))
    more = copy.deepcopy(CALLS[0][1])
    more.seen = 1
    with pytest.raises(InputError, match="must be a Cache with the attributes"):
        call(X, more)


def test_an_object_that_holds_itself_is_refused():
    part = Part(X)
    part.v = part
    with pytest.raises(UsageError, match="the example input `cache.v` is a Part"):
        stage(lambda x, cache: x, (X, part))
