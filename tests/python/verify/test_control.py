# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Forced execution: what it finds, what it covers, what it leaves alone, and that it leaves no trace."""

from __future__ import annotations

import contextlib
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import silently_wrong
import silently_wrong_sharing  # adds its programs
import torch
from silently_wrong import PROGRAMS
from torch import nn

from dycl_tvm.errors import UnsupportedError, VerificationError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret
from dycl_tvm.hcfg.nodes import HCFG, Branch, HostOp, Return
from dycl_tvm.passes import run_passes
from dycl_tvm.verify.budget import Budget, BuildBudget
from dycl_tvm.verify.control import check_control
from dycl_tvm.verify.passes import check_passes
from dycl_tvm.verify.same import difference

X = torch.tensor([[0.5, -1.0, 2.0], [0.25, -0.5, 1.0]])


#: The modules that the programs count in, with their numbers.
_GLOBALS = [
    (space, {k: v for k, v in space.items() if isinstance(v, (int, float))})
    for space in (vars(silently_wrong), vars(silently_wrong_sharing), vars(silently_wrong_sharing._MODULE))
]


def _put_back() -> None:
    for space, numbers in _GLOBALS:
        space.update(numbers)


def _differs_on_inputs(make, graph: HCFG) -> str | None:
    """Return what is different between eager and a graph on ordinary inputs, three calls in succession."""
    for k in range(6):
        _put_back()
        model, state = make(), [graph_initial(v.initial) for v in graph.state]
        for _ in range(3):
            x = torch.randn(2, 3) + (k % 3 - 1) * 2
            try:
                with torch.no_grad():
                    want = model(x.clone())
            except Exception as error:
                want = type(error).__name__
            try:
                got = interpret(graph, [x.clone()], state)[0]
            except Exception as error:
                got = type(error).__name__
            found = difference(want, got)
            if found or isinstance(want, str):
                return found
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_silently_wrong(name: str) -> None:
    """Refused, or right as far as inputs tell, or found by the check."""
    make = PROGRAMS[name]
    _put_back()
    try:
        graph = stage(make(), (X,))
    except UnsupportedError:
        return
    try:
        check_control(make(), graph, (X,), {})
    except VerificationError:
        return
    assert _differs_on_inputs(make, graph) is None


def _gates(x):
    n = 0
    if x.sum() > 0:
        x = x + 1
        n += 1
    while x.max() < 5 and n < 6:
        x = x * 2 + 1
        n += 1
    if x[0, 0].item() == 12.5:
        return x - 1, n
    return x, n


def test_covers_what_no_input_takes() -> None:
    """Both sides of an equality with a number that random inputs never give, and 0, 1, 2 and many trips."""
    proved = check_control(_gates, stage(_gates, (X,)), (X,), {})
    assert proved.edges == proved.edges_total > 4
    assert set(proved.trips) >= {"0", "1", "2", "many"}
    assert proved.pairs > 0 and proved.inconclusive == 0 and proved.reason == ""


def test_is_the_same_every_time() -> None:
    graph = stage(_gates, (X,))
    assert check_control(_gates, graph, (X,), {}) == check_control(_gates, graph, (X,), {})


def _swap_a_branch(graph: HCFG) -> None:
    term = next(b.terminator for b in graph.blocks if isinstance(b.terminator, Branch))
    term.then, term.orelse = term.orelse, term.then


def _change_a_constant(graph: HCFG) -> None:
    step = next(s for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and 12.5 in s.args)
    step.args = tuple(12.75 if a == 12.5 else a for a in step.args)


def _other_bound(graph: HCFG) -> None:
    step = next(s for b in graph.blocks for s in b.steps if isinstance(s, HostOp) and s.op == "lt" and 6 in s.args)
    step.op = "le"


def _return_another(graph: HCFG) -> None:
    term = next(b.terminator for b in graph.blocks if isinstance(b.terminator, Return))
    term.values[-1] = 3


