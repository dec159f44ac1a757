# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An ONNX model as a PyTorch program: its nodes are calls in their order, ``If`` is ``if``, ``Loop`` is ``while``.

A model whose sizes are known only at run time is staged as any program of Python is, so all that is known of lengths, of branches on them,
and of what grows in loops, is known of it too. A node is a call of its converter, the PyTorch code that the recorder of static models
runs; what exporters compute of shapes are numbers (:mod:`.numbers`). The text of the program is what messages show.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.onnx import ops, sequences  # noqa: F401  # they register
from dycl_tvm.frontend.onnx.functions import written_out
from dycl_tvm.frontend.onnx.model import Model
from dycl_tvm.frontend.onnx.node import CONVERTERS, Node, tensor_of
from dycl_tvm.frontend.onnx.numbers import SIZES, as_number, as_tensor, computed, is_number, known
from dycl_tvm.frontend.onnx.ops.recurrent import StepOf, is_usual
from dycl_tvm.frontend.onnx.recurrence import over_steps
from dycl_tvm.frontend.onnx.suppression import non_max_suppression
from dycl_tvm.frontend.onnx.values import Datum
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values.numbers import convert, is_symbolic
from dycl_tvm.hcfg.nodes import Origin

#: What the program calls that is no node of the model.
_HELPERS = (
    "tensor",
    "count",
    "holds",
    "stacked",
    "row",
    "weights",
    "range",
    "torch",
    "Callable",
    "Sequence",
    non_max_suppression.__name__,
    over_steps.__name__,
)
Names = Mapping[str, str]


@dataclass
class Program:
    """A model as a program.

    Attributes
    ----------
    function : callable
        Takes the inputs in the order of ``inputs``.
    inputs : dict
        The name of the parameter for the name of each input.
    text : str
    """

    function: Callable[..., Any]
    inputs: dict[str, str]
    text: str


def program_of(model: Model, inputs: Sequence[str], fixed: Mapping[str, Datum]) -> Program:
    """Return a model as a program of PyTorch.

    Parameters
    ----------
    model : Model
    inputs : sequence of str
        Which inputs its caller gives.
    fixed : mapping
        The values of the others.

    Raises
    ------
    UnsupportedError
        For what cannot be written as a program, with the node.
    """
    operators = [(key.rpartition(":")[0], key.rpartition(":")[2]) for key in (*CONVERTERS, "If", "Loop", "Scan")]
    graph = written_out(model.proto, model.file, operators)
    writer = _Writer(model)
    name = writer.fresh(graph.name, "main")
    parameters = {i: writer.fresh(i) for i in inputs}
    outputs = [o.name for o in graph.output]
    writer.add(f"def {name}({', '.join(parameters.values())}):")
    names = writer.body(graph, dict(parameters), fixed)
    given = [f"tensor({writer.read(o, names)})" for o in outputs]
    writer.add(f"return {given[0]}" if len(given) == 1 else f"return {{{', '.join(f'{n!r}: {v}' for n, v in zip(outputs, given))}}}")
    text = "\n".join([*writer.lines, *writer.functions]) + "\n"
    # What reads source finds it here: the model's file has none.
    linecache.cache[model.file] = (len(text), None, text.splitlines(keepends=True), model.file)
    namespace: dict[str, Any] = writer.bound
    exec(compile(text, model.file, "exec", dont_inherit=True), namespace)
    return Program(namespace[name], parameters, text)


def _identifier(name: str) -> str:
    made = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return f"_{made}" if made[:1].isdigit() or keyword.iskeyword(made) else made


