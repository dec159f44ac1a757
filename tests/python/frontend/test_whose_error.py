# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Whose error it is: what eager raises too is a path of the network, all else is a refusal. And questions that stand-ins answer."""

from __future__ import annotations

import collections.abc
import functools

import pytest
import torch
from differential import check

from dycl_tvm.errors import InternalError, StagingLimitError, UnsupportedError
from dycl_tvm.frontend.python import stage
from dycl_tvm.frontend.trace.values import torch_calls

X = [(torch.tensor([[a, 2 * a, 0.3], [a, -0.1, 1.0]]),) for a in (0.5, -1.0, 2.0)]


def shapes(x):
    return x @ x if x.sum() > 0 else x - 1


def positions(x):
    return [x][3] if x.sum() > 0 else x - 1


def keys(x):
    return {"a": x}["b"] if x.sum() > 0 else x - 1


def classes(x):
    return x + "a" if x.sum() > 0 else x - 1


def plain(x):
    return x * (1 / len([])) if x.sum() > 0 else x - 1


def attribute(x):
    return x.no_such_thing if x.sum() > 0 else x - 1


def own_check(x):
    if x.sum() > 0:
        raise LookupError("none")
    assert x.sum() < -100
    return x


def types_of_numbers(x):
    positive = x.sum().item() > 0
    return x - positive if positive else x + positive


def types_of_factors(x):
    return x.long().add(x.long(), alpha=x.sum().item()) if x.sum() > 0 else x.long() * int(x.sum())


def ambiguous(x):
    return (x * 2 if x > 0 else x) if x.sum() > 0 else x - 1


def caught(x):
    y = x
    try:
        if x.sum() > 0:
            y = torch.cat([x, x[0]])
    except RuntimeError:
        y = x * 3
    return y


def unpacked(x):
    if x.sum() > 0:
        a, b, c = x
        return a
    return x


@pytest.mark.parametrize(
    "f", [shapes, positions, keys, classes, plain, attribute, own_check, types_of_numbers, types_of_factors, ambiguous, caught, unpacked]
)
def test_an_error_of_the_program_is_raised_on_its_path(f):
    check(f, X, paths=2)


def method_of_numbers(x):
    return x * 2 if x.sum() > 0 and x.sum().item().as_integer_ratio()[1] == 1 else x - 1


def repeated_text(x):
    return len("a" * int(x.sum())) if x.sum() > 0 else 0


def handled(x):
    y = x
    if x.sum() > 0:
        try:
            y = x[torch.nonzero(x)[0]]
        except Exception:
            y = x * 3
    return y


class Swallows:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return True


def swallowed(x):
    y = x
    if x.sum() > 0:
        with Swallows():
            y = x[torch.nonzero(x)[0]]
    return y


@pytest.mark.parametrize("f", [method_of_numbers, repeated_text, handled, swallowed])
def test_what_goes_wrong_in_staging_only_is_refused(f):
    with pytest.raises(UnsupportedError):
        stage(f, X[0])


class Odd:
    def __init__(self, answer):
        self.answer = answer

    def __bool__(self):
        return self.answer


class Sized:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def odd_truth(x):
    return (1 if Odd(1.5) else 2) if x.sum() > 0 else 0


def odd_length(x):
    return (1 if Sized(-1) else 2) if x.sum() > 0 else 0


def sizes(x):
    return (1 if Sized(0) else 2), (1 if Sized(3) else 2), (1 if Odd(x.sum() > 0) is None else 0)


@functools.singledispatch
def kind_of(x):
    return 0


@kind_of.register
def _(x: torch.Tensor):
    return 1


@kind_of.register
def _(x: float):
    return 2


def questions(x):
    y = x * 2 if x.sum() > 0 else x
    n = y.sum().item()
    return (
        [y.__class__ is torch.Tensor, n.__class__ is float, type(y) is torch.Tensor, issubclass(type(n), float)],
        [isinstance(y, torch.FloatTensor), isinstance(y, torch.LongTensor), isinstance(y.long(), torch.LongTensor)],
        [isinstance(y, collections.abc.Iterable), isinstance(y, (int, torch.Tensor)), isinstance(y, torch.nn.Parameter)],
        [kind_of(y), kind_of(n), kind_of(3), callable(y), hasattr(y, "shape"), hasattr(y, "no_such_thing"), getattr(y, "other", 5)],
    )


@pytest.mark.parametrize("f", [odd_truth, odd_length, sizes, questions])
def test_stand_ins_answer_as_what_they_stand_for(f):
    check(f, X)


def handled(x):
    if x.sum() > 0:
        try:
            return x + x.cos()
        except TypeError:
            return x * 100
    return x


def test_a_defect_in_an_operator_is_no_type_error_of_the_program(monkeypatch):
    """PyTorch's operators make NotImplemented of a TypeError, and Python then says that the operand is not supported."""

    def broken(*args):
        raise TypeError("a defect")

    monkeypatch.setitem(torch_calls.HANDLERS, torch.Tensor.add, broken)
    monkeypatch.setitem(torch_calls.HANDLERS, torch.Tensor.__add__, broken)
    with pytest.raises(InternalError, match="a defect"):
        stage(handled, X[0])


def pooled(x):
    return torch.nn.functional.adaptive_avg_pool2d(x[None], (int((x > 0).sum()) + 1, 1))


def test_a_check_without_data_that_fails_otherwise_than_eager():
    """PyTorch's check of sizes for tensors without data asks an int for a bool, which is a TypeError; eager raises a RuntimeError."""

    def f(x):
        try:
            return torch.nn.functional.interpolate(x[:0].expand(1, 4, 0) * 1, size=3)
        except RuntimeError:
            return x

    check(f, [(torch.ones(3),)])


def test_a_size_that_pytorch_wants_to_know_is_named():
    with pytest.raises(UnsupportedError, match="is given a size that is known only at run time"):
        stage(pooled, X[0])


@pytest.mark.parametrize("function", [torch.index_select, torch.Tensor.index_fill, torch.Tensor.index_add, torch.Tensor.index_copy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_tensor_that_is_no_index(function, dtype) -> None:
    """Eager raises, and the program's handler takes over."""
    more = {torch.index_select: (), torch.Tensor.index_fill: (2.0,)}

    def model(x, i):
        try:
            return function(x, 0, i, *more.get(function, (x,)))
        except (RuntimeError, IndexError):
            return x * 2

    check(model, [(torch.randn(2, 3), torch.tensor([1, 0]).to(dtype))])


def test_memory_that_staging_lacks_is_no_error_of_the_program():
    """A call makes no more than it needs, where staging makes room for the longest."""

    def program(x):
        try:
            return torch.arange(int(x.sum()))[:2]
        except RuntimeError:
            return x

    with pytest.raises(StagingLimitError, match="more memory than there is"):
        stage(program, X[2], max_length=1 << 50)
