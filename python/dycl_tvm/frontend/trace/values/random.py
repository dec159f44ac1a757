# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Random operators of ATen, recorded as draws from the state of their generator (:mod:`dycl_tvm.hcfg.draws`).

A draw gives its numbers in the order in which ATen writes them to memory, so a tensor that is not contiguous is drawn with its dimensions
in the order of its strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.unrecorded import plainly
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arguments import key_of, sorted_leaves
from dycl_tvm.frontend.trace.values.blame import of_program
from dycl_tvm.frontend.trace.values.elements import elements
from dycl_tvm.frontend.trace.values.folding import FOLD_LIMIT, Folded, constant_of, made_once
from dycl_tvm.frontend.trace.values.generators import kind_in_force, state_of
from dycl_tvm.frontend.trace.values.gpu_draws import check_origin, check_size, keep_of, refuse_on_gpu
from dycl_tvm.frontend.trace.values.layouts import layouts_of, meta_of
from dycl_tvm.frontend.trace.values.storage import DTYPE_NAMES
from dycl_tvm.frontend.trace.values.tensors import emit_one, fresh, fresh_like, op_name, read, write
from dycl_tvm.hcfg.cuda_draws import is_of_device
from dycl_tvm.hcfg.draws import CPU
from dycl_tvm.hcfg.known_draws import is_known
from dycl_tvm.hcfg.nodes import Constant, Value
from dycl_tvm.hcfg.types import TensorType

aten = torch.ops.aten
#: Random operators as functions of a state; those that are recorded are of the kind in force.
draws = CPU.draws
Dispatch = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
Meta = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
#: Elements of one draw that PyTorch computes in another way if they are contiguous.
_AT_ONCE = 16
#: Arguments that switch randomness on, and what switches it off.
_SWITCHES = {"train": (False,), "training": (False,), "dropout_p": (0, 0.0)}


def is_random(func: Any) -> bool:
    """Whether an operator may draw random numbers: PyTorch says so of its operators."""
    return torch.Tag.nondeterministic_seeded in func.tags


def draws_nothing(func: Any, bound: dict[str, Any]) -> bool:
    """Whether the arguments of an operator, by their names, switch its randomness off."""
    for a in func._schema.arguments:
        if a.name in _SWITCHES:
            return bound.get(a.name, a.default_value) in _SWITCHES[a.name]
    return False


def seed_by(generator: torch.Generator | None, seed: Any) -> None:
    """Give a generator a seed: a number of Python, or one known only at run time."""
    operand = scalars.operand_of(seed) if scalars.is_symbolic(seed) else None
    if operand is None:
        with plainly():
            made = torch.Generator().manual_seed(seed)  # PyTorch says whether it is one
            value: Value = made_once(("seed", made.initial_seed()), lambda: kind_in_force().of_seed(made.initial_seed()))
    else:
        number = current().builder.host_op("to_tensor", (operand,), TensorType((), "int64"))
        value = _record(draws.seeded.default, (number,), [kind_in_force().state])[0]
    write(state_of(generator), value)


