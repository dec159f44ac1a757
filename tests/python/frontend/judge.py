# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What becomes of a program: right, refused, wrong or crashed; and the smallest program of which that is so."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import itertools
import linecache
import re
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from differential import given, same
from effect_networks import HEADER

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import graph_initial, interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.passes import run_passes

#: What a program is called with, call by call; every list is a session that begins anew.
SESSIONS = [
    [torch.tensor([[1.0, 0.5, 2.0], [0.25, 1.0, 0.5]]), torch.tensor([[-1.0, 0.5, 1.0], [-2.0, 0.0, 0.5]])],
    [torch.tensor([[-0.5, -0.25, 0.0], [0.5, -1.0, 1.0]]), torch.tensor([[2.0, 3.0, 1.0], [0.5, 2.5, 1.0]]), torch.zeros(2, 3)],
    [torch.tensor([[0.5, 0.25, 1.0], [0.0, 0.5, 0.0]]), torch.tensor([[0.5, 1.25, 1.0], [0.0, 0.5, -3.0]])],
]
SESSIONS[0] += [-SESSIONS[0][0], *SESSIONS[1][:2], SESSIONS[2][0]]


#: What a user would say of the programs: no loop needs more trips on these inputs.
OPTIONS: dict[str, Any] = {"max_paths": 150, "max_loop_trips": 6}


@dataclass
class Verdict:
    """``kind`` is right, refused, wrong, crashed or invalid (eager does not end)."""

    kind: str
    reason: str = ""


_numbers = itertools.count()


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> types.CodeType:
    """Compile a text as a file, which tracebacks and staging find."""
    name = f"/programs/program_{next(_numbers)}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # no modification time: it is not looked for on disk
    return compile(source, name, "exec")


def load(source: str) -> types.ModuleType:
    """Make a module of a text. What all programs begin with is compiled once."""
    module = types.ModuleType("program")
    sys.modules[module.__name__] = module
    parts = [HEADER, source.removeprefix(HEADER)] if source.startswith(HEADER) else [source]
    for part in parts:
        code = _compiled(part)
        module.__file__ = code.co_filename
        exec(code, module.__dict__)
    return module


def net_of(source: str) -> torch.nn.Module:
    """Return a network of a program, in a module of its own."""
    torch.manual_seed(0)
    net: torch.nn.Module = load(source).Net().eval()
    return net


def outcome(function: Callable[[], Any]) -> Any:
    """Return the result of a call as it is now, or the exception that it raises."""
    try:
        with torch.no_grad():
            return copy.deepcopy(function())
    except Exception as error:
        return error


