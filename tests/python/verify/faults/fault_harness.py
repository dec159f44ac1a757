# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Planting faults in the compiler, one by one, and seeing whether a build finds them.

A fault counts only if it makes a wrong artefact (or graph): it must differ from eager on inputs of its program, while the unpatched build
of the same program passes every check. ``python fault_harness.py`` prints the table.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import importlib
import inspect
import linecache
import os
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What a compiler with a fault makes must not be kept, and what one without it made must not be found.
os.environ["DYCL_CACHE_BYTES"] = "0"

import torch

import dycl_tvm
from dycl_tvm import codegen, compile
from dycl_tvm.build import simplify
from dycl_tvm.compare import difference
from dycl_tvm.errors import InvariantError, RunError, VerificationError
from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.interpreter import graph_initial, interpret
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.progress import Phases
from dycl_tvm.runtime.structure import flatten_call
from dycl_tvm.staging import stage_model
from dycl_tvm.target import resolve_target
from dycl_tvm.verify.dispatcher import Dispatcher
from dycl_tvm.verify.proof import Proof

Inputs = Sequence[tuple[Any, ...]]
TARGET = "llvm"


@dataclass(frozen=True)
class Program:
    """A small network, and calls in succession on which its paths differ.

    ``make`` gives a fresh model. ``wrong`` (optional) gives the one that is staged in its place: what a front end with the fault sees.
    """

    name: str
    make: Callable[[], Any]
    calls: Inputs
    wrong: Callable[[], Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A defect of the compiler.

    Attributes
    ----------
    name, room : str
        What it is, and where.
    plant : callable
        A context manager under which the compiler has it.
    program : Program
        Shows it.
    compiled : bool
        Whether it lies behind the graph: then the whole build is made.
    mutate : callable, optional
        Changes the staged graph instead of the compiler's code.
    """

    name: str
    room: str
    program: Program
    plant: Callable[[], Any] | None = None
    compiled: bool = False
    mutate: Callable[[HCFG], None] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a fault: whether it is one, and what each level of the check says of it."""

    fault: Fault
    wrong: str
    found: dict[str, str]
    seconds: float


@contextmanager
def nothing() -> Iterator[None]:
    """Plant nothing."""
    yield


@contextmanager
def _set(owner: Any, name: str, value: Any, caches: list[Any]) -> Iterator[None]:
    """Give an attribute another value for a while; what was computed before and meanwhile is forgotten."""
    before = getattr(owner, name)
    try:
        setattr(owner, name, value)
        for cache in caches:
            cache.cache_clear()
        yield
    finally:
        setattr(owner, name, before)
        for cache in caches:
            cache.cache_clear()


def edit(target: str, old: str, new: str) -> Callable[[], Any]:
    """Return what plants a change of the source of a function: ``module:function`` or ``module:Class.method``."""

    @contextmanager
    def plant() -> Iterator[None]:
        module_name, _, path = target.partition(":")
        module = importlib.import_module(module_name)
        *owners, name = path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part)
        plain = inspect.getattr_static(owner, name)
        function = plain.__func__ if isinstance(plain, (staticmethod, classmethod)) else plain
        function = inspect.unwrap(function)
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(old) == 1, f"{target} has changed: {old!r} stands in it {source.count(old)} times"
        tree = ast.parse(source.replace(old, new))
        tree.body[0].decorator_list.clear()  # type: ignore[attr-defined]  # they would enter the faulty function into tables, for ever
        scope = dict(vars(module))
        exec(builtins.compile(tree, f"<{target}>", "exec", __future__.annotations.compiler_flag), scope)
        changed = scope[name]
        caches = [f for f in (plain, function) if hasattr(f, "cache_clear")]
        if function.__closure__ is None:  # in place: whoever has imported the function has the fault too
            with _set(function, "__code__", changed.__code__, caches):
                yield
        else:
            assert function is plain, f"{target} is wrapped, and so cannot be replaced"
            with _set(owner, name, changed, caches):
                yield

    return plant


