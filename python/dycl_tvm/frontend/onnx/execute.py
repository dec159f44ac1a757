# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs an ONNX graph once on symbolic tensors and records what it computes.

A node of control flow may end in several *outcomes*: where the sides of an If give values of the same types they are joined, and what
differs becomes a block parameter; where they cannot be one, each goes its own way through the rest of the graph. When ways are joined, see
:mod:`.ways`.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch

from dycl_tvm.errors import DyclError, PathExplosionError, UnsupportedError
from dycl_tvm.frontend.onnx.functions import function_of
from dycl_tvm.frontend.onnx.node import CONVERTERS, Node, tensor_of
from dycl_tvm.frontend.onnx.recorder import Recorder
from dycl_tvm.frontend.onnx.values import (
    DTYPE_NAMES,
    Cause,
    Datum,
    Outcome,
    causes_of,
    describe,
    leaves,
    rebuild,
    same,
    signature,
    tensor_type,
)
from dycl_tvm.frontend.onnx.ways import Meeting, Reads, alike, by_constants, everything, stays_apart
from dycl_tvm.hcfg.nodes import Block, Edge, Jump, Origin, Raise, Value

Env = MutableMapping[str, Datum]
Control = Callable[["Executor", "Scope", Node, Env], list[Outcome]]
Choice = Callable[["Executor", "Scope", Node, Env, list[Outcome], frozenset[str]], list[Outcome]]
NONE: frozenset[str] = frozenset()

#: Nodes that may end in several outcomes: ``fn(executor, scope, node, env)``, with ``executor.recorder.block`` as the block to go on in.
CONTROL: dict[str, Control] = {}
#: Nodes that take several ways at once: ``fn(executor, scope, node, env, ways, kept)``, as in :meth:`Executor.run`.
CHOICES: dict[str, Choice] = {}


def control(*names: str) -> Callable[[Control], Control]:
    """Register a node of control flow."""

    def register(fn: Control) -> Control:
        for name in names:
            CONTROL[name] = fn
        return fn

    return register


@dataclass
class Scope:
    """What the nodes of one graph or function body share.

    Attributes
    ----------
    where : str
        Where the graph stands in the model, as a path of node names.
    opsets : dict
        Version by domain.
    attributes : dict
        Those of the call, in the body of a function.
    declared : dict
        Static shapes that the model declares for values, by name; a dimension that it leaves open is None.
    """

    where: str
    opsets: Mapping[str, int]
    attributes: Mapping[str, Any] | None = None
    declared: dict[str, tuple[int | None, ...]] = field(default_factory=dict)

    def inner(self, where: str, graph: Any) -> Scope:
        """Return the scope of a graph that stands in a node of this one."""
        return Scope(f"{self.where}/{where}", self.opsets, self.attributes, declared_shapes(graph))


