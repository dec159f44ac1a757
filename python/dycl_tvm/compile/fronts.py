# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Run-time extents: of which tensors only the first elements are ever looked at, as many as a size of the call says, and their kernels.

Facts go forward (this tensor is ``i < N``), what is wanted goes backward (the result is cut at ``N``; behind that mask nothing is read
beyond ``N``), through the kernels of every sub-DNN and over the edges of the graph, until nothing changes. A kernel of whose output
less than all is wanted is called in a form that computes no more (:mod:`dycl_tvm.backends.front`). What is not understood is
wanted whole, so a graph without sizes stays as it is.

Source: backward demand analysis, as in dead code elimination, over regions instead of values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dycl_tvm.backends.extents import Bounds, Digits, Extent, Limit, Wanted, everything, outer, sizes_of
from dycl_tvm.backends.tir_cpu.families.attention import AttentionMaker
from dycl_tvm.backends.tir_cpu.families.conv_direct import DirectMaker
from dycl_tvm.backends.tir_cpu.families.conv_few import few_weights, pack_few
from dycl_tvm.backends.tir_cpu.families.conv_winograd import WinogradMaker
from dycl_tvm.backends.tir_cpu.families.products import ProductMaker
from dycl_tvm.backends.tir_cpu.words.workload import Conv2D
from dycl_tvm.compile.call_list import Call, CallList, constant_calls
from dycl_tvm.compile.layout import Layouts, constant_params
from dycl_tvm.compile.masked import AROUND, Masks, take_masks, within
from dycl_tvm.compile.ops.moving import moving_of
from dycl_tvm.compile.pipeline import KernelSet
from dycl_tvm.compile.wanted import Closed, Counts, Fact, Holds, Kernel, Mask, Moved, Number, Table, of_attention
from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.nodes import HCFG, Constant, HostOp, Return, SubDNNCall, Value
from dycl_tvm.hcfg.types import TensorType, Type

#: Rounds after which what still changes is wanted whole: an extent may grow by one in each trip of a loop.
_ROUNDS = 12
#: Of a constant vector, that numbers are looked up in.
_MOST_NUMBERS = 1 << 14
#: The first inputs of an attention: queries, keys and values.
_ATTENDED = 3


