# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which of the program's crossings answers a question of the graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HostOp, Origin, Value
from dycl_tvm.hcfg.types import FLOAT, TensorType
from dycl_tvm.verify.align import Answers
from dycl_tvm.verify.control import check_control
from dycl_tvm.verify.crossings import Crossing


def test_of_numbers_that_are_close_the_equal_one_answers() -> None:
    line = ("net.py", 3)
    known = enumerate([1.00001, 2.0, 1.0])
    answers = Answers([Crossing(k, torch.float32, real, 10.0 + k, True, [line], (*line, k)) for k, real in known])
    for wanted in (12.0, 10.0):  # then the one that is close is left
        asked = HostOp("item", (Value(TensorType((), "float32")),), Value(FLOAT), Origin(*line, "forward"))
        assert answers.item(asked, torch.tensor(1.0)) == wanted
    assert answers.wrong is None


def test_what_was_asked_once_more_is_not_the_answer_to_a_later_question() -> None:
    """The tensor that a short circuit leaves is asked for again; in the next trip its line asks for another one."""

    def counted(mask, x, k):
        of_kind = mask == k
        exists = of_kind.sum() > 0 and (x[k] >= 0.5).sum() > 0
        if exists:
            if not (of_kind.sum() / (x[k] >= 0.5).sum()).item() > 0.3:
                exists = False
        return exists, of_kind

    def program(x):
        found, count = torch.zeros(6), 0
        for k in range(2):
            exists, of_kind = counted(x.argmax(0), x, k)
            if exists:
                count += 1
                found[of_kind] = count
        return found

    x = torch.rand(2, 6)
    proved = check_control(program, stage(program, (x,)), (x,), {})
    assert proved.runs > 10 and proved.inconclusive == 0


def test_a_tensor_that_max_did_not_choose_is_not_asked_for() -> None:
    """The graph reads it on all paths; the program's other questions of that line are answers to other questions."""

    def sized(x):
        kinds = (x > 0).long().sum(-1)
        return F.one_hot(kinds, max(kinds.max() + 1, 5))[..., :5], kinds

    def scaled(x):
        best = x.max()
        return (x * min(best, 2.0), best.item(), x.min().item())  # what is chosen is never asked for

    x = torch.tensor([[0.5, -1.0, 2.0], [0.25, 1.0, 3.0]])
    for program in (sized, scaled):
        proved = check_control(program, stage(program, (x,), max_length=8), (x,), {})
        assert proved.runs > 3


def _nearest_first(costs):
    least, visited = torch.full((3,), torch.inf), torch.zeros(3, dtype=torch.bool)
    least[0] = 0
    while not visited[2]:
        at = torch.where(visited, torch.full_like(least, torch.inf), least).argmin().item()
        visited[at] = True
        if at < 2 and least[at] + costs[at] < least[at + 1]:
            least[at + 1] = least[at] + costs[at]
    return least


def test_what_is_written_through_a_view_is_no_matter_of_the_inputs_if_they_have_no_part_in_it() -> None:
    costs = torch.tensor([0.5, 0.25])  # the graph does not ask what the first trip leaves in `visited`
    graph = stage(_nearest_first, (costs,), max_loop_trips=8)
    assert check_control(_nearest_first, graph, (costs,), {}).runs > 1
