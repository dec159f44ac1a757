# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An outlined HCFG and the call lists of its sub-DNNs, as one Program over one arena."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import tvm
import tvm_ffi

from dycl_tvm.backends.tir_cpu.words.loops import INSTRUCTIONS
from dycl_tvm.compile import arena
from dycl_tvm.compile.call_list import Call, CallList, constant_calls
from dycl_tvm.compile.drafts import Draft, OnHost, Operand, Place, Read, Restore, Run, Save, Write, storages
from dycl_tvm.compile.layout import Layouts
from dycl_tvm.compile.moves import order_copies, order_sets
from dycl_tvm.compile.needs import needs, regions
from dycl_tvm.compile.program import (
    CodeBlock,
    CondGoto,
    CopyTensor,
    Fail,
    Goto,
    HostInstr,
    Instr,
    Kernel,
    Leave,
    Pop,
    Program,
    Push,
    Reg,
    Scalar,
    Site,
    Slot,
    StateHome,
    SwitchGoto,
)
from dycl_tvm.compile.weights import BuildTimeKernels, Link, WeightTable, link_with_tvm, numbers_of, tensor_of
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
from dycl_tvm.hcfg.trips import most_trips
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
    reads : dict
        ``id`` of each call of a sub-DNN to those of the arguments that its kernels read, or that are its results: where calls decide sizes,
        kernels may do without some, whose memory is then free.
    sizes : dict
        Number of a size that kernels read to its slot.
    prelude : int
        With how many instructions the entry begins, which write the sizes there.
    """

    blocks: list[Block] = field(default_factory=list)
    slots: dict[int, Slot] = field(default_factory=dict)
    regs: dict[int, Reg] = field(default_factory=dict)
    instrs: dict[int, range] = field(default_factory=dict)
    reads: dict[int, set[int]] = field(default_factory=dict)
    sizes: dict[int, Slot] = field(default_factory=dict)
    prelude: int = 0


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
    products : sequence of (int, int)
        Sizes behind those of the graph: each is the product of two that come before it.
    link : callable, optional
        Links the kernels that are run at build time.
    """

    def __init__(
        self,
        graph: HCFG,
        lists: dict[str, CallList],
        functions: dict[str, Any],
        share: bool = True,
        layouts: Layouts | None = None,
        products: Sequence[tuple[int, int]] = (),
        link: Link = link_with_tvm,
    ) -> None:
        self.graph, self.lists, self.functions, self.share = graph, lists, functions, share
        self.layouts, self.products = layouts or Layouts(), products
        self.table = WeightTable()
        self.regs: list[ScalarKind] = []
        self.reg_of: dict[int, Reg] = {}  # by id of the Value, which the graph keeps alive
        self.place: dict[int, Place] = {}
        self.size_at: dict[int, Operand] = {}
        self.prelude = 0
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
        self.arena_bytes = 0
        self.plan: arena.Plan | None = None
        self.homes: dict[int, int] = {}  # of results, by ``Plan.same``
        self.used_state: list[Slot | Reg] = []
        self.read = _values_read(graph)
        self.return_of: dict[int, Return] = {}  # by return site, in block order
        for block in graph.blocks:
            if isinstance(block.terminator, Return):
                self.return_of.setdefault(id(block.terminator.site), block.terminator)
        self.site_index = {key: k for k, key in enumerate(self.return_of)}
        self.instrs: dict[int, range] = {}
        self.reads: dict[int, set[int]] = {}
        self._folded: dict[Any, list[Any]] = {}
        self._fold_runner: BuildTimeKernels | None = None
        self._link = link

    # -- driver --------------------------------------------------------------------------------------------------------

    def run(self) -> Program:
        """Return the Program."""
        inputs = self._entry_places()
        for block in self.graph.blocks:
            for p in block.params:
                if id(p) not in self.place and id(p) not in self.reg_of:
                    self._define(p)
        for k in sorted({k for lst in self.lists.values() for call in lst.calls for k in call.sizes}):
            self.size_at[k] = Operand(Place(storage=self._storage(SIZE)), SIZE)
        # definitions before uses: a definition's block dominates, and so comes first in this order
        draft_of = {id(block): self._draft(block) for block in self.order}
        drafts = [draft_of[id(block)] for block in self.graph.blocks]
        flow = [self._flow(block, draft) for block, draft in zip(self.graph.blocks, drafts)]
        found = regions(self.graph)
        self.plan = arena.plan(self.sizes, flow, self.share, [region.blocks for region in found])
        self.arena_bytes = self.plan.bytes
        for end in (b.terminator for b in self.graph.blocks if isinstance(b.terminator, Return)):
            for storage in storages([self._where(v) for v in end.values if _is_tensor(v)]):
                self.homes.setdefault(self.plan.same[storage], len(self.homes) + 1)
        trips = most_trips(self.graph)
        codes = [self._code(block, draft, trips.get(block)) for block, draft in zip(self.graph.blocks, drafts)]
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
            arena_bytes=self.arena_bytes,
            state=self._state_homes(),
            input_pairs=list(self.graph.input_pairs),
            left_out=list(self.graph.left_out),
            sizes=list(self.graph.sizes),
            special_sizes=list(self.graph.special_sizes),
            needs=needs(found, codes, self.arena_bytes),
        )

    def placement(self) -> Placement:
        """Return where the graph is in the Program that :meth:`run` gave."""
        values = [v for b in self.graph.blocks for v in (*b.params, *(r for s in b.steps for r in s.results()))]
        slots = {id(v): self._value_slot(v) for v in values if isinstance(v.type, TensorType) and self._where(v).constant is None}
        sizes = {k: self.slot(at) for k, at in self.size_at.items()}
        return Placement(list(self.graph.blocks), slots, dict(self.reg_of), self.instrs, self.reads, sizes, self.prelude)

    def _entry_places(self) -> list[Slot | Reg]:
        inputs: list[Slot | Reg] = []
        for value in self.graph.inputs:
            if isinstance(value.type, TensorType):
                slot = Slot(value.type, "input", len(inputs))
                self.place[id(value)] = Place(fixed=slot)
                inputs.append(slot)
            else:
                inputs.append(self._reg(value))
        for k, value in enumerate(self.graph.entry.params[len(inputs) :]):
            if isinstance(value.type, TensorType):
                slot = Slot(value.type, "state", k)
                self.place[id(value)] = Place(fixed=slot)
                self.used_state.append(slot)
            else:
                self.used_state.append(self._reg(value))
        return inputs

    def _define(self, value: Value) -> None:
        if isinstance(value.type, TensorType):
            self.place[id(value)] = Place(storage=self._storage(self.layouts.physical(value)))
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

    def _where(self, value: Value) -> Place:
        found = self.place.get(id(value))
        if found is None:
            if not isinstance(value, Constant):
                raise AssertionError(f"{value!r} is used before its definition")
            assert isinstance(value.type, TensorType)
            found = self.place[id(value)] = Place(constant=(numbers_of(value.data), value.name))
        return found

    def _scalar(self, operand: Any) -> Scalar:
        return self._reg(operand) if isinstance(operand, Value) else operand

    # -- steps, with places instead of slots ---------------------------------------------------------------------------

    def _draft(self, block: Block) -> list[Draft]:
        draft: list[Draft] = []
        if block is self.graph.entry:
            draft += self._measured()
            self.prelude = len(draft)
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

    def _measured(self) -> Iterator[Draft]:
        """Yield what puts the sizes where kernels read them."""
        regs = [self._reg(size) for size in self.graph.size_params]
        last = max(self.size_at, default=-1)
        for a, b in self.products[: max(last + 1 - len(regs), 0)]:
            made = self._new_reg("int")
            yield OnHost(HostInstr("mul", made, (regs[a], regs[b]), self.graph.entry.origin))
            regs.append(made)
        for k, at in self.size_at.items():
            yield Write(at, regs[k])

    def _host(self, step: HostOp) -> Draft:
        if step.op == "item":
            source = step.args[0]
            assert isinstance(source, Value)
            return Read(self._reg(step.output), self._operand(source))
        if step.op == "to_tensor":
            self._define(step.output)
            return Write(self._operand(step.output), self._scalar(step.args[0]))
        if step.op == "push":
            pushed = step.args[0]
            return Save(self._operand(pushed)) if _is_tensor(pushed) else OnHost(Push(self._scalar(pushed)))
        if step.op == "pop" and isinstance(step.output.type, ScalarType):
            return OnHost(Pop(self._reg(step.output)))
        if step.op == "pop":
            self._define(step.output)
            return Restore(self._operand(step.output))
        return OnHost(HostInstr(step.op, self._reg(step.output), tuple(self._scalar(a) for a in step.args), step.origin, step.text))

    def _operand(self, value: Value) -> Operand:
        """Return a tensor that the host looks at, or keeps."""
        assert isinstance(value.type, TensorType)
        return Operand(self._where(value), value.type)

    def _call(self, step: SubDNNCall) -> list[Draft]:
        lst = self.lists[step.callee.name]
        where: dict[int, Place] = {k: self._where(a) for k, a in enumerate(step.args)}
        for number, data in lst.constants.items():
            where[number] = Place(constant=(tensor_of(data), f"{lst.name}.constant"))
        known = {k for k, p in where.items() if p.constant is not None}
        folded = constant_calls(lst, known, self._foldable)
        used = {lst.root(n) for n in itertools.chain(lst.results, *(call.inputs for call in lst.calls))}
        self.reads[id(step)] = {id(a) for k, a in enumerate(step.args) if k in used}
        draft: list[Draft] = []
        for k, call in enumerate(lst.calls):
            if k in folded:
                self._fold(lst, call, where)
                continue
            for number in call.outputs:
                where[number] = Place(storage=self._storage(lst.types[number]))
            inputs, outputs = ([Operand(where[lst.root(n)], lst.types[n]) for n in numbers] for numbers in (call.inputs, call.outputs))
            inputs += [self.size_at[k] for k in call.sizes]
            draft.append(Run(self._kernel(call), tuple(inputs), tuple(outputs), step.callee.name, step.lines, call.in_place))
        for value, number in zip(step.outputs, lst.results):
            self.place[id(value)] = where[lst.root(number)]
        return draft

    def _fold(self, lst: CallList, call: Call, where: dict[int, Place]) -> None:
        """Run a call at build time; equal kernels on equal weights run once."""
        inputs = []
        for number in call.inputs:
            constant = where[lst.root(number)].constant
            assert constant is not None
            inputs.append((constant[0].reshape(lst.types[number].shape), constant))
        key = (call.symbol, tuple(self.table.digest(c[0]) for _, c in inputs))
        if key not in self._folded:
            runner = BuildTimeKernels(self.functions, [call.symbol], self._link) if self._fold_runner is None else self._fold_runner
            results = runner.run(call.symbol, [t for t, _ in inputs], [lst.types[n] for n in call.outputs])
            base = next((c[1] for _, c in inputs if c[1]), "constant")
            self._folded[key] = [(r, f"{base}.{call.symbol}") for r in results]
        for number, constant in zip(call.outputs, self._folded[key]):
            where[number] = Place(constant=constant)
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
        self._fold_runner = BuildTimeKernels(self.functions, list(symbols), self._link)

    def _kernel(self, call: Call) -> int:
        index = self.kernel_index.get(call.symbol)
        if index is None:
            index = self.kernel_index[call.symbol] = len(self.kernels)
            self.kernels.append(Kernel(call.symbol, call.backend))
        return index

    # -- the planner's view --------------------------------------------------------------------------------------------

    def _flow(self, block: Block, draft: list[Draft]) -> arena.FlowBlock:
        flow = arena.FlowBlock([point for item in draft if (point := item.point()) is not None])
        term = block.terminator
        if isinstance(term, Return):
            flow.end_reads = storages([self._where(v) for v in (*term.values, *term.state) if _is_tensor(v)])
        for edge in block.edges():
            moves = [(self._where(p).storage, self._where(a).storage) for p, a in _tensor_args(edge)]
            flow.edges.append(arena.EdgeMoves(self.block_index[id(edge.target)], [(p, a) for p, a in moves if p is not None]))
        return flow

    # -- slots ---------------------------------------------------------------------------------------------------------

    def slot(self, operand: Operand) -> Slot:
        """Return where an operand lies."""
        place, type_ = operand.place, operand.type
        if place.constant is not None:
            slot = self.table.slot(type_.parts, place.constant[0], place.constant[1])
            return Slot(type_, slot.space, slot.index)
        if place.fixed is not None:
            return Slot(type_, place.fixed.space, place.fixed.index)
        assert place.storage is not None and self.plan is not None
        return Slot(type_, "arena", self.homes.get(self.plan.same[place.storage], 0), self.plan.offset[place.storage])

    def _value_slot(self, value: Value) -> Slot:
        return self.slot(Operand(self._where(value), self.layouts.physical(value)))

    def next_call(self) -> int:
        """Return the number of a kernel call."""
        self.num_calls += 1
        return self.num_calls - 1

    def _scratch(self, live: Iterable[int | None], moved: Iterable[Value]) -> Callable[[Slot, int], Slot]:
        """Return what gives the place of the k-th tensor that moves save: above all storages that are ``live`` there."""
        assert self.plan is not None
        base = max((self.plan.offset[s] + arena.round_up(self.sizes[s]) for s in live if s is not None), default=0)
        stride = max((arena.round_up(self.layouts.physical(value).nbytes) for value in moved), default=0)

        def place(like: Slot, k: int) -> Slot:
            offset = base + k * stride
            self.arena_bytes = max(self.arena_bytes, offset + stride)
            return Slot(like.type, "arena", 0, offset)

        return place

    def _code(self, block: Block, draft: list[Draft], trips: int | None) -> CodeBlock:
        return CodeBlock(block.name, [item.instruction(self) for item in draft], self._end(block), block.origin, trips)

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
        sources = [a for _, a in _tensor_args(edge)]
        scratch = self._scratch([*live, *(self._where(a).storage for a in sources)], sources)
        moves = order_copies(copies, scratch) + order_sets(sets, self._new_reg)
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
        tensors = [v for v in (*term.values, *term.state) if _is_tensor(v)]
        scratch = self._scratch([self._where(v).storage for v in tensors], tensors)
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
            slot = self._value_slot(operand)
            if any(slot.space == w.space and slot.index == w.index for w in written):
                place = scratch(slot, len(state_copies) + kept)
                kept += 1
                moves.append(CopyTensor(place, slot))
                slot = place
            values.append(slot)
        moves += order_copies(state_copies, scratch)
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


def _is_tensor(operand: Any) -> TypeGuard[Value]:
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
