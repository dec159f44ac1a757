# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A generator of loops whose tensors grow: caches of every shape, what is asked of them, and how the loop ends.

A program has one to three caches. A trip computes a new ``y`` [2, 3], lets the caches grow by parts of it, and reads them; what is
read goes into ``y``, so that a wrong element changes everything after it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

#: choose(n) returns an int in range(n).
Choose = Callable[[int], int]

HEAD = '''\
import functools
import math
import torch
import torch.nn.functional as F
from torch import nn


def S(t):
    """One number of a tensor, small and finite."""
    t = t.to(torch.float32)
    return torch.tanh(torch.where(t == t, t, 0.3).clamp(-2, 2).sum() * 0.1)


class Box:
    def __init__(self, c=None):
        self.c = c

    def __len__(self):
        return 0 if self.c is None else self.c.shape[-2]

    def update(self, new, dim):
        self.c = new if self.c is None else torch.cat([self.c, new], dim)
        return self.c


'''


@dataclass(frozen=True)
class Cache:
    """A tensor that grows.

    Attributes
    ----------
    first, new : str
        What it is before the loop, and what is added in a trip.
    rank, dim : int
    kind : str
        ``float``, ``int`` or ``bool``.
    name : str
        The place that holds it.
    """

    first: str
    new: str
    rank: int
    dim: int
    kind: str = "float"
    name: str = "c"

    def at(self, index: str) -> str:
        """Return the text that indexes the dimension that grows."""
        return f"{self.name}[{':, ' * self.dim}{index}]"


CACHES = [
    Cache("x[:, :1]", "y.sum(1)[:, None]", 2, 1),
    Cache("x", "y[:, -1:]", 2, 1),
    Cache("x.new_zeros(2, 0)", "y[:, :2]", 2, 1),
    Cache("(x[:, :2] * 4).long()", "y.argmax(1)[:, None]", 2, 1, "int"),
    Cache("torch.ones(2, 1, dtype=torch.long)", "(y.sum(1, keepdim=True) * 3).long().clamp(-5, 5)", 2, 1, "int"),
    Cache("x[:, :1] > 0", "y[:, :1] > 0.5", 2, 1, "bool"),
    Cache("x", "y[:1]", 2, 0),
    Cache("x[0]", "y.sum().reshape(1)", 1, 0),
    Cache("x[0].half()", "y[1, :2].half()", 1, 0),
    Cache("torch.zeros(0, dtype=torch.int32)", "y[:, 0].int()", 1, 0, "int"),
    Cache("x.view(2, 1, 1, 3).expand(2, 2, 1, 3)", "y.view(2, 1, 1, 3).repeat(1, 2, 1, 1)", 4, 2),
    Cache("x[:, None]", "y[:, None]", 3, 1),
    Cache("x[:, :, None]", "y[:, :, None]", 3, 2),
    Cache("x.t()", "y.t()[:, :1]", 2, 1),
    Cache("x.t()", "y.t()", 2, 0),
    Cache("torch.zeros(1, 0, 3, dtype=torch.float64)", "y[None].double()", 3, 1),
    Cache("None", "y[:, None]", 3, 1),
    Cache("None", "y[:, :1]", 2, 1),
]

#: How a cache grows; D is the dimension.
GROWTH = [
    "{c} = torch.cat([{c}, {new}], {D})",
    "{c} = torch.cat([{c}, {new}], {D})",
    "{c} = torch.cat(({c}, {new}), dim={N})",
    "{c} = torch.cat(tensors=[{c}, {new}], axis={D})",
    "{c} = torch.cat([{new}, {c}], {D})",
    "{c} = torch.concat([{c}, {new}, {new}], {D})",
    "{c} = torch.cat([{c}, {last}], {D})",
    "if y[0, 0] > 0.7:\n    {c} = torch.cat([{c}, {new}], {D})\nelse:\n    {c} = torch.cat([{c}, {new} * 0], {D})",
    "if y[0, 0] > 0.7:\n    {c} = torch.cat([{c}, {new}], {D})",
    "{c} = torch.cat([{c}, {new}], {D})[{all}-4:]",
    "{c} = torch.cat([{c}, {new}], {D})\nif {n} % 3 == 0:\n    {c} = torch.cat([{c}, {new}], {D})",
    "old = {c}\n{c} = torch.cat([old, {new}], {D})\ny = y + S(old) * 0.1",
]

