# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attributes that come to be by methods of the dict that holds them, on one path."""

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
