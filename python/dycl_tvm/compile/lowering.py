# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An outlined HCFG and the call lists of its sub-DNNs, as one Program over one arena."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
import tvm_ffi

from dycl_tvm.backends.tir_cpu.loops import INSTRUCTIONS
from dycl_tvm.compile import arena
from dycl_tvm.compile.call_list import Call, CallList, constant_calls
from dycl_tvm.compile.layout import Layouts
from dycl_tvm.compile.moves import order_copies, order_sets
from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    CopyTensor,
    Fail,
    Goto,
    HostInstr,
    Instr,
    Kernel,
    KernelCall,
    Leave,
    Pop,
    Program,
    Push,
    ReadItem,
    Reg,
    Scalar,
    Site,
    Slot,
    StateHome,
    SwitchGoto,
    WriteItem,
)
from dycl_tvm.compile.weights import BuildTimeKernels, WeightTable, numbers_of, tensor_of
from dycl_tvm.hcfg.analysis import reverse_postorder
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
    SubDNNCall,
    Switch,
    TensorOp,
    Value,
    operand_type,
)
from dycl_tvm.hcfg.types import ScalarKind, ScalarType, TensorType

#: A size of the call, where kernels read it.
SIZE = TensorType((), "int64")


@dataclass
class Placement:
    """Where the graph is in its Program, for those who compare the two.

    Attributes
    ----------
    blocks : list of Block
        The graph's blocks in the order of the Program's.
    slots : dict
        ``id`` of each tensor value to its slot, whose type is that of the array in memory; constants are not in it.
    regs : dict
        ``id`` of each host scalar to its register.
    instrs : dict
        ``id`` of each step to the numbers of its instructions in its block.
    sizes : dict
        Number of a size that kernels read to its slot; the entry begins with writing them.
    """

    blocks: list[Block] = field(default_factory=list)
    slots: dict[int, Slot] = field(default_factory=dict)
    regs: dict[int, Reg] = field(default_factory=dict)
    instrs: dict[int, range] = field(default_factory=dict)
    sizes: dict[int, Slot] = field(default_factory=dict)