#: What gives a tensor; n is the length, i a number known only at run time in it.
TENSORS = r"""
{c}.sum() | {c}.sum({D}) | {c}.sum(axis={O}) | torch.sum({c}, dim={O}, keepdim=True) | torch.sum(input={c}, dim={O}) | {c}.sum(())
{c}.float().mean() | {c}.float().mean({D}) | {c}.max() | {c}.amax({D}) | {c}.argmax({D}) | {c}.min({D})[0] | {c}.cumsum({D})
({c} > 0).all() | ({c} > 0).any({D}) | ({c} != 0).all({O}) | ({c} == 1).sum({D}) | {c}.bool().long().sum(-1) | {c}.float().softmax({D})
torch.softmax({c}.float(), dim={N}) | F.softmax(input={c}.float(), dim={O}) | {c}.float().log_softmax({D}) | {c}.float().norm()
{c}.sort({D})[0] | {c}.flip({D}) | {c}.unsqueeze(0) | {c}.unsqueeze(-1) | {c}.unsqueeze({N}) | {c}.squeeze() | {c}.transpose(0, -1)
{c}.transpose(dim0=0, dim1=-1) | {c}.permute({perm}) | {c}.permute(dims=({perm},)) | {c}.movedim(0, -1) | {c}.reshape(-1)
{c}.flatten() | {c}.reshape({c}.shape) | {c}.view({c}.size()) | {c}.contiguous().view(-1) | {c}.view(*{c}.shape, 1)
{c}.transpose(0, -1).reshape({c}.transpose(0, -1).shape) | {c}.transpose(0, -1).contiguous() | {c}.expand(2, *{c}.shape)
{c}.narrow({D}, 0, 1) | {c}.narrow({D}, {n} - 1, 1) | {c}.select({D}, -1) | {c}.select({D}, {n} - 1) | {c}.unbind({D})[-1] | {at:0}
{at:-1} | {at:-1:} | {at:-2:} | {at:1:} | {at::-1} | {at::1} | {at::2} | {at:::2} | {at:-2:-1} | {at:n - 1} | {at::n} | {at:n - 1:}
{at::n - 1} | {at:n // 2} | {at:i} | {at:-i - 1} | {at:1:-1} | {at:2} | {at::5} | {at:-3:} | {at:None} | {at:...} | {c}[..., -1]
{c}[-1] | {c}[{c} > 0] | {c}.index_select({D}, torch.tensor([0])) | torch.stack([{c}, {c}]) | torch.cat([{c}, {c}], {O})
torch.cat([{c}, {c}], {D}) | {c} * 2 | 2 ** {c}.float() | {c}.long() // 2 | {c}.long() % 3 | -{c}.float() | {c}.float().exp()
{c}.float().log() | {c} + {c} | {c}.long() ** 2 | torch.div(7, {c}.long().abs() + 1, rounding_mode="floor")
torch.div(9, {c}.float(), rounding_mode="floor") | 2 ** {c}.long().abs() | torch.where({c} > 0, {c}, 0) | {c}.masked_fill({c} > 0, 1)
{c}.float().clamp(min=0.5) | torch.add({c}.float(), 1, alpha=-3) | {c}.to(torch.float64)
{c}.float().clamp(max={c}.float().sum({D}, keepdim=True)) | {c}.float().relu().tanh() | {c}.to({c}.dtype) | {c}.type_as(y)
{c}.detach() | {c}.clone() | torch.matmul({c}.float().transpose(-1, -2), {c}.float()) | {c}.float() @ {c}.float().mT
{c}.float().reshape(-1) @ {c}.float().reshape(-1) | torch.arange({n}) | torch.arange({n})[1:] | torch.arange(1, {n} + 1)
torch.ones(2, {n}) | torch.zeros(2, {n} - 1) | torch.full((2, {n}), 0.5) | torch.zeros_like({c}) | torch.ones_like({c}).float()
torch.ones({n}, {n}).tril() | y[:, :1].expand(2, {n}) | y[:, :1].expand(-1, {n}) * 2 | {c}.new_ones({c}.shape) | torch.arange({n}) + {n}
torch.arange({n}) < {n} - 2 | torch.arange({n} - 3) | torch.zeros(2, {n} * 2) | torch.tensor({n}) | F.pad({c}.float(), (0, 1))
F.layer_norm({c}.float(), ({c}.shape[-1],)) | F.relu({c}.float()) | torch.arange(20 - {n}) | y / {n} | torch.full((2,), {n} >= 5)
self.table[{c}.long().abs() % 5] | F.embedding({c}.long().abs() % 5, self.table)
F.linear({c}.float(), self.w) if {c}.shape[-1] == 3 else y | (torch.arange({n})[None] <= torch.arange({n})[:, None])
torch.arange({n})[torch.arange({n})] | {c}.repeat_interleave(2, {D}) | {c}.roll(1, {D}) | {c}.float().std()
torch.equal({c}, {c}.clone()) * y | torch.rand_like({c}.float()) | {c}.float().double().float() | {c}.float().prod({D})
{c}.float().topk(1, {D})[0] | {c}.chunk(2, {D})[0] | {c}.split(1, {D})[0] | torch.hstack([{c}, {c}]) | {c}.float().logsumexp({D})
{c}.isnan() | torch.stack([v.sum() for v in {c}]) | sum(v.sum() for v in {c}) * y | {c}.t() if {c}.dim() < 3 else {c}.mT
self.wide[:, :{n}] | self.wide[:, : {n} + 1] * y[:, :1] | self.wide[0, :{n}].sum() * y | self.wide[:, :{n}].t() | self.wide[..., : {n} - 1]
self.wide[:, :int(y.sum().abs()) % 7] | self.wide[:, :int(y.sum()) % 9 - 4] | self.wide[:, None, :{n}].reshape(-1)
torch.arange({n}, {n} + 2) | torch.ones(2, {n}).tril({n} - 2) | {c}.float()[None].triu(diagonal=1) | {c}.tril({n} // 2)
F.pad({c}.float(), (0, 1), value=0.5) | F.pad({c}.float(), (0, 15 - {c}.shape[-1])) | F.pad({c}, (0, {n})) | F.pad({c}.float(), (0, -1))
torch.max({c}.float(), {c}.float() * 0.5) | torch.min({c}.float()) | F.dropout({c}.float(), 0.5, False) | {c}.max()
{c}.index_select({O}, torch.tensor([0])) | {c}.float() + self.wide[0, :{n}]
F.scaled_dot_product_attention(y.view(1, 2, 3), {c}.float().reshape(1, -1, 3), {c}.float().reshape(1, -1, 3)) if {c}.shape[-1] == 3 else y
"""

