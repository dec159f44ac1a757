# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that is longer after each call, up to ``max_length``: caches, histories, windows, memories. Sequences of calls against eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from differential import same
from judge import outcome
from test_hunted import model_of
from test_kept_containers import kept

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError, graph_initial, interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.passes import run_passes

MOST, CHUNK, WIDTH = 12, 2, 4
_SEED = torch.Generator().manual_seed(11)
CALLS = [torch.randn(1, CHUNK, WIDTH, generator=_SEED) for _ in range(7)]
_HEADS = "self.qkv = nn.Linear(4, 12)\n"
_CACHE = (
    "class Cache:\n    def __init__(self): self.k = None\n    def __len__(self): return 0 if self.k is None else self.k.shape[1]\n"
    "    def update(self, k):\n        self.k = k if self.k is None else torch.cat([self.k, k], 1)\n        return self.k\n"
)
_F = "import torch.nn.functional as F\n"
_DEQUE = "from collections import deque\n"
RIGHT = {
    "from an empty tensor": kept(
        "self.h = torch.cat([self.h, x], 1)\nreturn self.h.mean(1), self.h.shape[1]", "self.h = torch.zeros(1, 0, 4)"
    ),
    "from None": kept("self.h = x if self.h is None else torch.cat([self.h, x], 1)\nreturn self.h", "self.h = None"),
    "along the first dimension": kept(
        "self.h = torch.cat([self.h, x[0]])\nreturn self.h.sum(0), len(self.h)", "self.h = torch.zeros(0, 4)"
    ),
    "from what there is": kept("self.h = torch.cat([self.h, x], 1)\nreturn self.h.amax(1), self.h", "self.h = torch.ones(1, 2, 4)"),
    "in front": kept("self.h = torch.cat([x, self.h], 1)\nreturn self.h[:, 0], self.h[:, -1]", "self.h = torch.full((1, 1, 4), 2.0)"),
    "a buffer of the module": kept(
        "self.h = torch.cat([self.h, x], 1)\nreturn x @ self.h.mT", "self.register_buffer('h', torch.zeros(1, 0, 4))"
    ),
    "keys and values of heads": _F
    + kept(
        "t = x.shape[1]\nq, k, v = self.qkv(x).view(1, t, 3, 2, 2).permute(2, 0, 3, 1, 4)\nn = self.k.shape[2]\n"
        "self.k, self.v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)\n"
        "mask = torch.ones(t, n + t, dtype=torch.bool).tril(n)\n"
        "return F.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask)",
        _HEADS + "self.k = self.v = torch.zeros(1, 2, 0, 2)",
    ),
    "a pair that is None at first": kept(
        "q, k, v = self.qkv(x).chunk(3, -1)\nif self.past is not None:\n"
        "    k, v = (torch.cat([p, new], 1) for p, new in zip(self.past, (k, v)))\nself.past = (k, v)\n"
        "return (q @ k.mT).softmax(-1) @ v",
        _HEADS + "self.past = None",
    ),
    "of all layers": kept(
        "new = []\nfor i, layer in enumerate(self.layers):\n    k = layer(x)\n    if self.past is not None:\n"
        "        k = torch.cat([self.past[i], k], 1)\n    new.append(k)\n    x = x + (x @ k.mT).softmax(-1) @ k\n"
        "self.past = new\nreturn x",
        "self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])\nself.past = None",
    ),
    "an object of the model's": _CACHE + kept("n = len(self.c)\nreturn self.c.update(x).sum(1) + n", "self.c = Cache()"),
    "positions": kept(
        "n = self.h.shape[1]\ny = x + self.e(torch.arange(n, n + x.shape[1]))\nself.h = torch.cat([self.h, y], 1)\nreturn y, self.h.sum()",
        "self.e = nn.Embedding(20, 4)\nself.h = torch.zeros(1, 0, 4)",
    ),
    "tokens": kept(
        "t = (self.w(self.ids).sum(1) + x.sum(1)).argmax(-1, keepdim=True)\nself.ids = torch.cat([self.ids, t], 1)\nreturn self.ids",
        "self.w = nn.Embedding(4, 4)\nself.ids = torch.zeros(1, 0, dtype=torch.long)",
    ),
    "a window": kept("self.h = torch.cat([self.h, x], 1)[:, -5:]\nreturn self.h.cumsum(1)", "self.h = torch.zeros(1, 0, 4)"),
    "on one path only, and emptied on another": kept(
        "if x.sum() > 0:\n    self.h = torch.cat([self.h, x], 1)\nelif x.sum() < -2:\n    self.h = self.h[:, :0]\nreturn self.h.shape",
        "self.h = torch.zeros(1, 0, 4)",
    ),
    "None again on one path": kept(
        "self.h = x if self.h is None else torch.cat([self.h, x], 1)\ny = self.h.sum(1)\nif x.sum() > 1: self.h = None\nreturn y",
        "self.h = None",
    ),
    "half of it goes when it is full": kept(
        "self.h = torch.cat([self.h, x], 1)\nif self.h.shape[1] > 7: self.h = self.h[:, ::2]\nreturn self.h.sum(1), self.h.shape",
        "self.h = torch.zeros(1, 0, 4)",
    ),
    "two of other lengths": kept(
        "self.a = torch.cat([self.a, x], 1)\nif x.sum() > 0: self.b = torch.cat([self.b, x, x], 1)[:, -6:]\n"
        "return self.a.sum(1) - self.b.sum(1), self.a.shape[1] - self.b.shape[1]",
        "self.a = self.b = torch.zeros(1, 0, 4)",
    ),
    "what is near is read": kept(
        "q = x[0, 0]\nr = self.h[(self.h @ q).argmax()] if len(self.h) else q\nself.h = torch.cat([self.h, q[None]])\nreturn r",
        "self.h = torch.zeros(0, 4)",
    ),
    "only what is new is kept": _F
    + kept(
        "q = F.normalize(x.mean(1), dim=-1)\ns = (self.h @ q[0]).max()\nif s < 0.5: self.h = torch.cat([self.h, q])\nreturn s, len(self.h)",
        "self.h = torch.zeros(1, 4)",
    ),
    "as it lies in memory": kept(
        "self.h = torch.cat([self.h, x], 1)[:, -3:]\ny = self.h.transpose(1, 2)\nself.h = y.transpose(1, 2)\nreturn y.reshape(-1)",
        "self.h = torch.zeros(1, 0, 4)",
    ),
    "changed in place": kept(
        "self.h = torch.cat([self.h, x], 1)\nself.h.mul_(0.9)\nreturn self.h.clone()", "self.h = torch.zeros(1, 0, 4)"
    ),
    "a flag tells": kept(
        "if self.ready:\n    self.h = torch.cat([self.h, x], 1)\nelse:\n    self.h, self.ready = x, True\nreturn self.h.sum(1)",
        "self.h, self.ready = None, False",
    ),
    "a cache for each layer that comes to be": kept(
        "for i, layer in enumerate(self.layers):\n    k = layer(x)\n    if i in self.d: k = torch.cat([self.d[i], k], 1)\n"
        "    self.d[i] = k\n    x = x + (x @ k.mT).softmax(-1) @ k\nreturn x",
        "self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])\nself.d = {}",
    ),
    "chunks go when they are full": kept(
        "self.h = torch.cat([self.h, x], 1)\ny = x.new_zeros(1, 4)\nwhile self.h.shape[1] >= 3:\n    y = y + self.h[:, :3].mean(1)\n"
        "    self.h = self.h[:, 3:]\nreturn y, self.h.shape[1]",
        "self.h = torch.zeros(1, 0, 4)",
    ),
    "a list": kept("self.h.append(x)\nreturn torch.stack(self.h).mean(0), len(self.h), self.h[-1], self.h[0]", "self.h = []"),
    "lists of keys and values": kept(
        "self.k.append(x)\nself.v += [x * 2]\nreturn (x @ torch.cat(self.k, 1).mT).softmax(-1) @ torch.cat(self.v, dim=1)",
        "self.k, self.v = [], []",
    ),
    "a list of numbers": kept("self.h.append(x.mean())\nh = torch.stack(self.h)\nreturn h[-1] - h.max(), h", "self.h = []"),
    "a list that is bounded, and emptied": kept(
        "y = torch.stack(self.h, 1).sum(1) if self.h else x\nself.h.append(x * 1)\nif len(self.h) > 4: self.h.pop(0)\n"
        "if x.sum() < -2: self.h.clear()\nreturn y, len(self.h)",
        "self.h = []",
    ),
    "item by item": kept(
        "self.h.append(x)\ny = 0\nfor i, t in enumerate(self.h): y = y * 0.5 + t * i\n"
        "return y, sum(self.h), torch.stack([t * 2 for t in self.h]), [t.sum() for t in self.h[-2:]]",
        "self.h = []",
    ),
    "a deque": _DEQUE + kept("self.h.append(x)\nreturn torch.stack(list(self.h)).sum(0), self.h[0]", "self.h = deque(maxlen=5)"),
    "a list that is returned": kept("self.h.append(x)\nreturn self.h, list(self.h), tuple(self.h)[-1:]", "self.h = []"),
    "from the front": kept("self.h.insert(0, x)\nreturn torch.stack(self.h).cumsum(0), self.h[0]", "self.h = []"),
    "copies of a list": kept(
        "self.h.append(x)\nc, d = list(self.h), tuple(self.h)\ne = d\nc += [x]\nd += (x,)\n"
        "return torch.cat(c).sum(0), len(d), len(e), len(self.h)",
        "self.h = []",
    ),
    "numbers": kept(
        "self.h.append(x.mean().item())\nif len(self.h) > 3 and self.h[-1] > self.h[-2]: x = x * 2\n"
        "return x * sum(self.h), sum(self.h) / len(self.h), self.h[-1], self.h[0], max(self.h), torch.tensor(self.h)",
        "self.h = []",
    ),
    "numbers of a window": kept(
        "self.h.append(x.mean().item())\nreturn x - sum(self.h[-3:]) / len(self.h[-3:]), [v * 2 for v in self.h]", "self.h = []"
    ),
    "numbers on one path only": kept(
        "if not self.h or x.mean() < self.h[-1]: self.h.append(x.mean().item())\nreturn x * self.h[-1], len(self.h)", "self.h = []"
    ),
    "numbers after others": kept("self.h.append(x.mean().item())\nreturn x * sum(self.h), len(self.h), self.h", "self.h = [1.0, 2.0]"),
    "ints": _F
    + kept(
        "i = int(x.sum(1).argmax())\nseen = i in self.h\nself.h.append(i)\n"
        "return seen, self.h.count(i), sum(self.h), self.e(torch.tensor(self.h)).sum(0), self.h[i % len(self.h)]",
        "self.h = []\nself.e = nn.Embedding(8, 4)",
    ),
    "truths": kept(
        "self.h.append(bool(x.sum() > 0))\nreturn sum(self.h), any(self.h), all(self.h[-2:]), torch.tensor(self.h)", "self.h = []"
    ),
    "numbers of which the oldest go": kept(
        "self.h.append(x.mean().item())\nif len(self.h) > 4: del self.h[:-4]\nif x.sum() > 2: del self.h[0]\n"
        "return list(self.h), len(self.h)",
        "self.h = []",
    ),
    "pairs": kept("self.h.append((x, x.sum()))\nreturn sum(a for a, _ in self.h), self.h[-1][1], len(self.h)", "self.h = []"),
    "pairs of a tensor and a number": kept(
        "self.h.append((x, (x.mean().item(), len(self.h))))\nrows, numbers = zip(*self.h)\n"
        "return torch.stack(rows).sum(0), sum(v for v, _ in numbers), self.h[0]",
        "self.h = []",
    ),
    "named tuples": "from typing import NamedTuple\nclass Step(NamedTuple):\n    x: torch.Tensor\n    n: int\n"
    + kept(
        "self.h.append(Step(x, len(self.h)))\nlast = self.h[-1]\nreturn last.x * last.n, sum(s.n for s in self.h), len(self.h)",
        "self.h = []",
    ),
    "numbers by name": kept(
        "self.d['a'].append(x.mean().item())\nself.d['b'].append(x)\nreturn torch.stack(self.d['b']).sum(0) * sum(self.d['a'])",
        "self.d = {'a': [], 'b': []}",
    ),
    "a list in a dict": kept(
        "h = self.d['p' if x.sum() > 0 else 'n']\nh.append(x)\nreturn torch.cat(h).sum(0), len(self.d['n'])", "self.d = {'p': [], 'n': []}"
    ),
}
_LIST = "the list `h` of the model is left with other contents"
REFUSED = {
    "a list, without a bound": (kept("self.h.append(x)\nreturn sum(self.h)", "self.h = []"), None, "build(..., max_length="),
    "a tensor, without a bound": (
        kept("self.h = torch.cat([self.h, x], 1)\nreturn self.h.sum()", "self.h = torch.zeros(1, 0, 4)"),
        None,
        "build(..., max_length=",
    ),
    "items of another shape each": (
        kept("self.h.append(x[:, :len(self.h)])\nreturn sum(t.sum() for t in self.h)", "self.h = []"),
        MOST,
        _LIST,
    ),
    "pairs and others": (
        kept("self.h.append((x, x) if x.sum() > 0 else (x, x, x))\nreturn len(self.h), self.h[-1][0]", "self.h = []"),
        MOST,
        "combinations of kinds",
    ),
    "ints among floats": (kept("self.h += [1, x.sum().item()]\nreturn sum(self.h)", "self.h = []"), MOST, _LIST),
    "dicts": (kept("self.h.append({'x': x})\nreturn sum(a['x'] for a in self.h)", "self.h = []"), MOST, _LIST),
    "an item that is asked for": (
        kept("self.h.append(x)\nreturn torch.stack(self.h), self.h[-1] is x", "self.h = []"),
        MOST,
        "whether two names are one object",
    ),
    "an input that is written later": (
        kept("self.h.append(x)\nself.h[0].add_(1)\nreturn torch.stack(self.h)", "self.h = []"),
        MOST,
        "may have been changed in place under another name",
    ),
    "an item that has another name": (
        kept(
            "if self.last is not None: self.last.add_(1)\nself.last = x * 1\nself.h.append(self.last)\nreturn torch.stack(self.h)",
            "self.h = []\nself.last = None",
        ),
        MOST,
        "",
    ),
}


