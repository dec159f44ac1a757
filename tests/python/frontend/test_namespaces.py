# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attributes that come to be by methods of the dict that holds them, on one path; the names of a class body."""

from __future__ import annotations

import pytest
from test_hunted import check_right

_BOX = "import operator\nclass Box:\n    pass\n"
_AND_SEEN = "    if x.sum() > 0:\n        {}\n    return getattr(box, 'own', 'none'), sorted(vars(box)), x\n"
STATEMENTS = {
    "setdefault": "box.__dict__.setdefault('own', []).append(2)",
    "setdefault of vars": "own = vars(box).setdefault('own', []); own.append(2)",
    "setdefault of what is there": "box.own = [1]; box.__dict__.setdefault('own', []).append(2)",
    "update": "box.__dict__.update(own=[1], other=2); box.own[0] = 5",
    "update with pairs": "box.__dict__.update([('own', [1])]); box.own[0] = 5",
    "update of the class": "dict.update(vars(box), {'own': [1]}); box.own[0] = 5",
    "an operator": "box.__dict__ |= {'own': [1]}; box.own[0] = 5",
    "a function that stores": "kept = []; operator.setitem(vars(box), 'own', kept); kept.append(1)",
    "two in succession": "box.__dict__.setdefault('own', [1]).append(box.__dict__.setdefault('other', [2]))",
    "in a loop": "[vars(box).setdefault('own', [i]).append(i) for i in range(3) if x[0, i] > 0]",
    "by a function of the user's": "(lambda space, value: space.setdefault('own', value))(vars(box), [x]).append(1)",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_attributes(name: str) -> None:
    check_right(_BOX + "def net(x):\n    box = Box()\n" + _AND_SEEN.format(STATEMENTS[name]))


@pytest.mark.parametrize("space", ["self.__dict__", "globals()"])
def test_of_a_module(space: str) -> None:
    check_right(f"""
class Net(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            {space}.setdefault("seen", []).append(1)
        n = len({space}.get("seen", ()))
        {space}.pop("seen", None)
        return x, n
""")


CLASS_BODIES = {
    "a choice": "k = n + 1 if x.sum() > 0 else n - 1",
    "a choice that Python knows": "k = n if n else 0; j = [i for i in range(n)] if n > 2 else []",
    "and, or, not": "k = (x.sum() > 0) and n; j = 0 or n; m = not n",
    "a chain of comparisons": "k = 0 < n < 5; j = x.sum() < n < 5",
    "a text": "k = f'{n}' if x.sum() > 0 else 'none'",
    "in a test": "\n        if x.sum() > 0 and n == 3: k = n\n        else: k = -n",
    "in a loop": "\n        while n < 5 and n < 9: n += 1\n        k = n or 7",
}


@pytest.mark.parametrize("name", CLASS_BODIES)
def test_a_class_body_sees_its_own_names(name: str) -> None:
    body = CLASS_BODIES[name]
    check_right(f"def net(x):\n    n = 10\n    class Box:\n        n = 3\n        {body}\n    return x, Box.k, getattr(Box, 'j', 0), n\n")