def draw(dispatch: Dispatch, meta_result: Meta, func: Any, bound: dict[str, Any]) -> Any:
    """Record a random operator.

    Parameters
    ----------
    dispatch : callable
        Records an operator.
    meta_result : callable
        Runs an operator on the device ``meta``.
    func, bound
        The operator, and its arguments by their names.
    """
    bound = dict(bound)
    generator = bound.pop("generator", None)
    name = func._opname
    handler = _HANDLERS.get(name.rstrip("_").removesuffix("_functional").removesuffix("_like"))
    if handler is None or "out" in bound or (func is aten.random.default or func is aten.random_.default):
        raise UnsupportedError(
            f"{name}() gives random numbers in a way that is not supported",
            current().origin(),
            "use rand, randn, randint, randperm, bernoulli, multinomial, dropout, uniform_, normal_, exponential_, geometric_, cauchy_, "
            "log_normal_ or poisson, or pass the random numbers in as an input",
        )
    if any(scalars.is_symbolic(x) for x in sorted_leaves(tuple(bound.values()))[1]):
        raise UnsupportedError(
            f"{name}() takes a number known only at run time",
            current().origin(),
            "draw as many numbers as there can be with torch.rand() or randn(), and compute with them, or take a part of them",
        )
    if kind_in_force() is not CPU:
        check_origin(func)
    state = state_of(generator)
    target = bound["self"] if name.endswith("_") else None
    if target is not None:
        if layouts_of(target) is not None:
            layouts_of(target).settle()  # type: ignore[union-attr]
        like = meta_of(tuple(target.shape), tuple(target.stride()), target.dtype)
    else:
        like = bound["self"] if name == "_standard_gamma" else _meta(meta_result, func, bound)  # before 2.13 it has no meta kernel
        if name in _ROW_BY_ROW:
            given = [bound[n] for n in ("mean", "std", "self") if isinstance(bound.get(n), torch.Tensor)]
            like = meta_of(tuple(like.shape), None, given[0].dtype if given else like.dtype)
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    value = handler(_Draw(dispatch, state, like), {**defaults, **bound})
    if name in _POSITIONS and not isinstance(value, Constant):
        elements().given[value] = 0, _POSITIONS[name](bound) - 1
    if target is None:
        return fresh_like(like, value)
    write(target, value)
    return target


def _meta(meta_result: Meta, func: Any, bound: dict[str, Any]) -> torch.Tensor:
    """Return what the result looks like; a generator is of a device, so the overload without one says it."""
    overload = func._overloadname
    if "generator" in overload:
        wanted = overload.replace("_generator", "").replace("generator", "") or "default"
        packet = getattr(aten, func._opname)
        func = getattr(packet, wanted) if wanted in packet.overloads() else func
    names = [a.name for a in func._schema.arguments]
    keyword = {a.name for a in func._schema.arguments if a.kwarg_only}
    given = {n: bound[n] for n in names if n in bound}
    positional: list[Any] = []
    for n in names:
        if n in keyword or n not in given:
            break
        positional.append(given.pop(n))
    found: torch.Tensor = meta_result(func, tuple(positional), given)
    return found