def spoil(graph: HCFG, state: list[Any], seen: dict[str, int]) -> None:
    """Put what is no number behind the lengths: nothing may depend on it."""
    lengths = {}
    for variable, value in zip(graph.state, state):
        if variable.name.startswith("the length of "):
            lengths.update(dict.fromkeys(variable.name.removeprefix("the length of ").split(", "), int(value)))
    for k, variable in enumerate(graph.state):
        if variable.name in lengths and variable.name in seen:
            state[k] = buffer = state[k].clone()
            along, n = seen[variable.name], lengths[variable.name]
            behind = buffer.narrow(along, n, buffer.shape[along] - n)
            behind.fill_(float("nan")) if buffer.is_floating_point() else behind.fill_(3)


def _grows_along(graph: HCFG, eager: Any) -> dict[str, int]:
    """Return the dimension in which buffers are longer than what eager has, by the names of the state variables."""
    found = {}
    for variable in graph.state:
        shape, own = getattr(variable.type, "shape", ()), getattr(eager, variable.name, None)
        if ".items" in variable.name:
            found[variable.name] = 0
        elif isinstance(own, torch.Tensor) and len(shape) == own.dim():
            longer = [d for d, (n, m) in enumerate(zip(shape, own.shape)) if n > m]
            if longer:
                found[variable.name] = longer[0]
    return found


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    torch.manual_seed(0)
    model = model_of(RIGHT[name])
    graph = stage(model, (CALLS[0].clone(),), max_length=MOST)
    run_passes(graph)
    assert any(v.name.startswith("the length of ") for v in graph.state)
    assert not isinstance(getattr(model, "h", None), list) or (type(model.h) is list and model.h in ([], [1.0, 2.0])), (
        "the model is as it was"
    )
    eager = copy.deepcopy(model)
    state = [copy.deepcopy(graph_initial(v.initial)) for v in graph.state]
    for x in CALLS:
        spoil(graph, state, _grows_along(graph, eager))
        want, before = outcome(lambda x=x: eager(x.clone())), copy.deepcopy(state)
        try:
            got = interpret(graph, [x.clone()], state)[0]
        except LimitError as error:
            assert "max_length = 12" in str(error) and any(x is last for last in CALLS[5:])
            assert same(before, state)
            return
        assert same(want, got), f"eager {want}, staged {got}"


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    source, most, why = REFUSED[name]
    with pytest.raises(UnsupportedError) as error:
        stage(model_of(source), (CALLS[0].clone(),), max_length=most)
    assert why in str(error.value)


