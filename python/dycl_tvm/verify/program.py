# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The lowered Program in step with its graph: after each step both must hold the same numbers, wherever the planner has put them.

Branches are not waited for: which edge is taken is decided here, for both at once, so that every edge is passed. What a sub-DNN gives is
taken from the Program's memory (:mod:`dycl_tvm.verify.kernels` has compared it with ATen), and from then on must be found there bit by bit
until its last use. A value that is written over too early, a move that is missing, two blocks that were mistaken for each other are thus
found as what they are.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from dycl_tvm.compile import Lowered
from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    Fail,
    Goto,
    KernelCall,
    Leave,
    Reg,
    Slot,
    SwitchGoto,
)  # fmt: skip
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.clocks import SOME
from dycl_tvm.hcfg.draws import is_draw
from dycl_tvm.hcfg.hostops import evaluate
from dycl_tvm.hcfg.nodes import (
    HCFG,
    Block,
    Branch,
    Constant,
    Edge,
    HostOp,
    Jump,
    Raise,
    Return,
    SubDNN,
    SubDNNCall,
    Switch,
    Value,
    operand_type,
)  # fmt: skip
from dycl_tvm.hcfg.types import ScalarType, TensorType
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.machine import Machine, random_tensor
from dycl_tvm.verify.memory import CompiledKernels, pack, unpack, without_poison
from dycl_tvm.verify.of_sizes import SizesOfBlocks, draw_sizes
from dycl_tvm.verify.operation import Undefined
from dycl_tvm.verify.reference import Reference, compare, reads_indices, work_of

#: Seconds that a call of a kernel, or of an operator of PyTorch, takes beside its arithmetic; what a step takes; a byte that is looked at.
_CALL, _STEP, _BYTE = 7e-5, 3e-5, 5e-10
#: Seconds that a multiplication in a kernel takes.
_PRODUCT = 3e-11
#: Blocks of one call, after which it goes the shortest way out.
_LONG = 300


@dataclass
class Flow:
    """What was covered: calls of the whole network, edges of its branches and switches.

    ``compared`` are the sub-DNNs of which at least one place was compared with ATen.
    """

    calls: int = 0
    edges: int = 0
    edges_total: int = 0
    compared: frozenset[str] = frozenset()


class _Callee:
    """What is known of a sub-DNN wherever it is called."""

    def __init__(self, sub: SubDNN, accuracy: str) -> None:
        self.reference = Reference(sub, accuracy, torch.float32)
        self.work = work_of(sub)
        self.reads_indices = reads_indices(sub)
        touched = sum(v.type.nbytes for v in (*sub.params, *sub.results) if isinstance(v.type, TensorType))
        self.seconds = _PRODUCT * self.work.products + _BYTE * touched


class _Ends(Exception):
    """A call ends where the graph says that it raises, or where forced numbers make no sense."""


def check_program(
    graph: HCFG,
    lowered: Lowered,
    compiled: CompiledKernels | None,
    *,
    accuracy: str = "default",
    budget: Budget,
    reserve: float,
    seed: int = 0,
) -> Flow:
    """Run a Program and its graph in step.

    Parameters
    ----------
    graph : HCFG
        After the passes.
    lowered : Lowered
    compiled : CompiledKernels, optional
        None: for another machine. Then kernels give random numbers, and only what flows between them is compared.
    accuracy : str
        As :func:`dycl_tvm.build` has it.
    budget : Budget
        What it may take.
    reserve : float
        Seconds of it that only the first comparison of each sub-DNN may use.
    seed : int
        Of all random choices.

    Raises
    ------
    VerificationError
        If the Program holds other numbers than the graph.
    """
    return _Lockstep(graph, lowered, compiled, accuracy, budget, reserve, seed).run()


