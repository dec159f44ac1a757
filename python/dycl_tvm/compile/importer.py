# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Sub-DNNs of an HCFG as global Relax functions of one IRModule: pure, one dataflow block each, weights as parameters."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import tvm
from tvm import relax

from dycl_tvm.compile import composed  # noqa: F401  # they register
from dycl_tvm.compile.complex import COMPLEX
from dycl_tvm.compile.complex_values import AsReal, ComplexValue
from dycl_tvm.compile.decompose import DECOMPOSITIONS, Decomposer, name_of, overload
from dycl_tvm.compile.ops import CONVERTERS, OpContext
from dycl_tvm.compile.ops.context import DTYPE_NAMES, TORCH_DTYPES, NotConvertible
from dycl_tvm.compile.ops.linear import ATTENTION_WEIGHTS, SAFE_SOFTMAX
from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.hcfg.checks import has_demands
from dycl_tvm.hcfg.elements import is_integer
from dycl_tvm.hcfg.nodes import Constant, Origin, SubDNN, TensorOp, Value, map_operands
from dycl_tvm.hcfg.types import TensorType

#: What to do about an operator that is missing.
_ADD = "write it with other operators, or add it with dycl_tvm.register_operator({!r}) (docs/adding-an-operator.md)"


def import_sub_dnns(sub_dnns: Sequence[SubDNN], progress: Callable[[str, int, int], None] | None = None) -> tvm.IRModule:
    """Return an IRModule with one global function a sub-DNN, of its name.

    Parameters
    ----------
    sub_dnns : sequence of SubDNN
        Names must be distinct identifiers.
    progress : callable, optional
        Called with (phase, done, total).

    Raises
    ------
    UnsupportedError
        For an operator that neither has a converter nor decomposes into ones that have; it names the user's line.
    """
    bb = relax.BlockBuilder()
    decomposer = Decomposer(CONVERTERS)
    for k, sub in enumerate(sub_dnns):
        if progress is not None:
            progress("import", k, len(sub_dnns))
        try:
            _Function(bb, sub, decomposer).build()
        except BaseException:
            _close(bb)
            raise
    mod = bb.finalize()
    return mod


def _close(bb: relax.BlockBuilder) -> None:
    """End what was begun: a builder that is dropped before prints a warning."""
    for end in (bb._end_block, bb.end_scope):
        with contextlib.suppress(Exception):  # there is no way to ask whether one is open
            end()