class _Writer:
    """The lines of a program, and what its global names stand for.

    Attributes
    ----------
    lines : list of str
    functions : list of str
        The text of functions that they call.
    bound : dict
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.lines: list[str] = []
        self.functions: list[str] = []
        self.weights = torch.nn.Module()
        self.bound: dict[str, Any] = {"tensor": as_tensor, "count": _count, "holds": _holds, "stacked": _stacked, "row": _row}
        self.bound["weights"] = self.weights
        self._taken: set[str] = {*_HELPERS}
        self._depth = 0

    def add(self, line: str) -> None:
        """Add a line; what ends in a colon begins a block."""
        self.lines.append("    " * self._depth + line)
        self._depth += line.endswith(":")

    def end(self) -> None:
        """End a block."""
        self._depth -= 1

    def fresh(self, name: str, kind: str = "t") -> str:
        """Return a name of Python's that nothing else has."""
        base = made = _identifier(name) or kind
        k = 1
        while made in self._taken:
            made, k = f"{base}_{k}", k + 1
        self._taken.add(made)
        return made

    def read(self, name: str, names: Names) -> str:
        """Return what stands for a value."""
        if not name:
            return "None"
        if name not in names:
            raise UnsupportedError(f"nothing gives the value {name!r}", self.origin(), "run onnx.checker.check_model on the model")
        return names[name]

    def origin(self, code: str = "") -> Origin:
        """Return the place of the line that comes next."""
        return Origin(self.model.file, len(self.lines) + 1, self.model.proto.graph.name, code)

    def body(self, graph: Any, names: dict[str, str], fixed: Mapping[str, Datum]) -> dict[str, str]:
        """Write the nodes of a graph; return the names of all values that there are at its end."""
        if graph.sparse_initializer:
            raise UnsupportedError("a sparse initializer", self.origin(), "store the weights as dense tensors")
        for proto in graph.initializer:
            if proto.name not in names:
                names[proto.name] = self.constant(tensor_of(proto, self.origin(), self.model.base), proto.name)
        for name, value in fixed.items():
            names[name] = self.datum(value, name)
        for proto in graph.node:
            kind = proto.op_type if proto.domain in ("", "ai.onnx") else ""
            CONTROL.get(kind, _Writer.node)(self, proto, names)
        return names

    def datum(self, x: Datum, name: str) -> str:
        """Return the text of a value that is known."""
        if x is None:
            return "None"
        if isinstance(x, list):
            return f"[{', '.join(self.datum(item, name) for item in x)}]"
        return self.constant(x, name)

    def constant(self, t: torch.Tensor, name: str) -> str:
        """Return the text of a constant: numbers, or a weight."""
        number = as_number(t)
        if is_number(number):
            return repr(number)
        made = self.fresh(name, "weight")
        while hasattr(self.weights, made):  # an attribute that every module has
            made = self.fresh(made)
        self.weights.register_buffer(made, t)
        return f"weights.{made}"

    def node(self, proto: Any, names: dict[str, str]) -> None:
        """Write a call of a converter."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        key = f"{domain}:{proto.op_type}" if domain else proto.op_type
        given = [self.read(name, names) for name in proto.input]
        node = OpenNode(proto, self.model.opsets.get(domain, 1), self.origin(_text(proto)))
        if key not in CONVERTERS:
            node.fail(f"the operator of the domain {domain or 'ai.onnx'!r} is not supported in a model with run-time sizes")
        if key == "Constant" and isinstance(value := CONVERTERS[key](node)[0], torch.Tensor):
            names[proto.output[0]] = self.constant(value, proto.output[0])
            return
        outputs = [self.fresh(name) if name else "_" for name in proto.output]
        call = self.fresh(proto.op_type)
        self.bound[call] = _Call(CONVERTERS[key], node)
        self.add(f"{', '.join(outputs)}{',' if len(outputs) == 1 else ''} = {call}({', '.join(given)})")
        names.update((name, made) for name, made in zip(proto.output, outputs) if name)

    # -- control flow --------------------------------------------------------------------------------------------------------
    def branch(self, proto: Any, names: dict[str, str]) -> None:
        """Write an ``If``."""
        graphs = {a.name: a.g for a in proto.attribute}
        outputs = [self.fresh(name) if name else "_" for name in proto.output]
        self.add(f"if holds({self.read(proto.input[0], names)}):")
        for side in ("then_branch", "else_branch"):
            inner = self.body(graphs[side], dict(names), {})
            for made, output in zip(outputs, graphs[side].output):
                self.add(f"{made} = {self.read(output.name, inner)}")
            self.add("pass")
            self.end()
            if side == "then_branch":
                self.add("else:")
        names.update((name, made) for name, made in zip(proto.output, outputs) if name)

    def loop(self, proto: Any, names: dict[str, str]) -> None:
        """Write a ``Loop``: a ``for`` where its condition always holds, else a ``while``."""
        body = next(a.g for a in proto.attribute if a.name == "body")
        trip, cond, *states = [*proto.input, "", ""][: max(2, len(proto.input))]
        number, going = self.fresh(body.input[0].name, "i"), self.fresh(body.input[1].name, "going")
        carried = [self.fresh(i.name) for i in body.input[2:]]
        rows = [self.fresh(f"{o.name}_rows") for o in body.output[1 + len(carried) :]]
        for made, state in zip(carried, states):
            self.add(f"{made} = {self.read(state, names)}")
        for made in rows:
            self.add(f"{made} = []")
        times = f"count({self.read(trip, names)})" if trip else ""
        begins = self.read(cond, names) if cond else "True"
        always = bool(trip) and begins in ("True", "(True,)") and _always(body)
        if always:
            self.add(f"for {number} in range({times}):")
            self.add(f"{going} = True")
        else:
            limit = self.fresh("trips")
            self.add(f"{number} = 0")
            self.add(f"{going} = holds({begins})")
            if trip:
                self.add(f"{limit} = {times}")
            self.add(f"while {f'{number} < {limit} and ' if trip else ''}{going}:")
        known = dict(zip((i.name for i in body.input), [number, going, *carried]))
        inner = self.body(body, {**names, **known}, {})
        given = [self.read(o.name, inner) for o in body.output]
        for made, value in zip(rows, given[1 + len(carried) :]):
            self.add(f"{made}.append(tensor({value}))")
        if carried:
            self.add(f"{', '.join(carried)} = {', '.join(given[1 : 1 + len(carried)])}")
        if not always:
            self.add(f"{going} = holds({given[0]})")
            self.add(f"{number} = {number} + 1")
        self.end()
        self.results(proto, names, [*carried, *(f"stacked({made}, 0, False)" for made in rows)])

    def scan(self, proto: Any, names: dict[str, str]) -> None:
        """Write a ``Scan``."""
        node = OpenNode(proto, self.model.opsets.get("", 1), self.origin(_text(proto)))
        if node.opset < 9:
            node.fail("of operator set 8 in a model with run-time sizes", "convert the model (onnx.version_converter)")
        body, count = node.attr("body"), node.attr("num_scan_inputs")
        first = len(proto.input) - count
        carried = [self.fresh(i.name) for i in body.input[:first]]
        rows = [self.fresh(f"{o.name}_rows") for o in body.output[first:]]
        axes, ways = node.attr("scan_input_axes") or [0] * count, node.attr("scan_input_directions") or [0] * count
        sliced = [self.read(name, names) for name in proto.input[first:]]
        number, length = self.fresh("i"), self.fresh("length")
        for made, state in zip(carried, proto.input):
            self.add(f"{made} = {self.read(state, names)}")
        for made in rows:
            self.add(f"{made} = []")
        self.add(f"{length} = {sliced[0]}.size({axes[0]})")
        self.add(f"for {number} in range({length}):")
        known = {**names, **dict(zip((i.name for i in body.input), carried))}
        for given, x, axis, backwards in zip(body.input[first:], sliced, axes, ways):
            known[given.name] = self.fresh(given.name)
            self.add(f"{known[given.name]} = row({x}, {axis}, {f'{length} - 1 - {number}' if backwards else number})")
        inner = self.body(body, known, {})
        found = [self.read(o.name, inner) for o in body.output]
        for made, value in zip(rows, found[first:]):
            self.add(f"{made}.append(tensor({value}))")
        if carried:
            self.add(f"{', '.join(carried)} = {', '.join(found[:first])}")
        self.end()
        axes, ways = node.attr("scan_output_axes") or [0] * len(rows), node.attr("scan_output_directions") or [0] * len(rows)
        made_rows = [f"stacked({made}, {axis}, {bool(way)})" for made, axis, way in zip(rows, axes, ways)]
        self.results(proto, names, [*carried, *made_rows])

    def suppression(self, proto: Any, names: dict[str, str]) -> None:
        """Write a ``NonMaxSuppression``: a call of a function of the program."""
        boxes, scores, most, overlap, least = [self.read(name, names) for name in [*proto.input, "", "", ""][:5]]
        node = OpenNode(proto, self.model.opsets.get("", 1), self.origin(_text(proto)))
        self.use(non_max_suppression)
        most = "0" if most == "None" else f"count({most})"
        overlap = "tensor(0)" if overlap == "None" else f"tensor({overlap})"
        center = bool(node.attr("center_point_box", 0))
        self.results(proto, names, [f"{non_max_suppression.__name__}({boxes}, {scores}, {most}, {overlap}, {least}, {center})"])

    def recurrent(self, proto: Any, names: dict[str, str]) -> None:
        """Write an RNN, GRU or LSTM: a call of its converter where a network of PyTorch's does what it does, else of a loop."""
        node = OpenNode(proto, self.model.opsets.get("", 1), self.origin(_text(proto)))
        if is_usual(node):
            return self.node(proto, names)
        self.use(over_steps)
        x, w, r, b, lengths, h0, c0, peepholes = [self.read(name, names) for name in [*proto.input, *[""] * 5][:8]]
        step = self.fresh(f"{proto.op_type}_step")
        self.bound[step] = StepOf(node)
        way = node.attr("direction", "forward")
        backwards = (False, True) if way == "bidirectional" else (way == "reverse",)
        batch_first = bool(node.attr("layout", 0))
        found = [self.fresh(name) if name else self.fresh("rest") for name in [*proto.output, "", ""][:3]]
        given = f"{step}, {x}, {r}.size(2), {backwards}, {lengths}, {h0}, {c0}, {batch_first}, {w}, {r}, {b}, {peepholes}"
        self.add(f"{', '.join(found)} = {over_steps.__name__}({given})")
        names.update((name, made) for name, made in zip(proto.output, found) if name)
        return None

    def use(self, function: Callable[..., Any]) -> None:
        """Make a function a part of the program."""
        if function.__name__ not in self.bound:
            self.functions += ["", "", inspect.getsource(function)]
            self.bound |= {function.__name__: function, "torch": torch, "Callable": Callable, "Sequence": Sequence}

    def results(self, proto: Any, names: dict[str, str], values: Sequence[str]) -> None:
        """Give the outputs of a node their names."""
        for name, value in zip(proto.output, values):
            if name:
                names[name] = self.fresh(name)
                self.add(f"{names[name]} = {value}")


