# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Objects that a call makes and the next one finds: caches and records, of the user's own classes and of libraries."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from differential import same
from judge import load, outcome
from test_kept_containers import kept

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError
from dycl_tvm.passes import run_passes

MOST = 12
_SEED = torch.Generator().manual_seed(11)
CALLS = [torch.randn(1, 2, 4, generator=_SEED) for _ in range(6)]
_HEAD = "import collections, dataclasses, weakref\nimport torch\nfrom dataclasses import dataclass\nfrom torch import nn\n"


def made(forward: str, attributes: str = "pass", pre: str = "") -> str:
    """Return a program of a network with a state, behind what it needs."""
    return _HEAD + pre + kept(forward, attributes)


C = "class C:\n    def __init__(self): self.n, self.s = 0, torch.zeros(1, 2, 4)\n"
REC = "@dataclass\nclass R:\n    h: torch.Tensor\n    n: int = 0\n"
_CACHED = "@dataclass\nclass K:\n    k: torch.Tensor\n    v: torch.Tensor\n"
RIGHT = {
    "a cache that is made at first": made(
        "if self.c is None: self.c = K(x, x * 2)\nelse:\n    self.c.k = torch.cat([self.c.k, x], 1)\n"
        "    self.c.v = torch.cat([self.c.v, x * 2], 1)\n"
        "return (x @ self.c.k.mT).softmax(-1) @ self.c.v",
        "self.c = None",
        _CACHED,
    ),
    "a cache that is replaced": made(
        "self.c = K(x, 1) if self.c is None else K(torch.cat([self.c.k, x], 1), self.c.v + 1)\nreturn self.c.k.sum(1) * self.c.v",
        "self.c = None",
        _CACHED,
    ),
    "an item of a dict": made("if 'a' not in self.d: self.d['a'] = C()\nself.d['a'].n += 1\nreturn x * self.d['a'].n", "self.d = {}", C),
    "reset": made(
        "if self.c is None or x.sum() > 1: self.c = C()\nself.c.n += 1\nself.c.s = self.c.s + x\nreturn self.c.s / self.c.n",
        "self.c = None",
        C,
    ),
    "an attribute that is not there": made("if not hasattr(self, 'c'): self.c = C()\nself.c.n += 1\nreturn x * self.c.n", pre=C),
    "asked if one no": made("if self.c is None: self.c, self.b = C(), C()\nreturn x, self.b is self.c", "self.c = self.b = None", pre=C),
    "tensor in place": made(
        "if self.c is None: self.c = C()\nself.c.s += x\nself.c.s[0, 0] = 1\nreturn self.c.s * 1", "self.c = None", pre=C
    ),
    "holds the input": made("if self.c is None: self.c = R(x)\nself.c.n += 1\nreturn self.c.h + x * self.c.n", "self.c = None", pre=REC),
    "holds the input changed": made(
        "if self.c is None: self.c = R(x)\nelse: self.c.h.add_(x)\nreturn self.c.h * 1", "self.c = None", pre=REC
    ),
    "linked": made(
        "self.c = N(x.mean(), self.c)\ns, n, k = 0, self.c, 0\nwhile n is not None and k < 3:\n"
        "    s, n, k = s + n.v, n.next, k + 1\nself.c.next = None if self.c.next is None else N(self.c.next.v, None)\n"
        "return s",
        "self.c = None",
        pre="class N:\n    def __init__(self, v, next): self.v, self.next = v, next\n",
    ),
    "parent": made(
        "if self.c is None:\n    self.c = C()\n    self.c.owner = self\nself.c.n += 1\nself.k += 1\nreturn x * self.c.n * self.c.owner.k",
        "self.c = None\nself.k = 0",
        pre=C,
    ),
    "subclass": made(
        "if self.c is None: self.c = D() if x.sum() > 0 else C()\nself.c.n += 1\nreturn x * self.c.n * self.c.k()",
        "self.c = None",
        pre=C.replace("\n    def", "\n    def k(self): return 1\n    def", 1) + "class D(C):\n    def k(self): return 2\n",
    ),
    "class changes": made(
        "if self.c is None: self.c = C()\nself.c.n += 1\nif self.c.n == 2: self.c.__class__ = D\n"
        "return x * self.c.n, type(self.c).__name__",
        "self.c = None",
        pre=C + "class D(C): pass\n",
    ),
    "slots": made(
        "if self.c is None: self.c = C()\nself.c.n += 1\nreturn x * self.c.n",
        "self.c = None",
        pre="class C:\n    __slots__ = ('n',)\n    def __init__(self): self.n = 0\n",
    ),
    "property": made(
        "if self.c is None: self.c = C()\nself.c.v = self.c.v + 1\nreturn x * self.c.v",
        "self.c = None",
        pre="class C:\n    def __init__(self): self._v = 0\n    @property\n    def v(self): return self._v\n    @v.setter\n"
        "    def v(self, n): self._v = n\n",
    ),
    "setattr custom": made(
        "if self.c is None: self.c = C()\nself.c.v = 2\nreturn x * self.c.v + self.c.n",
        "self.c = None",
        pre="class C:\n    def __init__(self): self.__dict__['n'] = 0\n    def __setattr__(self, k, v):\n"
        "        self.__dict__['n'] += 1\n        self.__dict__[k] = v\n",
    ),
    "count of class": made(
        "if self.c is None: self.c = C()\nself.c.n += 1\nreturn x * self.c.n, C.made",
        "self.c = None",
        pre="class C:\n    made = 0\n    def __init__(self):\n        self.n = 0\n        C.made += 1\n",
    ),
    "singleton": made(
        "c = C.get()\nc.n += 1\nreturn x * c.n",
        pre="class C:\n    one = None\n    def __init__(self): self.n = 0\n    @classmethod\n    def get(cls):\n"
        "        if cls.one is None: cls.one = cls()\n        return cls.one\n",
    ),
    "frozen dataclass": made(
        "self.c = S(0, x) if self.c is None else dataclasses.replace(self.c, n=self.c.n + 1)\nreturn self.c.h * self.c.n, self.c == self.c",
        "self.c = None",
        pre="@dataclass(frozen=True)\nclass S:\n    n: int\n    h: torch.Tensor\n",
    ),
    "equal dataclass": made(
        "s = S(int(x.sum() > 0))\nsame_ = self.c == s\nself.c = s\nreturn x, same_",
        "self.c = None",
        pre="@dataclass\nclass S:\n    n: int\n",
    ),
    "rnn state": made(
        "st = self.st or State(torch.zeros(2, 4), torch.zeros(2, 4))\nh, c = self.cell(x[0], (st.h, st.c))\n"
        "self.st = State(h, c)\nreturn h",
        "self.cell = nn.LSTMCell(4, 4)\nself.st = None",
        pre="@dataclass\nclass State:\n    h: torch.Tensor\n    c: torch.Tensor\n",
    ),
    "per layer states": made(
        "if not self.st: self.st = [R(torch.zeros_like(x)) for _ in range(3)]\nfor s in self.st:\n"
        "    s.h = s.h * 0.5 + x\n    s.n += 1\n    x = x + s.h\nreturn x, self.st[0].n",
        "self.st = []",
        pre=REC,
    ),
    "states by name": made(
        "for k in ('a', 'b'):\n    s = self.st.setdefault(k, R(torch.zeros_like(x)))\n    s.h = s.h * 0.5 + x\n"
        "    s.n += 1\n    x = x + s.h\nreturn x, self.st['b'].n",
        "self.st = {}",
        pre=REC,
    ),
    "moved between": made(
        "if self.a is None: self.a, self.b = R(x * 1), R(x * 2)\nself.a, self.b = self.b, self.a\nself.a.n += 1\n"
        "return x * self.a.n, self.b.n",
        "self.a = self.b = None",
        pre=REC,
    ),
    "deleted": made("if not hasattr(self, 'c'): self.c = C()\nself.c.n += 1\nif self.c.n > 2: del self.c\nreturn x * 2", "pass", pre=C),
    "attribute later": made(
        "if self.c is None: self.c = C()\nself.c.n += 1\nif x.sum() > 0: self.c.extra = x.sum()\nreturn x * getattr(self.c, 'extra', 1)",
        "self.c = None",
        pre=C,
    ),
    "global holder": made("global G\nif G is None: G = C()\nG.n += 1\nreturn x * G.n", pre="G = None\n" + C),
    "in closure": made(
        "return step(x)",
        pre=C + "def make():\n    c = None\n    def step(x):\n        nonlocal c\n        if c is None: c = C()\n"
        "        c.n += 1\n        return x * c.n\n    return step\nstep = make()\n",
    ),
    "reset method": made(
        "if x.sum() > 3: self.reset()\nself.c.n += 1\nself.c.s = self.c.s + x\nreturn self.c.s / self.c.n", "self.reset()", pre=C
    ).replace("    def forward", "    def reset(self): self.c = C()\n    def forward"),
    "returned object": made("if self.c is None: self.c = R(x)\nself.c.n += 1\nreturn self.c", "self.c = None", pre=REC),
    "replaced each call by float": made(
        "self.c = S(x.mean().item(), self.c.b + 1 if self.c else 0)\nreturn x * self.c.a, self.c.b",
        "self.c = None",
        pre="class S:\n    def __init__(self, a, b): self.a, self.b = a, b\n",
    ),
}
REFUSED = {
    "two names": (
        made("if self.c is None: self.c = self.b = C()\nself.c.n += 1\nreturn x * self.b.n", "self.c = self.b = None", pre=C),
        "leaves under two names",
    ),
    "asked if one": (
        made("if self.c is None: self.c = self.b = C()\nreturn x, self.b is self.c", "self.c = self.b = None", pre=C),
        "leaves under two names",
    ),
    "asked if equal": (
        made("if self.c is None: self.c = self.b = C()\nreturn x, self.b == self.c", "self.c = self.b = None", pre=C),
        "leaves under two names",
    ),
    "in a list too": (
        made(
            "r = R(x * 1)\nseen = self.last in self.l\nself.last, self.l = r, [r]\nreturn x, seen", "self.last, self.l = None, []", pre=REC
        ),
        "leaves under two names",
    ),
    "shared tensor in two objects": (
        made(
            "if self.c is None:\n    s = torch.zeros(1,2,4)\n    self.c, self.b = C(), C()\n    self.c.s = self.b.s = s\n"
            "self.c.s += x\nreturn self.b.s * 1",
            "self.c = self.b = None",
            pre=C,
        ),
        "under another name",
    ),
    "method kept": (
        made(
            "if self.c is None:\n    self.c = C()\n    self.c.f = self.c.__init__\nself.c.n += 1\n"
            "if self.c.n > 3: self.c.f()\nreturn x * self.c.n",
            "self.c = None",
            pre=C,
        ),
        "a method",
    ),
    "cycle": (
        made("if self.c is None:\n    self.c = C()\n    self.c.me = self.c\nself.c.n += 1\nreturn x * self.c.me.n", "self.c = None", pre=C),
        "`c` is None",
    ),
    "lambda kept": (
        made(
            "if self.c is None:\n    self.c = C()\n    self.c.f = lambda v: v * 2\nself.c.n += 1\nreturn self.c.f(x) * self.c.n",
            "self.c = None",
            pre=C,
        ),
        "`c` is None",
    ),
    "weak": (
        made(
            "if self.c is None:\n    self.c = C()\n    self.w = weakref.ref(self.c)\nself.c.n += 1\nreturn x * self.w().n",
            "self.c = self.w = None",
            pre="import weakref\n" + C,
        ),
        "when Python gives an object up",
    ),
}