class _Function:
    """The import of one sub-DNN."""

    def __init__(self, bb: relax.BlockBuilder, sub: SubDNN, decomposer: Decomposer) -> None:
        self.bb, self.sub, self.decomposer = bb, sub, decomposer
        #: By the values' ids: expressions, and what stands for complex tensors.
        self.env: dict[int, Any] = {}
        #: Who reads a value, by its id: operations, and the numbers of the operands.
        self._readers: dict[int, list[tuple[TensorOp, int]]] = {}

    def build(self) -> None:
        params = []
        for k, value in enumerate(self.sub.params):
            assert isinstance(value.type, TensorType), "parameters of sub-DNNs are tensors"
            var = relax.Var(_identifier(value.name, f"p{k}"), _relax_type(value.type.parts))
            self.env[id(value)] = ComplexValue(self.bb, whole=var) if value.type.is_complex else var
            params.append(var)
        read = {id(v) for v in self.sub.results}
        live = []
        for op in reversed(self.sub.ops):  # a trace may hold operators whose results nobody reads
            if any(id(v) in read for v in op.results()):
                read.update(id(v) for v in op.operands())
                live.append(op)
                for k, v in enumerate(op.operands()):
                    self._readers.setdefault(id(v), []).append((op, k))
        with self.bb.function(self.sub.name, params, attrs={"global_symbol": self.sub.name}, private=False):
            with self.bb.dataflow():
                for op in reversed(live):
                    self._import(op, read)
                results = [self._variable(v) for v in self.sub.results]
                out = self.bb.emit_output(relax.Tuple(results))
            self.bb.emit_func_output(out)

    def _value(self, value: Value) -> Any:
        found = self.env.get(id(value))
        if found is None:
            if not isinstance(value, Constant):
                raise AssertionError(f"{value!r} is used in sub-DNN {self.sub.name} before its definition")
            found = self.env[id(value)] = self._constant(value.data)
        if isinstance(found, AsReal):
            found = self.env[id(value)] = found.value.whole()
        return found

    def _constant(self, data: torch.Tensor) -> Any:
        if not data.is_complex():
            return _constant(data)
        data = data.resolve_conj()
        return ComplexValue(self.bb, _constant(data.real), _constant(data.imag.resolve_neg()))

    def _variable(self, value: Value) -> Any:
        """Return a result as a variable: kernels write results, constants of rank 0 too."""
        expr = self._value(value)
        if isinstance(expr, ComplexValue):
            expr = expr.whole()
        if isinstance(expr, relax.Var):
            return expr
        assert isinstance(value.type, TensorType)
        return OpContext(self.bb, [value.type.parts]).elementwise(lambda v: v, expr, name="constant")

    def _import(self, op: TensorOp, read: set[int]) -> None:
        types: list[Any] = [v.type if v is not None else None for v in op.outputs]
        unused = frozenset(k for k, v in enumerate(op.outputs) if v is None or id(v) not in read)
        try:
            results = self._seen_otherwise(op)
            if results is None and op.op in CONVERTERS and not _is_complex(op):
                results = self._converted(op, types, unused)
            if results is None:
                results = self._decomposed(op, types)
        except NotConvertible as error:
            raise UnsupportedError(f"{op.op} is not supported with these arguments: {error}", op.origin) from error
        except DyclError:
            raise
        except Exception as error:  # TVM raises anything for a dtype or shape that an operator of its own does not take
            raise UnsupportedError(f"{op.op} cannot be lowered with operands of these types: {error}", op.origin) from error
        for k, value in enumerate(op.outputs):
            if value is None:
                continue
            if k in unused:
                continue
            if k < len(results) and results[k] is not None:
                self.env[id(value)] = _checked(results[k], value, op.op, op.origin)
            else:
                raise UnsupportedError(f"result {k} of {op.op} is not supported, only others of its results are", op.origin)

    def _is_only_multiplied(self, value: Value) -> bool:
        """Whether rows of a value, seen in other shapes too, are factors of products with matrices and nothing else."""
        todo, results = [value], {id(v) for v in self.sub.results}
        while todo:
            seen = todo.pop()
            assert isinstance(seen.type, TensorType)
            if id(seen) in results:
                return False
            for op, k in self._readers.get(id(seen), ()):
                (made,) = op.results() if len(op.results()) == 1 else (None,)
                if op.op in _SAME_ROWS and made is not None and made.type.shape[-1:] == seen.type.shape[-1:]:  # type: ignore[union-attr]
                    todo.append(made)
                elif op.op not in _PRODUCTS or k != 0:
                    return False
        return True

    def _converted(self, op: TensorOp, types: list[Any], unused: frozenset[int]) -> list[Any] | None:
        """Return what a converter makes of an operation; None if it cannot, and the operator is made of others."""
        args, kwargs = map_operands(op.args, self._value), map_operands(op.kwargs, self._value)
        rows = op.op == SAFE_SOFTMAX and args[1] in (-1, len(types[0].shape) - 1)
        converter = ATTENTION_WEIGHTS if rows and self._is_only_multiplied(op.results()[0]) else ""
        try:
            return convert(self.bb, op.op, args, kwargs, types, unused, converter)
        except NotConvertible:
            if op.op not in DECOMPOSITIONS:
                raise
            return None

    def _seen_otherwise(self, op: TensorOp) -> list[Any] | None:
        """Return the result of an operator that sees complex numbers as pairs of real ones, or the other way round: it computes nothing."""
        if op.op == "aten.view_as_complex.default":
            return [ComplexValue(self.bb, whole=self._value(op.operands()[0]))]
        if op.op == "aten.view_as_real.default":
            return [AsReal(self._value(op.operands()[0]))]
        if op.op == "aten.select.int":
            source, dim, index = op.args[:3]
            seen = self.env.get(id(source))
            if isinstance(seen, AsReal) and dim in (-1, len(source.type.shape) - 1):
                return [seen.value.parts()[index]]
        return None

    def _decomposed(self, op: TensorOp, types: list[Any]) -> list[Any]:
        operands: list[Value] = []
        for v in op.operands():
            if all(v is not seen for seen in operands):
                operands.append(v)
        return self._made_of(op.op, op.args, op.kwargs, [(v, self._value(v)) for v in operands], types, op)

    def _made_of(self, name: str, args: Any, kwargs: Any, operands: list[tuple[Value, Any]], types: list[Any], op: TensorOp) -> list[Any]:
        """Return the results of an operator, which is ``op`` or a part of it, by those that it is made of."""
        is_complex = any(t is not None and t.is_complex for t in (*types, *(v.type for v, _ in operands)))  # type: ignore[union-attr]
        in_pairs = is_complex and name in COMPLEX
        try:
            overload(name)
        except (AttributeError, ValueError):
            raise UnsupportedError(f"the operator {name} is not known to this version of PyTorch", op.origin) from None
        try:
            graph = self.decomposer.trace(name, args, kwargs, [v for v, _ in operands], in_pairs)
        except Exception as error:  # PyTorch raises anything here; the user needs to know at which line
            raise UnsupportedError(
                f"the operator {name} is missing{' for these complex numbers' * is_complex}, and cannot be decomposed: {error}",
                op.origin,
                _ADD.format(name),
            ) from error
        given = [x.parts() if in_pairs and isinstance(x, ComplexValue) else (x,) for _, x in operands]
        inputs = iter([x for some in given for x in some])
        env: dict[torch.fx.Node, Any] = {}
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "get_attr":
                env[node] = self._constant(getattr(graph, node.target))
            elif node.op == "call_function":
                env[node] = self._node(node, env, op)
            elif node.op == "output":
                return [self._result(made, env, t) for made, t in zip(node.args[0], types)]
        raise AssertionError("a graph without output")

    def _result(self, made: Any, env: dict[torch.fx.Node, Any], type_: TensorType | None) -> Any:
        """Return a result of a trace, whose parts are a tuple if it is complex."""
        if isinstance(made, torch.fx.Node):
            return env[made]
        if not isinstance(made, (tuple, list)) or type_ is None or not type_.is_complex or made[0] is None:
            return None
        return ComplexValue(self.bb, *(env[part] for part in made)).fitted(type_)

    def _node(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any], origin: TensorOp) -> Any:
        if getattr(node.target, "__name__", "") == "getitem":
            return env[node.args[0]][node.args[1]]  # type: ignore[index]  # the arguments of getitem
        name = name_of(node.target)
        meta = node.meta["val"]
        several = isinstance(meta, (tuple, list))
        types = [_type_of(m) for m in (meta if several else [meta])]
        given = [env[n] for n in node.all_input_nodes]
        is_complex = any(isinstance(x, ComplexValue) for x in given) or any(t is not None and t.is_complex for t in types)
        if name not in (COMPLEX if is_complex else CONVERTERS):
            which = " for complex numbers" * is_complex
            reason = f"the operator {origin.op} is missing{which}"
            if name != origin.op:
                reason += f": it is made of {name}, which is missing{which}"
            raise UnsupportedError(reason, origin.origin, _ADD.format(origin.op))
        if has_demands(name) and not (has_demands(origin.op) or origin.op in DECOMPOSITIONS or _has_own_places(origin)):
            raise UnsupportedError(
                f"the operator {origin.op} is made of {name}, and nobody checks the places that it takes",
                origin.origin,
                _ADD.format(origin.op),
            )
        if is_complex:
            values = {n: Value(_type_of(n.meta["val"]) or TensorType((), "float32")) for n in node.all_input_nodes}
            args, kwargs = (torch.fx.map_arg(a, values.__getitem__) for a in (node.args, node.kwargs))  # type: ignore[arg-type]
            results = self._made_of(name, args, kwargs, [(v, env[n]) for n, v in values.items()], types, origin)
        else:
            args, kwargs = (torch.fx.map_arg(a, lambda n: env[n]) for a in (node.args, node.kwargs))
            used = {u.args[1] for u in node.users} if several else {0}
            unused = frozenset(k for k in range(len(types)) if k not in used)
            results = convert(self.bb, name, args, kwargs, types, unused)
        return tuple(results) if several else results[0]


