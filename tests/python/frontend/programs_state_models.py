# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs that change state: state that lives on (J), aliases of real tensors (K).

Functions take a 2x3 float tensor; classes are models.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types

import torch
from torch import nn


# -- J ------------------------------------------------------------------------------------------------------------------
class JBase:
    log = [0.0]


class JOnBase(nn.Module, JBase):
    def forward(self, x):
        self.log[0] += 1
        return x * self.log[0]


class JSlots(nn.Module):
    class S:
        __slots__ = ("n", "l")

    def __init__(self):
        super().__init__()
        self.s = self.S()
        self.s.n = 0
        self.s.l = [0]

    def forward(self, x):
        self.s.n += 1
        self.s.l[0] += 2
        return x * self.s.n + self.s.l[0]


class JNamespace(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = types.SimpleNamespace(n=0, h=torch.zeros(2, 3))

    def forward(self, x):
        self.s.n += 1
        if x.sum() > 0:
            self.s.h = self.s.h + x
        return self.s.h * self.s.n


@dataclasses.dataclass(eq=False)
class Plain:
    n: int = 0
    items: list = dataclasses.field(default_factory=lambda: [0.0, 1.0])


class JDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = Plain()

    def forward(self, x):
        self.s.n += 1
        self.s.items[0] += 1
        return x * self.s.n + self.s.items[0]


def _bump(box, x):
    box[0] += 1
    return x * box[0]


class JPartial(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = functools.partial(_bump, [0])

    def forward(self, x):
        return self.f(x)


class JDefault(nn.Module):
    def forward(self, x, seen=[0]):  # noqa: B006
        seen[0] += 1
        return x * seen[0]


class JClosure(nn.Module):
    def __init__(self):
        super().__init__()
        n = 0

        def f(x):
            nonlocal n
            n += 1
            return x * n

        self.f = f

    def forward(self, x):
        return self.f(x)


class JTupleOfLists(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = ([0], {"a": [1]})

    def forward(self, x):
        self.t[0][0] += 1
        self.t[1]["a"][0] *= 2
        return x * self.t[0][0] + self.t[1]["a"][0]


class JDeque(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = collections.deque([torch.zeros(2, 3), torch.zeros(2, 3)], maxlen=2)

    def forward(self, x):
        self.d.append(x)
        return sum(self.d)


class JKeys(nn.Module):
    """What is the key of a dict lives on too."""

    def __init__(self):
        super().__init__()
        self.table = {Plain(): 2.0}

    def forward(self, x):
        for key, factor in self.table.items():
            if x.sum() > 0:
                key.n += 1
            x = x * factor + key.n
        return x


class JUserDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = collections.UserDict(n=0)

    def forward(self, x):
        self.d["n"] += 1
        return x * self.d["n"]


N = 0
LOG = [0]


class JGlobal(nn.Module):
    def forward(self, x):
        global N
        N += 1
        return x * N


class JGlobalIf(nn.Module):
    def forward(self, x):
        global N
        if x.sum() > 0:
            N += 1
            return x * N
        return x


class JGlobals(nn.Module):
    def forward(self, x):
        globals()["N"] += 1
        return x * N


class JGlobalList(nn.Module):
    def forward(self, x):
        LOG[0] += 1
        return x * LOG[0]


# -- K ------------------------------------------------------------------------------------------------------------------
class KRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.ones(2, 3), requires_grad=False)
        self.rows = list(self.k.unbind(0))

    def forward(self, x):
        self.rows[0].add_(x[0])
        return self.k.clone()


class KRowsBack(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.ones(2, 3))
        self.rows = list(self.k.unbind(0))

    def forward(self, x):
        self.k.add_(x)
        if x.sum() > 0:
            self.rows[1].mul_(2)
        return self.rows[0].clone(), self.rows[1] + 1


class KTranspose(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.ones(3, 2))
        self.t = self.k.t()

    def forward(self, x):
        self.t.add_(x)
        return self.k * 1


class KDetached(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 3))
        self.view = self.w.detach()

    def forward(self, x):
        self.view.mul_(2)
        return self.w + x


class KAlias(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("buf", torch.zeros(2, 3))
        self.h = torch.zeros(2, 3)

    def forward(self, x):
        y = self.h + 1
        self.h = self.buf
        self.buf.add_(x)
        return y, self.h + 0


class KSlice(nn.Module):
    def __init__(self):
        super().__init__()
        base = torch.zeros(4, 3)
        self.a, self.b = base[:2], base[1:3]

    def forward(self, x):
        self.a.add_(x)
        return self.b * 1


class KTied(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(2, 3))
        self.register_buffer("b", self.a)

    def forward(self, x):
        self.a += x
        return self.b + 0


class KColumn(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(2, 3))
        self.c = self.a[:, 1]

    def forward(self, x):
        if x.sum() > 0:
            self.c += 1
        return self.a + x
