# Licensed under the Apache License, Version 2.0; see LICENSE.
"""One run of a check: calls in succession, in eager and in the graph, with the same inputs and the same answers."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from dycl_tvm.errors import InvariantError
from dycl_tvm.hcfg.draws import default_state
from dycl_tvm.hcfg.hostops import COMPLEX_POWER, UNASKED, Number
from dycl_tvm.hcfg.interpreter import LimitError, Watcher, graph_initial, interpret
from dycl_tvm.hcfg.nodes import HCFG, HostOp
from dycl_tvm.runtime.structure import flatten, flatten_call, is_call
from dycl_tvm.verify.align import Answers, Astray
from dycl_tvm.verify.as_on_gpu import as_given_on, drawing_as_on
from dycl_tvm.verify.crossings import Crossing, Endless, Watch
from dycl_tvm.verify.inputs import copied
from dycl_tvm.verify.of_sizes import draw_sizes
from dycl_tvm.verify.oracle import Oracle
from dycl_tvm.verify.places import Place, user_place
from dycl_tvm.verify.same import difference, show
from dycl_tvm.verify.snapshot import Snapshot

#: Positional and keyword arguments of one call.
Call = tuple[tuple[Any, ...], dict[str, Any]]
_MOST_BLOCKS = 50_000


#: What PyTorch says of random numbers with such a spread.
_NEGATIVE_SPREAD = "normal expects all elements of std >= 0.0"


class Undecided(Exception):
    """A run that says nothing about whether the two are the same."""


@dataclass
class Outcome:
    """What one call did."""

    value: Any = None
    error: BaseException | None = None
    printed: str = ""
    crossings: list[Crossing] = field(default_factory=list)
    arrays: bool = False
    answers: Answers | None = None

    def text(self) -> str:
        """Return what happened in a few words."""
        return f"raises {type(self.error).__name__}: {self.error}" if self.error is not None else f"returns {show(self.value)}"


@dataclass
class Difference:
    """Where the two part: in which call, in what, and whether rounding could be the cause."""

    call: int
    what: str
    soft: bool = False


class Program:
    """The user's program, run on the user's own objects, which are as before after every run.

    Attributes
    ----------
    operations, work : int, float
        Operations of all runs, and what their arithmetic took: seconds, as an estimate that is the same on every machine.
    """

    def __init__(self, model: Callable[..., Any], limit: int = 400, device: str = "cpu") -> None:
        self.model, self._device = model, device
        self.snapshot = Snapshot(model.state if isinstance(model, Interpreted) else model)  # graphs change nothing but their state
        self.operations, self.work = 0, 0.0
        self._limit = limit
        self._place = model.place if isinstance(model, Interpreted) else user_place

    def run(
        self, calls: Sequence[Call], oracle: Oracle, pinned: dict[Any, set[Number]] | None = None, filled: bool = False
    ) -> list[Outcome]:
        """Make the calls; an exception ends them. ``filled`` says that PyTorch fills memory that nobody has written yet."""
        watch = Watch(oracle, self.snapshot.before_write, pinned, self._limit, self._place)
        found: list[Outcome] = []
        try:
            self.snapshot.begin()
            torch.set_rng_state(default_state())  # as the state variable of a graph begins; it is put back with the rest
            for args, kwargs in calls:
                args, kwargs = copied((args, kwargs))
                outcome = Outcome()
                found.append(outcome)
                printed = io.StringIO()
                try:
                    with _quiet(printed), drawing_as_on(self._device), _filling(filled):
                        outcome.value = watch.call(self.model, args, kwargs, _leaf_tensors((args, kwargs)))
                except Endless:
                    raise Undecided("the program does not end with these answers") from None
                except Exception as error:
                    outcome.error = error.with_traceback(None)
                finally:
                    outcome.printed = printed.getvalue()
                    outcome.crossings, outcome.arrays = watch.log.crossings, watch.log.arrays
                    self.operations += watch.log.operations
                    self.work += watch.log.work
                if watch.log.unforced:
                    raise Undecided(next(iter(watch.log.unforced)))
                if outcome.error is not None:
                    break
                outcome.value = as_given_on(self._device, _kept(outcome.value))
        finally:
            self.snapshot.restore()
        return found


class Interpreted(Watcher):
    """A graph in the role of the program, for another graph to be compared with."""

    def __init__(self, graph: HCFG) -> None:
        self.graph = graph
        self.state = [graph_initial(v.initial) for v in graph.state]
        steps = [s for b in graph.blocks for s in b.steps]
        self._numbers = {id(s): k for k, s in enumerate(steps)}
        self._step: HostOp | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it like the model."""
        leaves = leaves_of(self.graph, args, kwargs, copies=False)
        return interpret(self.graph, leaves, self.state, watcher=self, max_blocks=_MOST_BLOCKS)[0]

    def item(self, step: HostOp, tensor: torch.Tensor) -> Number:
        """Read a number, in the user's line."""
        if step.text in UNASKED:  # nobody asked
            with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
                return tensor.item()
        self._step = step
        return tensor.item()

    def place(self) -> Place:
        """Return where the number that is being read is read."""
        step = self._step
        if step is None or step.origin is None:
            return Place([])
        return Place([(step.origin.file, step.origin.line)], self._numbers[id(step)], step.origin.column)