@pytest.mark.parametrize("break_it", [_swap_a_branch, _change_a_constant, _other_bound, _return_another])
def test_finds_what_is_broken_in_the_graph(break_it) -> None:
    graph = stage(_gates, (X,))
    break_it(graph)
    with pytest.raises(VerificationError, match=r"test_control\.py:\d+: (if|while) "):
        check_control(_gates, graph, (X,), {})


def test_the_message_shows_the_smallest_path() -> None:
    def program(x):
        for k in range(5):
            if x[0, k % 3] > k:
                x = x + 1
        if x.max() > 100:
            return x * 2
        return x

    graph = stage(program, (X,))
    for block in graph.blocks:
        if isinstance(block.terminator, Branch) and "100" in block.terminator.origin.code:
            block.terminator.then = block.terminator.orelse
    with pytest.raises(VerificationError) as caught:
        check_control(program, graph, (X,), {})
    lines = str(caught.value).splitlines()
    assert "call 1 differs" in lines[1]
    decisions = [line for line in lines if " -> " in line]
    assert sum("-> True" in line for line in decisions) == 1, lines
    assert "if x.max() > 100: -> True" in decisions[-1]
    assert lines[-2].startswith("eager: ") and lines[-1].startswith("as built: ")


class _State(nn.Module):
    """Everything that a program may change and that a check must put back."""

    log: list = []

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(2, 3))
        self.ids = itertools.count(3)
        self.array = np.zeros(3)
        self.space = types.SimpleNamespace(n=0)
        self.names = {"a": [1]}

    def forward(self, x):
        global _CALLS
        _CALLS += 1
        self.sum += x
        self.sum.t()[0].mul_(2)
        next(self.ids)
        self.array[1] += 1
        self.space.n += 1
        self.names["a"].append(2)
        self.names["b"] = 3
        self.log.append(1)
        type(self).extra = 5
        torch.rand(1)
        self.fresh = x
        if x.sum() > 0:
            raise KeyError("as the program wants")
        return x


_CALLS = 0


def test_leaves_no_trace() -> None:
    from dycl_tvm.verify.oracle import Oracle
    from dycl_tvm.verify.runs import Program

    model = _State()
    ids, random = model.ids, torch.get_rng_state()
    program = Program(model)
    assert not program.snapshot.lost
    for policy in ("natural", "yes", "no"):
        outcomes = program.run([((X,), {})] * 2, Oracle(policy=policy))
        assert len(outcomes) == 1 or outcomes[0].error is None
        assert _CALLS == 0 and model.log == [] and not hasattr(model, "fresh") and "extra" not in vars(_State)
        assert model.sum.eq(0).all() and model.array.tolist() == [0, 0, 0] and model.space.n == 0 and model.names == {"a": [1]}
        assert torch.equal(torch.get_rng_state(), random)
    assert model.ids is ids and next(ids) == 3