class Lowering:
    """State of one lowering; :meth:`run` gives the Program.

    Parameters
    ----------
    graph : HCFG
        After the pass ``outline``.
    lists : dict
        Sub-DNN name to its call list.
    functions : dict
        Symbol to PrimFunc: what depends on weights only is run at build time.
    share : bool
        Whether storages may share bytes.
    layouts : Layouts, optional
        Which values are packed; the others are plain.
    """

    def __init__(
        self, graph: HCFG, lists: dict[str, CallList], functions: dict[str, Any], share: bool = True, layouts: Layouts | None = None
    ) -> None:
        self.graph, self.lists, self.functions, self.share = graph, lists, functions, share
        self.layouts = layouts or Layouts()
        self.table = WeightTable()
        self.regs: list[ScalarKind] = []
        self.reg_of: dict[int, Reg] = {}  # by id of the Value, which the graph keeps alive
        self.place: dict[int, _Place] = {}
        self.size_place: dict[int, _Place] = {}
        self.sizes: list[int] = []
        self.kernels: list[Kernel] = []
        self.kernel_index: dict[str, int] = {}
        self.backends: dict[str, str] = {}
        self.folded_calls = 0
        self.num_calls = 0
        self.decisions = 0
        self.order = reverse_postorder(graph)
        reached = {id(b) for b in self.order}
        if len(self.order) != len(graph.blocks):  # what cannot be reached is not compiled
            graph = replace(graph, blocks=[b for b in graph.blocks if id(b) in reached])
            self.graph = graph
        self.block_index = {id(b): k for k, b in enumerate(graph.blocks)}
        self.scratch_bytes = 0
        self.plan: arena.Plan | None = None
        self.used_state: list[Slot | Reg] = []
        self.read = _values_read(graph)
        self.return_of: dict[int, Return] = {}  # by return site, in block order
        for block in graph.blocks:
            if isinstance(block.terminator, Return):
                self.return_of.setdefault(id(block.terminator.site), block.terminator)
        self.site_index = {key: k for k, key in enumerate(self.return_of)}
        self.instrs: dict[int, range] = {}
        self._folded: dict[Any, list[Any]] = {}
        self._fold_runner: BuildTimeKernels | None = None

    # -- driver --------------------------------------------------------------------------------------------------------

    def run(self) -> Program:
        """Return the Program."""
        inputs = self._entry_places()
        for block in self.graph.blocks:
            for p in block.params:
                if id(p) not in self.place and id(p) not in self.reg_of:
                    self._define(p)
        for k in sorted({k for lst in self.lists.values() for call in lst.calls for k in call.sizes}):
            self.size_place[k] = _Place(storage=self._storage(SIZE))
        # definitions before uses: a definition's block dominates, and so comes first in this order
        draft_of = {id(block): self._draft(block) for block in self.order}
        drafts = [draft_of[id(block)] for block in self.graph.blocks]
        flow = [self._flow(block, draft) for block, draft in zip(self.graph.blocks, drafts)]
        self.plan = arena.plan(self.sizes, flow, self.share)
        self.scratch_base = self.plan.bytes
        codes = [self._code(block, draft) for block, draft in zip(self.graph.blocks, drafts)]
        return Program(
            name=self.graph.name,
            input_structure=self.graph.input_structure,
            input_names=list(self.graph.input_names),
            inputs=inputs,
            blocks=codes,
            sites=[_site(r) for r in self.return_of.values()],
            kernels=self.kernels,
            weights=self.table.weights,
            regs=self.regs,
            arena_bytes=self.plan.bytes + self.scratch_bytes,
            state=self._state_homes(),
            input_pairs=list(self.graph.input_pairs),
            left_out=list(self.graph.left_out),
            sizes=list(self.graph.sizes),
        )

    def placement(self) -> Placement:
        """Return where the graph is in the Program that :meth:`run` gave."""
        values = [v for b in self.graph.blocks for v in (*b.params, *(r for s in b.steps for r in s.results()))]
        slots = {id(v): self._value_slot(v) for v in values if isinstance(v.type, TensorType) and self._where(v).constant is None}
        sizes = {k: self._slot(place, SIZE) for k, place in self.size_place.items()}
        return Placement(list(self.graph.blocks), slots, dict(self.reg_of), self.instrs, sizes)

    def _entry_places(self) -> list[Slot | Reg]:
        inputs: list[Slot | Reg] = []
        for value in self.graph.inputs:
            if isinstance(value.type, TensorType):
                slot = Slot(value.type, "input", len(inputs))
                self.place[id(value)] = _Place(fixed=slot)
                inputs.append(slot)
            else:
                inputs.append(self._reg(value))
        for k, value in enumerate(self.graph.entry.params[len(inputs) :]):
            if isinstance(value.type, TensorType):
                slot = Slot(value.type, "state", k)
                self.place[id(value)] = _Place(fixed=slot)
                self.used_state.append(slot)
            else:
                self.used_state.append(self._reg(value))
        return inputs

    def _define(self, value: Value) -> None:
        if isinstance(value.type, TensorType):
            self.place[id(value)] = _Place(storage=self._storage(self.layouts.physical(value)))
        else:
            self._reg(value)

    def _storage(self, type_: TensorType) -> int:
        self.sizes.append(type_.nbytes)
        return len(self.sizes) - 1

    def _reg(self, value: Value) -> Reg:
        found = self.reg_of.get(id(value))
        if found is None:
            assert isinstance(value.type, ScalarType)
            found = self.reg_of[id(value)] = self._new_reg(value.type.kind)
        return found

    def _new_reg(self, kind: ScalarKind) -> Reg:
        self.regs.append(kind)
        return Reg(len(self.regs) - 1, kind)

    def _where(self, value: Value) -> _Place:
        found = self.place.get(id(value))
        if found is None:
            if not isinstance(value, Constant):
                raise AssertionError(f"{value!r} is used before its definition")
            assert isinstance(value.type, TensorType)
            found = self.place[id(value)] = _Place(constant=(numbers_of(value.data), value.name))
        return found

    def _scalar(self, operand: Any) -> Scalar:
        return self._reg(operand) if isinstance(operand, Value) else operand

    # -- steps, with places instead of slots ---------------------------------------------------------------------------

    def _draft(self, block: Block) -> list[Any]:
        draft: list[Any] = []
        if block is self.graph.entry:
            sizes = self.graph.size_params
            draft += [("write", place, SIZE, self._reg(sizes[k])) for k, place in self.size_place.items()]
        for step in block.steps:
            start = len(draft)
            if isinstance(step, SubDNNCall):
                draft += self._call(step)
            elif isinstance(step, HostOp):
                draft.append(self._host(step))
            elif isinstance(step, TensorOp):
                raise AssertionError(f"the graph has not been outlined: {step.op} stands in block {block.name}")
            self.instrs[id(step)] = range(start, len(draft))
        return draft

    def _host(self, step: HostOp) -> Any:
        if step.op == "item":
            source = step.args[0]
            assert isinstance(source, Value)
            return ("read", self._reg(step.output), self._where(source), source.type)
        if step.op == "to_tensor":
            self._define(step.output)
            return ("write", self._where(step.output), step.output.type, self._scalar(step.args[0]))
        if step.op == "push":
            pushed = step.args[0]
            if isinstance(pushed, Value) and isinstance(pushed.type, TensorType):
                return ("push", self._where(pushed), pushed.type)
            return Push(self._scalar(pushed))
        if step.op == "pop" and isinstance(step.output.type, ScalarType):
            return Pop(self._reg(step.output))
        if step.op == "pop":
            self._define(step.output)
            return ("pop", self._where(step.output), step.output.type)
        return HostInstr(step.op, self._reg(step.output), tuple(self._scalar(a) for a in step.args), step.origin, step.text)

    def _call(self, step: SubDNNCall) -> list[Any]:
        lst = self.lists[step.callee.name]
        where: dict[int, _Place] = {k: self._where(a) for k, a in enumerate(step.args)}
        for number, data in lst.constants.items():
            where[number] = _Place(constant=(tensor_of(data), f"{lst.name}.constant"))
        known = {k for k, p in where.items() if p.constant is not None}
        folded = constant_calls(lst, known, self._foldable)
        draft: list[Any] = []
        for k, call in enumerate(lst.calls):
            if k in folded:
                self._fold(lst, call, where)
                continue
            places = []
            for number in call.outputs:
                where[number] = _Place(storage=self._storage(lst.types[number]))
            for number in (*call.inputs, *call.outputs):
                places.append((where[lst.root(number)], lst.types[number]))
            places[len(call.inputs) : len(call.inputs)] = [(self.size_place[k], SIZE) for k in call.sizes]
            draft.append(("call", self._kernel(call), places, len(call.inputs) + len(call.sizes), step.callee.name, call.in_place))
        for value, number in zip(step.outputs, lst.results):
            self.place[id(value)] = where[lst.root(number)]
        return draft

    def _fold(self, lst: CallList, call: Call, where: dict[int, _Place]) -> None:
        """Run a call at build time; equal kernels on equal weights run once."""
        inputs = []
        for number in call.inputs:
            constant = where[lst.root(number)].constant
            assert constant is not None
            inputs.append((constant[0].reshape(lst.types[number].shape), constant))
        key = (call.symbol, tuple(self.table.digest(c[0]) for _, c in inputs))
        if key not in self._folded:
            runner = BuildTimeKernels(self.functions, [call.symbol]) if self._fold_runner is None else self._fold_runner
            results = runner.run(call.symbol, [t for t, _ in inputs], [lst.types[n] for n in call.outputs])
            base = next((c[1] for _, c in inputs if c[1]), "constant")
            self._folded[key] = [(r, f"{base}.{call.symbol}") for r in results]
        for number, constant in zip(call.outputs, self._folded[key]):
            where[number] = _Place(constant=constant)
        self.folded_calls += 1

    @functools.cached_property
    def _foldable(self) -> set[str]:
        """Return the kernels that any machine can run, and with the same results."""
        return {symbol for symbol, fn in self.functions.items() if not (fn.attrs and INSTRUCTIONS in fn.attrs) and not _is_of_gpu(fn)}

    def prepare_folding(self) -> None:
        """Compile at once all kernels that may be run at build time."""
        symbols: dict[str, None] = {}
        for block in self.graph.blocks:
            for step in block.steps:
                if isinstance(step, SubDNNCall):
                    lst = self.lists[step.callee.name]
                    known = {k for k, a in enumerate(step.args) if isinstance(a, Constant)} | set(lst.constants)
                    symbols.update((lst.calls[k].symbol, None) for k in sorted(constant_calls(lst, known, self._foldable)))
        self._fold_runner = BuildTimeKernels(self.functions, list(symbols))

    def _kernel(self, call: Call) -> int:
        index = self.kernel_index.get(call.symbol)
        if index is None:
            index = self.kernel_index[call.symbol] = len(self.kernels)
            self.kernels.append(Kernel(call.symbol, call.backend))
        return index

    # -- the planner's view --------------------------------------------------------------------------------------------

    def _flow(self, block: Block, draft: list[Any]) -> arena.FlowBlock:
        flow = arena.FlowBlock()
        for item in draft:
            if isinstance(item, (HostInstr, Push, Pop)):
                continue
            if item[0] == "read":
                flow.points.append(arena.Point(_storages([item[2]]), ()))
            elif item[0] == "push":
                flow.points.append(arena.Point(_storages([item[1]]), ()))
            elif item[0] in ("write", "pop"):
                flow.points.append(arena.Point((), _storages([item[1]])))
            else:
                places, n = [p for p, _ in item[2]], item[3]
                pairs = [(places[n].storage, places[k].storage) for k in item[5]]
                over = tuple((w, r) for w, r in pairs if w is not None and r is not None)
                flow.points.append(arena.Point(_storages(places[:n]), _storages(places[n:]), over))
        term = block.terminator
        if isinstance(term, Return):
            flow.end_reads = _storages([self._where(v) for v in (*term.values, *term.state) if isinstance(v, Value) and _is_tensor(v)])
        for edge in block.edges():
            moves = [(self._where(p).storage, self._where(a).storage) for p, a in _tensor_args(edge)]
            flow.edges.append(arena.EdgeMoves(self.block_index[id(edge.target)], [(p, a) for p, a in moves if p is not None]))
        return flow

    # -- slots ---------------------------------------------------------------------------------------------------------

    def _slot(self, place: _Place, type_: Any) -> Slot:
        if place.constant is not None:
            slot = self.table.slot(type_.parts, place.constant[0], place.constant[1])
            return Slot(type_, slot.space, slot.index)
        if place.fixed is not None:
            return Slot(type_, place.fixed.space, place.fixed.index)
        assert place.storage is not None and self.plan is not None
        return Slot(type_, "arena", 0, self.plan.offset[place.storage])

    def _value_slot(self, value: Value) -> Slot:
        return self._slot(self._where(value), self.layouts.physical(value))

    def _scratch(self, like: Slot, k: int) -> Slot:
        """Return the k-th saved tensor's place, beyond the planned arena; places of one move set do not overlap."""
        offset = self.scratch_base + k * self._scratch_stride
        self.scratch_bytes = max(self.scratch_bytes, (k + 1) * self._scratch_stride)
        return Slot(like.type, "arena", 0, offset)

    @property
    def _scratch_stride(self) -> int:
        largest = max(self.sizes, default=0)
        for slot in self.used_state:
            if isinstance(slot, Slot):
                largest = max(largest, slot.type.nbytes)
        return max(arena.ALIGN, -(-largest // arena.ALIGN) * arena.ALIGN)

    def _code(self, block: Block, draft: list[Any]) -> CodeBlock:
        instrs: list[Instr] = []
        for item in draft:
            if isinstance(item, (HostInstr, Push, Pop)):
                instrs.append(item)
            elif item[0] == "push":
                instrs.append(Push(self._slot(item[1], item[2])))
            elif item[0] == "pop":
                instrs.append(Pop(self._slot(item[1], item[2])))
            elif item[0] == "read":
                instrs.append(ReadItem(item[1], self._slot(item[2], item[3])))
            elif item[0] == "write":
                instrs.append(WriteItem(self._slot(item[1], item[2]), item[3]))
            else:
                args = tuple(self._slot(p, t) for p, t in item[2])
                instrs.append(KernelCall(self.num_calls, item[1], args, item[4], item[3]))
                self.num_calls += 1
        return CodeBlock(block.name, instrs, self._end(block), block.origin)

    def _end(self, block: Block) -> Any:
        term = block.terminator
        if isinstance(term, Jump):
            return self._goto(term.edge)
        if isinstance(term, Branch):
            decision = self._decision()
            return CondGoto(decision, self._scalar(term.cond), self._goto(term.then), self._goto(term.orelse), term.origin)
        if isinstance(term, Switch):
            decision = self._decision()
            return SwitchGoto(decision, self._scalar(term.index), tuple(self._goto(e) for e in term.edges), term.origin)
        if isinstance(term, Return):
            return self._leave(term)
        assert isinstance(term, Raise), f"block {block.name} has no terminator"
        return Fail(term.kind, term.message, term.origin)

    def _decision(self) -> int:
        self.decisions += 1
        return self.decisions - 1

    def _goto(self, edge: Edge) -> Goto:
        assert self.plan is not None
        # the planner's liveness, not that of values: a sub-DNN may take a parameter that none of its kernels reads
        live = self.plan.live_in[self.block_index[id(edge.target)]]
        copies = [(self._value_slot(p), self._value_slot(a)) for p, a in _tensor_args(edge) if self._where(p).storage in live]
        sets = [
            (self._reg(p), self._scalar(a))
            for p, a in zip(edge.target.params, edge.args)
            if isinstance(p.type, ScalarType) and id(p) in self.read
        ]
        moves = order_copies(copies, self._scratch) + order_sets(sets, self._new_reg)
        return Goto(self.block_index[id(edge.target)], tuple(moves))

    def _leave(self, term: Return) -> Leave:
        moves: list[Instr] = []
        state_copies: list[tuple[Slot, Slot]] = []
        state_sets: list[tuple[Reg, Scalar]] = []
        for home, operand in zip(self.used_state, term.state):
            if isinstance(home, Slot):
                assert isinstance(operand, Value)
                state_copies.append((home, self._value_slot(operand)))
            else:
                state_sets.append((home, self._scalar(operand)))
        written = [d for d, s in state_copies if (d.space, d.index) != (s.space, s.index)]
        written_regs = {d for d, s in state_sets if d != s}
        values: list[Slot | Scalar] = []
        kept = 0
        for operand in term.values:
            if not _is_tensor(operand):
                value = self._scalar(operand)
                if isinstance(value, Reg) and value in written_regs:  # the caller gets the old value of a state variable
                    keep = self._new_reg(value.kind)
                    state_sets.append((keep, value))
                    value = keep
                values.append(value)
                continue
            assert isinstance(operand, Value)
            slot = self._value_slot(operand)
            if any(slot.space == w.space and slot.index == w.index for w in written):
                place = self._scratch(slot, len(state_copies) + kept)
                kept += 1
                moves.append(CopyTensor(place, slot))
                slot = place
            values.append(slot)
        moves += order_copies(state_copies, self._scratch)
        moves += order_sets(state_sets, self._new_reg)
        return Leave(self.site_index[id(term.site)], tuple(values), tuple(moves))

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _state_homes(self) -> list[StateHome]:
        homes = []
        for var, home in zip(self.graph.state, self.used_state):
            initial: Any = var.initial
            if isinstance(initial, Constant):
                assert isinstance(initial.type, TensorType)
                initial = self.table.slot(initial.type.parts, numbers_of(initial.data), initial.name or var.name).index
            homes.append(StateHome(var.name, home, initial))
        return homes


def _site(term: Return) -> Site:
    return Site(term.site.structure, [operand_type(v) for v in term.values], term.site.origin)


class _Place:
    """Where a tensor is: a storage of the arena, a fixed slot, or a constant (data, name) that becomes a weight if it is read."""

    __slots__ = ("constant", "fixed", "storage")

    def __init__(self, storage: int | None = None, fixed: Slot | None = None, constant: tuple[Any, str] | None = None) -> None:
        self.storage, self.fixed, self.constant = storage, fixed, constant


def _storages(places: Sequence[_Place]) -> tuple[int, ...]:
    return tuple(p.storage for p in places if p.storage is not None)


def _is_tensor(operand: Any) -> bool:
    return isinstance(operand, Value) and isinstance(operand.type, TensorType)


def _tensor_args(edge: Edge) -> list[tuple[Value, Value]]:
    return [(p, a) for p, a in zip(edge.target.params, edge.args) if isinstance(a, Value) and isinstance(p.type, TensorType)]


def _values_read(graph: HCFG) -> set[int]:
    """Return the ids of the values that something needs (a parameter that only feeds itself does not count)."""
    needed: set[int] = set()
    feeds: dict[int, list[int]] = {}
    for block in graph.blocks:
        for step in block.steps:
            needed.update(id(v) for v in step.operands())
        term = block.terminator
        if isinstance(term, Branch):
            needed.add(id(term.cond))
        elif isinstance(term, Switch):
            needed.add(id(term.index))
        elif isinstance(term, Return):
            needed.update(id(v) for v in (*term.values, *term.state))
        for edge in block.edges():
            for p, a in zip(edge.target.params, edge.args):
                if isinstance(a, Value):
                    feeds.setdefault(id(p), []).append(id(a))
    work = list(needed)
    while work:
        for source in feeds.get(work.pop(), ()):
            if source not in needed:
                needed.add(source)
                work.append(source)
    return needed


def _is_of_gpu(fn: Any) -> bool:
    """Whether a kernel calls functions that a GPU has, by the names that ``compile/ops/philox.py`` has for them."""
    found: list[str] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_pure_extern":
            found.append(str(call.args[0].value))

    tvm_ffi.structural_walk(fn.body, [(tvm.ir.Call, visit)], order="pre")
    return any(name.startswith(("dycl_", "__", "::")) for name in found)