def run_graph(
    graph: HCFG,
    calls: Sequence[Call],
    crossings: Sequence[Sequence[Crossing]],
    strict: bool = True,
    folded: bool = False,
    columns: bool = False,
    merged: bool = False,
    arrays: bool = False,
) -> list[Outcome]:
    """Make the calls in the graph, with the answers that the program got."""
    state = [graph_initial(v.initial) for v in graph.state]
    found = []
    for (args, kwargs), known in zip(calls, crossings):
        answers = Answers(known, strict, folded, columns, merged, arrays)
        outcome = Outcome(answers=answers)
        found.append(outcome)
        printed = io.StringIO()
        try:
            with _quiet(printed):
                value, _ = interpret(graph, leaves_of(graph, args, kwargs), state, watcher=answers, max_blocks=_MOST_BLOCKS)
            outcome.value = value
        except (Exception, Astray) as error:
            outcome.error = error.with_traceback(None)
            break
        finally:
            outcome.printed = printed.getvalue()
    return found


def leaves_of(graph: HCFG, args: tuple[Any, ...], kwargs: dict[str, Any], copies: bool = True) -> list[Any]:
    """Return the leaves of a call's inputs."""
    structure = graph.input_structure
    if copies:
        args, kwargs = copied((args, kwargs))
    found = flatten_call(structure, args, kwargs, graph.input_names) if is_call(structure) else flatten(structure, args)
    return [leaf for _, leaf in found]


def resized(graph: HCFG, call: Call, generator: torch.Generator) -> Call:
    """Return a call like another with other sizes, where the caller decides them."""
    leaves = leaves_of(graph, *call, copies=False)
    new: dict[int, Any] = {}
    for size, n in zip(graph.sizes, draw_sizes(graph, generator)):
        for d in size.dims:
            leaf, extent = leaves[d.input], d.at(n)
            t = new.get(id(leaf), leaf)
            rows = torch.arange(extent) % max(t.shape[d.dim], 1)
            shape = [extent if k == d.dim else m for k, m in enumerate(t.shape)]
            new[id(leaf)] = t.index_select(d.dim, rows) if t.numel() else torch.zeros(shape, dtype=t.dtype)
    return copy.deepcopy(call, new)


def compare(eager: Sequence[Outcome], built: Sequence[Outcome], loose: float = 1.0, prints: bool = False) -> Difference | None:
    """Return the first difference between two runs."""
    for k, (e, b) in enumerate(zip(eager, built)):
        if isinstance(b.error, Astray):
            if loose > 1:  # a loop over much data whose questions a pass has moved
                raise Undecided("the graph after the passes asks for far more numbers than before")
            return Difference(k, "the graph asks for far more numbers than the program")
        if isinstance(b.error, InvariantError):
            return Difference(k, f"the graph is unsound: {b.error}")
        if isinstance(b.error, OverflowError) and not isinstance(e.error, OverflowError):
            raise Undecided("an int leaves int64, which ends a call as documented")
        if isinstance(b.error, LimitError):
            raise Undecided(
                "a loop has more trips than max_loop_trips, calls nest deeper than max_recursion, or a size is above max_length"
            )
        if isinstance(e.error, RecursionError) and type(b.error).__name__ != "RecursionError":
            raise Undecided("calls nest deeper than Python lets them")
        if isinstance(b.error, ValueError) and str(b.error) == COMPLEX_POWER:
            raise Undecided("a power has a complex result, which ends a call as documented")
        if b.error is None and str(e.error) == _NEGATIVE_SPREAD:
            raise Undecided("an operator refuses the elements of its operands, which ends no call, as documented")
        if None in (e.error, b.error) and any(map(_is_of_factors, (e.error, b.error))):
            raise Undecided("rounding decides whether a factorisation of a matrix fails")
        if e.error is not None or b.error is not None:
            if type(e.error).__name__ != type(b.error).__name__:
                return Difference(k, f"eager {e.text()}; as built it {b.text()}")
            return None
        what = difference(e.value, b.value, loose=loose)
        if what is not None:
            return Difference(k, what, soft="error is" in what or "elements differ" in what or "infinities" in what)
        # Which tensors of the result are one object says nothing: each part of an artefact's result is a tensor of its own.
        if prints and e.printed != b.printed:
            return Difference(k, f"printed is {e.printed!r} in eager, {b.printed!r} as built")
        if b.answers is not None and b.answers.wrong is not None:
            crossing, real = b.answers.wrong
            where = crossing.lines[0] if crossing.lines else ("?", 0)
            return Difference(
                k, f"{where[0]}:{where[1]}: the tensor read there holds {crossing.real!r} in eager, {real!r} as built", soft=True
            )
    if len(eager) != len(built):
        return Difference(min(len(eager), len(built)), "one of the two ended")
    return None


def _is_of_factors(error: BaseException | None) -> bool:
    return type(error).__name__ == torch.linalg.LinAlgError.__name__ or "lu_factor: " in str(error)


def _unheard(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Take a record in the place of the handlers."""


@contextlib.contextmanager
def _quiet(printed: io.StringIO) -> Any:
    """Keep what a program prints, and show nothing of what it warns of and logs."""
    silent = mock.patch.object(logging.Logger, "callHandlers", _unheard)
    with contextlib.redirect_stdout(printed), silent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _filling(filled: bool) -> Iterator[None]:
    """Let PyTorch fill the memory of new tensors, with NaN or the largest number, as it does where algorithms have to be deterministic."""
    before = torch.get_deterministic_debug_mode()
    if filled:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        if filled:
            torch.set_deterministic_debug_mode(before)


def same_numbers(one: Sequence[Outcome], other: Sequence[Outcome]) -> bool:
    """Whether two runs of a program have the same results, and read the same numbers, but for rounding."""
    pairs = [(c.real, d.real) for a, b in zip(one, other) for c, d in zip(a.crossings, b.crossings)]
    return compare(one, other) is None and difference([a for a, _ in pairs], [b for _, b in pairs]) is None


def _leaf_tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def _kept(value: Any) -> Any:
    """Return a result that later calls cannot change."""
    try:
        with torch.no_grad():
            return copy.deepcopy(value)
    except Exception:  # a class of the user's that cannot be copied
        return value