class Variants:
    """Programs as text, and what another front end would have made of them: the same file with one line changed."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="dycl-faults-")
        self.count = 0

    def program(self, name: str, text: str, old: str, new: str, calls: Inputs, **options: Any) -> Program:
        """Return a program whose graph is that of the changed text, under the same file and lines."""
        assert text.count(old) == 1, name
        assert old.count("\n") == new.count("\n"), name
        self.count += 1
        path = Path(self.folder.name) / f"program{self.count}.py"
        right = textwrap.dedent(text).strip() + "\n"
        wrong = textwrap.dedent(text.replace(old, new)).strip() + "\n"
        return Program(name, lambda: self._load(path, right), calls, lambda: self._load(path, wrong), options)

    @staticmethod
    def _load(path: Path, text: str) -> Any:
        path.write_text("from __future__ import annotations\n" + text)
        linecache.checkcache(str(path))
        linecache.cache.pop(str(path), None)
        scope: dict[str, Any] = {"__name__": path.stem, "torch": torch, "nn": torch.nn, "Tensor": torch.Tensor}
        module = types.ModuleType(path.stem)
        module.__dict__.update(scope)
        module.__file__ = str(path)
        sys.modules[path.stem] = module
        exec(builtins.compile(path.read_text(), str(path), "exec"), module.__dict__)
        return module.__dict__["Net"]().eval()


def leaves(graph: HCFG, args: tuple[Any, ...]) -> list[Any]:
    """Return the inputs of a graph."""
    return [leaf for _, leaf in flatten_call(graph.input_structure, args, {}, graph.input_names)]


def eager(program: Program) -> list[Any]:
    """Return what eager does in successive calls."""
    model, found = program.make(), []
    with torch.no_grad():
        for args in program.calls:
            try:
                found.append(("returns", copy.deepcopy(model(*copy.deepcopy(args)))))
            except Exception as error:
                found.append(("raises", type(error).__name__))
    return found


def interpreted(graph: HCFG, program: Program) -> list[Any]:
    """Return what a graph does in the same calls."""
    found, state = [], [graph_initial(v.initial) for v in graph.state]
    state = [s.clone() if isinstance(s, torch.Tensor) else s for s in state]
    for args in program.calls:
        try:
            found.append(("returns", copy.deepcopy(interpret(graph, leaves(graph, copy.deepcopy(args)), state)[0])))
        except Exception as error:
            found.append(("raises", type(error).__name__))
    return found


def ran(module: Any, program: Program) -> list[Any]:
    """Return what a loaded artefact does in the same calls."""
    found = []
    for args in program.calls:
        try:
            found.append(("returns", module(*copy.deepcopy(args))))
        except RunError as error:
            found.append(("raises", error.kind))
    return found


def differs(want: list[Any], got: list[Any]) -> str:
    """Say how two series of results differ; empty if they do not."""
    for k, (w, g) in enumerate(zip(want, got)):
        if w[0] != g[0] or (w[0] == "raises" and w[1] != g[1]):
            return f"call {k}: eager {w[0]}, built {g[0]}"
        if w[0] == "returns" and (text := difference(w[1], g[1], 1e-4)):
            return f"call {k}: {text}"
    return ""


class Build:
    """One build under a fault, taken apart so that each part can be checked."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        program = fault.program
        self.args = program.calls[0]
        phases = Phases(None)
        with (fault.plant or nothing)():
            self.graph = stage_model((program.wrong or program.make)(), self.args, name="net", phases=phases, **program.options)
            self.model = program.make()
            if fault.mutate is not None:
                fault.mutate(self.graph)
            self.staged = copied_graph(self.graph)
            simplify(self.graph, (), phases)
            if fault.compiled:
                self.target = resolve_target(TARGET).target
                self.lowered = compile.lower(self.graph, self.target)

    def wrong(self) -> str:
        """Say how the build differs from eager on the program's inputs."""
        want = eager(self.fault.program)
        if not self.fault.compiled:
            return differs(want, interpreted(self.graph, self.fault.program))
        with tempfile.TemporaryDirectory() as folder:
            library, params = Path(folder) / "net.so", Path(folder) / "net.params"
            with (self.fault.plant or nothing)():
                codegen.link(self.lowered.program, self.lowered.library, library, self.target)
                codegen.save_params(self.lowered.program, params)
            return differs(want, ran(dycl_tvm.load(library, params), self.fault.program))

    def check(self, level: str) -> None:
        """Do what a build does to prove itself, in the same order, with the fault still there."""
        with (self.fault.plant or nothing)():
            proof = Proof(level, self.staged, Phases(None))  # type: ignore[arg-type]
            proof.of_control(self.model, (self.args, {}), None, self.staged, False)
            proof.of_passes(self.graph)
            if self.fault.compiled:
                proof.of_kernels(self.graph, self.lowered, self.target, "default")
                with tempfile.TemporaryDirectory() as folder:
                    watch = Dispatcher().watch
                    codegen.link(self.lowered.program, self.lowered.library, Path(folder) / "net.so", self.target, watch=watch)


def prove(fault: Fault, levels: Sequence[str] = ("default", "full")) -> Outcome:
    """Plant a fault and see who finds it."""
    start = time.perf_counter()
    found: dict[str, str] = {}
    try:
        build = Build(fault)
    except InvariantError as error:
        return Outcome(fault, "refused", dict.fromkeys(levels, f"refused while building: {_line(error)}"), time.perf_counter() - start)
    wrong = build.wrong()
    for level in levels:
        if level == "full" and found.get("default"):
            found[level] = found["default"]
            continue
        try:
            build.check(level)
            found[level] = ""
        except (VerificationError, InvariantError) as error:
            found[level] = _line(error)
    return Outcome(fault, wrong, found, time.perf_counter() - start)


def clean(program: Program, compiled: bool) -> None:
    """Check that the unpatched build of a program passes, and is right."""
    build = Build(Fault("none", "", Program(program.name, program.make, program.calls, None, program.options), None, compiled))
    build.check("default")
    assert not build.wrong(), f"{program.name} is wrong without a fault: {build.wrong()}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table with its sums."""
    width = max(len(o.fault.name) for o in outcomes)
    lines = [f"{'fault':<{width}}  {'room':<12} default full  seconds"]
    for o in outcomes:
        marks = ["yes" if o.found.get(level) else "NO" for level in ("default", "full")]
        note = "  (refused by the verifier of graphs: does not count)" if o.wrong == "refused" else ""
        note = note if o.wrong else "  (not wrong: does not count)"
        lines.append(f"{o.fault.name:<{width}}  {o.fault.room:<12} {marks[0]:<7} {marks[1]:<5} {o.seconds:6.1f}{note}")
    real = [o for o in outcomes if o.wrong and o.wrong != "refused"]
    found = {level: sum(bool(o.found.get(level)) for o in real) for level in ("default", "full")}
    lines.append(f"{len(real)} faults; the default check finds {found['default']}, the full one {found['full']}")
    return "\n".join(lines)
