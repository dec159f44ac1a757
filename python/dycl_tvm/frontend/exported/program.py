# Licensed under the Apache License, Version 2.0; see LICENSE.
"""From an exported program to an HCFG: its inputs, its state, its results.

The graph is run once on staged tensors, operator by operator, exactly as the Python front end runs a forward: views and in-place operators
become functional, operations on weights are computed at once, shapes are those of the example inputs. Buffers that the program leaves
changed become state variables.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dycl_tvm.errors import UnsupportedError, UsageError
from dycl_tvm.frontend.exported.graph import run_graph
from dycl_tvm.frontend.exported.session import ExportedSession
from dycl_tvm.frontend.exported.shapes import by_parameter, check_shapes, check_sizes, open_dimensions, specialised, symbols_of
from dycl_tvm.frontend.trace.alike_results import number_alike
from dycl_tvm.frontend.trace.dimensions import at_size
from dycl_tvm.frontend.trace.limits import Limits
from dycl_tvm.frontend.trace.results import Leaves, structure_of
from dycl_tvm.frontend.trace.signature import Inputs
from dycl_tvm.frontend.trace.special_sizes import front_of, known_sizes
from dycl_tvm.frontend.trace.values.constants import Constants, constants
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.recording import recording
from dycl_tvm.frontend.trace.values.storage import tensor_type
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, fresh, read
from dycl_tvm.hcfg.analysis import reverse_postorder
from dycl_tvm.hcfg.nodes import HCFG, Operand, Return, ReturnSite, StateVar, Value
from dycl_tvm.hcfg.sizes import Dim
from dycl_tvm.hcfg.types import INT


def example_inputs_of(program: ExportedProgram, input_shapes: Mapping[str, Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs that a program was exported with, dynamic dimensions set to ``input_shapes`` where it names them.

    Parameters
    ----------
    program : ExportedProgram
    input_shapes : mapping, optional
        From the name of an input to its shape. A name is that of the forward's parameter, ``x`` or ``state[0]``.

    Raises
    ------
    UsageError
        If the program has none, or has no such input.
    """
    if program.example_inputs is None:
        raise UsageError("the exported program carries no example inputs; give some: build(program, (x,), ...)")
    args, kwargs = program.example_inputs
    return specialised(_signature_of(program), tuple(args), dict(kwargs), input_shapes or {})


def stage_exported(
    program: ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "exported",
    dynamic_shapes: Any = None,
    fixed: Collection[str] | None = None,
    max_length: int | None = None,
    specialize: Any = None,
) -> HCFG:
    """Turn an exported program into an HCFG.

    Parameters
    ----------
    program : ExportedProgram
        Of ``torch.export.export``, before or after ``run_decompositions``.
    args, kwargs : tuple, mapping
        Inputs as the program takes them; their shapes are those that the artefact will take.
    name : str
        Name of the graph.
    dynamic_shapes : mapping or sequence, optional
        Dimensions that the callers of the artefact decide, as for models in Python; the program was exported with them open. None: those
        that the program leaves open, up to the bounds that it has.
    fixed : collection of str, optional
        Inputs all of whose dimensions are those of the example, if ``dynamic_shapes`` is None, and so are dimensions of other inputs that
        follow from them. None: so are dimensions without a bound.
    max_length : int, optional
        Of tensors whose length the data decides and nothing else bounds, and of open dimensions without a bound that are not fixed.
    specialize : sequence, optional
        Sizes among them that have a path of their own, as for models in Python.

    Raises
    ------
    UsageError
        If the inputs do not fit the program, or its range constraints.
    UnsupportedError
        With the user's file, line and code where the program knows them.
    """
    return _Program(program, args, dict(kwargs or {}), name, dynamic_shapes, fixed, Limits(length=max_length), specialize).stage()