class Executor:
    """Runs graphs; the state of one attempt at staging.

    Attributes
    ----------
    forced : set of (str, str)
        Joins that must not be made and loops that must not be rolled, found by earlier attempts.
    max_paths : int
        Bound on the ways through a graph that cannot be joined.
    """

    def __init__(
        self,
        recorder: Recorder,
        functions: Mapping[tuple[str, str], Any],
        file: str,
        forced: set[tuple[str, str]],
        max_paths: int,
        base: str = "",
    ) -> None:
        self.recorder, self.functions, self.file, self.forced, self.max_paths, self.base = (
            recorder,
            functions,
            file,
            forced,
            max_paths,
            base,
        )
        #: Initializers are read once, so that unrolled copies of a body share them.
        # Protos are kept beside what was made of them: an identity is only unique among objects that live.
        self._initializers: dict[int, tuple[Any, torch.Tensor]] = {}
        self._nodes: dict[tuple[int, str], Node] = {}
        self._functions: dict[Any, tuple[Any, Any]] = {}

    # -- graphs --------------------------------------------------------------------------------------------------------
    def run(
        self, graph: Any, scope: Scope, env: Env, arguments: Sequence[Datum], ways: list[Outcome] | None = None, kept: frozenset[str] = NONE
    ) -> list[Outcome]:
        """Run the body of a node on arguments, in the scope of ``env``; its outcomes are not joined.

        Parameters
        ----------
        ways : list of Outcome, optional
            The ways that lead into the body; by default the recorder's block.
        kept : frozenset of str
            The names of the graphs around it that are read after it.
        """
        if len(graph.input) != len(arguments):
            raise UnsupportedError(
                f"the graph {graph.name!r} has {len(graph.input)} inputs, its node gives {len(arguments)}", self.recorder.origin
            )
        inner = {**env, **dict(zip((i.name for i in graph.input), arguments))}
        self.add_initializers(graph, inner)
        return self.run_nodes(graph.node, scope, inner, [o.name for o in graph.output], ways, kept)

    def add_initializers(self, graph: Any, env: Env) -> None:
        """Define the weights of a graph."""
        for proto in graph.initializer:
            if id(proto) not in self._initializers:
                t = tensor_of(proto, self.recorder.origin, self.base)
                self._initializers[id(proto)] = (proto, t)
                self.recorder.names[id(t)] = proto.name
            env[proto.name] = self._initializers[id(proto)][1]
        if graph.sparse_initializer:
            raise UnsupportedError("a sparse initializer", self.recorder.origin, "store the weights as dense tensors")

    def run_nodes(
        self,
        nodes: Sequence[Any],
        scope: Scope,
        env: Env,
        outputs: Sequence[str],
        ways: list[Outcome] | None = None,
        kept: frozenset[str] = NONE,
    ) -> list[Outcome]:
        """Run nodes in their order, on every way that leads through them."""
        done: list[Outcome] = []
        reads = Reads(nodes, outputs)
        pending = [(0, env, ways or [Outcome(self.recorder.block, [])])]
        while pending:
            start, env, ways = pending.pop()
            for k in range(start, len(nodes)):
                if len(ways) > 1:
                    read = reads.from_(k) | kept
                    for way in ways:
                        way.own = {name: value for name, value in way.own.items() if name in read}
                    if nodes[k].op_type not in CHOICES and not stays_apart(nodes[k], ways, env):
                        ways, *others = ([way] for way in self.meet(ways))
                        pending += [(k, {**env}, other) for other in others]
                found = self._step(nodes[k], k, scope, env, ways, reads, kept)
                if len(pending) + len(done) + len(found) > self.max_paths:
                    raise PathExplosionError(
                        f"more than {self.max_paths} ways lead through the graph that cannot be joined: shapes or structures differ",
                        self.recorder.origin,
                        "make the branches give values of one shape, or raise max_paths",
                    )
                if not found:
                    break  # every way ended in an error
                pending += [(k + 1, {**env, **new}, others) for new, others in reversed(found[1:])]
                env.update(found[0][0])
                ways = found[0][1]
            else:
                for way in ways:
                    around = ChainMap(way.own, env)
                    own = {name: value for name, value in way.own.items() if name in kept}
                    done.append(Outcome(way.block, [self._output(around, name) for name in outputs], own, way.group))
        return done

    def _step(
        self, proto: Any, k: int, scope: Scope, env: Env, ways: list[Outcome], reads: Reads, kept: frozenset[str]
    ) -> list[tuple[Env, list[Outcome]]]:
        """Run one node; return the ways that go on side by side, and what names mean on all of them."""
        if proto.op_type in CHOICES and proto.domain in ("", "ai.onnx"):
            after = reads.from_(k + 1) | kept if any(way.own for way in ways) else kept
            outcomes = CHOICES[proto.op_type](self, scope, self._node(proto, k, scope), env, ways, after)
        else:
            outcomes = []
            for way in ways:
                self.recorder.block = way.block
                for outcome in self.run_node(proto, k, scope, ChainMap(way.own, env) if way.own else env):
                    outcome.own = way.own
                    outcome.group = way.group if len(ways) > 1 else outcome.group
                    outcomes.append(outcome)
        together: dict[int, list[Outcome]] = {}
        for outcome in outcomes:
            together.setdefault(id(outcome if outcome.group is None else outcome.group), []).append(outcome)
        found: list[tuple[Env, list[Outcome]]] = []
        for group in together.values():
            new: Env = {}
            going: list[Outcome] = []
            for outcome in group:
                bound = _bound(list(proto.output), outcome.values)
                own = {**outcome.own, **bound}
                if len(group) == 1:
                    new = {name: value for name, value in own.items() if name not in kept}
                    own = {name: value for name, value in own.items() if name in kept}
                going.append(Outcome(outcome.block, [], own, outcome.group if len(group) > 1 else None))
            found.append((new, going))
        return found

    def _output(self, env: Env, name: str) -> Datum:
        if not name:
            return None
        if name not in env:
            raise UnsupportedError(f"no node gives the output {name!r} of its graph", self.recorder.origin)
        return env[name]

    def _node(self, proto: Any, index: int, scope: Scope) -> Node:
        node = self._nodes.get((id(proto), scope.where))
        if node is None:
            domain = "" if proto.domain == "ai.onnx" else proto.domain
            origin = self.recorder.origin = Origin(self.file, index + 1, scope.where, _text(proto))
            node = self._nodes[id(proto), scope.where] = Node(proto, scope.opsets.get(domain, 1), origin, scope.attributes)
        self.recorder.origin = node.origin
        return node

    def run_node(self, proto: Any, index: int, scope: Scope, env: Env) -> list[Outcome]:
        """Run one node."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        node = self._node(proto, index, scope)
        origin = node.origin
        inputs = []
        for name in proto.input:
            if name and name not in env:
                node.fail(f"nothing gives its input {name!r}", "run onnx.checker.check_model on the model")
            inputs.append(env[name] if name else None)
        key = f"{domain}:{proto.op_type}" if domain else proto.op_type
        if key in CONTROL:
            return CONTROL[key](self, scope, node, env)
        if key in CONVERTERS:
            try:
                result = CONVERTERS[key](node, *inputs)
            except DyclError:
                raise
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, KeyError) as error:
                first = str(error).strip().split("\n")[0]
                raise UnsupportedError(f"{proto.op_type} of ({describe(inputs)}): {first}", origin) from error
            values = list(result) if isinstance(result, tuple) else [result]
            return [Outcome(self.recorder.block, values)]
        return self._expand(node, domain, scope, inputs)

    # -- functions -----------------------------------------------------------------------------------------------------
    def _expand(self, node: Node, domain: str, scope: Scope, inputs: list[Datum]) -> list[Outcome]:
        """Run an operator that is defined by others: a function of the model, or one of ONNX's own."""
        proto = node.proto
        function = self.functions.get((proto.domain, proto.op_type)) or self._schema_function(node, domain, inputs)
        if function is None:
            known = ", ".join(sorted(k for k in (*CONVERTERS, *CONTROL) if k[:1] == proto.op_type[:1]))
            raise UnsupportedError(
                f"the operator {proto.op_type} of the domain {domain or 'ai.onnx'!r} (node {proto.name!r}) is not supported",
                node.origin,
                f"express it by supported operators; those with the same initial: {known} (all are in docs/front-ends.md)",
            )
        env: Env = dict(zip(function.input, [*inputs, *([None] * (len(function.input) - len(inputs)))]))
        attributes = {a.name: a for a in function.attribute_proto} | node.protos
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import} or dict(scope.opsets)
        body = Scope(f"{scope.where}/{proto.name or proto.op_type}", opsets, attributes)
        wanted = [name if node.wants(k) else "" for k, name in enumerate(function.output)]
        outcomes = self.run_nodes(function.node, body, env, wanted)
        return self.join(outcomes, body.where)

    def _schema_function(self, node: Node, domain: str, inputs: list[Datum]) -> Any:
        key = (id(node), signature(inputs))
        if key in self._functions:
            return self._functions[key][1]
        function = function_of(_resolved(node), node.opset, domain, [_type_proto(x) for x in inputs])
        if function is None:
            return None
        self._functions[key] = (node, function)
        return function

    # -- joins ---------------------------------------------------------------------------------------------------------
    def join(self, outcomes: list[Outcome], where: str, causes: frozenset[Cause] = frozenset()) -> list[Outcome]:
        """Make outcomes of the same types one, by a block in which their ways meet; ``causes`` decide which way is taken."""
        if len(outcomes) < 2 or ("merge", where) in self.forced:
            return outcomes
        return [group[0] if len(group) == 1 else self._joined(group, where, causes) for group in alike(outcomes)]

    def meet(self, ways: list[Outcome]) -> list[Outcome]:
        """Join ways that went on side by side."""
        if len(ways) < 2:
            return ways
        meeting = ways[0].group
        assert isinstance(meeting, Meeting)
        return [Outcome(o.block, o.values, o.own) for o in self.join(ways, meeting.where, meeting.causes)]

    def settle(self, outcomes: list[Outcome], where: str, causes: frozenset[Cause]) -> list[Outcome]:
        """Join outcomes as :meth:`join` does, but for those that differ in constants by which code may choose: these go on side by side."""
        if len(outcomes) < 2 or ("merge", where) in self.forced:
            return [Outcome(o.block, o.values, o.own) for o in outcomes]
        found = []
        for group in alike(outcomes):
            classes = by_constants(group)
            meeting = Meeting(where, causes) if len(classes) > 1 else None
            for members in classes:
                one = members[0] if len(members) == 1 else self._joined(members, where, causes)
                found.append(Outcome(one.block, one.values, one.own, meeting))
        return found

    def _joined(self, group: list[Outcome], where: str, causes: frozenset[Cause]) -> Outcome:
        target = Block(where.rsplit("/", 1)[-1] + ".join", origin=self.recorder.origin)
        columns = list(zip(*[list(leaves(everything(o))) for o in group]))
        merged: list[torch.Tensor] = []
        edges: list[list[Any]] = [[] for _ in group]
        for column in columns:
            if all(same(column[0], t) for t in column[1:]):
                merged.append(column[0])
                continue
            param = Value(tensor_type(column[0], self.recorder.origin))
            target.params.append(param)
            for args, t in zip(edges, column):
                args.append(self.recorder.operand(t))
            merged.append(self.recorder.wrap(param, causes_of(*column) | causes | {("merge", where)}))
        for outcome, args in zip(group, edges):
            assert outcome.block.terminator is None
            outcome.block.terminator = Jump(Edge(target, args))
        tensors, first = iter(merged), group[0]
        values = [rebuild(v, tensors) for v in first.values]
        return Outcome(target, values, {name: rebuild(v, tensors) for name, v in first.own.items()})

    def raise_(self, block: Block, kind: str, message: str) -> None:
        """End a block by an error."""
        block.terminator = Raise(kind, message, self.recorder.origin)