def test_what_cannot_be_put_back_is_said() -> None:
    def numbers():
        yield from (1.0, 2.0, 3.0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.it = numbers()

        def forward(self, x):
            return x + 1

    model = Net()
    graph = stage(lambda x: x + 1, (X,))
    proved = check_control(model, graph, (X,), {})
    assert proved.method == "none" and "generator" in proved.reason and proved.runs == 0
    assert next(model.it) == 1.0


_COMPUTED: list[int] = []


@functools.lru_cache(maxsize=8)
def _factor(n: int) -> int:
    _COMPUTED.append(n)
    return n + 1


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    yield


CACHES = (_factor,)


class _Held(nn.Module):
    """It holds what can be taken down by nobody: a cache that is not empty, that of a library, and a context that has not begun."""

    kinds = Literal

    def __init__(self) -> None:
        super().__init__()
        self.context, self.factor = _noted(), _factor

    def forward(self, x):
        if x.sum() > 0:
            return x * self.factor(3)
        return x - self.factor(2)


def test_caches_and_contexts_that_have_not_begun_are_as_they_were() -> None:
    model = _Held()
    assert Literal["a"] and _factor(2) == 3
    graph = stage(model, (X,))
    _COMPUTED.clear()
    before, context = _factor.cache_info(), model.context.gen
    proved = check_control(model, graph, (X,), {})
    assert proved.method == "forced" and proved.edges == proved.edges_total == 2
    assert not _COMPUTED and _factor.cache_info() == before and model.context.gen is context and model.factor is _factor
    _swap_a_branch(graph)
    with pytest.raises(VerificationError):
        check_control(model, graph, (X,), {})


def test_a_cache_in_whose_place_none_can_be_is_emptied_if_a_run_fills_it() -> None:
    def program(x):
        return x * (CACHES[0](5) if x.sum() > 0 else CACHES[0](6))

    assert _factor(7) == 8
    graph = stage(program, (X,))
    proved = check_control(program, graph, (X,), {})
    assert proved.method == "forced" and "a run has filled the cache of _factor, which is empty now" in proved.reason
    assert _factor.cache_info().currsize == 0


def test_an_iterator_in_whose_place_none_can_be_is_said() -> None:
    graph = stage(lambda x: x + 1, (X,))
    numbers = (iter([1.0, 2.0]),)
    assert "iterator" in check_control(lambda x: x + 1 if numbers else x, graph, (X,), {}).reason


def test_a_bound_of_the_artefact_is_no_difference() -> None:
    def program(x):
        n = 0
        while x.sum() < 100:
            x = x + 1
            n += 1
        return x, n

    graph = stage(program, (X,), max_loop_trips=2)
    proved = check_control(program, graph, (X,), {})
    assert proved.inconclusive > 0 and "max_loop_trips" in proved.reason and proved.runs > 0


def test_a_complex_power_is_no_difference_whatever_eager_does_with_it() -> None:
    def program(x):
        if x.sum() > 0:
            return x, 1.0
        return x, min(2.0, 0.9 * x.max().item() ** 0.5)  # eager compares a complex number: a TypeError

    proved = check_control(program, stage(program, (X,)), (X,), {})
    assert proved.inconclusive > 0 and "complex" in proved.reason and proved.runs > 0


def test_short_circuits_and_repeated_questions_align() -> None:
    def program(x):
        a, b = x.sum(), x.max()
        if (a > 0 and b > 1) or (a < -3 and not b > 1):
            x = x + 1
        if x.sum() > 0:
            x = x * 2
        if x.detach().sum() > 0 or x.sum() > 0:
            x = x - 1
        return x

    assert check_control(program, stage(program, (X,)), (X,), {}).runs > 5


def _extremes(x):
    p = [x[0, 0], x[0, 1], x[1, 0]]
    return min(p), sorted(p)[0], min(p), sorted(p, reverse=True)[0]


def test_a_chain_of_comparisons_is_asked_for_once_more() -> None:
    """A short circuit's value is asked for again in the graph; in a function that runs twice no other question of its line is meant."""

    def program(x):
        def within(z):
            return z * 0.5 if 0 < z.sum() < 9 else z

        z = x + 0
        if 0 < z.sum() < 9:
            z = z - 1
        return within(within(z) - 1)

    for seed in range(4):
        proved = check_control(program, stage(program, (X,)), (X,), {}, seed=seed)
        assert proved.runs > 10 and proved.inconclusive == 0


def test_views_of_an_input_that_was_written_are_the_same_computation() -> None:
    """Two equal views, and so two equal numbers, have one answer: passes read them once."""

    def program(x):
        n = int(x[0, 2]) + 2**53
        return n, int(x[0, 2]) + 3

    before, after = stage(program, (X,)), stage(program, (X,))
    run_passes(after)
    for seed in range(8):
        assert check_passes(before, after, ((X.clone().add_(0),), {}), seed=seed).runs > 5


def test_a_number_that_is_made_a_tensor_again_has_one_answer_in_all_lines() -> None:
    """Passes compare with the tensor itself, and read its number once where two lines read it."""

    def net(x: torch.Tensor) -> float:
        total = 0.0
        for a, b in zip(x[0], x[1].tolist()):
            if a > b:
                total += a.item() - b
        for n, row in zip(range(int(x.abs().max()) % 3), x):
            total += row[n].item()
        return total

    before, after = stage(net, (X,)), stage(net, (X,))
    run_passes(after)
    for seed in range(3):
        assert check_passes(before, after, ((X,), {}), seed=seed).runs > 5


def test_numbers_of_two_lines_that_are_computed_alike_have_one_answer() -> None:
    """Passes find that a slice is all of a tensor, and ask once; a graph that takes another slice for all of it is found."""

    def net(x: torch.Tensor, width: int) -> torch.Tensor:
        if (x > 0).all():
            return x
        if (x[:, :width] > 0).all():
            return x * 2
        return x - 1

    graphs = {w: stage(lambda x, w=w: net(x, w), (X,)) for w in (2, 3)}
    after = stage(lambda x: net(x, 3), (X,))
    run_passes(after)
    reads = [s for b in after.blocks for s in b.steps if isinstance(s, HostOp) and s.op == "item"]
    assert len(reads) == 1
    for seed in range(3):
        assert check_passes(graphs[3], after, ((X,), {}), level="full", seed=seed).runs > 5
    with pytest.raises(VerificationError):
        check_passes(graphs[2], after, ((X,), {}), level="full")


def test_chains_that_passes_merge_are_told_apart() -> None:
    def program(x):
        n = 0
        for k in range(4):
            if x.sum() > k:
                break
            n += 2
        n += 1 if 0 < x.sum() < 9 else 5
        n += 10 if 0 < x.sum() < 9 else 50
        return x + n, n

    before, after = stage(program, (X,)), stage(program, (X,))
    run_passes(after)
    for seed in range(4):
        assert check_passes(before, after, ((X,), {}), seed=seed).runs > 5


@pytest.mark.skipif(not hasattr(_extremes.__code__, "co_positions"), reason="Python 3.10 does not know the columns of a line")
def test_one_line_that_is_computed_by_data_and_decides_too() -> None:
    """The graph asks for what ``sorted`` compares and not for what ``min`` does: the columns tell which answers are meant."""
    graph = stage(_extremes, (X,))
    for seed in range(4):
        proved = check_control(_extremes, graph, (X,), {}, seed=seed)
        assert proved.runs > 10 and proved.inconclusive == 0


def test_a_condition_of_several_questions_is_asked_for_in_order() -> None:
    """Staging asks for both at once, and gives both the column of the whole."""

    def program(x):
        x = x.clone()
        while x[0].sum() < 20 and x.max() < 90:
            x += 1
        return x

    assert check_control(program, stage(program, (X,)), (X,), {}).edges == 4


def test_edges_that_were_not_taken_are_named() -> None:
    def program(x):
        n = int(x.argmax())
        if n * n == 2:  # no whole number is
            return x
        return x * 2

    proved = check_control(program, stage(program, (X,)), (X,), {})
    assert proved.edges == proved.edges_total - 1
    assert [line.partition(": ")[2] for line in proved.untaken] == ["if n * n == 2:  # no whole number is -> True"]


def test_nothing_of_this_package_is_raised_for_other_errors() -> None:
    def program(x):
        if x.sum() > 0:
            raise ValueError("no")
        return [1, 2, 3][int(x.max())]

    check_control(program, stage(program, (X,)), (X,), {})


def _asks_twice(x):
    n = 0
    for limit in range(4):
        n += 1
        if x.sum() > limit:
            break
    for limit in range(3):
        if x.sum() > limit + 1:
            continue
        n += 1
    return x if x.sum() > 2 else -x, n


def test_what_a_pass_asks_for_once():
    graph, before = stage(_asks_twice, (X,)), stage(_asks_twice, (X,))
    run_passes(graph)
    check_passes(before, graph, ((X,), {}))


def _number_and_tensors(x):
    z = x.double().sum()
    return z.item(), torch.tensor(z.item()), torch.tensor(z.item(), dtype=torch.float64)


def test_what_a_pass_asks_for_once_may_be_pinned() -> None:
    """Two of three equal numbers become tensors again, so the truth is their answer; a pass makes one of them the third."""
    graph, before = stage(_number_and_tensors, (X,)), stage(_number_and_tensors, (X,))
    run_passes(graph)
    check_passes(before, graph, ((X,), {}))


@pytest.mark.parametrize("largest", [2**63 - 1, 127])
def test_whole_numbers_of_any_size_are_inputs(largest: int) -> None:
    def program(x):
        return x + 1 if x.sum() > 0 else x

    example = torch.tensor([largest, 1])
    assert check_control(program, stage(program, (example,)), (example,), {}).runs > 3


_MADE = types.ModuleType("made")
_MADE.n = 0  # type: ignore[attr-defined]


def _counts_in_a_module(x):
    if x.sum() > 0:
        _MADE.n += 1  # type: ignore[attr-defined]
    return x * _MADE.n  # type: ignore[attr-defined]


def test_a_module_that_the_program_made_is_put_back() -> None:
    check_control(_counts_in_a_module, stage(_counts_in_a_module, (X,)), (X,), {})
    assert _MADE.n == 0  # type: ignore[attr-defined]


def test_where_calls_are_dear_the_budget_leaves_one_and_the_reason_names_the_rest() -> None:
    whole = Budget(1.0)
    proved = check_control(_gates, stage(_gates, (X,)), (X,), {}, budget=whole.part(0.0))
    assert (proved.runs, proved.calls) == (1, 1)
    assert "left out" in proved.reason and "random" in proved.reason
    assert 0 < whole.spent < whole.seconds  # what a part spends is spent of the whole


def test_a_part_is_never_more_than_what_is_left() -> None:
    whole = Budget(1.0)
    whole.spend(0.75)
    part = whole.part(0.5)
    assert (part.seconds, part.allows(0.25), part.allows(0.3)) == (0.25, True, False)


def test_kernels_have_what_control_and_passes_leave_and_never_less_than_their_share() -> None:
    unspent, spent = BuildBudget("default"), BuildBudget("default")
    spent.for_control().spend(10.0)
    assert unspent.for_kernels(1).seconds == unspent.seconds
    assert 0.3 * spent.seconds < spent.for_kernels(1).seconds < spent.seconds
    assert unspent.for_kernels(10_000).seconds > 10 * spent.seconds


class Window(torch.nn.Module):
    """Answers otherwise when its window of frames is full."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[torch.Tensor] = []

    def forward(self, x):
        self.frames.append(x)
        if len(self.frames) > 4:
            return torch.stack([self.frames.pop(0), *self.frames]).sum(0)
        return x


def test_calls_are_repeated_until_what_they_leave_leads_everywhere() -> None:
    proved = check_control(Window(), stage(Window(), (X,)), (X,), {})
    assert proved.edges == proved.edges_total > 4


def _until_enough(x):
    rows = x[:0]
    for i in range(2):
        if rows.sum() < 1:  # of no rows it is 0, whatever the input is
            rows = torch.cat([rows, x[i : i + 1]])
    return rows.sum(0)


def _counts_from_nothing(x):
    i = 0
    while x[:i].sum() < 0.5 and i < 2:
        i += 1
    return x * i


@pytest.mark.parametrize("program", [_until_enough, _counts_from_nothing])
def test_what_is_computed_of_no_elements_is_not_answered_otherwise(program) -> None:
    graph = stage(program, (X,))
    run_passes(graph)
    assert check_control(program, graph, (X,), {}).runs > 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_modules_take_the_ways_that_they_take_unobserved() -> None:
    torch.manual_seed(0)
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1).eval()
    args = (torch.randn(2, 3, 4), torch.tensor([3, 1]))

    def padded(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return net(x, src_key_padding_mask=torch.arange(3) >= n.unsqueeze(1))

    with torch.no_grad():
        assert (padded(*args)[1, 1:] == 0).all()  # of a nested tensor
    assert check_control(padded, stage(padded, args), args, {}, budget=Budget(0.1)).runs > 1