class _Program:
    def __init__(
        self,
        program: ExportedProgram,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str,
        dynamic_shapes: Any,
        fixed: Collection[str] | None,
        limits: Limits,
        specialize: Any,
    ) -> None:
        self.program, self.name, self.limits = program, name, limits
        self.signature = program.graph_signature
        self.placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        self.users = [s for s in self.signature.input_specs if s.kind == InputKind.USER_INPUT]
        self.metas = [self._placeholder(s).meta.get("val") for s in self.users]
        forward = _signature_of(program)
        open_sizes = self._left_open(forward, fixed) if dynamic_shapes is None else dynamic_shapes
        self.inputs = Inputs(forward, args, kwargs, open_sizes, specialize)
        self._check_call(args, kwargs)
        self.tensors, self.names = self._weights()
        #: Names in the signature of the tensors that a call leaves changed, in the order in which they were found.
        self.changed: list[str] = []

    def stage(self) -> HCFG:
        while True:
            known = len(self.changed)
            graph = self._run()
            if len(self.changed) == known:
                return graph

    # -- what goes in ----------------------------------------------------------------------------------------------------
    def _check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check structure, dtypes and shapes of the inputs against the program."""
        leaves = self._leaves_of(args, kwargs)
        if len(leaves) != len(self.users):
            raise UsageError(f"the exported program takes {len(self.users)} inputs (nested ones counted singly), got {len(leaves)}")
        names = [str(s.arg.name) for s in self.users]
        check_shapes(names, self.metas, leaves, self.program.range_constraints)
        check_sizes(self.inputs.sizes, names, self.metas, leaves, self.program.range_constraints)

    def _left_open(self, forward: Any, fixed: Collection[str] | None) -> dict[str, Any] | None:
        """Return the sizes that the program leaves open, as users write them; None if there are none."""
        spec = self.program.call_spec.in_spec
        assert spec is not None
        args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
        names: dict[str, int] = {}
        by_parameter(forward, args, kwargs, names.setdefault)
        settled = None if fixed is None else {symbol for name in fixed for symbol in symbols_of(self.metas[names[name]])}

        def sizes_of(name: str, k: int) -> dict[int, Dim] | None:
            return open_dimensions(name, self.metas[k], self.program.range_constraints, settled, self.limits.length)

        written = by_parameter(forward, args, kwargs, sizes_of)
        return {name: of for name, of in written.items() if any(isinstance(x, Dim) for x in pytree.tree_leaves(of))} or None

    def _leaves_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the leaves in the order of the program's placeholders."""
        spec = self.program.call_spec.in_spec
        assert spec is not None
        order = list(spec.child(1).context)
        if set(order) != set(kwargs):
            raise UsageError(f"the exported program takes the keyword inputs ({', '.join(order)}), got ({', '.join(kwargs)})")
        leaves, found = pytree.tree_flatten((args, {k: kwargs[k] for k in order}))
        if found != spec:
            raise UsageError(f"the inputs do not have the structure that the program was exported with: {spec}")
        return leaves

    def _placeholder(self, spec: Any) -> torch.fx.Node:
        return self.placeholders[self.signature.input_specs.index(spec)]

    def _weights(self) -> tuple[dict[str, torch.Tensor], dict[int, str]]:
        """Return the parameters, buffers and constants by the name of their placeholder, and the names of the tensors."""
        found: dict[str, torch.Tensor] = {}
        names: dict[int, str] = {}
        known: dict[Any, torch.Tensor] = {}
        for spec in self.signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                continue
            if spec.kind == InputKind.TOKEN or not isinstance(spec.arg, TensorArgument):
                raise UnsupportedError(
                    f"the program takes a {spec.kind.name.lower()} ({spec.arg}), which is no tensor", None, "export a model of tensors"
                )
            assert spec.target is not None
            store = self.program.constants if spec.target in self.program.constants else self.program.state_dict
            tensor = store[spec.target]
            if tensor.is_meta or isinstance(tensor, torch._subclasses.FakeTensor):
                raise UsageError(f"the weight {spec.target} has no values; export the model with its weights loaded")
            # Two names of one tensor stay one tensor: what is written under one is read under the other.
            known_by_memory = tensor.numel() and not is_traceable_wrapper_subclass(tensor)
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if known_by_memory else id(tensor)
            tensor = known.setdefault(key, tensor.detach())
            found[spec.arg.name] = tensor
            names.setdefault(id(tensor), spec.target)
        return found, names

    # -- one run ---------------------------------------------------------------------------------------------------------
    def _run(self) -> HCFG:
        session = ExportedSession(self.names, self.limits)
        for tensor in self.tensors.values():  # a program has no arrays that may lie in their memory, whoever allocated it
            if not is_traceable_wrapper_subclass(tensor):
                session.get(Constants).reached.note(tensor)
        entry = session.builder.entry
        inputs = [Value(t, n) for n, t in zip(self.inputs.names, self.inputs.types)]
        variables = [
            StateVar(self._target(n), tensor_type(self.tensors[n]), session.get(Constants).of(self.tensors[n])) for n in self.changed
        ]
        state = [Value(v.type, v.name) for v in variables]
        sizes = [Value(INT, size.name) for size in self.inputs.sizes]
        entry.params = [*inputs, *sizes, *state]
        decisions = session.decisions
        decisions.pending = [[]]
        while decisions.pending:
            with recording(session, decisions.pending.pop()):
                self._record(session, inputs, sizes, state)
        graph = HCFG(self.name, self.inputs.structure, self.inputs.names, [entry], variables, sizes=self.inputs.sizes)
        graph.special_sizes = self.inputs.special
        graph.blocks = reverse_postorder(graph)
        if graph.special_sizes:
            number_alike(graph)
        _name_blocks(graph)
        return graph

    def _record(self, session: ExportedSession, inputs: list[Value], sizes: list[Value], state: list[Value]) -> None:
        """Record the program at sizes that have a path of their own, or at all others."""
        session.decisions.of_sizes = True
        known = known_sizes(self.inputs.special, self.inputs.sizes, sizes)
        session.decisions.of_sizes = False
        fronts = [front_of(v, k, self.inputs.sizes, known) for k, v in enumerate(inputs)]
        given = cast(list[StagedTensor], at_size([fresh(v) for v in fronts], self.inputs.sizes, sizes, known))
        leaves = self._leaves_of(*self.inputs.build(given))
        held: dict[str, Any] = dict(self.tensors)
        for spec, value in zip(self.changed, state):
            shared = fresh(value)
            held |= {n: shared for n, t in self.tensors.items() if t is self.tensors[spec]}
        rest = iter(leaves)
        values = [held[s.arg.name] if s.kind != InputKind.USER_INPUT else next(rest) for s in self.signature.input_specs]
        results = run_graph(session, self.program.graph_module, values)
        if results is not None:  # None: every path ends in an error
            self._check_inputs_kept(given, fronts)
            self._leave(session, results, held)

    def _check_inputs_kept(self, given: list[StagedTensor], inputs: list[Value]) -> None:
        mutated = [s for s in self.signature.output_specs if s.kind == OutputKind.USER_INPUT_MUTATION]
        for name, tensor, value in zip(self.inputs.names, given, inputs):
            if mutated or read(tensor) is not value:
                raise UnsupportedError(
                    f"the program changes its input `{name if not mutated else mutated[0].target}` in place, which an artefact cannot",
                    None,
                    "work on a copy (x = x.clone()) and return it",
                )

    def _leave(self, session: ExportedSession, results: list[Any], held: dict[str, Any]) -> None:
        """End the run by the program's one return."""
        targets = {s.target: s.arg.name for s in self.signature.input_specs if s.target is not None}
        outputs, changed = [], {}
        for spec, result in zip(self.signature.output_specs, results, strict=True):
            if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT):
                outputs.append(result)
            elif spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                if isinstance(result, Grown):
                    result.refuse("a buffer becomes")
                changed[targets[spec.target]] = read(result)
            elif spec.kind != OutputKind.USER_INPUT_MUTATION:
                raise UnsupportedError(f"the program gives a {spec.kind.name.lower()}", None, "export the model for inference")
        done: set[int] = set()
        for name, tensor in held.items():
            if not isinstance(tensor, StagedTensor) and is_traceable_wrapper_subclass(tensor):
                _unchanged(name, tensor)
                continue
            before = constants().of(tensor) if not isinstance(tensor, StagedTensor) else None
            if name not in changed and read(tensor) is not before and id(tensor) not in done:
                changed[name] = read(tensor)  # changed in place, or a state variable as it was
            done.add(id(tensor))
        for name, value in changed.items():
            if name not in self.changed and value is not constants().of(self.tensors[name]):
                self.changed.append(name)
        leaves = Leaves()
        spec = self.program.call_spec.out_spec
        assert spec is not None
        structure = structure_of(pytree.tree_unflatten(outputs, spec), leaves, None)
        given = len(self.inputs.names) + len(self.inputs.sizes)
        state: list[Operand] = [changed[n] for n in self.changed[: len(session.builder.entry.params) - given]]
        session.builder.terminate(Return(ReturnSite(structure, None), leaves.operands, state))

    def _target(self, placeholder: str) -> str:
        return next(s.target for s in self.signature.input_specs if s.arg.name == placeholder and s.target is not None)


