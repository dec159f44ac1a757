# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Keys of dicts and sets whose classes have ``__eq__`` and ``__hash__`` in Python: this code runs where it does in eager only."""

from __future__ import annotations

import pytest
from test_hunted import check_refused, check_right

from dycl_tvm.frontend.trace.heap.keys import remember
from dycl_tvm.frontend.trace.heap.places import Contents, exact

_KEY = """
class Key:
    log = []
    def __init__(self, n, tag=""): self.n, self.tag = n, tag
    def __eq__(self, other):
        Key.log.append("eq")
        return self.n == other.n
    def __hash__(self):
        Key.log.append("hash")
        return HASH
"""
KEY, ALL_ALIKE = _KEY.replace("HASH", "hash(self.n)"), _KEY.replace("HASH", "7")
_FROZEN = "@dataclasses.dataclass(frozen=True)\nclass Key:\n    n: int\n"
RIGHT = {
    "what runs of them": KEY
    + """
def net(x):
    Key.log.clear()
    d = {Key(1): 1}
    if x.sum() > 0:
        d[Key(1)] += 1
    else:
        d[Key(2)] = 2
    return x, list(d.values()), list(Key.log)
""",
    "counts in a class that lives on": """
class Key:
    hashes = 0
    def __init__(self, n): self.n = n
    def __eq__(self, other): return self.n == other.n
    def __hash__(self):
        Key.hashes = (Key.hashes + 1) % 5
        return 7
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.k = Key(1), Key(2)
        self.d = {k: 0 for k in self.k}
        Key.hashes = 0
    def forward(self, x):
        self.d[self.k[0 if x.sum() > 0 else 1]] = x
        return self.d[self.k[0]], Key.hashes
""",
    "keys that are made on the paths are not one for being equal": KEY
    + """
def net(x):
    d, s = {}, set()
    if x.sum() > 0:
        d[Key(1, "a")] = 1
        s.add(Key(1, "c"))
    else:
        d[Key(1, "b")] = 1
        s.add(Key(1, "d"))
    s.add(Key(1, "e"))
    return x, [k.tag for k in d], [k.tag for k in s]
""",
    "all with one hash": ALL_ALIKE
    + """
def net(x):
    d = {Key(i): x * i for i in range(5)}
    del d[Key(1)]
    if x.sum() > 0:
        del d[Key(0)]
        d[Key(0)] = x
        d[Key(3)] = -x
    else:
        d.pop(Key(4))
        d[Key(2)] = x + 1
    return [k.n for k in d], list(d.values()), d[Key(3)], Key(4) in d
""",
    "many values joined": KEY
    + """
def net(x):
    d = {Key(i): x * i for i in range(40)}
    for i in range(0, 40, 7):
        if x.sum() > i / 10:
            d[Key(i)] = d[Key(i)] + 1
    return list(d.values()), d[Key(39)]
""",
    "equal as the data decide": """
class Key:
    def __init__(self, t): self.t = t
    def __eq__(self, other): return torch.equal(self.t, other.t)
    def __hash__(self): return 1
def net(x):
    d = {Key(x): 1}
    d[Key(x.abs())] = 2
    if x.sum() > 1:
        d[Key(-x)] = 3
    return x, list(d.values())
""",
    "a comparison that raises": """
class Key:
    def __init__(self, n): self.n = n
    def __eq__(self, other):
        if self.n == 2: raise KeyError("two")
        return True
    def __hash__(self): return 1
def net(x):
    d = {Key(1): 1}
    try:
        d[Key(2 if x.sum() > 0 else 3)] = 5
    except KeyError:
        d = {"a": 9}
    return x, list(d.values())
""",
    "a hash that changes": """
class Key:
    def __init__(self): self.n = 1
    def __eq__(self, other): return self.n == other.n
    def __hash__(self): return self.n
def net(x):
    k = Key()
    d = {k: 1}
    k.n = 9
    if x.sum() > 0:
        d[Key()] = 2
    else:
        d["q"] = 7
    return x, k in d, len(d), list(d.values())
""",
    "in a rolled loop": KEY
    + """
def net(x):
    d = {Key(1): x, Key(2): x * 2}
    while d[Key(1)].sum() < 5:
        d[Key(1)] = d[Key(1)] + 1
        d[Key(2)] = d[Key(2)] - d[Key(1)]
    return d[Key(1)], d[Key(2)]
""",
    "made in each trip of a rolled loop": _FROZEN
    + """
def net(x):
    n = 0
    while x.sum() < 6 and n < 5:
        d = {Key(1): x, Key(2): n}
        if x[0, 0] > 0:
            d[Key(2)] = d[Key(2)] + 1
        x, n = d[Key(1)] + 1, d[Key(2)] + 1
    return x, n
""",
    "values that live on": KEY
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {Key(1): torch.zeros(2, 3), Key(2): 0}
    def forward(self, x):
        self.d[Key(1)] = self.d[Key(1)] + x
        if x.sum() > 0:
            self.d[Key(2)] += 1
        return self.d[Key(1)], self.d[Key(2)]
""",
    "frozen dataclasses, made anew in each call": _FROZEN
    + """
class Net(nn.Module):
    def forward(self, x):
        self.d = {(Key(1), "a"): 1 if x.sum() > 0 else 2, Key(3): x}
        return self.d[Key(1), "a"], self.d[Key(3)]
""",
    "sets of truths and numbers as keys": """
def net(x):
    d = {frozenset({1, 2}): x}
    d[frozenset({2, 1}) if x.sum() > 0 else frozenset({True, 3})] = x * 2
    return list(d.values()), [sorted(k) for k in d]
""",
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    check_right(RIGHT[name])


def test_an_ordered_dict_of_them_that_is_changed_is_refused() -> None:
    program = KEY + "import collections\ndef net(x):\n    d = collections.OrderedDict({Key(1): 1})\n    if x.sum() > 0:\n"
    check_refused(program + "        d[Key(2)] = 2\n    return x, len(d)\n", "an OrderedDict is changed whose keys have code of their own")


class Loud:
    """A key that must not be asked anything."""

    quiet = False

    def __eq__(self, other: object) -> bool:
        assert Loud.quiet
        return self is other

    def __hash__(self) -> int:
        assert Loud.quiet
        return 3


def test_contents_are_written_without_their_code() -> None:
    keys = [Loud() for _ in range(9)]
    Loud.quiet = True
    held = {key: i for i, key in enumerate(keys)}
    del held[keys[4]]
    some = set(keys[:5])
    Loud.quiet = False
    for container in (held, some):
        place = Contents(container)
        before = place.read()
        container.clear()
        place.write(before)
        keys_before = [k for k, _ in before] if container is held else before
        assert len(container) == len(before) and all(a is b for a, b in zip(container, keys_before))
    before = Contents(held).read()
    Contents(held).write(Contents(held).unflatten(before, [-i for i in held.values()]))
    assert list(held.values()) == [0, -1, -2, -3, -5, -6, -7, -8]
    assert exact(keys[0]) == exact(keys[0]) != exact(keys[1])
    assert remember((), {}).copy == {}
    Loud.quiet = True
    assert held[keys[8]] == -8 and keys[4] not in held and keys[3] in some