def declared_shapes(graph: Any) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes that a graph declares for its values."""
    found: dict[str, tuple[int | None, ...]] = {}
    for info in [*graph.value_info, *graph.output]:
        if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
            found[info.name] = tuple(d.dim_value if d.HasField("dim_value") else None for d in info.type.tensor_type.shape.dim)
    return found


def _bound(names: list[str], values: list[Datum]) -> Env:
    return {name: value for name, value in zip(names, values) if name}


def _text(proto: Any) -> str:
    outputs, inputs = ", ".join(proto.output), ", ".join(proto.input)
    text = f"{outputs} = {proto.op_type}({inputs})"
    return (f"{proto.name}: {text}" if proto.name else text)[:200]


def _type_proto(x: Datum) -> Any:
    if x is None:
        return onnx.TypeProto()
    if isinstance(x, list):
        return onnx.helper.make_sequence_type_proto(_type_proto(x[0]) if x else onnx.TypeProto())
    name = DTYPE_NAMES.get(x.dtype, str(x.dtype).removeprefix("torch."))
    element = {"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper().replace("_", ""))
    return onnx.helper.make_tensor_type_proto(onnx.TensorProto.DataType.Value(element), [int(s) for s in x.shape])


def _resolved(node: Node) -> Any:
    """Return the node with the references to attributes of a function call replaced by these."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    del proto.attribute[:]
    for name, attribute in node.protos.items():
        copy = proto.attribute.add()
        copy.CopyFrom(attribute)
        copy.name = name
    return proto