@dataclass
class Fronts:
    """What is computed of the results of sub-DNNs.

    Attributes
    ----------
    bounds : Bounds
        Of the sizes.
    facts : dict
        ``id`` of a value of the graph to what the kernels take for granted of it.
    results : dict
        Name of a sub-DNN to what is wanted of each of its results, in the shape of the array in memory; None for nothing.
    """

    bounds: Bounds
    facts: dict[int, Fact] = field(default_factory=dict)
    results: dict[str, list[Wanted | None]] = field(default_factory=dict)

    def known(self, value: Value, drawn: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Return a random tensor as it may be for a value: what is known of the value holds."""
        fact, sizes = self.facts.get(id(value)), self.bounds.numbers(sizes)
        if isinstance(fact, Holds):
            return torch.full_like(drawn, fact.extent.at(sizes))
        if isinstance(fact, (Mask, Closed)):
            shape = [-1 if d == fact.dim else 1 for d in range(drawn.dim())]
            inside = (torch.arange(drawn.shape[fact.dim]) < fact.extent.at(sizes)).view(shape).expand_as(drawn)
            return inside.clone() if isinstance(fact, Mask) else torch.where(inside, drawn, -torch.inf)
        return drawn

    def cut(self, name: str, types: Sequence[Type], sizes: Sequence[int]) -> list[tuple[slice | torch.Tensor, ...]]:
        """Return what is computed of the results of a sub-DNN, of these types, where the sizes are these."""
        found, sizes = [], self.bounds.numbers(sizes)
        for wanted, type_ in zip(self.results.get(name, [None] * len(types)), types, strict=True):
            # an array with channels in blocks has one dimension more
            dims = len(type_.shape) if isinstance(type_, TensorType) else 0
            found.append(_index([_places(limit, sizes) for limit in (wanted or ())[:dims]]))
        return found


def plan_fronts(graph: HCFG, lists: dict[str, CallList], kernels: KernelSet, layouts: Layouts | None, as_inputs: bool = True) -> Fronts:
    """Let the kernels compute what is wanted and no more; the calls in ``lists`` are changed.

    Parameters
    ----------
    graph : HCFG
        After the pass ``outline``.
    lists : dict
        Name of a sub-DNN to its calls.
    kernels : KernelSet
        Gets the kernels that compute less.
    layouts : Layouts, optional
        Which values are packed.
    as_inputs : bool
        Whether kernels take the sizes that they ask for as inputs; where not, those who call them do what there is to do.
    """
    bounds = Bounds([(s.least, s.most) for s in graph.sizes], multiplies=as_inputs)
    if not graph.sizes:
        return Fronts(bounds)
    return _Planner(graph, lists, kernels, layouts or Layouts(), bounds, as_inputs).run()


class _Planner:
    def __init__(
        self, graph: HCFG, lists: dict[str, CallList], kernels: KernelSet, layouts: Layouts, bounds: Bounds, as_inputs: bool
    ) -> None:
        self.graph, self.lists, self.table, self.layouts, self.bounds = graph, lists, kernels, layouts, bounds
        self.as_inputs = as_inputs
        self.order = reverse_postorder(graph)
        self.calls: dict[str, list[SubDNNCall]] = {}
        for block in self.order:
            for step in block.steps:
                if isinstance(step, SubDNNCall):
                    self.calls.setdefault(step.callee.name, []).append(step)
        self.kernels: dict[str, Kernel] = {}
        self.facts: dict[int, Fact] = {}
        self.wanted: dict[int, Wanted | None] = {}
        self._inside: dict[str, dict[int, Fact]] = {}
        self._few: dict[tuple[str, int, int], int] = {}
        self._packing: dict[str, list[Call]] = {}
        #: By list and tensor the call that packs it while the network is built.
        self._packed: dict[tuple[str, int], Call] = {}

    def run(self) -> Fronts:
        self._find_facts()
        #: Of each sub-DNN, the masks that its convolutions apply themselves, by their outputs.
        self.masks = {name: self._masks_of(lst) for name, lst in self.lists.items()}
        known, every = constant_params(self.graph), set(self.table.functions)
        #: Calls that the build makes itself.
        self.built = {name: constant_calls(lst, known.get(name, set()), every) for name, lst in self.lists.items()}
        for name, numbers in self.built.items():
            calls = [self.lists[name].calls[k] for k in numbers]
            self._packed.update({(name, made): call for call in calls for made in call.outputs})
        before: dict[int, Wanted | None] | None = None
        rounds = itertools.count()
        while self.wanted != before:  # ends: of what is widened each dimension changes once at most
            before = dict(self.wanted)
            self._round(next(rounds) >= _ROUNDS)
        found = Fronts(self.bounds, self.facts)
        for name, lst in self.lists.items():
            wanted = self._wanted_of_results(name)
            found.results[name] = wanted
            inside = self._backward(name, wanted)
            for k, call in enumerate(lst.calls):
                lst.calls[k] = self._front_of(lst, call, inside, k in self.built[name])
            lst.calls[:0] = self._packing.get(name, [])
        return found

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _find_facts(self) -> None:
        scalars: dict[int, Extent] = {}
        for k, size in enumerate(self.graph.size_params):
            scalars[id(size)] = Extent(k, 1, 0)
        while True:
            before = len(self.facts) + len(scalars)
            for block in self.order:
                for step in block.steps:
                    if isinstance(step, HostOp):
                        self._host_fact(step, scalars)
            for name in self.lists:
                self._facts_of_results(name)
            if len(self.facts) + len(scalars) == before:
                break
        self.scalars = scalars

    def _host_fact(self, step: HostOp, scalars: dict[int, Extent]) -> None:
        args = [Extent.number(a) if type(a) is int else scalars.get(id(a)) for a in step.args]
        if any(a is None for a in args):
            return
        known = [a for a in args if a is not None]
        if step.op == "to_tensor" and step.output.type == TensorType((), "int64"):
            self.facts[id(step.output)] = Holds(known[0])
            return
        if step.op not in ("add", "sub", "mul") or len(known) != 2:
            return
        a, b = known
        if step.op == "mul" and a.factor and b.factor:
            product = self.bounds.product(a, b)
            if product is not None:
                scalars[id(step.output)] = product
            return
        if b.factor and not a.factor and step.op != "sub":
            a, b = b, a
        if not b.factor:  # of two sizes nothing is known
            k = b.constant
            scalars[id(step.output)] = a.scaled(k) if step.op == "mul" else a.scaled(1, k if step.op == "add" else -k)

    def _facts_of_results(self, name: str) -> None:
        inside, calls = self._forward(name), self.calls.get(name, [])
        for k, number in enumerate(self.lists[name].results):
            fact = _fact_in(self.lists[name], inside, number)
            for call in calls:
                if fact is not None and self._plain(call.outputs[k]):
                    self.facts[id(call.outputs[k])] = fact

    def _forward(self, name: str) -> dict[int, Fact]:
        """Return what is known of the tensors of a sub-DNN, wherever it is called."""
        lst, calls = self.lists[name], self.calls.get(name, [])
        found: dict[int, Fact] = {}
        for k in range(lst.n_params):
            of_args = [self._fact_of(call.args[k]) for call in calls]
            if of_args and of_args[0] is not None and all(f == of_args[0] for f in of_args):
                found[k] = of_args[0]
        for number, data in lst.constants.items():
            known = _constant_fact(torch.as_tensor(data))
            if known is not None:
                found[number] = known
        for call in lst.calls:
            kernel = self._kernel(lst, call)
            if kernel is not None:
                fact = kernel.fact([_fact_in(lst, found, n) for n in call.inputs], self.bounds)
                if fact is not None:
                    found[call.outputs[0]] = fact
        return found

    def _fact_of(self, value: Value) -> Fact | None:
        if isinstance(value, Constant):
            if id(value) not in self.facts:
                known = _constant_fact(value.data) if isinstance(value.data, torch.Tensor) else None
                if known is None:
                    return None
                self.facts[id(value)] = known
            return self.facts[id(value)]
        return self.facts.get(id(value))

    def _masks_of(self, lst: CallList) -> dict[int, Masks]:
        facts = self._known_facts(lst.name)
        return take_masks(lst, lambda number: _fact_in(lst, facts, number), self.table)

    def _plain(self, value: Value) -> bool:
        return self.layouts.block_of.get(id(value), 1) == 1

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def _round(self, last: bool) -> None:
        """Go through the graph once, against its direction; in the last rounds what changes is wanted whole."""
        for block in reversed(self.order):
            term = block.terminator
            if isinstance(term, Return):
                self._returned(term)
            for operand in (getattr(term, "cond", None), getattr(term, "index", None)):
                self._want_all(operand)
            for edge in block.edges():
                for param, arg in zip(edge.target.params, edge.args):
                    if isinstance(arg, Value) and isinstance(param.type, TensorType) and id(param) in self.wanted:
                        self._want(arg, self.wanted[id(param)], last)
            for step in reversed(block.steps):
                if isinstance(step, SubDNNCall):
                    self._called(step, last)
                else:
                    for operand in step.operands():
                        self._want_all(operand)

    def _returned(self, term: Return) -> None:
        cut = term.site.cut
        for k, value in enumerate(term.values):
            if not isinstance(value, Value) or not isinstance(value.type, TensorType):
                continue
            wanted = list(everything(value.type.shape))
            if k in cut:
                along, length = cut[k][0]
                # the first elements in memory: a dimension's, if those before it have one row
                of = term.values[length]
                if all(n == 1 for n in value.type.shape[:along]) and len(cut[k]) == 1:
                    extent = self.scalars.get(id(of)) if isinstance(of, Value) else Extent.number(int(of))
                    wanted[along] = self.bounds.clipped(extent, value.type.shape[along])
            self._want(value, tuple(wanted))
        for value in term.state:
            self._want_all(value)

    def _want_all(self, operand: Any) -> None:
        if isinstance(operand, Value) and isinstance(operand.type, TensorType):
            self._want(operand, everything(operand.type.shape))

    def _want(self, value: Value, wanted: Wanted | None, widen: bool = False) -> None:
        if isinstance(value, Constant) or wanted is None:
            return
        before = self.wanted.get(id(value))
        joined = self.bounds.union(before, wanted)
        if widen and before is not None and joined is not None and joined != before:
            joined = tuple(a if a == b else None for a, b in zip(before, joined))
        self.wanted[id(value)] = joined

    def _called(self, step: SubDNNCall, last: bool) -> None:
        lst = self.lists[step.callee.name]
        inside = self._backward(step.callee.name, self._wanted_of_results(step.callee.name))
        for k, arg in enumerate(step.args):
            wanted = inside.get(k)
            if wanted is not None:
                self._want(arg, self._logical(arg, wanted, lst.types[k]), last)

    def _wanted_of_results(self, name: str) -> list[Wanted | None]:
        """Return what is wanted of the results of a sub-DNN at any of its calls, as the arrays in memory."""
        lst = self.lists[name]
        found: list[Wanted | None] = []
        for k, number in enumerate(lst.results):
            joined: Wanted | None = None
            for call in self.calls.get(name, []):
                wanted = self.wanted.get(id(call.outputs[k]))
                if wanted is not None:
                    joined = self.bounds.union(joined, self._physical(wanted, call.outputs[k], lst.types[number]))
            found.append(joined)
        return found

    def _physical(self, wanted: Wanted, value: Value, array: TensorType) -> Wanted:
        if self._plain(value):
            return wanted if len(wanted) == len(array.shape) else everything(array.shape)
        return (wanted[0], None, *wanted[2:], None)

    def _logical(self, value: Value, wanted: Wanted, array: TensorType) -> Wanted:
        assert isinstance(value.type, TensorType)
        if self._plain(value):
            return wanted if len(wanted) == len(value.type.shape) else everything(value.type.shape)
        return (wanted[0], None, *wanted[2:-1])

    def _backward(self, name: str, results: Sequence[Wanted | None]) -> dict[int, Wanted]:
        """Return what is wanted of the tensors that own memory in a sub-DNN; what is missing is not wanted at all."""
        lst = self.lists[name]
        facts = self._known_facts(name)
        found: dict[int, Wanted] = {}

        def want(number: int, wanted: Wanted | None) -> None:
            root = lst.root(number)
            if wanted is None:
                return
            if root != number:
                wanted = self.bounds.reshaped(wanted, lst.types[number].shape, lst.types[root].shape)
            joined = self.bounds.union(found.get(root), wanted)
            assert joined is not None
            found[root] = joined

        for number, wanted in zip(lst.results, results):
            want(number, wanted)
        for call in reversed(lst.calls):
            outputs = [found.get(n) for n in call.outputs]
            if all(w is None for w in outputs):
                outputs = [everything(lst.types[n].shape) for n in call.outputs]  # it is called all the same
            kernel = self._kernel(lst, call)
            if kernel is None or outputs[0] is None:
                for number in call.inputs:
                    want(number, everything(lst.types[number].shape))
                continue
            read: list[Wanted | None] = kernel.inputs(outputs[0], [_fact_in(lst, facts, n) for n in call.inputs], self.bounds)
            inputs, maker = list(call.inputs), self.table.maker_of.get(call.symbol)
            if isinstance(maker, AttentionMaker):  # its arrays are vectors: in their own shapes strides say what is read of them
                inputs[:_ATTENDED] = [lst.root(n) for n in inputs[:_ATTENDED]]
                arrays = [lst.types[n].shape for n in inputs[:_ATTENDED]]
                own = self._own_of(lst, call, outputs[0])
                keys = None if not own or (used := outer(own[0])) is None else maker.read(used, self.bounds)
                read[:_ATTENDED] = of_attention(maker.work, outputs[0], arrays, self.bounds, keys)
            if call.outputs[0] in self.masks[name]:
                read[0] = within(read[0], self.masks[name][call.outputs[0]], self.bounds)
            for number, wanted in zip(inputs, read):
                want(number, wanted)
        return found

    def _known_facts(self, name: str) -> dict[int, Fact]:
        if name not in self._inside:
            self._inside[name] = self._forward(name)
        return self._inside[name]

    def _kernel(self, lst: CallList, call: Call) -> Kernel | Moved | None:
        """Return what is understood of a kernel; None for one with several results, and for those of other backends."""
        if len(call.outputs) != 1:
            return None
        moving = moving_of(call.symbol)
        if moving is not None:
            return Moved(moving, [lst.types[n].shape for n in (*call.inputs, *call.outputs)])
        if call.backend != "tvm":
            return None
        if call.symbol not in self.kernels:
            self.kernels[call.symbol] = Kernel(self.table.functions[call.symbol])
        kernel = self.kernels[call.symbol]
        same = kernel.shapes == [lst.types[n].shape for n in (*call.inputs, *call.outputs)]
        return kernel if kernel.known and same else None

    def _front_of(self, lst: CallList, call: Call, inside: dict[int, Wanted], built: bool) -> Call:
        kernel = self._kernel(lst, call)
        wanted = inside.get(call.outputs[0])
        if built or kernel is None or wanted is None:
            return call
        if isinstance(kernel, Moved):
            facts = self._known_facts(lst.name)
            return replace(call, symbol=kernel.front(wanted, [_fact_in(lst, facts, n) for n in call.inputs], self.bounds))
        own = self._own_of(lst, call, wanted)
        if all(e is None for e in wanted) and not own:
            return call
        sizes = (*sizes_of(own), *sizes_of(wanted)) if self.as_inputs else ()
        inputs, maker = call.inputs, self.table.maker_of.get(call.symbol)
        if isinstance(maker, WinogradMaker) and own and own[-1] is not None:
            inputs = (*inputs, self._few_weights(lst, call, maker.work))
        return replace(call, symbol=self.table.front(call.symbol, wanted, own), inputs=inputs, sizes=sizes)

    def _few_weights(self, lst: CallList, call: Call, work: Conv2D) -> int:
        """Return the weights of a convolution as sums of a few places read them."""
        plain = self._packed[lst.name, call.inputs[1]].inputs[0]
        key = (lst.name, plain, work.y.block)
        if key not in self._few:
            number = self._few[key] = len(lst.types)
            lst.types.append(TensorType(few_weights(work).physical, "float32"))
            self._packing.setdefault(lst.name, []).append(Call(self.table.add("pack_few", pack_few(work)), "tvm", (plain,), (number,)))
        return self._few[key]

    def _own_of(self, lst: CallList, call: Call, wanted: Wanted) -> tuple[Limit | None, ...]:
        """Return what the loops of a kernel are to ask themselves, as its maker takes it; nothing if they ask no size of the call."""
        maker = self.table.maker_of.get(call.symbol)
        own: tuple[Limit | None, ...] = ()
        if isinstance(maker, AttentionMaker):
            own = (self._keys_of(maker, lst, call, wanted),)
        elif isinstance(maker, WinogradMaker):
            images, _, rows, columns, _ = map(outer, wanted)
            masks = self.masks[lst.name].get(call.outputs[0], {})
            few = maker.few((images, rows, columns), self.bounds) if (lst.name, call.inputs[1]) in self._packed else None
            own = (images, rows, columns, *(masks.get(dim) for dim in AROUND), few)
        elif isinstance(maker, DirectMaker) and outer(wanted[3]) is not None:
            own = (outer(wanted[2]), outer(wanted[3]))
        elif isinstance(maker, ProductMaker):
            own = maker.own(wanted, self.bounds)
        return own if sizes_of(own) else ()

    def _keys_of(self, maker: AttentionMaker, lst: CallList, call: Call, wanted: Wanted) -> Extent | None:
        """Return how many keys of an attention count: the others are masked, or come after all rows that are wanted."""
        facts = self._known_facts(lst.name)
        masks = [call.inputs[k] for k in maker.closing()]
        # a mask of rows says nothing of keys, which are the last dimension
        closed = [f.extent for n in masks if isinstance(f := _fact_in(lst, facts, n), Closed) and f.dim == len(lst.types[n].shape) - 1]
        rows = outer(wanted[maker.rows_dim])
        found = closed[0] if closed else rows if maker.work.causal else None
        return self.bounds.shortened(found, maker.work.keys)


def _places(limit: Limit | None, sizes: Sequence[int]) -> slice | torch.Tensor:
    if isinstance(limit, Digits):
        return torch.tensor(limit.places(sizes), dtype=torch.int64)
    return slice(None if limit is None else max(0, limit.at(sizes)))


def _index(places: list[slice | torch.Tensor]) -> tuple[slice | torch.Tensor, ...]:
    """Return the index of all elements that are at a place along each dimension."""
    apart = sum(isinstance(p, torch.Tensor) for p in places)
    return tuple(p.reshape(-1, *[1] * (apart := apart - 1)) if isinstance(p, torch.Tensor) else p for p in places)


def _fact_in(lst: CallList, known: Mapping[int, Fact], number: int) -> Fact | None:
    """Return what is known of a tensor of a sub-DNN, or of that whose memory it shows."""
    root = lst.root(number)
    if number in known or root == number or root not in known:
        return known.get(number)
    return _reshaped(known[root], lst.types[root].shape, lst.types[number].shape)


def _constant_fact(data: torch.Tensor) -> Counts | Number | Table | None:
    """Return along which dimension the elements of a constant count from 0, or which numbers it has."""
    if data.numel() == 1 and data.dtype == torch.float32:
        return Number(float(data))
    if data.dtype not in (torch.int64, torch.int32) or data.numel() < 2 or data.numel() != max(data.shape):
        return None
    flat = data.detach().reshape(-1)
    if torch.equal(flat, torch.arange(len(flat), dtype=data.dtype)):
        return Counts(list(data.shape).index(data.numel()))
    return Table(tuple(flat.tolist())) if len(flat) <= _MOST_NUMBERS else None


def _reshaped(fact: Fact, shape: Sequence[int], other: Sequence[int]) -> Fact | None:
    """Return what is known of the same elements in a shape that has dimensions of 1 more or fewer."""
    if isinstance(fact, (Holds, Number, Table)):
        return fact
    dims, others = list(_long(shape)), list(_long(other))
    if [shape[d] for d in dims] != [other[d] for d in others] or fact.dim not in dims:
        return None
    dim = others[dims.index(fact.dim)]
    return replace(fact, dim=dim)


def _long(shape: Sequence[int]) -> Iterator[int]:
    return (d for d, n in enumerate(shape) if n != 1)