def _has_own_places(op: TensorOp) -> bool:
    """Tell whether no operand has the places that an operator is made of, so they follow from sizes, or eager takes them as they are."""
    return op.op in _OWN_PLACES or not any(is_integer(v) for v in op.operands())


def _is_complex(op: TensorOp) -> bool:
    return any(v.type.is_complex for v in (*op.operands(), *op.results()) if isinstance(v.type, TensorType))


#: Views that keep rows where they keep their length, and products that have rows as their first operand.
_SAME_ROWS = ("aten.view.default", "aten._unsafe_view.default", "aten.expand.default", "aten.reshape.default")
_PRODUCTS = ("aten.bmm.default", "aten.mm.default", "aten.matmul.default")
#: Operators that PyTorch makes of others with places, which eager takes as they are.
_OWN_PLACES = ("aten.max_pool2d_with_indices_backward.default",)
#: Operators some of whose operands may have no elements.
_OF_NOTHING = ("aten.cat", "aten.slice_scatter")


def convert(
    bb: relax.BlockBuilder,
    op: str,
    args: Any,
    kwargs: Any,
    types: Sequence[TensorType | None],
    unused: frozenset[int] = frozenset(),
    converter: str = "",
) -> list[Any]:
    """Convert one operator, by ``converter`` if it is given; ``args`` hold Relax expressions where the schema has tensors."""
    wanted = [t for k, t in enumerate(types) if t is not None and k not in unused]
    if wanted and all(0 in t.shape for t in wanted):
        return [None if t is None else _constant(torch.empty(t.shape, dtype=TORCH_DTYPES[t.dtype])) for t in types]
    if any(0 in t.shape for t in wanted):
        raise NotConvertible("a result without elements")
    ctx = OpContext(bb, types, op, unused)
    bound = _bind(overload(op)._schema, tuple(args), dict(kwargs))
    operands = [a for a in torch.utils._pytree.tree_leaves(bound) if isinstance(a, tvm.ir.Expr)]
    if operands and all(0 in ctx.shape(a) for a in operands):
        result = _of_nothing(ctx, op, args, kwargs)
    elif any(0 in ctx.shape(a) for a in operands) and not op.startswith(_OF_NOTHING):
        raise NotConvertible("an operand without elements")
    else:
        result = CONVERTERS[converter or op](ctx, *bound)
    results = list(result) if isinstance(result, tuple) else [result]
    return [r if r is None or t is None or k in unused else _fitted(bb, r, t) for k, (r, t) in enumerate(zip(results, types))]


