# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a call of a library's gives is state if the library keeps it; what a class makes anew at each call (``ModelOutput``) is not kept."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch

from dycl_tvm.frontend.python.calls.shared import _makes_anew


@dataclasses.dataclass
class Box:
    held: torch.Tensor


class OneForAll:
    only: Any = None

    def __new__(cls):
        cls.only = cls.only or super().__new__(cls)
        return cls.only


class Registered(type):
    made: Any = None

    def __call__(cls):
        Registered.made = Registered.made or super().__call__()
        return Registered.made


class Kept(metaclass=Registered):
    pass


@pytest.mark.parametrize(
    ("made", "anew"),
    [(Box, True), (collections.OrderedDict, True), (collections.deque, True), (OneForAll, False), (Kept, False), (len, False)],
)
def test_classes_that_make_an_object_at_each_call(made, anew):
    assert _makes_anew(made) is anew