class _Lockstep:
    def __init__(
        self, graph: HCFG, lowered: Lowered, compiled: CompiledKernels | None, accuracy: str, budget: Budget, reserve: float, seed: int
    ) -> None:
        self.graph, self.program, self.where, self.kernels = graph, lowered.program, lowered.placement, compiled
        self.fronts, self.sizes = lowered.fronts, list[int]()
        self.accuracy, self.budget, self.reserve, self.seed = accuracy, budget, reserve, seed
        self.blocks = self.where.blocks
        self.index = {id(b): k for k, b in enumerate(self.blocks)}
        self.of_blocks = SizesOfBlocks(graph)
        self.choices = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.open = {(k, e) for k, b in enumerate(self.blocks) for e in range(len(b.edges())) if len(b.edges()) > 1}
        self.total = len(self.open)
        self.unseen = {id(s) for b in self.blocks for s in b.steps if isinstance(s, SubDNNCall) and self.where.instrs[id(s)]}
        self.compared: set[str] = set()
        self.out = self._distances({k for k, b in enumerate(self.blocks) if not b.edges()})
        self.machine = Machine(self.program)
        self.memory, self.regs = self.machine.memory, self.machine.regs
        self.references: dict[int, _Callee] = {}
        self.read: dict[int, set[tuple[str, int, int]]] = {}
        self.truth: dict[int, Any] = {}
        self.path: list[str] = []
        #: What recursive functions keep in the graph, and the ids of the values that are taken from there.
        self.stack: list[Any] = []
        self.popped: set[int] = set()

    def run(self) -> Flow:
        """Make calls until every edge was passed and every place compared, or the time is used up."""
        if len(self.blocks) != len(self.program.blocks):
            raise VerificationError(f"the graph has {len(self.blocks)} blocks, its program {len(self.program.blocks)}")
        calls = idle = 0
        while calls == 0 or (self.budget.left > self.reserve and idle < 6):
            known = len(self.open) + len(self.unseen)
            if calls % 3 == 0:
                self.reset()
            self.memory.poison()
            self.budget.spend(_BYTE * self.program.arena_bytes)
            calls += 1
            try:
                self.call()
            except _Ends:
                self.reset()
            idle = idle + 1 if len(self.open) + len(self.unseen) == known else 0
            if not self.open and not self.unseen and calls >= 3:
                break
        return Flow(calls, self.total - len(self.open), self.total, frozenset(self.compared))

    # -- one call ------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Begin a session: state variables have their first values, in the graph and in the Program each by itself."""
        self.state: list[Any] = [v.initial.data if isinstance(v.initial, Constant) else v.initial for v in self.graph.state]
        self.machine.begin()
        for k, (home, var) in enumerate(zip(self.program.state, self.graph.state, strict=True)):
            self._same(self._read(home.home), self.state[k], f"the state variable {var.name} begins as")

    def call(self) -> None:
        """Make one call."""
        sizes = dict(zip(self.graph.size_params, draw_sizes(self.graph, self.noise)))
        self.truth, self.path, self.stack, self.machine.stack = {}, [], [], []
        for home, value in zip(self.program.inputs, self.graph.inputs, strict=True):
            given: Any = self._draw(value) if value not in sizes else sizes[value]
            if isinstance(home, Slot):
                self.memory.inputs[home.index] = given.clone()
            else:
                self.regs[home.index] = given
            self.truth[id(value)] = given
        self.sizes = [int(self.truth[id(v)]) for v in self.graph.size_params]
        for instr in self.program.blocks[0].instrs[: self.where.prelude]:
            self.machine.execute(instr)
        for value, kept in zip(self.graph.entry.params[len(self.graph.inputs) :], self.state, strict=True):
            self.truth[id(value)] = kept
        at = 0
        for passed in range(100 * _LONG):
            block, code = self.blocks[at], self.program.blocks[at]
            self.path.append(block.name)
            for step in block.steps:
                self._step(step, [code.instrs[k] for k in self.where.instrs[id(step)]])
            self.budget.spend(_STEP * (1 + len(block.steps)))
            if self._leaves(block, code):
                return
            at = self._edge(at, passed)
        raise _Ends

    def _step(self, step: Any, instrs: list[Any]) -> None:
        for value in step.operands():
            self._operand(value, step, instrs)
        if isinstance(step, SubDNNCall):
            self._sub_dnn(step, instrs)
        else:
            self._host(step, instrs)

    def _operand(self, value: Value, step: Any, instrs: list[Any]) -> None:
        """What a step reads must be where its instructions look for it."""
        if isinstance(value, Constant):
            return
        if isinstance(value.type, ScalarType):
            self._same(self.regs[self.where.regs[id(value)].index], self.truth[id(value)], f"{value.name or 'a number'} is")
            return
        slot = self.where.slots.get(id(value))
        if slot is None or id(value) not in self.where.reads.get(id(step), {id(value)}):
            return
        read = self.read.get(id(step))
        if read is None:
            places = [s for i in instrs for s in (i.args if isinstance(i, KernelCall) else (getattr(i, "src", None),))]
            read = self.read[id(step)] = {(s.space, s.index, s.offset) for s in places if isinstance(s, Slot)}
        if (slot.space, slot.index, slot.offset) in read:
            self._same(unpack(self.memory.tensor(slot), value.type), self.truth[id(value)], f"{value.name or 'a tensor'} is")

    def _sub_dnn(self, step: SubDNNCall, instrs: list[Any]) -> None:
        args = [a.data if isinstance(a, Constant) else self.truth[id(a)] for a in step.args]
        callee = self.references.get(id(step.callee))
        if callee is None:
            callee = self.references[id(step.callee)] = _Callee(step.callee, self.accuracy)
        draws = is_draw(step.callee.ops[0].op)
        needs_own = draws or callee.reads_indices or any(id(v) not in self.where.slots for v in step.outputs)
        try:
            own = callee.reference.in_own_types(args) if needs_own else []
        except Undefined:
            raise _Ends from None  # numbers that the program would never have here
        self.budget.spend(callee.seconds + _CALL * (len(instrs) + (len(step.callee.ops) if own else 0)))
        if self.kernels is None:
            self._pretend(step, instrs, own if draws else None)
        else:
            for instr in instrs:
                self.memory.call(self.kernels, instr)
        self.memory.check_guards(step.callee.name)
        for k, value in enumerate(step.outputs):
            slot = self.where.slots.get(id(value))
            self.truth[id(value)] = own[k] if slot is None else _copied(unpack(self.memory.tensor(slot), value.type))  # type: ignore[arg-type]
        if id(step) in self.unseen:
            if self.kernels is not None and not self._compare(step, callee, args):
                return
            self.unseen.discard(id(step))

    def _compare(self, step: SubDNNCall, callee: _Callee, args: list[Any]) -> bool:
        """Compare the results of one place of call with ATen: with its weights, at its addresses."""
        seconds = callee.work.seconds(2, torch.float32)
        if not self.budget.allows(seconds + (self.reserve if step.callee.name in self.compared else 0.0)):
            return False
        self.budget.spend(seconds)
        got = [self.truth[id(v)] for v in step.outputs]
        if self.sizes:  # ATen computes what lies behind them too
            args = [without_poison(a) if isinstance(a, torch.Tensor) else a for a in args]
        cut = self.fronts.cut(step.callee.name, [v.type for v in step.outputs], self.sizes)
        try:
            found = compare(callee.reference.expect(args, 1, self.seed), got, cut=cut)
            if found.error > 1:
                exact = Reference(step.callee, self.accuracy)
                found = compare(exact.expect(args, 12, self.seed), got, [exact.in_own_types(args), exact.fused(args)], cut)
        except Undefined:
            return False
        if found.error > 1:
            raise VerificationError(
                self._text(f"{step.callee.name} differs from PyTorch where it is called at {step.origin}: {found.text}")
            )
        self.compared.add(step.callee.name)
        return True

    def _pretend(self, step: SubDNNCall, instrs: list[Any], own: list[Any] | None) -> None:
        """Fill the results of a call with ``own``, or with random numbers, as far as kernels write them."""
        # a view of an operand lies where the operand is read
        touched = {(s.space, s.index, s.offset) for instr in instrs for s in instr.args[instr.inputs :]}
        for k, value in enumerate(step.outputs):
            slot = self.where.slots.get(id(value))
            if slot is not None and (slot.space, slot.index, slot.offset) in touched:
                self.memory.tensor(slot).copy_(random_tensor(slot.type, self.noise) if own is None else pack(own[k], slot.type))

    def _host(self, step: HostOp, instrs: list[Any]) -> None:
        args = [self.truth[id(a)] if isinstance(a, Value) else a for a in step.args]
        if len(instrs) != 1:
            raise VerificationError(self._text(f"the operation {step.op} became {len(instrs)} instructions"))
        kind: Any = step.output.type
        if step.op == "push":
            self.stack.append(args[0])
            self.machine.execute(instrs[0])
            return
        if step.op == "check" and args[0]:  # what comes behind is compared all the same: drawn numbers pass few checks
            answer = self.regs[self.where.regs[id(step.args[0])].index]
            self._same(answer, args[0], "the answer of a check is")
            self.truth[id(step.output)] = self.regs[self.where.regs[id(step.output)].index] = 0
            return
        if step.op in ("print", "check"):
            expected: Any = 0
        elif step.op == "clock":
            expected = SOME[kind.kind]
        elif step.op == "pop":
            if not self.stack:
                raise VerificationError(self._text("more is taken from the stack than was put there"))
            expected = self.stack.pop()
            self.popped.add(id(step.output))
        elif step.op == "to_tensor":
            expected = torch.tensor(args[0], dtype=getattr(torch, kind.dtype))
        else:
            try:
                source = [args[0].item() if isinstance(args[0], torch.Tensor) else args[0]] if step.op == "item" else args
                expected = evaluate(f"to_{kind.kind}" if step.op == "item" else step.op, source, kind)
            except (ArithmeticError, ValueError):
                raise _Ends from None
        self.machine.execute(instrs[0])
        self.truth[id(step.output)] = expected
        self._same(self._read(self._home(step.output)), expected, f"the operation {step.op} gives")

    def _leaves(self, block: Block, code: CodeBlock) -> bool:
        """Compare the end of a call, if this block has one."""
        term, end = block.terminator, code.end
        if isinstance(term, Raise):
            if not isinstance(end, Fail) or (end.kind, end.message) != (term.kind, term.message):
                raise VerificationError(self._text(f"the graph raises {term.kind}: {term.message}, the program does {end}"))
            raise _Ends
        if not isinstance(term, Return):
            return False
        if not isinstance(end, Leave) or self.program.sites[end.site].structure != term.site.structure:
            raise VerificationError(self._text("the program returns by another statement than the graph"))
        for move in end.moves:
            self.machine.execute(move)
        for k, (place, value) in enumerate(zip(end.values, term.values, strict=True)):
            self._same(self._read(place, operand_type(value)), self._true(value), f"result {k} is")
        for var, home, value in zip(self.graph.state, self.program.state, term.state, strict=True):
            self._same(self._read(home.home), self._true(value), f"the state variable {var.name} is")
        self.state = [self._true(v) for v in term.state]
        return True

    def _edge(self, at: int, passed: int) -> int:
        """Take an edge in both; return the number of the block to which it leads."""
        block, end = self.blocks[at], self.program.blocks[at].end
        term, edges = block.terminator, block.edges()
        kinds: dict[type, type] = {Jump: Goto, Branch: CondGoto, Switch: SwitchGoto}
        if not isinstance(end, kinds[type(term)]):
            raise VerificationError(self._text(f"the graph has a {type(term).__name__}, the program a {type(end).__name__}"))
        if isinstance(term, Branch) and isinstance(end, CondGoto):
            self._same(bool(self.machine.scalar(end.cond)), bool(self._true(term.cond)), "the condition is")
        if isinstance(term, Switch) and isinstance(end, SwitchGoto):
            self._same(self.machine.scalar(end.index), self._true(term.index), "the index of a choice is")
        if isinstance(term, Switch) and id(term.index) in self.popped:  # a return leads to where the call came from, and nowhere else
            number = self._true(term.index)
        else:
            number = self._choose(at, edges, passed)
        self.open.discard((at, number))
        gotos = self.program.blocks[at].gotos()
        edge, goto = edges[number], gotos[number]
        if len(gotos) != len(edges) or goto.target != self.index[id(edge.target)]:
            raise VerificationError(self._text(f"edge {number} leads to another block than in the graph"))
        moved = [self._true(a) for a in edge.args]
        for move in goto.moves:
            self.machine.execute(move)
        for param, value in zip(edge.target.params, moved, strict=True):
            self.truth[id(param)] = value
        return goto.target

    def _choose(self, at: int, edges: list[Edge], passed: int) -> int:
        """Prefer edges that nobody has passed, deep ones first, then the way to such; calls that grow long go the shortest way out.

        Edges to blocks that no call of these sizes reaches are not taken: their kernels need not be right for them.
        """
        targets = [self.index[id(e.target)] for e in edges]
        able = [k for k, e in enumerate(edges) if all(n in span for n, span in zip(self.sizes, self.of_blocks.spans(e.target)))]
        if len(able) < 2:
            return able[0] if able else 0
        if passed > _LONG:
            return min(able, key=lambda e: (self.out[targets[e]], self.choices.random()))
        fresh = [e for e in able if (at, e) in self.open]
        if fresh:
            return max(fresh, key=lambda e: (self.out[targets[e]], self.choices.random()))
        if self.open and self.choices.random() < 0.8:
            far = self._distances({k for k, _ in self.open})
            return min(able, key=lambda e: (far[targets[e]], self.choices.random()))
        return self.choices.choice(able)

    def _distances(self, goals: set[int]) -> list[float]:
        """Return how many edges each block is from the nearest of some blocks."""
        before: list[list[int]] = [[] for _ in self.blocks]
        for k, block in enumerate(self.blocks):
            for edge in block.edges():
                before[self.index[id(edge.target)]].append(k)
        far = [0.0 if k in goals else math.inf for k in range(len(self.blocks))]
        work = deque(goals)
        while work:
            at = work.popleft()
            for k in before[at]:
                if far[k] == math.inf:
                    far[k] = far[at] + 1
                    work.append(k)
        return far

    # -- the machine ---------------------------------------------------------------------------------------------------

    def _home(self, value: Value) -> Slot | Reg:
        return self.where.slots[id(value)] if isinstance(value.type, TensorType) else self.where.regs[id(value)]

    def _read(self, place: Any, type_: Any = None) -> Any:
        if not isinstance(place, Slot):
            return self.machine.scalar(place)
        tensor = self.memory.tensor(place)
        return unpack(tensor, type_) if isinstance(type_, TensorType) else tensor

    def _true(self, operand: Any) -> Any:
        if isinstance(operand, Constant):
            return operand.data
        return self.truth[id(operand)] if isinstance(operand, Value) else operand

    def _draw(self, value: Value) -> Any:
        if isinstance(value.type, TensorType):
            return random_tensor(value.type, self.noise)
        return {"int": self.choices.randrange(4), "float": self.choices.gauss(0, 1), "bool": self.choices.random() < 0.5}[value.type.kind]

    def _same(self, have: Any, want: Any, what: str) -> None:
        if isinstance(want, torch.Tensor):
            if have.dtype != want.dtype or have.numel() != want.numel() or not _equal(have.reshape(want.shape), want):
                raise VerificationError(self._text(f"{what} another tensor in the program's memory than in the graph"))
        elif not (have == want or (have != have and want != want)):
            raise VerificationError(self._text(f"{what} {have!r} in the program, {want!r} in the graph"))

    def _text(self, what: str) -> str:
        return f"the program that was made of the graph differs from it: {what}\nblocks on the way: {' '.join(self.path[-12:])}"


def _copied(t: torch.Tensor) -> torch.Tensor:
    """Return a copy, bit by bit: where nothing was computed a bool may be neither 0 nor 1, which PyTorch's own copy would change."""
    return t.contiguous().reshape(-1).view(torch.uint8).clone().view(t.dtype).reshape(t.shape)


def _equal(have: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether two tensors are the same bit by bit."""
    have, want = have.contiguous(), want.contiguous()
    return torch.equal(have.reshape(-1).view(torch.uint8), want.reshape(-1).view(torch.uint8))
