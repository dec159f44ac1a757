# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which of the program's crossings answers a question of the graph."""

from __future__ import annotations

import torch

from dycl_tvm.hcfg.nodes import HostOp, Origin, Value
from dycl_tvm.hcfg.types import FLOAT, TensorType
from dycl_tvm.verify.align import Answers
from dycl_tvm.verify.crossings import Crossing


def test_of_numbers_that_are_close_the_equal_one_answers() -> None:
    line = ("net.py", 3)
    known = enumerate([1.00001, 2.0, 1.0])
    answers = Answers([Crossing(k, torch.float32, real, 10.0 + k, True, [line], (*line, k)) for k, real in known])
    for wanted in (12.0, 10.0):  # then the one that is close is left
        asked = HostOp("item", (Value(TensorType((), "float32")),), Value(FLOAT), Origin(*line, "forward"))
        assert answers.item(asked, torch.tensor(1.0)) == wanted
    assert answers.wrong is None
