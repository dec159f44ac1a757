# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Runs an FX graph of ATen and control flow operators on staged tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._library import custom_ops

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.exported import attention, control_flow
from dycl_tvm.frontend.exported.session import ExportedSession
from dycl_tvm.frontend.trace.control_flow import Dead
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.aten_functions import call_by_function
from dycl_tvm.frontend.trace.values.extremes import extremum
from dycl_tvm.frontend.trace.values.grown_calls import has_rule
from dycl_tvm.frontend.trace.values.math_calls import MATH_FUNCTIONS, math_call
from dycl_tvm.frontend.trace.values.recorder import dispatch, item, truth_of
from dycl_tvm.hcfg.quantized import DECOMPOSED

aten = torch.ops.aten
HANDLERS = control_flow.HANDLERS | attention.HANDLERS


def run_graph(session: ExportedSession, module: torch.fx.GraphModule, args: Sequence[Any]) -> list[Any] | None:
    """Record a whole program; return its flat results, None if every path ends in an error."""
    try:
        return pytree.tree_leaves(run_module(session, module, args), is_leaf=lambda x: x is None)
    except Dead:
        return None


def run_module(session: ExportedSession, module: Any, args: Sequence[Any]) -> Any:
    """Record one graph module, called from the node at hand, and return what its output node holds."""
    if not isinstance(module, torch.fx.GraphModule):
        session.refuse(f"a control flow operator calls a {type(module).__name__}, which is no graph", "export the model again")
    told = session.told
    try:
        return _run_nodes(session, module, args)
    finally:
        session.forget(told)  # a branch or body that is left, or never entered: its assertions say nothing of what follows


