# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The new Relax function of a sub-DNN: calls of family kernels where there are, everything else as it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from dycl_tvm.backends.tir_cpu.families import relayout
from dycl_tvm.backends.tir_cpu.families.family import Maker
from dycl_tvm.backends.tir_cpu.graph import Graph, Node, Var
from dycl_tvm.backends.tir_cpu.kernels import Kernels, Reach, Rows
from dycl_tvm.backends.tir_cpu.words.loops import CHOOSING, MASKING, NAME, REACH, ROWS
from dycl_tvm.backends.tir_cpu.words.storage import memory_type
from dycl_tvm.backends.tir_cpu.words.workload import Tensor


class ModuleEmitter:
    """Rewrites the functions of one module; equal kernels are made once."""

    def __init__(self, mod: tvm.IRModule, kernels: Kernels) -> None:
        self.bb = relax.BlockBuilder(mod)
        self.kernels = kernels
        self._made: dict[Any, Any] = {}

    def function(self, graph: Graph, params: Sequence[int], results: Sequence[int]) -> None:
        """Rewrite a function whose parameters and results have these blocks."""
        name = f"{graph.name}__packed"
        _Function(self, graph, params, results).run(name)

    def finish(self, names: Sequence[str]) -> tvm.IRModule:
        """Return the module with the new functions in place of the old ones."""
        built = self.bb.get()
        for name in names:
            fn = built[f"{name}__packed"].with_attr("global_symbol", name)
            built.update_func(built.get_global_var(name), fn)
            del built[f"{name}__packed"]
        return built

    def kernel(
        self,
        name: str,
        key: Any,
        make: Callable[[], Any],
        rows: Rows,
        reach: Reach = (),
        choosing: Sequence[Sequence[int]] = (),
        masking: Sequence[int] = (),
    ) -> Any:
        """Return the global variable of a kernel."""
        if key not in self._made:
            fn = make().with_attr(NAME, name).with_attr(ROWS, [list(r) for r in rows])
            if self.kernels.selector.varied and reach:
                fn = fn.with_attr(REACH, [[list(dim) for dim in r] for r in reach]).with_attr(CHOOSING, [list(c) for c in choosing])
                fn = fn.with_attr(MASKING, list(masking)) if masking else fn
            self._made[key] = self.bb.add_func(fn, name)
            if isinstance(make, Maker):
                self.kernels.makers[self._made[key].name_hint] = make
        return self._made[key]