#: What gives a number, a text or a truth.
NUMBERS = r"""
{n} | {n} + 1 | {n} * 2 | -{n} | {n} // 2 | {n} % 2 | {n} / 2 | {n} ** 2 | float({n}) | int({n} > 3) | min({n}, 4) | max({n}, 3)
len({c}) | {c}.numel() | {c}.size({D}) | {c}.size(dim={N}) | {c}.dim() | {c}.ndim | len({c}.shape) | {c}.shape.numel()
[5, 4, 3, 2, 1, 0][min({n}, 5)] | len("ab" * {n}) | math.sqrt({n}) | sum(range({n})) | bool({n}) + 0 | ({n} in (3, 5)) + 0
(7 if {n} > 4 else 2) | (1 if {n} % 2 else 2) | len(f"<{{n}}>") | len(str({n})) | {3: 10, 4: 20}.get({n}, 0) | isinstance({n}, int) + 0
({c}.contiguous() is {c}) + 0 | ({c}.float() is {c}) + 0 | ({c} is {f}) + 0 | hash({n}) % 7 | ({c}.shape == {c}.shape) + 0
({c}.shape[{D}] == {n}) + 0 | {c}.shape.index({n}) | ({c}.dtype == torch.float32) + 0 | ({c}.device.type == "cpu") + 0
({c}.is_contiguous()) + 0 | {c}.stride()[0] | float({at:-1}.float().sum()) | round(float({at:0}.float().sum()))
({c}.to({c}.dtype) is {c}) + 0 | int({c}.float().sum().abs()) % 3 | max({n}, 3, key=lambda v: -v) | divmod({n}, 3)[1] | abs({n} - 5)
(lambda m: m * 2)({n}) | list(range({n}))[-1] | functools.reduce(lambda a, b: a + b, [{n}, 1]) | ({c}.view(-1) is {c}) + 0
sorted([{n}, 4])[0] | ({n} > 2 and {n} < 6) + 0 | ({n} <= 3 or y.sum() > 1) + 0 | (type({c}) is torch.Tensor) + 0
({c}.detach() is {c}) + 0 | any(d > 4 for d in {c}.shape) + 0 | ({c}.clone() is {c}) + 0 | {c}.element_size() | {c}.nbytes
torch.finfo(torch.float32).bits * {n} | int(torch.tensor({n})) | torch.Size([{n}, 1]).numel() | tuple({c}.shape)[{D}]
({c}.shape[{D}] - {n}) | {n} // 1
"""