def _run_nodes(session: ExportedSession, module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
    caller = session.node
    env: dict[torch.fx.Node, Any] = {}
    given = iter(args)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            env[node] = next(given)
            continue
        if node.op == "get_attr":
            env[node] = operator.attrgetter(node.target)(module)
            continue
        if _is_unused_random(node):
            continue
        inputs, named = torch.fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            session.node = caller
            return inputs[0]
        if node.op != "call_function":
            session.refuse(f"the node {node.name} is a {node.op}, which no exported program has", "export the model again")
        # A node that the exporter made for a call of a graph has no place in the user's code: then the caller's is the best known.
        session.node = node if node.meta.get("stack_trace") else caller
        env[node] = _call(session, node.target, inputs, named)
    raise AssertionError("a graph without output")


def _is_unused_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers that nothing reads: the exporter keeps it, for it moves the generator on."""
    target = node.target
    random = isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
    return random and not node.users and not target._schema.is_mutable  # type: ignore[union-attr]


def _call(session: ExportedSession, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(target, torch._ops.HigherOrderOperator):
        handler = HANDLERS.get(target.name())
        if handler is None:
            session.refuse(
                f"the higher-order operator {target.name()} is not supported",
                f"express it by operators of PyTorch, or by one of {', '.join(sorted(HANDLERS))}",
            )
        assert handler is not None
        return handler(session, run_module, *args, **kwargs)
    if target in ASSERTIONS:
        return ASSERTIONS[target](session, *args, **kwargs)
    if target in SCALARS and any(scalars.is_symbolic(a) for a in args):
        return SCALARS[target](*args, **kwargs)
    try:
        if isinstance(target, torch._ops.OpOverload):
            return _call_operator(session, target, args, kwargs)
        return target(*args, **kwargs)
    except UnsupportedError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"{target} failed on the given shapes: {error}", session.origin(), "give example inputs on which the exported program runs"
        ) from error


def _call_operator(session: ExportedSession, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if target in (aten.item.default, aten._local_scalar_dense.default):
        return item(args[0])
    if target.name() == "export::access_subclass_inner_tensor":  # a weight of a class that holds it as other tensors
        return getattr(*args)
    if target.namespace not in ("aten", "prims", "torchvision", DECOMPOSED):
        return _custom(session, target, args, kwargs)
    # The exporter writes a view where it is known to be one, of whatever the tensor is a view of.
    made = call_by_function(aten.reshape.default if target is aten.view.default else target, args, kwargs, has_rule)
    if made is not NotImplemented:
        return made
    if any(scalars.is_symbolic(a) for a in pytree.tree_leaves((args, kwargs))):
        if target is aten.select.int:
            index = (*[slice(None)] * (args[1] % args[0].dim()), args[2])
            return args[0][index]
        return dispatch(target, args, kwargs)
    return target(*args, **kwargs)


def _custom(session: ExportedSession, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator of the user's own: one that consists of ATen operators, or whose code is a Python function (``custom_op``)."""
    if target._can_decompose():
        return target.decompose(*args, **kwargs)
    function = _python_code(target)
    if function is not None:
        return function(*args, **kwargs)
    return session.refuse(
        f"the operator {target} is not PyTorch's, and its code is not known to the program",
        "define it by torch.library.custom_op, register it with CompositeImplicitAutograd, or write it with PyTorch's operators",
    )


def _python_code(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Return the function that runs an operator on the CPU, where ``torch.library.custom_op`` made it from a Python function.

    It is run on staged tensors as any code is: what it does to values other than by PyTorch's operators is refused there.
    """
    definition = custom_ops.OPDEFS.get(target.name())
    if definition is None:
        return None
    kernels = definition._backend_fns
    return kernels.get("cpu", kernels.get(None))


# -- assertions --------------------------------------------------------------------------------------------------------
def _assert_scalar(session: ExportedSession, cond: Any, message: str = "assertion failed") -> None:
    session.check(scalars.truth_operand(cond), "RuntimeError", message)
    if scalars.is_symbolic(cond) and cond.node.test is not None:
        session.holds(cond.node.test)


def _assert_tensor(
    session: ExportedSession, cond: torch.Tensor, message: str = "Expected Tensor with single nonzero value, but got zero", *_: Any
) -> None:
    session.check(truth_of(cond), "RuntimeError", message)


def _in_range(session: ExportedSession, x: Any, *, min: int | None = None, max: int | None = None) -> None:
    for bound, holds in ((min, lambda: x >= min), (max, lambda: x <= max)):
        if bound is not None and abs(bound) < 2**62:
            _assert_scalar(session, holds(), f"Invalid value range: expected {min} to {max}")


def _nothing(*_: Any, **__: Any) -> None:
    """An assertion about dtype, layout or device, which the exporter has checked."""


ASSERTIONS: dict[Any, Callable[..., Any]] = {
    aten._assert_scalar.default: _assert_scalar,
    aten._assert_async.default: _assert_tensor,
    aten._assert_async.msg: _assert_tensor,
    aten._functional_assert_async.msg: _assert_tensor,
    aten.sym_constrain_range.default: _in_range,
    aten.sym_constrain_range_for_size.default: _in_range,
    aten._assert_tensor_metadata.default: _nothing,
}

# -- host scalars ------------------------------------------------------------------------------------------------------
SCALARS: dict[Any, Callable[..., Any]] = {
    torch.sym_float: lambda x: scalars.convert(x, "float"),
    torch.sym_int: lambda x: scalars.convert(x, "int"),
    torch.sym_not: scalars.logical_not,
    torch.sym_max: lambda a, b: extremum([a, b], largest=True),
    torch.sym_min: lambda a, b: extremum([a, b], largest=False),
    torch.sym_ite: scalars.select,
    operator.not_: scalars.logical_not,
    round: lambda x, *rest: type(x).__round__(x, *rest),  # type: ignore[attr-defined]
    **{
        fn: lambda x, n=n: type(x).__dict__[n](x)
        for fn, n in ((math.floor, "__floor__"), (math.ceil, "__ceil__"), (math.trunc, "__trunc__"))
    },
    **{fn: lambda x, n=n: math_call(n, x) for fn, n in MATH_FUNCTIONS.items()},
    **{getattr(torch, f"_sym_{n}"): lambda x, n=n: math_call(n, x) for n in ("sqrt", "sin", "cos", "tanh") if hasattr(torch, f"_sym_{n}")},
}
