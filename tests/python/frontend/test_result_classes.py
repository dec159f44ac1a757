# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Results of classes other than Python's own: they come back as they are in eager, where their class can be found by its name."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from differential import check, stage

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.runtime.classes import find
from dycl_tvm.verify.same import difference

X = [(torch.ones(2, 3),), (-torch.ones(2, 3),)]


class Boxes(list):
    def total(self):
        return sum(self)


class Point(NamedTuple):
    a: object
    b: int = 2

    def swap(self):
        return self.b, self.a


class Named(collections.namedtuple("Named", "a b")):
    """Has a ``__dict__``."""


class Pair(tuple):
    pass


class Table(dict):
    pass


@dataclasses.dataclass
class Output:
    a: object
    n: int = 0

    def __post_init__(self):
        self.n += 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    __slots__ = ("a",)
    a: object


@dataclasses.dataclass
class Model(collections.OrderedDict):
    loss: object = None
    logits: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


def boxes(x):
    made = Boxes([x, 1])
    made.size = 3
    made.t = x * 2
    return made


def ordered(x):
    made = collections.OrderedDict(b=x, a=1)
    made.move_to_end("b")
    return made


def extra(x):
    made = Output(x)
    made.more = [x + 1]
    return made


MADE = {
    "a list": boxes,
    "a named tuple": lambda x: Point(x),
    "a named tuple with a __dict__": lambda x: Named(x, 1),
    "a tuple": lambda x: Pair([x, x + 1]),
    "a dict": lambda x: Table(a=x, b=[x]),
    "an ordered dict": ordered,
    "a counter": lambda x: collections.Counter("aab"),
    "a dataclass": lambda x: Output(x),
    "a frozen dataclass": lambda x: Frozen(x),
    "a dataclass with another attribute": extra,
    "a dataclass that is a dict": lambda x: Model(logits=x),
    "a shape": lambda x: (x.shape, x),
    "values and indices": lambda x: torch.max(x, 1),
    "numpy scalars": lambda x: (np.float32(1.5), np.int64(3), np.bool_(True), x),
    "nested": lambda x: [Boxes([Point(Output(x), 5)])],
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_the_class_comes_back(made):
    def f(x):
        if x.sum() > 0:
            return made(x)
        return made(x - 1)

    check(f, X, paths=2)


def test_an_instance_is_one():
    result = interpret(stage(lambda x: Output(x), X[0]), list(X[0]))[0]
    assert isinstance(result, Output) and result.n == 1
    pair = interpret(stage(lambda x: Point(x, 3), X[0]), list(X[0]))[0]
    assert isinstance(pair, Point) and pair.swap()[0] == 3


def test_a_class_that_is_not_loaded_has_a_look_alike(monkeypatch):
    graph = stage(lambda x: (Output(x), Boxes([x])), X[0])
    monkeypatch.setattr("dycl_tvm.runtime.classes.find", lambda name: None)
    output, boxes_ = interpret(graph, list(X[0]))[0]
    assert type(output).__name__ == "Output" and output._fields == ("a", "n") and output.n == 1
    assert type(boxes_) is list


def test_nothing_is_imported():
    assert find("a_module_that_nobody_has:Class") is None
    assert find("os:path.join") is None
    assert find("collections:OrderedDict") is collections.OrderedDict


@pytest.mark.parametrize("base", [list, tuple, dict])
def test_a_local_class_is_refused(base):
    class Local(base):
        pass

    with pytest.raises(UnsupportedError, match="Local is returned"):
        stage(lambda x: (Local(), x), X[0])


def test_other_objects_are_refused():
    for made in (collections.defaultdict(int), {1, 2}, object(), {(1, 2): 3}):
        with pytest.raises(UnsupportedError, match="is returned"):
            stage(lambda x, made=made: (made, x), X[0])


def test_results_of_an_artefact(tmp_path):
    def f(x):
        y = x.to(memory_format=torch.channels_last) + 1
        return Output(y, y), Boxes([y])

    x = torch.ones(1, 2, 3, 4)
    art = dycl_tvm.build(f, (x,), target="llvm")
    run = dycl_tvm.load(art.export_library(tmp_path / "f.so"), art.save_params(tmp_path / "f.params"))
    output, (row,) = run(x)
    assert type(output) is Output and output.n.is_contiguous() and row.is_contiguous()
    want = f(x)[0].a
    assert torch.equal(output.a, want)
    output.a.zero_()
    assert torch.equal(output.n, want) and torch.equal(row, want)


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Cache:
    """As libraries return them: layers, and what is known of them."""

    def __init__(self, x):
        self.layers = [Layer(x), Layer(x * 2)]
        self.kind, self.make, self.length = Kind.B, Layer, x.shape[0]

    def total(self):
        return sum(layer.keys.sum() for layer in self.layers)


class Kept:
    """Has a ``__dict__``, as the other base has."""


class Numbered:
    """Has a ``__dict__``, as the other base has."""


class Layer(Kept, Numbered):
    def __init__(self, keys):
        self.keys, self.dtype, self.device = keys, keys.dtype, keys.device


def cached(x):
    cache = Cache(x)
    if x.sum() > 0:
        cache.layers[0].keys = x + 1
    return x * cache.total(), cache


def test_objects():
    graph = stage(cached, X[0])
    for args in X:
        want, got = cached(*args), graph.interpret()(*args)
        assert difference(want, got) is None
        cache = got[1]
        assert type(cache) is Cache and torch.equal(cache.total(), want[1].total()) and cache.kind is Kind.B and cache.make is Layer
        assert cache.layers[1].dtype is torch.float32 and cache.layers[1].device == torch.device("cpu") and cache.length == 2


def test_objects_of_a_class_that_is_not_loaded(monkeypatch):
    graph = stage(cached, X[0])
    monkeypatch.setattr("dycl_tvm.runtime.classes._named", lambda name: None)
    cache = graph.interpret()(*X[0])[1]
    assert type(cache).__name__ == "Cache" and torch.equal(cache.layers[1].keys, X[0][0] * 2)
    assert (cache.kind, cache.make, cache.layers[0].dtype, cache.layers[0].device) == ("Kind.B", "Layer", "torch.float32", "cpu")


def test_objects_in_an_artefact(tmp_path):
    dycl_tvm.build(cached, X[0]).export_library(tmp_path / "net.so")
    module = dycl_tvm.load(tmp_path / "net.so")
    for args in X:
        assert difference(cached(*args), module(*args)) is None


def test_an_object_that_holds_itself_is_refused():
    def f(x):
        cache = Cache(x)
        cache.layers.append(cache)
        return cache

    with pytest.raises(UnsupportedError, match="holds itself"):
        stage(f, X[0])
