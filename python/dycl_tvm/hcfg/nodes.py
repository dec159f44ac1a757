# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The heterogeneous control flow graph (HCFG).

Blocks have parameters (SSA: block parameters are the phis). Their steps are tensor operations, calls of
outlined sub-DNNs, or host scalar operations; their terminator is a jump, branch, switch, return or raise.
The front end emits :class:`TensorOp` steps; the pass ``outline`` replaces each maximal straight run of
them by one :class:`SubDNNCall`.

A value is defined once (a block parameter or an output of a step) and its definition dominates its uses.
Constants are values that are defined everywhere. Python numbers may stand directly as operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from dycl_tvm.hcfg.sizes import InputSize, Span
from dycl_tvm.hcfg.types import BOOL, ScalarType, TensorType, Type
from dycl_tvm.runtime.structure import parts_of


@dataclass(frozen=True)
class Origin:
    """Where in the user's source something comes from; ``line`` is 0 where that is no line.

    ``code`` is the stripped source line, ``function`` the qualified name; ``column`` (0-based, in ``code``) is where the expression begins,
    for messages: it does not tell two origins apart.
    """

    file: str
    line: int
    function: str = ""
    code: str = ""
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Value:
    """An SSA value. Compared by identity; ``name`` is a hint for printers, not unique."""

    __slots__ = ("name", "type")

    def __init__(self, type_: Type, name: str = "") -> None:
        self.type = type_
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or hex(id(self))}: {self.type}>"


class Constant(Value):
    """A tensor known at build time: a weight, a buffer, or what was computed from them.

    ``data`` is a contiguous CPU ``torch.Tensor`` of exactly ``type``; it must not be written to. ``name`` is the
    qualified parameter name (``blocks.0.conv.weight``) where it has one.
    """

    __slots__ = ("data",)

    def __init__(self, type_: TensorType, data: Any, name: str = "") -> None:
        super().__init__(type_, name)
        self.data = data


#: What a step may take: a value, or a Python number (host scalars and attributes of tensor operations).
Operand = Union[Value, int, float, bool]