#: Statements.
CHANGES = r"""
{c} = {c} * 1.5 | {c} = {c}.clone() | {at:-1} = 0 | {at:0} += 1 | {c} += 1 | {c}.mul_(2) | v = {at:-1}\nv.add_(1)
v = {at:1:}\nv.mul_(0.5)\ny = y + S({c}) | v = {at:-1:}\ny = y + 1\ny = y + S(v) | kept = {c} | kept = {at:-1:} | many.append(y.sum(1))
many.append({at:-1}) | table[len(table)] = y | table["c"] = {c} | self.last = {c} | self.n += {n} | self.n = {n}
a = b = {c}\na = a + 1\ny = y + S(b) | {c} = {c}.transpose(0, -1).transpose(0, -1)
try:\n    y = y + S({at:4})\nexcept IndexError:\n    y = y - 0.1 | assert {n} < 60 | if {n} == 4:\n    y = y * 0.5
w = torch.zeros(2, 15)\nw[:, {n} - 1] = y[:, 0]\ny = y + S(w[:, :{n}]) | v = self.wide[:, :{n}]\nacc = acc + v.shape[1]
y = y + S(self.wide[:, :{n}]) * self.wide[:, :{n}].shape[1]
w = self.wide * 1\nv = w[:, :{n}]\nw[:, 0] += 1\ny = y + S(v) | w = self.wide * 1\nv = w[:, :{n}].reshape(-1)\nw.mul_(2)\ny = y + S(v)
w = self.wide * 1\nv = w[:, :{n}][:, -1:]\nw.add_(1)\ny = y + S(v)
kept = self.wide[:, :{n}] | if y[0, 0] > 1:\n    kept = self.wide[:, :{n}]
if {n} > 3:\n    y = y + 0.25 | for k in range({n}):\n    y = y + 0.01 * k
for k in range({n}):\n    if k > 2:\n        break\n    y = y + 0.02 | y = y + torch.rand(1) | y = y + torch.randn(2, {n}).sum()
try:\n    y = y + S({c}.transpose(0, -1).view(-1))\nexcept RuntimeError:\n    y = y * 0.9
w = y[:, :1]\ne = w.expand(2, {n})\nw.add_(1)\ny = y + S(e) | if y[1, 1] > 1:\n    kept = {c}
if y[1, 1] > 1:\n    v = {c}\nelse:\n    v = {c} * 2\ny = y + S(v)
found = None\nif y[0, 1] > 1:\n    found = {c}\nif found is not None:\n    y = y + S(found) | with torch.no_grad():\n    y = y + S({c})
def f(z=1):\n    return S({c}) * z\ny = y + f(2) | y = y + functools.partial(torch.mul, 0.5)(S({c})) | y = sum(map(S, [{c}, y])) + x
if {n} > 6:\n    {c} = {at:1:} | if {n} % 2 == 0:\n    y = y + 1 | {c}, v = {c} + 0, {c}\ny = y + ({c} is v)
if y.sum() > 3:\n    continue | z = {c}\nif {c} is {f}:\n    y = y + 1
"""