class _Draw:
    """One draw: the state, and the shape, strides and type of what is drawn."""

    def __init__(self, dispatch: Dispatch, state: torch.Tensor, like: torch.Tensor) -> None:
        self.dispatch, self._state, self.like = dispatch, state, like
        if layouts_of(like) is not None:
            layouts_of(like).settle()  # type: ignore[union-attr]
        shape, strides = like.shape, like.stride()
        if any(n > 1 and s == 0 for n, s in zip(shape, strides)):
            raise UnsupportedError("random numbers in elements that share memory", current().origin(), "copy the tensor before: t.clone()")
        #: The dimensions as they lie in memory.
        self.order = sorted(range(like.dim()), key=lambda d: -strides[d] if shape[d] > 1 else 0)
        self.is_plain = like.is_contiguous() or self.order == list(range(like.dim()))
        self.sizes = list(shape) if self.is_plain else [shape[d] for d in self.order]

    def of_size(self, op: Any, *params: Any, extra: tuple[Any, ...] = ()) -> Value:
        """Draw numbers of one distribution; complex ones are pairs of it."""
        dtype = self.like.dtype
        if not dtype.is_complex or op not in (draws.uniform.default, draws.normal.default):
            return self.in_order(self.run(op, (self.sizes, *params, dtype, *extra), tuple(self.sizes), dtype))
        refuse_on_gpu("random complex numbers", "draw their parts")
        pairs = [*self.sizes, 2]
        made = self.run(op, (pairs, *params, dtype.to_real(), *extra), tuple(pairs), dtype.to_real())
        return self.in_order(emit_one(aten.view_as_complex.default, (made,), TensorType(tuple(self.sizes), DTYPE_NAMES[dtype])))

    def in_memory(self, t: torch.Tensor) -> Value:
        """Return an operand that has the shape of what is drawn, with its dimensions as those lie in memory."""
        if tuple(t.shape) != tuple(self.like.shape):
            t = self.dispatch(aten.expand.default, (t, list(self.like.shape)), {})
        value = read(t)
        return value if self.is_plain else emit_one(aten.permute.default, (value, self.order), _type(self.sizes, t.dtype))

    def in_order(self, value: Value) -> Value:
        """Put the dimensions of what was drawn into their order."""
        if self.is_plain:
            return value
        back = [self.order.index(d) for d in range(len(self.order))]
        return emit_one(aten.permute.default, (value, back), TensorType(tuple(self.like.shape), DTYPE_NAMES[self.like.dtype]))

    def run(self, op: Any, args: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        """Draw, and change the state."""
        values = [a for a in args if isinstance(a, Value)]
        if not values:
            _try(op, args)
        check_size(shape, dtype)
        if 0 in shape:
            return made_once(("empty", tuple(shape), dtype), lambda: torch.empty(shape, dtype=dtype))
        made, state = _record(op, (read(self._state), *args), [_type(shape, dtype), kind_in_force().state])
        write(self._state, state)
        return made


def _type(shape: Any, dtype: torch.dtype) -> TensorType:
    if dtype not in DTYPE_NAMES or dtype.is_complex:
        raise UnsupportedError(f"random numbers of {dtype}", current().origin(), "draw float32")
    return TensorType(tuple(map(int, shape)), DTYPE_NAMES[dtype])


def _try(op: Any, args: tuple[Any, ...]) -> None:
    """Let PyTorch say what is wrong with the parameters of a draw."""
    first = args[0] if isinstance(args[0], int) else [min(n, 1) for n in args[0]]
    try:
        with plainly():
            op(CPU.first(), first if op is not draws.permutation.default else min(first, 1), *args[1:])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise of_program(error) from None


def _record(op: Any, args: tuple[Any, ...], types: list[Any]) -> tuple[Value, ...]:
    """Record a draw; one from a state that is known is made at once."""
    op = getattr(kind_in_force().draws, op._opname).default
    values = [a for a in args if isinstance(a, Value)]
    constant = all(isinstance(v, Constant) for v in values) and sum(t.numel for t in types) <= FOLD_LIMIT
    if not constant or is_of_device(op_name(op), types[0].numel):
        if kind_in_force() is CPU and op._opname != "seeded":
            _check_known(op._opname, types[0].dtype)
        made = current().builder.tensor_op(op_name(op), args, {}, types, values)
        assert all(v is not None for v in made)
        return made  # type: ignore[return-value]
    known = current().get(Folded).known
    key = (op, tuple(map(id, values)), key_of(tuple(None if isinstance(a, Value) else a for a in args)))
    if key not in known:
        with plainly():
            result = op(*[a.data if isinstance(a, Constant) else a for a in args])
            results = result if isinstance(result, (tuple, list)) else (result,)
            known[key] = (tuple(map(constant_of, results)), values)
    found: tuple[Value, ...] = known[key][0]
    return found


def _check_known(name: str, dtype: str) -> None:
    """Refuse a draw whose numbers a library would not give as this PyTorch does."""
    with plainly():  # PyTorch's own draws are tried
        known = is_known(name, getattr(torch, dtype))
    if not known:
        raise UnsupportedError(
            f"PyTorch {torch.__version__} on this machine draws other random numbers of {dtype} here ({name.removesuffix('_some')}) than "
            "a compiled network does",
            current().origin(),
            "draw float32 and convert it, or build with PyTorch 2.13 on a processor with AVX2",
        )


def draw_some(name: str, count: torch.Tensor, size: int, dtype: torch.dtype, generator: Any, *params: Any) -> torch.Tensor:
    """Record a draw of as many numbers as a tensor says, at most ``size``, in a row.

    Parameters
    ----------
    name : str
        ``uniform``, or ``normal``: that takes a tensor first that says whether they are drawn one by one.
    """
    refuse_on_gpu("random numbers of which there are as many as the data decide", "draw as many as there can be, and take a part")
    state, check = state_of(generator), [read(p) for p in params]
    if not size:
        return torch.empty(0, dtype=dtype)
    op = getattr(draws, f"{name}_some").default
    made, after = _record(op, (read(state), read(count), *check, size, 0.0, 1.0, dtype), [_type((size,), dtype), kind_in_force().state])
    write(state, after)
    return fresh(made)


def gpu_dropout(dispatch: Dispatch, x: torch.Tensor, p: Any = 0.5, *_: Any, **__: Any) -> torch.Tensor:
    """Record a dropout in training mode as one kernel of a GPU draws it."""
    keep, scale = keep_of(x, p)
    state = state_of(None)
    kind, shape = kind_in_force(), tuple(x.shape)
    check_size(shape, x.dtype)
    made, after = _record(kind.draws.dropout.default, (read(state), list(shape), keep, x.dtype), [_type(shape, x.dtype), kind.state])
    write(state, after)
    kept = dispatch(aten.mul.Tensor, (x, fresh_like(meta_of(shape, x.stride(), x.dtype), made)), {})
    result: torch.Tensor = dispatch(aten.mul.Scalar, (kept, scale), {})
    return result


# -- the operators -----------------------------------------------------------------------------------------------------
def _uniform(d: _Draw, bound: dict[str, Any]) -> Value:
    return d.of_size(draws.uniform.default, float(bound.get("from", 0)), float(bound.get("to", 1)))


def _standard_normal(d: _Draw, bound: dict[str, Any]) -> Value:
    return _normal(d, {})


def _normal(d: _Draw, bound: dict[str, Any]) -> Value:
    mean, std = bound.get("mean", 0.0), bound.get("std", 1.0)
    is_complex = d.like.dtype.is_complex
    at_once = d.like.numel() * (1 + is_complex) >= _AT_ONCE and d.like.is_contiguous()
    if is_complex:
        if isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor) or isinstance(mean, complex):
            raise UnsupportedError("complex random numbers with tensors as their mean or spread", current().origin(), "draw with numbers")
        return d.of_size(draws.normal.default, float(mean), float(std) / math.sqrt(2), extra=(not at_once,))
    if not isinstance(mean, torch.Tensor) and not isinstance(std, torch.Tensor):
        return d.of_size(draws.normal.default, float(mean), float(std), extra=(not at_once,))
    dtype = d.like.dtype
    if isinstance(std, torch.Tensor) and kind_in_force() is CPU and {getattr(x, "dtype", dtype) for x in (mean, std)} == {dtype}:
        mean = mean if isinstance(mean, torch.Tensor) else d.dispatch(aten.full.default, ([], float(mean)), {"dtype": dtype})
        args = (d.in_memory(mean), d.in_memory(std), not at_once)
        return d.in_order(d.run(draws.normal_each.default, args, tuple(d.sizes), dtype))
    # as ATen does: draw, and compute with tensors
    scaled = isinstance(std, torch.Tensor)
    made = fresh_like(d.like, d.of_size(draws.normal.default, 0.0, 1.0 if scaled else float(std), extra=(not at_once,)))
    for op, operand in ((aten.mul.Tensor, std), (aten.add.Tensor, mean)):
        if operand is mean or scaled:  # in place, so the dtype stays
            made = d.dispatch(aten._to_copy.default, (d.dispatch(op, (made, operand), {}),), {"dtype": dtype})
    return read(made)