def _net(source: str) -> Any:
    torch.manual_seed(0)
    return load(source).Net().eval()


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    graph = stage(_net(RIGHT[name]), (CALLS[0].clone(),), max_length=MOST)
    run_passes(graph)
    call, eager = graph.interpret(), _net(RIGHT[name])
    for x in CALLS:
        want = outcome(lambda x=x: eager(x.clone()))
        got = outcome(lambda x=x: call(x.clone()))
        assert same(want, got), f"eager {want}, staged {got}"


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    source, why = REFUSED[name]
    with pytest.raises(UnsupportedError) as error:
        stage(_net(source), (CALLS[0].clone(),), max_length=MOST)
    assert why in str(error.value)


def test_a_library(tmp_path: Path) -> None:
    """Built and loaded: an object that is made at first, call after call, and back to the beginning."""
    source = RIGHT["a cache that is made at first"]
    artifact = dycl_tvm.build(_net(source), (CALLS[0],), max_length=MOST)
    module = dycl_tvm.load(artifact.export_library(tmp_path / "n.so"), artifact.save_params(tmp_path / "n.params"))
    for _ in range(2):
        eager = _net(source)
        for x in CALLS:
            assert same(outcome(lambda x=x, eager=eager: eager(x)), module(x))
        with pytest.raises(dycl_tvm.RunError, match="max_length = 12"):
            module(CALLS[0])
        module.reset_state()


@pytest.mark.parametrize("how", ["made by the forward", "made by the model"])
def test_a_cache_of_a_library(how: str) -> None:
    """What transformers keep, made by the first call: nothing is there before it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    monitor = pytest.importorskip("tqdm").tqdm.monitor
    if monitor is not None:  # a thread that other tests may have left: what it changes while a model is staged would count as the model's
        monitor.exit()
    cache_of, by_forward = transformers.DynamicCache, how == "made by the forward"

    class Streaming(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model, self.cache = transformers.LlamaModel(config), None

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            if self.cache is None and by_forward:
                self.cache = cache_of()
            out = self.model(ids, past_key_values=self.cache, use_cache=True)
            self.cache = out.past_key_values
            return out.last_hidden_state

    model = Streaming().eval()
    calls = [torch.randint(0, 16, (1, 3)) for _ in range(4)]
    graph, eager = stage(model, (calls[0],), max_length=MOST), copy.deepcopy(model)
    assert sum(v.name.startswith("the length of ") for v in graph.state) == 1 and len(graph.return_sites()) <= 2
    call = graph.interpret()
    for ids in calls:
        assert same(outcome(lambda ids=ids: eager(ids)), call(ids))
    with pytest.raises(LimitError):
        call(calls[0])
