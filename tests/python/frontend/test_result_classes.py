# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Results of classes other than Python's own: they come back as they are in eager, where their class can be found by its name."""

from __future__ import annotations

import collections
import dataclasses
import enum
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from differential import check, stage

import dycl_tvm
from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.runtime.classes import LOADED, Classes
from dycl_tvm.runtime.structure import unflatten
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


@dataclasses.dataclass
class Items(dict):
    a: object
    b: object = None


def items(x):
    made = Items(x)
    made["a"] = made.a
    return made


def boxes(x):
    made = Boxes([x, 1])
    made.size = 3
    made.t = x * 2
    return made


def ordered(x):
    made = collections.OrderedDict(b=x, a=1)
    made.move_to_end("b")
    return made


class Window(collections.deque):
    pass


def window(x):
    made = Window([x, x + 1], maxlen=2)
    made.start = 4
    made.append(x * 2)
    return made


def by_class(x):
    found = collections.defaultdict(list)
    found["a"].append(x)
    found[3].extend([x, x + 1])
    return found


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
    "a deque": lambda x: collections.deque([x, 1, x * 2], maxlen=5),
    "a deque without a bound": lambda x: [collections.deque([x]), collections.deque()],
    "a deque of a class": window,
    "a defaultdict": by_class,
    "a defaultdict that makes nothing": lambda x: collections.defaultdict(None, a=x),
    "a counter": lambda x: collections.Counter("aab"),
    "a dataclass": lambda x: Output(x),
    "a frozen dataclass": lambda x: Frozen(x),
    "a dataclass with another attribute": extra,
    "a dataclass that is a dict": lambda x: Model(logits=x),
    "a dataclass that is a plain dict": items,
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


def test_a_deque_and_a_defaultdict_go_on_as_they_are():
    run = dycl_tvm.stage(lambda x: (MADE["a deque"](x), by_class(x)), X[0]).interpret()
    recent, found = run(*X[0])
    assert recent.maxlen == 5 and type(recent) is collections.deque
    assert found["new"] == [] and list(found) == ["a", 3, "new"]


def test_a_factory_that_is_a_function_is_refused():
    with pytest.raises(UnsupportedError, match="whose missing items a function makes"):
        stage(lambda x: collections.defaultdict(lambda: 0, a=x), X[0])


#: What a host does that has none of these classes, with a class of its own of one of the names.
HOST = """
import collections, sys
import numpy as np
import dycl_tvm
class Pair(tuple):
    mine = True
path, x = sys.argv[1], np.ones((2, 3), np.float32)
output, boxes, point, named, pair, table, counted, model, empty, recent, found, most, cache = dycl_tvm.load(path, classes=[Pair])(x)
assert "torch" not in sys.modules and "test_result_classes" not in sys.modules
assert type(output).__name__ == "Output" and output.n == 1 and (output.a == x).all() and not isinstance(output, tuple)
output.a = 3
assert repr(output) == "Output(a=3, n=1)"
assert isinstance(boxes, list) and type(boxes).__name__ == "Boxes" and boxes.size == 3 and (boxes.t == 2 * x).all() and len(boxes) == 2
assert (point[0] == x).all() and point.b == 2 and point._fields == ("a", "b") and isinstance(point, tuple)
assert named.b == 1 and type(pair) is Pair and pair.mine and (pair[1] == x + 1).all()
assert isinstance(table, dict) and type(table).__name__ == "Table" and list(table) == ["a", "b"]
assert type(counted) is collections.Counter and counted["missing"] == 0
assert list(model) == list(model.keys()) == ["logits"] and model.loss is None and "loss" not in model and len(model) == 1
assert model["logits"] is model.logits is model[0] is model.to_tuple()[0] and model[:1] == (model.logits,)
model.loss = 2
assert model["loss"] == 2 and model.to_tuple()[-1] == 2 and isinstance(model, collections.OrderedDict) and empty.to_tuple() == ()
recent.append(1)
assert len(recent) == 2 and recent[-1] == 1 and recent.start == 4 and type(recent).__name__ == "Window"
assert found["new"] == [] and len(found[3]) == 2
assert (most.values == x[:, 0]).all() and most[1] is most.indices
assert type(cache).__name__ == "Cache" and (cache.layers[1].keys == 2 * x).all() and cache.kind == "Kind.B"
"""