def _of_each(op: Any, parameter: str) -> Callable[[_Draw, dict[str, Any]], Value]:
    """Return the handler of a draw that takes a tensor with a parameter for each number."""

    def handler(d: _Draw, bound: dict[str, Any]) -> Value:
        refuse_on_gpu("random numbers of this distribution", "pass them in as an input")
        return d.run(op, (d.in_memory(bound[parameter]),), tuple(d.sizes), d.like.dtype)

    return handler


def _integers(d: _Draw, bound: dict[str, Any]) -> Value:
    low, high = bound.get("low", bound.get("from", 0)), bound.get("high", bound.get("to"))
    if high is None:
        raise UnsupportedError("random_() without an upper bound", current().origin(), "give it one: t.random_(0, n)")
    return d.of_size(draws.integers.default, int(low), int(high))


def _bernoulli(d: _Draw, bound: dict[str, Any]) -> Value:
    p = bound["p"] if "p" in bound else bound["self"]
    if not isinstance(p, torch.Tensor):
        return d.of_size(draws.bernoulli.default, float(p))
    if not p.is_floating_point():
        raise of_program(RuntimeError(f'"bernoulli_tensor_cpu_p_" not implemented for {p.dtype}'))
    if not (d.like.is_contiguous() and d.like.numel()):
        refuse_on_gpu("bernoulli() of probabilities that are not contiguous, or empty", "copy them before: p.contiguous()")
    return d.in_order(d.run(draws.bernoulli_each.default, (d.in_memory(p), d.like.dtype), tuple(d.sizes), d.like.dtype))


