# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The Python front end's one function: from a model and example inputs to an HCFG."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import DyclError, InternalError, StagingLimitError, StateError, UnsupportedError
from dycl_tvm.frontend.python import operators
from dycl_tvm.frontend.python.calls.call import call_root, run_function, run_method
from dycl_tvm.frontend.python.calls.growing_lists import GrowingLists
from dycl_tvm.frontend.python.calls.iterators import twin
from dycl_tvm.frontend.python.calls.kept_lists import KeptLists
from dycl_tvm.frontend.python.calls.sealed import seal
from dycl_tvm.frontend.python.calls.seeds import default_generator_of_the_program, twin_of_generator
from dycl_tvm.frontend.python.calls.stand_ins import begin_anew
from dycl_tvm.frontend.python.calls.sums import sums_of_the_program
from dycl_tvm.frontend.python.calls.unread import Unread
from dycl_tvm.frontend.python.explore import Exploration
from dycl_tvm.frontend.python.first_call import stage_after_it
from dycl_tvm.frontend.python.flow.branches import ifexp
from dycl_tvm.frontend.python.flow.exits import origin_of
from dycl_tvm.frontend.python.flow.recursion import Recursive
from dycl_tvm.frontend.python.no_trace import no_trace
from dycl_tvm.frontend.python.persistent_state import ModelState
from dycl_tvm.frontend.python.program import Program
from dycl_tvm.frontend.python.source.locate import current_origin
from dycl_tvm.frontend.python.source.ownership import code_of, is_library
from dycl_tvm.frontend.python.source.syntax import is_rewritten
from dycl_tvm.frontend.trace.alike_results import number_alike
from dycl_tvm.frontend.trace.budget import Budget
from dycl_tvm.frontend.trace.control_flow import Again, ControlFlow
from dycl_tvm.frontend.trace.heap.reach import reach
from dycl_tvm.frontend.trace.join.lengths_by_path import LengthsByPath
from dycl_tvm.frontend.trace.join.outgrown import Outgrown
from dycl_tvm.frontend.trace.join.undecided import Choices
from dycl_tvm.frontend.trace.limits import MAX_MEMORY, MAX_RECURSION, MAX_ROUNDS, MAX_RUNS, MAX_SECONDS, Limits
from dycl_tvm.frontend.trace.modes import no_new_threads
from dycl_tvm.frontend.trace.procedures import lower_calls
from dycl_tvm.frontend.trace.session import Session
from dycl_tvm.frontend.trace.signature import Inputs
from dycl_tvm.frontend.trace.values.constants import Constants
from dycl_tvm.frontend.trace.values.deciding import Tests
from dycl_tvm.frontend.trace.values.generators import Generators
from dycl_tvm.frontend.trace.values.identity import Apart
from dycl_tvm.garbage import apart_from_the_forward
from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.cuda_draws import KINDS
from dycl_tvm.hcfg.nodes import HCFG, Value
from dycl_tvm.hcfg.types import INT


def stage(
    model: Any,
    example_args: tuple[Any, ...],
    example_kwargs: dict[str, Any] | None = None,
    *,
    max_paths: int = MAX_RUNS,
    max_loop_trips: int | None = None,
    max_recursion: int = MAX_RECURSION,
    max_length: int | None = None,
    dynamic_shapes: Any = None,
    specialize: Any = None,
    max_seconds: float = MAX_SECONDS,
    max_memory: int = MAX_MEMORY,
    name: str | None = None,
    keep_print: bool = False,
    device: str = "cpu",
) -> HCFG:
    """Turn a model's forward into an HCFG.

    Parameters
    ----------
    model : nn.Module, bound method or function
        What is called; functions may close over modules.
    example_args, example_kwargs : tuple, dict
        Inputs as the model takes them: nested structures of tensors; numbers and strings among them are fixed.
    max_loop_trips : int, optional
        Bound on the trips of every loop whose trip count is known only at run time; one trip more is a run-time error.
    max_recursion : int
        Bound on the calls of a function that are under way, where its recursion has a depth known only at run time; one more is a
        run-time error.
    max_length : int, optional
        Bound on every size that tensors decide and that nothing else bounds; one more is a run-time error.
    dynamic_shapes : mapping or sequence, optional
        Dimensions of the inputs that each call decides, see :class:`dycl_tvm.frontend.trace.dimensions.Dimensions`.
    specialize : sequence, optional
        Sizes among them that have a path of their own, see :func:`dycl_tvm.frontend.trace.special_sizes.special_sizes`.
    max_paths : int
        How many times the forward may be run again because paths cannot be joined.
    max_seconds, max_memory : float, int
        How many seconds, and bytes of memory, may be spent.
    keep_print : bool
        Whether ``print`` becomes a host operation; without it, ``print`` is refused.
    device : str
        ``"cpu"`` or ``"cuda"``: as which machine it draws random numbers.

    Raises
    ------
    UnsupportedError
        With the user's file, line and code.
    StagingLimitError
        An UnsupportedError: staging takes longer, or more memory, than it may.
    InternalError
        If something fails that is not the program's fault.
    """
    try:
        limits = Limits(max_paths, max_loop_trips, max_seconds, max_memory, max_recursion, max_length)
        inputs = Inputs(model, example_args, example_kwargs or {}, dynamic_shapes, specialize)

        def run(alone: Callable[..., None] | None = None) -> HCFG:
            # in a context of its own: what context variables hold is as before when staging ends
            return contextvars.copy_context().run(_stage, model, inputs, limits, name or _name_of(model), keep_print, device, alone)

        try:
            return run()
        except StateError as refusal:
            return stage_after_it(run, model, example_args, example_kwargs or {}, refusal)
    except DyclError:
        raise
    except (Exception, ControlFlow) as error:
        raise InternalError("the forward was staged", error, origin_of(error)) from error