@dataclass(eq=False)
class TensorOp:
    """One functional ATen operation.

    Attributes
    ----------
    op : str
        Overload name, for example ``aten.convolution.default``; functional and without view or in-place semantics
        for its users (a view operator here means: the tensor of that shape, as a value).
    args, kwargs
        As the operator's schema has them: tensors are :class:`Value` (lists of them too); everything else is a
        static Python value (numbers, lists, None, ``torch.dtype``). Host scalars never stand here: the
        front end turns them into rank-0 tensors by the host operation ``to_tensor``.
    outputs : tuple of (Value or None)
        One per returned tensor, in order (None: an output that nobody can use, such as an undefined tensor).
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    origin: Origin | None = None

    def operands(self) -> list[Value]:
        """Return the values that the operation reads, in order, with repetitions."""
        found: list[Value] = []
        _collect(self.args, found)
        _collect(self.kwargs.values(), found)
        return found

    def results(self) -> list[Value]:
        """Return the values that the operation defines."""
        return [v for v in self.outputs if v is not None]


@dataclass(eq=False)
class HostOp:
    """One operation on host scalars.

    ``op`` is one of:

    - ``item`` (a tensor of one element to a scalar; the type of the output says which),
      ``to_tensor`` (a scalar to a rank-0 tensor of the output's dtype);
    - ``add sub mul truediv floordiv mod pow neg abs min max``, with Python's semantics (floor division, sign of
      the modulus, ZeroDivisionError; an int result that leaves int64 is a run-time error);
    - ``eq ne lt le gt ge``; ``not and or xor`` (on bools); ``select`` (cond, a, b);
    - ``to_int`` (truncation), ``to_float``, ``to_bool``; ``floor ceil round trunc`` (float to int, ``round`` is half to even);
    - ``sqrt exp log sin cos tanh`` (float to float, ValueError where Python's ``math`` raises it);
    - ``print``: writes ``text.format(*args)`` to the standard output and gives the int 0. It is an effect: it stays where
      it stands, in order with all other prints, and runs as often as there;
    - ``push`` (a scalar or a tensor, gives the int 0) and ``pop`` (gives what was pushed last, which is of the output's type): the
      stack of recursive functions, which is empty when a call of the graph begins. They are effects too.

    - ``check``: raises the error of ``text`` (``IndexError: ...``) if a bool is true, and gives the int 0. It is an effect too;
    - ``clock``: what the clock ``text`` of Python's module ``time`` says; all that stands before it is done, and nothing that comes after.

    ``text`` is the template of ``print`` (``{}`` for each operand, ``{{`` and ``}}`` for braces), the name of a clock, the error of a
    check, None elsewhere. An ``item`` that the program does not ask for, as it is how long a tensor is or belongs to a
    check, has the text ``of a shape`` or ``of a check``.
    """

    op: str
    args: tuple[Operand, ...]
    output: Value
    origin: Origin | None = None
    text: str | None = None

    def operands(self) -> list[Value]:
        """Return the values that the operation reads."""
        return [a for a in self.args if isinstance(a, Value)]

    def results(self) -> list[Value]:
        """Return the values that the operation defines."""
        return [self.output]


@dataclass(eq=False)
class SubDNN:
    """A piece of tensor computation without control flow, shared by all places that compute the same on other operands.

    ``params`` and ``results`` are tensor values of its own scope; constants of the places of call are params too, so
    equal layers with other weights share one sub-DNN.
    """

    name: str
    params: list[Value]
    ops: list[TensorOp]
    results: list[Value]


@dataclass(eq=False)
class SubDNNCall:
    """A call of a sub-DNN: ``args`` match ``callee.params``, ``outputs`` match ``callee.results``.

    ``lines`` are those of the user's from which this call's operations come: calls of other lines may share the sub-DNN.
    """

    callee: SubDNN
    args: list[Value]
    outputs: list[Value]
    origin: Origin | None = None
    lines: tuple[Origin, ...] = ()

    def operands(self) -> list[Value]:
        """Return the values that the call reads."""
        return list(self.args)

    def results(self) -> list[Value]:
        """Return the values that the call defines."""
        return list(self.outputs)


Step = Union[TensorOp, HostOp, SubDNNCall]


@dataclass(eq=False)
class Edge:
    """A control flow edge; ``args`` match ``target.params``."""

    target: Block
    args: list[Operand] = field(default_factory=list)


@dataclass(eq=False)
class Jump:
    """Go to one block."""

    edge: Edge


@dataclass(eq=False)
class Branch:
    """Go to ``then`` if ``cond`` (a host bool) holds, to ``orelse`` if not."""

    cond: Operand
    then: Edge
    orelse: Edge
    origin: Origin | None = None


@dataclass(eq=False)
class Switch:
    """Go to ``edges[index]``; an index (host int) outside is a run-time IndexError.

    The front end has already brought Python's negative indices into range by host operations.
    """

    index: Operand
    edges: list[Edge]
    origin: Origin | None = None


@dataclass(eq=False)
class ReturnSite:
    """One ``return`` of the user's function with its own output structure.

    ``structure`` is the JSON form of :mod:`dycl_tvm.runtime.structure`; its leaves number ``Return.values``.
    """

    structure: Any
    origin: Origin | None = None

    @property
    def cut(self) -> dict[int, list[tuple[int, int]]]:
        """Which leaves are the first elements of a buffer only: the dimensions that are cut, each with the leaf that has its extent."""
        return parts_of(self.structure)


@dataclass(eq=False)
class Return:
    """Leave the graph: ``values`` are the leaves of ``site.structure``; ``state`` the new values of ``HCFG.state``."""

    site: ReturnSite
    values: list[Operand]
    state: list[Operand] = field(default_factory=list)


@dataclass(eq=False)
class Raise:
    """Leave the graph with a run-time error: an exception type's name and a message.

    ``limit`` marks a bound that the artefact has and the program has not, such as the greatest number of trips.
    """

    kind: str
    message: str
    origin: Origin | None = None
    limit: bool = False


Terminator = Union[Jump, Branch, Switch, Return, Raise]


@dataclass(eq=False, repr=False)
class Block:
    """A basic block. ``origin`` is the place in the user's source at which it begins."""

    name: str
    params: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    terminator: Terminator | None = None
    origin: Origin | None = None

    def __repr__(self) -> str:
        # Not what it leads to: blocks that lead to one another would be written once for each path.
        return f"Block({self.name!r})"

    def edges(self) -> list[Edge]:
        """Return the outgoing edges, in order."""
        return edges_of(self.terminator)

    def successors(self) -> list[Block]:
        """Return the targets of the outgoing edges (a block may stand twice)."""
        return [e.target for e in self.edges()]


@dataclass(eq=False)
class StateVar:
    """A variable that lives on from one call to the next.

    ``initial`` is a :class:`Constant` for tensors and a number for host scalars.
    """

    name: str
    type: Type
    initial: Constant | int | float | bool


@dataclass(frozen=True)
class InputPair:
    """Two tensors among the inputs of which it matters whether they are one, by their numbers.

    ``kind`` is ``apart`` (they must have no memory in common: one of them is changed in place), ``different`` (they must not be one view
    of one memory: the program asks whether they are one tensor), or ``one`` (they must be: the graph reads the first one only).
    """

    first: int
    second: int
    kind: str

    def refused(self, first: str, second: str) -> str:
        """Return what an error says if two inputs of these names are not so."""
        if self.kind == "one":
            return f"inputs '{first}' and '{second}': expected one tensor, as in the example inputs"
        uses = "changes one of them in place" if self.kind == "apart" else "asks whether they are one tensor"
        return (
            f"inputs '{first}' and '{second}' lie in one memory: the network {uses}, and was built for different ones; "
            "give a copy, or build it with such example inputs"
        )


@dataclass(eq=False)
class HCFG:
    """A whole dynamic network.

    The entry block is ``blocks[0]``; no edge leads to it. Its params are the leaves of ``input_structure`` in order, then one for each
    size that the caller decides, then one for each state variable. ``input_names`` names the leaves as the user would (``state[0]``).
    ``input_pairs`` says of which inputs it matters whether they are one, ``left_out`` what the model does for others than its caller.
    ``special_sizes`` are sizes, by name, that have a path of their own.
    ``caller`` is the line that gave the model to the compiler: what a library does that no line of the model calls is said to be there.
    """

    name: str
    input_structure: Any
    input_names: list[str]
    blocks: list[Block]
    state: list[StateVar] = field(default_factory=list)
    input_pairs: list[InputPair] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    sizes: list[InputSize] = field(default_factory=list)
    special_sizes: list[dict[str, Span]] = field(default_factory=list)
    caller: Origin | None = None

    def __str__(self) -> str:
        return _printers["text"](self)

    def to_dot(self) -> str:
        """Return the graph as Graphviz source."""
        return _printers["dot"](self)

    def to_svg(self) -> str:
        """Return a picture of the graph as SVG."""
        return _printers["svg"](self)

    def to_html(self) -> str:
        """Return a self-contained page that shows the graph, its steps and the user's source."""
        return _printers["html"](self)

    def interpret(self) -> Any:
        """Return something that is called like the model, runs the graph by the reference interpreter, and keeps its state between calls.

        It has ``reset()`` and ``last_path``, see :class:`dycl_tvm.hcfg.interpreted.InterpretedModule`.
        """
        return _interpreters[0](self)

    @property
    def entry(self) -> Block:
        """The block in which every call begins."""
        return self.blocks[0]

    @property
    def inputs(self) -> list[Value]:
        """The entry parameters that a call decides: the leaves that the caller gives, and their sizes."""
        return self.entry.params[: len(self.input_names) + len(self.sizes)]

    @property
    def size_params(self) -> list[Value]:
        """The entry parameters that are the sizes which the caller decides."""
        return self.inputs[len(self.input_names) :]

    def return_sites(self) -> list[ReturnSite]:
        """Return the distinct return sites in block order."""
        sites: list[ReturnSite] = []
        for block in self.blocks:
            term = block.terminator
            if isinstance(term, Return) and all(term.site is not s for s in sites):
                sites.append(term.site)
        return sites

    def sub_dnns(self) -> list[SubDNN]:
        """Return the distinct sub-DNNs in order of their first call."""
        seen: dict[int, SubDNN] = {}
        for block in self.blocks:
            for step in block.steps:
                if isinstance(step, SubDNNCall):
                    seen.setdefault(id(step.callee), step.callee)
        return list(seen.values())

    def constants(self) -> list[Constant]:
        """Return the distinct constants in order of first use (uses inside sub-DNN bodies do not exist)."""
        seen: dict[int, Constant] = {}
        for block in self.blocks:
            for value in block_operands(block):
                if isinstance(value, Constant):
                    seen.setdefault(id(value), value)
        for var in self.state:
            if isinstance(var.initial, Constant):
                seen.setdefault(id(var.initial), var.initial)
        return list(seen.values())


Printer = Callable[[HCFG], str]
#: How a graph is shown, by format. Printers know graphs, and a graph finds its printers here.
_printers: dict[str, Printer] = {}


_AnyPrinter = TypeVar("_AnyPrinter", bound=Printer)


def printer(name: str) -> Callable[[_AnyPrinter], _AnyPrinter]:
    """Make a function the printer of a format. It may take more than the graph from those who call it by its own name."""

    def register(function: _AnyPrinter) -> _AnyPrinter:
        _printers[name] = function
        return function

    return register


#: What runs a graph without compiling it: the interpreter needs PyTorch, which graphs do not.
_interpreters: list[Callable[[HCFG], Any]] = []


def interpreter_of_graphs(function: Callable[[HCFG], Any]) -> Callable[[HCFG], Any]:
    """Make a function what :meth:`HCFG.interpret` calls."""
    _interpreters.append(function)
    return function


def edges_of(terminator: Terminator | None) -> list[Edge]:
    """Return the outgoing edges of a terminator, in order."""
    if isinstance(terminator, Jump):
        return [terminator.edge]
    if isinstance(terminator, Branch):
        return [terminator.then, terminator.orelse]
    if isinstance(terminator, Switch):
        return list(terminator.edges)
    return []


def terminator_operands(terminator: Terminator | None) -> list[Value]:
    """Return the values that a terminator reads, edge arguments included."""
    found: list[Any] = []
    if isinstance(terminator, Branch):
        found.append(terminator.cond)
    elif isinstance(terminator, Switch):
        found.append(terminator.index)
    elif isinstance(terminator, Return):
        found.extend(terminator.values)
        found.extend(terminator.state)
    for edge in edges_of(terminator):
        found.extend(edge.args)
    return [v for v in found if isinstance(v, Value)]


def block_operands(block: Block) -> Iterator[Value]:
    """Yield the values that a block reads, step by step, then those of its terminator."""
    for step in block.steps:
        yield from step.operands()
    yield from terminator_operands(block.terminator)


def operand_type(operand: Operand) -> Type:
    """Return the type of an operand."""
    if isinstance(operand, Value):
        return operand.type
    if isinstance(operand, bool):
        return BOOL
    return ScalarType("int" if isinstance(operand, int) else "float")


def map_operands(node: Any, fn: Any) -> Any:
    """Return ``node`` (an argument structure) with ``fn`` applied to every Value in it."""
    if isinstance(node, Value):
        return fn(node)
    if isinstance(node, (list, tuple)):
        return type(node)(map_operands(n, fn) for n in node)
    if isinstance(node, dict):
        return {k: map_operands(v, fn) for k, v in node.items()}
    return node


def rewrite_step(step: Step, fn: Callable[[Any], Any]) -> None:
    """Apply ``fn`` to the operands of a step."""
    if isinstance(step, HostOp):
        step.args = tuple(fn(a) for a in step.args)
    elif isinstance(step, SubDNNCall):
        step.args = [fn(a) for a in step.args]
    else:
        step.args = map_operands(step.args, fn)
        step.kwargs = map_operands(step.kwargs, fn)


def rewrite_terminator(term: Terminator | None, fn: Callable[[Any], Any]) -> None:
    """Apply ``fn`` to the operands of a terminator, edge arguments included."""
    if isinstance(term, Branch):
        term.cond = fn(term.cond)
    elif isinstance(term, Switch):
        term.index = fn(term.index)
    elif isinstance(term, Return):
        term.values = [fn(v) for v in term.values]
        term.state = [fn(v) for v in term.state]
    for edge in edges_of(term):
        edge.args = [fn(a) for a in edge.args]


def _collect(nodes: Iterable[Any], found: list[Value]) -> None:
    for node in nodes:
        if isinstance(node, Value):
            found.append(node)
        elif isinstance(node, (list, tuple, dict)):
            _collect(node.values() if isinstance(node, dict) else node, found)