class _Function:
    def __init__(self, module: ModuleEmitter, graph: Graph, params: Sequence[int], results: Sequence[int]) -> None:
        self.module, self.bb, self.graph = module, module.bb, graph
        self.param_blocks, self.result_blocks = params, results
        self.env: dict[int, dict[int, Any]] = defaultdict(dict)  # id of Var to its expressions, by block
        self.other: dict[Any, Any] = {}  # old Relax variable that is no tensor (tuples) to the new one
        self._views: dict[Any, Any] = {}
        self._source: dict[Any, Any] = {}  # of a view, the array that it shows

    def run(self, name: str) -> None:
        params = []
        for var, block in zip(self.graph.params, self.param_blocks):
            new = relax.Var(var.relax_var.name, _type(Tensor(var.tensor.shape, var.tensor.dtype, block)))
            self.env[id(var)][block] = new
            params.append(new)
        position = {id(n): k for k, n in enumerate(self.graph.nodes)}
        # a group stands where its last node was: only there are all its operands known
        when: dict[int, Node] = {}
        for node in self.graph.nodes:
            if node.host is None:
                when[position[id(node.absorbed[-1] if node.absorbed else node)]] = node
        with self.bb.function(name, params, private=False):
            with self.bb.dataflow():
                for k in range(len(self.graph.nodes)):
                    if k in when:
                        self._node(when[k])
                results = [self.read(v, Tensor(v.tensor.shape, v.tensor.dtype, b)) for v, b in zip(self.graph.results, self.result_blocks)]
                out = self.bb.emit_output(relax.Tuple(results))
            self.bb.emit_func_output(out)

    def _node(self, node: Node) -> None:
        if node.output is not None and not node.output.constant and self.module.kernels.emit(node, self):
            return
        for single in (node, *node.absorbed):
            if single.anchor == "view" and single.output is not None:
                self.env[id(single.output)][1] = self._view(self.read(single.inputs[0], single.inputs[0].tensor), single.output.tensor)
            else:
                self._copy(single)

    def _copy(self, node: Node) -> None:
        new = self.bb.emit(self._substitute(node.value))
        if node.output is not None:
            self.env[id(node.output)][1] = new
        else:
            self.other[node.relax_var] = new

    def _substitute(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            var = self.graph.vars.get(expr)
            return self.read(var, var.tensor) if var is not None else self.other.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._substitute(f) for f in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._substitute(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            if getattr(expr.op, "name", "") == "relax.call_tir":
                return relax.Call(expr.op, [expr.args[0], *(self._substitute(a) for a in expr.args[1:])], expr.attrs, expr.ty_args)
            return relax.Call(expr.op, [self._substitute(a) for a in expr.args], expr.attrs, expr.ty_args)
        return expr

    # -- what nodes ask for --------------------------------------------------------------------------------------------

    def read(self, var: Var, tensor: Tensor) -> Any:
        """Return a tensor as an array of another layout, or of dimensions of 1 more or fewer."""
        own = var.tensor.shape
        if tensor.block > 1 and own[:2] != tensor.shape[:2]:  # a bias becomes an image first
            plain = self._view(self._stored(var, 1), Tensor(tensor.shape, tensor.dtype))
            return self._relaid(plain, Tensor(tensor.shape, tensor.dtype), tensor.block)
        return self._view(self._stored(var, tensor.block), tensor)

    def _stored(self, var: Var, block: int) -> Any:
        stored = self.env[id(var)]
        if isinstance(var.relax_var, tvm.ir.GenericConst):
            stored.setdefault(1, var.relax_var)
        if block not in stored:
            assert not var.stored, "tensors of a type of their own in memory are read in the layout in which they were written"
            have, expr = next(iter(stored.items()))
            stored[block] = self._relaid(expr, Tensor(var.tensor.shape, var.tensor.dtype, have), block)
        return stored[block]

    def _relaid(self, expr: Any, source: Tensor, block: int) -> Any:
        target = Tensor(source.shape, source.dtype, block)
        if source.same_memory(target):
            return self._view(expr, target)
        name = "pack" if block > 1 else "unpack"
        machine = self.module.kernels.machine
        reach = [[(d, 1, 0) if d != 1 else (-1, 0, 0) for d in range(len(source.shape))]]
        key = ("relayout", source, target)
        return self.call(name, key, lambda: relayout.kernel(source, target, machine), [expr], target, [(0,)], reach)

    def _view(self, expr: Any, tensor: Tensor) -> Any:
        shape = tensor.physical
        if tuple(int(d) for d in expr.ty.shape) == shape:
            return expr
        expr = self._source.get(expr, expr)  # a view of a view is one of the array: TVM would fuse the two to a copy
        if tuple(int(d) for d in expr.ty.shape) == shape:
            return expr
        key = (expr, shape)
        if key not in self._views:
            view = self._views[key] = self.bb.emit(relax.op.reshape(expr, shape))
            self._source[view] = expr
        return self._views[key]

    def transposed(self, var: Var, shape: tuple[int, int]) -> Any:
        """Return a tensor, seen as a matrix of ``shape``, with rows and columns exchanged."""
        return self.bb.emit(relax.op.permute_dims(self._view(self._stored(var, 1), Tensor(shape, var.tensor.dtype)), [1, 0]))

    def call(
        self,
        name: str,
        key: Any,
        make: Callable[[], Any],
        args: Sequence[Any],
        out: Tensor,
        rows: Rows = (),
        reach: Reach = (),
        choosing: Sequence[Sequence[int]] = (),
        masking: Sequence[int] = (),
    ) -> Any:
        """Emit a call of a PrimFunc."""
        gv = self.module.kernel(name, key, make, [*rows, *([] for _ in args[len(rows) :])], reach, choosing, masking)
        return self.bb.emit(relax.call_tir(gv, list(args), _type(out)))

    def write(self, var: Var, tensor: Tensor, expr: Any) -> None:
        """Define a tensor of the function."""
        own = Tensor(var.tensor.shape, var.tensor.dtype, tensor.block)
        self.env[id(var)][tensor.block] = self._view(expr, own)


def _type(tensor: Tensor) -> Any:
    return relax.TensorType(tensor.physical, memory_type(tensor.dtype))