def _of_nothing(ctx: OpContext, op: str, args: Any, kwargs: Any) -> Any:
    """Return the results of an operator whose operands have no elements: constants."""

    def empty(leaf: Any) -> Any:
        return torch.empty(ctx.shape(leaf), dtype=TORCH_DTYPES[ctx.dtype(leaf)]) if isinstance(leaf, tvm.ir.Expr) else leaf

    args, kwargs = torch.utils._pytree.tree_map(empty, (tuple(args), dict(kwargs)))
    result = overload(op)(*args, **kwargs)
    return tuple(_constant(r) for r in result) if isinstance(result, (tuple, list)) else _constant(result)


def _bind(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return all arguments in the order of the schema, defaults filled in (those of tensor factories left out)."""
    bound: list[Any] = []
    for k, formal in enumerate(schema.arguments):
        if k < len(args):
            bound.append(args[k])
        elif formal.name in kwargs:
            bound.append(kwargs[formal.name])
        elif formal.has_default_value():
            bound.append(formal.default_value)
        else:
            raise NotConvertible(f"the argument {formal.name} is missing")
    return bound


def _fitted(bb: relax.BlockBuilder, expr: Any, type_: TensorType) -> Any:
    """Give a result the dtype that PyTorch says; a wrong shape is a defect of a converter."""
    ctx = OpContext(bb, [type_])
    shape = ctx.shape(expr)
    if shape != type_.shape:
        raise NotConvertible(f"the converter gave shape {shape}, PyTorch has {type_.shape}")
    return ctx.cast(expr, type_.dtype)


def _checked(expr: Any, value: Value, op: str, origin: Origin | None) -> Any:
    assert isinstance(value.type, TensorType)
    if isinstance(expr, (ComplexValue, AsReal)):
        expr.check(value.type, op, origin)
        return expr
    if OpContext.shape(expr) != value.type.shape or OpContext.dtype(expr) != value.type.dtype:
        raise UnsupportedError(f"{op} gives {OpContext.dtype(expr)}{list(OpContext.shape(expr))} where {value.type} is expected", origin)
    return expr


def _relax_type(type_: TensorType) -> Any:
    return relax.TensorType(type_.shape, type_.dtype)


def _type_of(meta: Any) -> TensorType | None:
    if not isinstance(meta, torch.Tensor):
        return None
    return TensorType(tuple(int(s) for s in meta.shape), DTYPE_NAMES[meta.dtype])


def _constant(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().cpu().contiguous()
    return relax.const(tensor.numpy() if tensor.dtype != torch.bfloat16 else tensor.float().numpy(), DTYPE_NAMES[tensor.dtype])


def _identifier(name: str, default: str) -> str:
    clean = re.sub(r"\W", "_", name)
    return f"{default}_{clean}" if clean else default