def _unchanged(name: str, tensor: Any) -> None:
    """Refuse a weight that holds its numbers as other tensors, if one of these was changed in place."""
    for attribute in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, attribute)
        if is_traceable_wrapper_subclass(part):
            _unchanged(f"{name}.{attribute}", part)
        elif read(part) is not constants().of(part):
            what = f"the program changes {attribute} of {name}, a {type(tensor).__name__}"
            raise UnsupportedError(what, None, "keep state in plain tensors")


def _signature_of(program: ExportedProgram) -> Any:
    """Return a function with the signature of the forward that was exported."""
    spec = program.call_spec.in_spec
    assert spec is not None
    positional, keyword = spec.child(0).num_children, list(spec.child(1).context)
    known = program.module_call_graph[0].signature
    names = list(known.forward_arg_names or ()) if known is not None else []
    names = names[:positional] if len(names) == positional + len(keyword) else [f"arg{k}" for k in range(positional)]
    kind = inspect.Parameter

    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*(kind(n, kind.POSITIONAL_OR_KEYWORD) for n in names), *(kind(n, kind.KEYWORD_ONLY) for n in keyword)]
    )
    return forward


def _name_blocks(graph: HCFG) -> None:
    counts: dict[str, int] = {}
    for block in graph.blocks[1:]:
        counts[block.name] = counts.get(block.name, 0) + 1
        block.name = f"{block.name}{counts[block.name]}"