class TooLong(BaseException):
    """A program, or its staging, takes longer than it may."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise :class:`TooLong` after some seconds."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def judge(source: str, **options: Any) -> Verdict:
    """Stage a program, and compare every call of every session with eager; ``options`` are those of staging."""
    try:
        with limited(5):
            wanted = [eager(source, session) for session in SESSIONS]
    except TooLong:
        return Verdict("invalid", "eager does not end")
    try:
        with limited(60):
            return _compare(source, wanted, {**OPTIONS, **options})
    except TooLong:
        return Verdict("crashed", "staging or the graph does not end")


def _compare(source: str, wanted: list[list[Any]], options: dict[str, Any]) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = stage(net_of(source), (SESSIONS[0][0].clone(),), **options)
            verify(graph)
            run_passes(graph)
        except UnsupportedError as error:
            return Verdict("refused", reason_of(error))
        except DyclError as error:
            return Verdict("crashed", f"{type(error).__name__}: {reason_of(error)}")
        except Exception as error:
            return Verdict("crashed", f"{type(error).__name__}: {error}"[:200])
        return compare_sessions(wanted, lambda: _interpreted(graph), "staged")


def _interpreted(graph: HCFG) -> Callable[[torch.Tensor], Any]:
    state = [graph_initial(v.initial) for v in graph.state]
    return lambda x: interpret(graph, given(graph, (x,)), state)[0]


def compare_sessions(wanted: list[list[Any]], new: Callable[[], Callable[[torch.Tensor], Any]], what: str) -> Verdict:
    """Compare every call of every session with what eager does; ``new`` begins a session."""
    for session, results in zip(SESSIONS, wanted):
        run = new()
        for call, (x, want) in enumerate(zip(session, results)):
            got = outcome(lambda x=x, run=run: run(x.clone()))
            alike = agree(want, got)
            if alike is None:
                break
            if not alike:
                return Verdict("wrong", f"call {call}: eager {want!r}, {what} {got!r}"[:600])
    return Verdict("right")


def agree(want: Any, got: Any) -> bool | None:
    """Whether a call does what it does in eager; None if its session ends with it, by an error or a bound that the artefact has."""
    raised = getattr(got, "kind", type(got).__name__) if isinstance(got, Exception) else None
    if raised in ("OverflowError", "RuntimeError") and re.search("int64|64 bits|max_loop_trips", str(got)):
        return None  # refused at run time
    if isinstance(want, Exception) or raised is not None:
        return None if raised == type(want).__name__ else False
    return same(want, got)


def eager(source: str, session: list[torch.Tensor]) -> list[Any]:
    """Return what each call of a session does in eager."""
    net = net_of(source)
    return [outcome(lambda x=x: net(x.clone())) for x in session]


def reason_of(error: DyclError) -> str:
    """Return a message without the numbers, names and places that differ from program to program."""
    lines = str(error).split("\n")
    text = (
        next((line for line in lines[2:] if line.strip(" ^~") and not line.startswith("Instead")), lines[0]) if len(lines) > 3 else lines[0]
    )
    return re.sub(r"`[^`]*`", "`_`", re.sub(r"\d+", "0", text)).strip()


# -- the smallest program ------------------------------------------------------------------------------------------------------
def shrink(source: str, interesting: Callable[[str], bool]) -> str:
    """Remove what can be removed of a program so that it stays interesting: statements, branches, definitions, results."""
    size = -1
    while size != len(source):
        size = len(source)
        for number in range(_statements(source) - 1, -1, -1):  # a cut leaves the numbers of what stands before it
            for how in ("remove", "body", "orelse"):
                source = _try(source, interesting, _Cut(number, how))
        for number in range(6, -1, -1):
            source = _try(source, interesting, _CutResult(number))
    return source


def _statements(source: str) -> int:
    return sum(isinstance(n, ast.stmt) for n in ast.walk(ast.parse(source)))


def _try(source: str, interesting: Callable[[str], bool], cut: _Cut | _CutResult) -> str:
    tree = ast.parse(source)
    cut.visit(tree)
    if not cut.done:
        return source
    candidate = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    try:
        return candidate if interesting(candidate) else source
    except Exception:  # it is no program any more
        return source


class _CutResult(ast.NodeTransformer):
    """Removes one of the results of every ``return`` of several."""

    def __init__(self, number: int) -> None:
        self._number, self.done = number, False

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if isinstance(node.value, ast.Tuple) and self._number < len(node.value.elts) > 1:
            del node.value.elts[self._number]
            self.done = True
        return node


class _Cut(ast.NodeTransformer):
    """Cuts the statement of a number out, or puts one of its bodies in its place."""

    def __init__(self, number: int, how: str) -> None:
        self._number, self._how, self._seen, self.done = number, how, -1, False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for _, old in ast.iter_fields(node):
            if isinstance(old, list) and old and isinstance(old[0], ast.stmt):
                made: list[ast.stmt] = []
                for statement in old:
                    self._seen += 1
                    if self._seen != self._number:
                        self.visit(statement)
                        made.append(statement)
                    elif self._how == "remove":
                        self.done = not isinstance(statement, ast.Pass)
                    else:
                        body = getattr(statement, self._how, None)
                        self.done = bool(body) and not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
                        made += body if self.done else [statement]
                old[:] = made or [ast.Pass()]
            elif isinstance(old, list):
                for item in old:
                    if isinstance(item, ast.AST):
                        self.visit(item)
            elif isinstance(old, ast.AST):
                self.visit(old)
        return node