def test_a_library(tmp_path: Any) -> None:
    """Built and loaded: call after call, an error at the bound that leaves all as it was, and back to the beginning."""
    torch.manual_seed(0)
    source = (
        RIGHT["a pair that is None at first"]
        .replace("return (", "self.n += 1\n        return self.n, (")
        .replace("self.past = None", "self.n = 0\n        self.past = None", 1)
    )
    model = model_of(source)
    artifact = dycl_tvm.build(model, (CALLS[0],), max_length=MOST)
    assert [v.name for v in artifact.hcfg.state] == ["n", "the kind of past", "past[0]", "past[1]", "the length of past[0], past[1]"]
    module = dycl_tvm.load(artifact.export_library(tmp_path / "n.so"), artifact.save_params(tmp_path / "n.params"))
    for _ in range(2):
        eager = copy.deepcopy(model)
        for x in CALLS[:6]:
            assert same(outcome(lambda x=x, eager=eager: eager(x)), module(x))
        for _ in range(2):
            with pytest.raises(dycl_tvm.RunError, match=r"`past\[0\]` is longer after the call than max_length = 12"):
                module(CALLS[6])
        module.reset_state()


def test_a_cache_of_a_library() -> None:
    """What transformers keep: made once, its layers have no tensors before the first call, and flags tell so."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )

    class Streaming(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model, self.past = transformers.LlamaModel(config), transformers.DynamicCache(config=config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids, past_key_values=self.past, use_cache=True).last_hidden_state

    model = Streaming().eval()
    calls = [torch.randint(0, 16, (1, 3)) for _ in range(4)]
    graph, eager = stage(model, (calls[0],), max_length=MOST), copy.deepcopy(model)
    assert len(graph.return_sites()) <= 2
    call = graph.interpret()
    for ids in calls:
        assert same(outcome(lambda ids=ids: eager(ids)), call(ids))
    with pytest.raises(LimitError):
        call(calls[0])


def test_caches_of_many_layers_have_one_length() -> None:
    source = kept("for layer in self.layers: x = layer(x)\nreturn x", "self.layers = nn.ModuleList([Layer() for _ in range(20)])")
    layer = kept(
        "q, k, v = self.qkv(x).chunk(3, -1)\nself.k = k if self.k is None else torch.cat([self.k, k], 1)\n"
        "self.v = v if self.v is None else torch.cat([self.v, v], 1)\nreturn x + F.scaled_dot_product_attention(q, self.k, self.v)",
        _HEADS + "self.k = self.v = None",
    )
    graph = stage(model_of(_F + layer.replace("class Net", "class Layer") + source), (CALLS[0],), max_length=MOST)
    assert sum(v.name.startswith("the length of ") for v in graph.state) == 1 and len(graph.blocks) < 8


def test_a_copy_of_a_deque_is_no_path_for_each_length() -> None:
    graph = stage(model_of(RIGHT["a deque"].replace("maxlen=5", "maxlen=50")), (CALLS[0],))
    assert len(graph.blocks) < 4 and "float32[50, 1, 2, 4]" in [str(v.type) for v in graph.state]


def test_a_window_has_a_buffer_of_its_size() -> None:
    graph = stage(model_of(RIGHT["a window"]), (CALLS[0],), max_length=500)
    assert [str(v.type) for v in graph.state] == ["float32[1, 5, 4]", "int"]