def everything(x):
    made = [Output(x), boxes(x), Point(x), Named(x, 1), Pair([x, x + 1]), Table(a=x, b=[x]), collections.Counter("aab"), Model(logits=x)]
    return (*made, Model(), window(x), by_class(x), torch.max(x, 1), Cache(x))


def test_a_process_without_the_classes(tmp_path):
    """Each result has what it has where its class is: attributes, keys, fields, the methods of Python's own containers."""
    library = str(tmp_path / "net.so")
    dycl_tvm.build(everything, X[0]).export_library(library, embed_params=True)
    subprocess.run([sys.executable, "-c", HOST, library], check=True)


def test_classes_that_the_host_gives(tmp_path):
    @dataclasses.dataclass
    class Local:
        a: object
        b: int = 1

    dycl_tvm.build(lambda x: (Local(x + 1), Point(x)), X[0]).export_library(tmp_path / "net.so")
    theirs, point = dycl_tvm.load(tmp_path / "net.so")(*X[0])
    assert type(theirs) is not Local and type(theirs).__name__ == "Local" and theirs.b == 1 and type(point) is Point
    other = type("Point", (Point,), {})
    module = dycl_tvm.load(tmp_path / "net.so", classes=[Local, other])
    for run in (module, module.new_session()):
        ours, point = run(*X[0])
        assert type(ours) is Local and torch.equal(ours.a, X[0][0] + 1) and type(point) is other and point.swap()[0] == 2
    with pytest.raises(UsageError, match="is not a class"):
        dycl_tvm.load(tmp_path / "net.so", classes=["Local"])
    with pytest.raises(UsageError, match="two are named Point"):
        dycl_tvm.load(tmp_path / "net.so", classes=[Point, other])


def test_a_class_with_other_fields_is_not_taken():
    graph = stage(lambda x: Output(x), X[0])
    structure = graph.return_sites()[0].structure
    for fields in (["a"], ["n", "a"]):
        made = unflatten(structure, lambda k, _: 0, Classes([dataclasses.make_dataclass("Output", fields)]))
        assert [f.name for f in dataclasses.fields(made)] == ["a", "n"]


def test_nothing_is_imported():
    assert LOADED.find("a_module_that_nobody_has:Class") is None
    assert LOADED.find("os:path.join") is None
    assert LOADED.find("collections:OrderedDict") is collections.OrderedDict


@pytest.mark.parametrize("base", [list, tuple, dict])
def test_a_local_class_is_refused(base):
    class Local(base):
        pass

    with pytest.raises(UnsupportedError, match="Local is returned"):
        stage(lambda x: (Local(), x), X[0])


def test_other_objects_are_refused():
    for made in ({(1, 2), (3, 4)}, object(), {(1, 2): 3}):
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
    monkeypatch.setattr("dycl_tvm.runtime.classes.Classes._named", lambda known, name: None)
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


def sets(x):
    found = {1, "a", None}
    if x.sum() > 0:
        found.add(2.5)
    return {"found": found, "always": frozenset(["b", "a", "c"]), "none": set(), "y": x * 2}


def test_sets(tmp_path):
    check(sets, X)
    artifact = dycl_tvm.build(sets, X[0])
    module = dycl_tvm.load(artifact.export_library(tmp_path / "n.so"), artifact.save_params(tmp_path / "n.params"))
    for args in X:
        want, got = sets(*args), module(*args)
        assert torch.equal(want.pop("y"), torch.as_tensor(got.pop("y")))
        assert want == got and {k: type(v) for k, v in want.items()} == {k: type(v) for k, v in got.items()}
    assert difference({1, 2}, {1, 2}) is None and difference({1, 2}, {1, 3}) is not None


def test_a_set_of_tensors_is_refused():
    with pytest.raises(UnsupportedError, match="a set is returned"):
        stage(lambda x: {x * 2}, X[0])