CONTROL: dict[str, Callable[[_Writer, Any, dict[str, str]], None]] = {
    "If": _Writer.branch,
    "Loop": _Writer.loop,
    "Scan": _Writer.scan,
    "NonMaxSuppression": _Writer.suppression,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), _Writer.recurrent),
}


def _always(body: Any) -> bool:
    """Whether the condition that the body of a loop gives always holds: it is the one that was given, or a constant."""
    name, makers = body.output[0].name, {o: n for n in body.node for o in n.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    known = {t.name: t for t in body.initializer}
    if name in makers and makers[name].op_type == "Constant":
        known.update((name, a.t) for a in makers[name].attribute if a.name == "value")
    return name in known and bool(onnx.numpy_helper.to_array(known[name]).all())


def _text(proto: Any) -> str:
    return f"{', '.join(proto.output)} = {proto.op_type}({', '.join(proto.input)})"


# -- what the program calls ----------------------------------------------------------------------------------------------------
class OpenNode(Node, OwnValue):
    """A node of a model with run-time sizes: numbers that it is asked for may be such ones."""

    at_run_time = True

    def __init__(self, proto: Any, opset: int, origin: Origin) -> None:
        super().__init__(proto, opset, origin)

    def static(self, t: Any, what: str) -> Any:
        """Return the tensor: what is read of it is a number of the run."""
        return as_tensor(t)

    def ints(self, t: Any, what: str) -> Any:
        """Return the numbers in a tensor; None if there is no tensor."""
        if t is None:
            return None
        if is_number(t):
            return list(t) if isinstance(t, tuple) else [t]
        return [convert(x, "int") if is_symbolic(x) else int(x) for x in t.reshape(-1).tolist()]

    def int(self, t: Any, what: str) -> Any:
        """Return the one number in a tensor."""
        return self.ints(t, what)[0]


class _Call(OwnValue):
    """A node as a function of the program."""

    def __init__(self, converter: Callable[..., Any], node: OpenNode) -> None:
        self._converter, self._node = converter, node

    def __call__(self, *inputs: Datum) -> tuple[Datum, ...]:
        node = self._node
        try:
            made = computed(node, inputs)
            if made is not NotImplemented:
                return tuple(made) if isinstance(made, list) else (made,)
            constants = [known(x) for x in inputs]
            if inputs and all(x is not NotImplemented for x in constants):
                # What follows from sizes that are known is known too: a shape may follow from it.
                with plainly():
                    found = self._converted(constants)
                return tuple(as_number(x) if isinstance(x, torch.Tensor) else x for x in found)
            return self._converted(inputs)
        except DyclError:
            raise
        except (TypeError, AttributeError, KeyError, NotImplementedError) as error:
            raise UnsupportedError(f"{node.type}: {str(error).strip()}", node.origin) from error

    def _converted(self, inputs: Sequence[Datum]) -> tuple[Datum, ...]:
        node, sizes = self._node, SIZES.get(self._node.type, ())
        result = self._converter(node, *(x if k in sizes else as_tensor(x) for k, x in enumerate(inputs)))
        found = result if isinstance(result, tuple) else (result,)
        return (*found, *[None] * (node.outputs - len(found)))[: node.outputs]


def _count(x: Datum) -> Any:
    """Return how many trips a loop may have."""
    return x[0] if isinstance(x, tuple) else x if is_number(x) else x.reshape(()).item()


def _holds(x: Datum) -> Any:
    """Return the truth of a condition, as a number of the run."""
    return x[0] if isinstance(x, tuple) else x if is_number(x) else x.reshape(()).item()


def _row(x: torch.Tensor, axis: int, k: Any) -> torch.Tensor:
    where = (*[slice(None)] * (axis % x.dim()), k)
    return x[where]


def _stacked(rows: list[torch.Tensor], axis: int, backwards: bool) -> torch.Tensor:
    return torch.stack(rows[::-1] if backwards else rows, axis)