#: Loops whose condition is known only at run time.
ROLLED = [
    "while {n} < {M} and y.sum() < {L}:\n{body}",
    "while True:\n{body}\n    if y.sum() > {L} or {n} >= {M}:\n        break",
    "while True:\n{body}\n    if y[0].sum() > {L}:\n        return y, {n}, {c}\n    if {n} >= {M}:\n        break",
    "done, k = torch.zeros(2, dtype=torch.bool), 0\nwhile not done.all() and k < {M}:\n{body}\n"
    "    done = done | (y.sum(1) > {L})\n    k += 1",
    "going = torch.ones(2, dtype=torch.long)\nwhile going.max() != 0:\n{body}\n"
    "    going = going & ~((y.sum(1) > {L}) | torch.full((2,), {n} >= {M}))",
    "end = x.new_zeros(())\nwhile end < {L} and {n} < {M}:\n{body}\n    end = end + y.abs().sum() * 0.3",
    "for i in range(int(x[0, 0].abs() * 4)):\n{body}",
    "while {n} < {M} and y.sum() < {L}:\n{body}\nwhile {n} < {M} + 3:\n{body}",
    "while {n} < {M} and y.sum() < {L}:\n    m = 0\n    while y[0, 0] < 3 - m:\n        y = y + 0.5\n        m += 1\n{body}",
]
#: These have a bound that Python knows. They are rolled where they have enough trips and these are alike; the others are unrolled.
COUNTED = [
    "for i in range({M} + 6):\n{body}\n    if y.sum() > {L}:\n        break",
    "for i in range({M} + 6):\n{body}",
    "for i in range({M} + 6):\n{body}\n    many.append(y[:, :2])\n    if y.sum() > {L}:\n        break\n"
    "y = y + S(torch.stack(many)) if many else y * 2",
    "for i in range(3, {M} * 3 + 12, 3):\n{body}\n    if y[0].sum() > {L}:\n        return y, i, many, {c}",
    "for i in range({M} + 8):\n    if y[1, 0] > 0.9:\n        y = y - 0.2\n        continue\n{body}\n"
    "    y = y + i * 0.01 + self.wide[:, i % 11][:, None] * 0.1\n    if i > 0 and y.sum() > {L}:\n        break\nelse:\n    acc = acc + i",
    "for i in range({M} + 9, 0, -1):\n    y = y + self.table[i % 5] * 0.1 + torch.full((2, 3), i * 0.01)\n{body}\n"
    "    y = y * 0.9 if i == {M} + 9 else y\n    if y.abs().sum() > {L}:\n        k = i\n        break",
    "for i in range(9):\n    y = y + l[i % 2] if torch.is_tensor(l[i % 2]) else y\n{body}\n    if y.sum() > {L}:\n        break",
    "for r in range(2):\n    for i in range({M} + 6):\n{deep}\n        if y.sum() > {L} * (r + 1):\n            break\n    y = y * 0.5",
    "for i in range({M} + 6):\n{body}\n    for j in range(i):\n        y = y + 0.01 * j\n    if y.sum() > {L}:\n        break",
    "out = y\nfor i in range(12):\n    out = y * (i + 1)\n{body}\n    if y.sum() > {L}:\n        break\ny = y + out * 0.1 + i",
    "try:\n    for i in range({M} + 6):\n{deep}\n        if y.sum() > {L}:\n            raise ValueError(i)\n"
    "except ValueError as e:\n    y = y + 5 + e.args[0]",
    "while {n} < {M} + 2 and y.sum() < {L} * 3:\n    for i in range(9):\n        y = y + 0.03\n"
    "        if y[0, 1] > 1.1:\n            break\n    y = y - 0.3\n{body}",
]
#: Others, unrolled too, if they have few trips.
UNROLLED = [
    "for i in range({M}):\n{body}\n    if y.sum() > {L}:\n        break",
    "for i in range({M}):\n    if y.sum() > {L}:\n        break\n{body}\nelse:\n    y = y - 1",
    "k = 0\nwhile y.sum() < {L}:\n    k += 1\n    if k > {M}:\n        break\n{body}",
    "try:\n    for i in range({M}):\n        if y.sum() > {L}:\n            raise ValueError\n{deep}\nexcept ValueError:\n    y = y + 5",
    "stop = {n} + {M}\nwhile {n} < stop:\n{body}\n    if (y[:, 0] > {L}).all():\n        break",
    "for r in range(2):\n    while {n} < {M} * (r + 1) and y.sum() < {L} * (r + 1):\n{deep}",
    "for i in range({M}):\n    try:\n        if y.sum() > {L}:\n            break\n    finally:\n        y = y + 0.1\n{body}",
    "def step(s):\n    {nonlocal}\n    y = s\n{body}\n    return y\nfor i in range({M}):\n    y = step(y)\n"
    "    if y.sum() > {L}:\n        break",
]
HOLDERS = ["c{k}", "c{k}", "c{k}", "self.c{k}", "d['c{k}']", "l[{k}]", "b{k}.c"]