def _stage(
    model: Any,
    inputs: Inputs,
    limits: Limits,
    name: str,
    keep_print: bool,
    device: str,
    alone: Callable[..., None] | None,
) -> HCFG:
    named = _named_tensors(model)
    budget = Budget(limits, current_origin)
    reached = reach([("", model)], is_library, code_of).complete()
    generators, recursive, growing, tests = Generators(KINDS[device]), Recursive(), GrowingLists(), Tests(begin_anew)
    lengths = LengthsByPath()

    def stand_in(x: Any) -> Any:
        return twin_of_generator(x, generators) if isinstance(x, torch.Generator) else seal(twin(x))

    with (
        apart_from_the_forward(),
        no_trace(reached),
        no_new_threads(),
        default_generator_of_the_program(generators),
        contextlib.closing(ModelState(reached, stand_in, Unread(), KeptLists())) as state,
        sums_of_the_program(),
    ):
        generators.name_of = state.name_of
        session: Session | None = None
        for _ in range(MAX_ROUNDS):
            state.begin_round()
            known = state.size
            before, session = session, Session(current_origin, limits, budget=budget)
            if before is not None:
                session.decisions.learn(before.decisions)
            session.arrays = True
            constants = session.get(Constants)
            constants.names = {id(t): n for n, t in reversed(named)}
            constants.named = [t for _, t in named]
            constants.reached = state.memory
            program = Program(state, operators, run_function, run_method, keep_print)
            program.alone = alone
            if alone is not None:
                session.builder.on_raise = functools.partial(_alone_by_raise, alone, session)
            session.keep(program)
            session.keep(generators)
            session.keep(recursive)
            session.keep(growing)
            session.keep(tests)
            session.keep(lengths)
            session.get(Outgrown).ask = growing.outgrown
            session.get(Choices).choose, session.get(Choices).of_the_program = ifexp, is_rewritten
            entry = session.builder.entry
            entry.params = [Value(t, n) for n, t in zip(inputs.names, inputs.types)] + [Value(INT, size.name) for size in inputs.sizes]
            values = list(entry.params)
            variables = state.variables
            state_params = [Value(v.type, v.name) for v in variables]
            entry.params += state_params

            def run(values: list[Value] = values) -> Any:
                tensors = inputs.tensors(values)
                state.meet(tensors)
                args, kwargs = inputs.build(tensors)
                return call_root(model, args, kwargs)

            try:
                program.trampolines.reach_all(reached)
                program.trampolines.reach(state.registered)
                Exploration(session, state_params, run).explore()
                constants.check_unchanged()
            except Again:
                continue
            except UnsupportedError as refusal:
                stood = growing.stand_ins.refused(refusal) or state.lists.stand_ins.refused(refusal)
                if not stood and not state.unread.try_otherwise() and not lengths.try_otherwise(refusal):
                    raise growing.explained(state.lists.stand_ins.refusal or lengths.refusal or refusal) from None
                continue
            finally:
                program.trampolines.restore()
            if state.is_complete(known):
                break
        else:
            raise StagingLimitError(
                f"the state that one call leaves for the next was not complete after {MAX_ROUNDS} rounds: each finds new objects, or "
                "more combinations of kinds in what the model keeps",
                None,
                "make functions, classes and objects that keep state once, outside of the forward, and nest nothing deeper in every call",
            )
    left_out = [*state.left_out, *program.left_out]
    graph = HCFG(name, inputs.structure, inputs.names, [entry], variables, inputs.pairs(session.get(Apart)), left_out, inputs.sizes)
    graph.special_sizes, graph.caller = inputs.special, current_origin()
    lower_calls(graph)
    graph.blocks = reverse_postorder(graph)
    if graph.special_sizes:
        number_alike(graph)
    _name_blocks(graph)
    return graph


def _alone_by_raise(alone: Callable[..., None], session: Session) -> None:
    alone(session.journal.changes(session.heap.run_mark), raises=True)


def _named_tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    named: list[tuple[str, torch.Tensor]] = []
    for prefix, module in _modules(model):
        found = itertools.chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
        named += [(f"{prefix}{n}", t) for n, t in found]
    return named


def _modules(model: Any) -> list[tuple[str, torch.nn.Module]]:
    """Return the modules that a model, method or function reaches, with a prefix for the names of their tensors."""
    if isinstance(model, torch.nn.Module):
        return [("", model)]
    owner = getattr(model, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        return [("", owner)]
    found = []
    if inspect.isfunction(model):
        variables = inspect.getclosurevars(model)
        for n, v in {**variables.globals, **variables.nonlocals}.items():
            if isinstance(v, torch.nn.Module):
                found.append((f"{n}.", v))
    return found


def _name_of(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _name_blocks(graph: HCFG) -> None:
    counts: dict[str, int] = {}
    for block in graph.blocks:
        counts[block.name] = counts.get(block.name, 0) + 1
        if block is not graph.entry:
            block.name = f"{block.name}{counts[block.name]}"