def _permutation(d: _Draw, bound: dict[str, Any]) -> Value:
    refuse_on_gpu("randperm(), whose order is that of a sorting program of CUDA's", "use torch.argsort(torch.rand(n))")
    return d.run(draws.permutation.default, (int(bound["n"]), d.like.dtype), tuple(d.like.shape), d.like.dtype)


def _multinomial(d: _Draw, bound: dict[str, Any]) -> Value:
    weights = bound["self"]
    with plainly():
        exponential = torch.empty_like(meta_of(tuple(weights.shape), tuple(weights.stride()), weights.dtype))
    by_columns = not exponential.is_contiguous() and exponential.dim() == 2
    if int(bound["num_samples"]) != 1:
        refuse_on_gpu("multinomial() of several samples", "draw one at a time: num_samples=1")
    args = (read(weights), int(bound["num_samples"]), bool(bound.get("replacement", False)), by_columns)
    return d.run(draws.multinomial.default, args, tuple(d.like.shape), d.like.dtype)


def _of(op: Any, **defaults: float) -> Callable[[_Draw, dict[str, Any]], Value]:
    return lambda d, bound: d.of_size(op, *[float(bound.get(name, default)) for name, default in defaults.items()])


#: Operators that draw positions, and among how many.
_POSITIONS: dict[str, Callable[[dict[str, Any]], int]] = {
    "multinomial": lambda bound: int(bound["self"].shape[-1]),
    "randperm": lambda bound: int(bound["n"]),
}

#: Operators whose result lies row by row in memory, however their operands do, and is of the type of the first of them.
_ROW_BY_ROW = frozenset(["normal", "poisson", "_standard_gamma"])

_HANDLERS: dict[str, Callable[[_Draw, dict[str, Any]], Value]] = {
    "rand": _uniform,
    "uniform": _uniform,
    "randn": _standard_normal,
    "normal": _normal,
    "randint": _integers,
    "random": _integers,
    "bernoulli": _bernoulli,
    "randperm": _permutation,
    "multinomial": _multinomial,
    "exponential": _of(draws.exponential.default, lambd=1.0),
    "geometric": _of(draws.geometric.default, p=0.0),
    "cauchy": _of(draws.cauchy.default, median=0.0, sigma=1.0),
    "log_normal": _of(draws.log_normal.default, mean=1.0, std=2.0),
    "poisson": _of_each(draws.poisson.default, "self"),
    "_standard_gamma": _of_each(draws.gamma.default, "self"),
}