_EXTRA = ("old", "kept", "v", "e", "w", "a", "b", "z", "found", "k", "m")


def _options(text: str) -> list[str]:
    return [o.strip().replace("\\n", "\n") for line in text.strip().splitlines() for o in line.split(" | ")]


_TENSORS = [f"y = y + S({o})" for o in _options(TENSORS)]
_NUMBERS = [f"acc = acc + ({o})" for o in _options(NUMBERS)]
#: All that is done with a cache.
READS = [*_TENSORS, *_NUMBERS, *_options(CHANGES)]


class GrowingProgram:
    """A program whose tensors grow in a loop."""

    def __init__(self, choose: Choose, read: int | None = None, reads: int = 2) -> None:
        self._choose, self._only = choose, read
        self._caches = [
            replace(self._one(CACHES[: None if k else -2]), name=self._one(HOLDERS).replace("{k}", str(k)))
            for k in range(1 + choose(5) // 3 + choose(9) // 8)
        ]
        self._bound, self._limit, self._reads = 2 + choose(11), self._one(["2", "4.5", "8", "15", "(x[1].sum() + 4)"]), reads
        self._loop = ROLLED[0] if read is not None else self._one(ROLLED if (kind := choose(4)) > 1 else COUNTED if kind else UNROLLED)

    def source(self) -> str:
        """Return the text of the module."""
        caches = self._caches
        body = ["y = y * 0.9 + x * 0.2 + 0.3"]
        for c in caches:
            body.append(self._filled(self._grown(c), c))
        for _ in range(1 + self._choose(self._reads) if self._only is None else self._choose(4) > 0):
            place = self._choose(len(body) + 1)
            body.insert(place, self._read(self._one(caches)))
        if "{nonlocal}" in self._loop:
            body = [line.replace("continue", "pass") for line in body]
        loop = self._filled(self._loop, caches[0])
        for name, depth in (("body", 4), ("deep", 8)):
            loop = loop.replace(f"{{{name}}}", textwrap.indent("\n".join(body), " " * depth))
        names = sorted({"y", "acc", *_EXTRA, *(c.name for c in caches if c.name.isidentifier())})
        loop = loop.replace("{nonlocal}", f"nonlocal {', '.join(names)}")
        after = [
            self._read(self._one(caches)).replace("continue", "pass")
            for _ in range(self._choose(3) if self._only is None else self._choose(2))
        ]
        stateful = self._choose(3) == 0
        begin = [f"{'='.join([*_EXTRA, 'y'])} = x", "acc, d, l, many, table = 0, {}, [None] * 3, [], {}"]
        begin += [f"b{k} = Box()" for k in range(len(caches))]
        for k, c in enumerate(caches):
            first = c.first if c.first != "None" or self._choose(2) else c.new
            begin += [f"if self.c{k} is None:\n    self.c{k} = {first}"] if stateful and c.name == f"self.c{k}" else [f"{c.name} = {first}"]
            begin.append(f"first{k} = {c.name}")
        if any("torch.rand" in line for line in [loop, *after]):
            begin.insert(0, "torch.manual_seed(7)")
        end = [f"return y, acc, {self._one(['kept', 'many', 'table', 'd', 'S(y)'])}, {', '.join(c.name for c in caches)}"]
        forward = "\n".join([*begin, loop, *after, *end])
        init = "super().__init__()\nself.n, self.last = 0, None\nself.c0 = self.c1 = self.c2 = None\n"
        init += 'self.register_buffer("wide", torch.arange(22.0).reshape(2, 11) / 9)\n'
        init += 'self.register_buffer("table", torch.arange(15.0).reshape(5, 3) / 7)\nself.w = nn.Parameter(torch.ones(2, 3) / 3)'
        methods = f"def __init__(self):\n{textwrap.indent(init, '    ')}\n\ndef forward(self, x):\n{textwrap.indent(forward, '    ')}"
        return f"{HEAD}class Net(nn.Module):\n{textwrap.indent(methods, '    ')}\n"

    def _one(self, options: list) -> Any:
        return options[self._choose(len(options))]

    def _grown(self, c: Cache) -> str:
        if c.first == "None":
            return "{c} = {new} if {c} is None else torch.cat([{c}, {new}], {D})"
        return self._one(GROWTH) if self._only is None and self._choose(3) == 0 else GROWTH[0]

    def _read(self, c: Cache) -> str:
        kind = self._choose(8)
        options = _TENSORS if kind < 4 else _NUMBERS if kind < 7 else READS[len(_TENSORS) + len(_NUMBERS) :]
        text = self._one(options) if self._only is None else READS[self._only]
        text = self._filled(text, c)
        return f"if {c.name} is not None:\n{textwrap.indent(text, '    ')}" if c.first == "None" else text

    def _filled(self, text: str, c: Cache) -> str:
        words = {
            "c": c.name,
            "new": c.new,
            "D": str(c.dim),
            "N": str(c.dim - c.rank),
            "O": str(0 if c.dim or c.rank == 1 else 1),
            "n": f"{c.name}.shape[{self._choose(2) and c.dim or c.dim - c.rank}]",
            "M": str(self._bound),
            "L": self._limit,
            "f": "first" + next(d for d in c.name[::-1] + "0" if d.isdigit()),
            "perm": ", ".join(map(str, reversed(range(c.rank)))),
            "last": c.at("-1:"),
            "all": ":, " * c.dim,
        }
        if words["n"].startswith("None"):
            words["n"] = "0"

        def word(match: re.Match[str]) -> str:
            name, index = match.groups()
            if name == "at":
                return c.at(re.sub(r"\bn\b", words["n"], index).replace("i", f"(int(y.sum().abs()) % {words['n']})"))
            return words.get(name, match.group())

        return re.sub(r"\{(\w+)(?::([^{}]*))?\}", word, text)
