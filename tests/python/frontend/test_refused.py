# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What cannot be compiled is refused with the user's file, line, code, and a suggestion."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
from torch import nn

from dycl_tvm.errors import PathExplosionError, UnsupportedError
from dycl_tvm.frontend.python import stage

COUNT = 0


class NoSource(nn.Module):
    exec("def forward(self, x):\n    self.last = x\n    return x")


class Box:
    def __init__(self, x):
        self.x = x


def rows_of_nonzero(x):
    return torch.nonzero(x).mode(0)  # HERE


def mode_of_mask(x):
    return torch.mode(x[x > 0])  # HERE


def unique(x):
    y = x + 1
    return torch.unique(y, dim=0)  # HERE


def numpy_call(x):
    return np.sum(x.numpy())  # HERE


def numpy_array(x):
    return np.asarray([x[0, 0], 1.0])  # HERE


def random_distribution(x):
    return torch.binomial(x, x)  # HERE


def random_number(x):
    return x * random.random()  # HERE


def random_range(x):
    return torch.randint(0, int(x.sum()), (2,))  # HERE


def random_seed(x):
    return x * torch.seed()  # HERE


def clock(x):
    return x * time.sleep(0)  # HERE


def printing(x):
    print(x)  # HERE
    return x


def print_by_map(x):
    return list(map(print, [x]))  # HERE


def file_io(x):
    with open("/dev/null") as f:  # HERE
        f.read()
    return x


def shape_from_value(x):
    n = int(x.sum())
    return torch.zeros(n)  # HERE


def windows_of_two_slices_by_value(x):
    n = int(x.sum())
    return x[n:, n:].unfold(0, 2, 1)  # HERE


def repeat_by_value(x):
    return x.repeat(int(x.sum()), 1)  # HERE


def complex_numbers(x):
    return x * complex(float(x.sum()), 1.0)  # HERE


def format_a_value(x):
    name = f"layer{int(x.sum())}"  # HERE
    return getattr(x, name)


def dict_with_a_tensor_key(x):
    return {(1, 2): x}  # HERE


def resize_in_place(x):
    y = x.clone()
    y.resize_(3, 2)  # HERE
    return y


def round_digits(x):
    return round(x.sum().item(), -2)  # HERE


def identity_of_number(x):
    return int(x.sum()) is 3  # HERE  # noqa: F632


def power_of_ints(x):
    n = int(x.sum())
    return 2**n  # HERE


def math_function(x):
    import math

    return math.atan2(x.sum().item(), 1.0)  # HERE


def growing_list(x):
    out = []
    while x.sum() < 10:
        out.append(x)  # in a loop
        x = x + 1
    return len(out)


def shape_changes_in_a_loop(x):
    y = x
    while y.sum() < 10:  # HERE
        y = torch.cat([y, x])
    return y


def class_pattern(x):
    match int(x.sum()):  # HERE
        case int():
            return x
        case _:
            return -x


def other_device(x):
    return x.to("cuda") * 2  # HERE


def deepcopy_pickle(x):
    import pickle

    return pickle.dumps(x)  # HERE


def tolist_large(x):
    return x.repeat(100, 100).tolist()  # HERE


def async_helper(x):
    async def g(v):  # HERE
        return v

    return g(x)


CASES = [
    rows_of_nonzero,
    mode_of_mask,
    unique,
    numpy_call,
    numpy_array,
    random_distribution,
    random_number,
    random_range,
    random_seed,
    clock,
    printing,
    print_by_map,
    print_by_map,
    file_io,
    shape_from_value,
    windows_of_two_slices_by_value,
    repeat_by_value,
    complex_numbers,
    format_a_value,
    dict_with_a_tensor_key,
    resize_in_place,
    round_digits,
    identity_of_number,
    power_of_ints,
    math_function,
    growing_list,
    shape_changes_in_a_loop,
    class_pattern,
    other_device,
    deepcopy_pickle,
    tolist_large,
    async_helper,
]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_refused(function):
    with pytest.raises(UnsupportedError) as caught:
        stage(function, (torch.tensor([[0.5, 1.5]]),))
    error = caught.value
    text = str(error)
    assert error.origin is not None, text
    assert error.origin.file == __file__
    marked = [i for i, line in enumerate(open(__file__).read().splitlines(), 1) if "# HERE" in line]
    start = function.__code__.co_firstlineno
    wanted = [i for i in marked if start <= i][:1]
    if function is not growing_list:
        assert error.origin.line in wanted, (error.origin.line, wanted, text)
    assert error.suggestion, text
    assert f'File "{__file__}", line {error.origin.line}' in text and error.origin.code in text and "^" in text


def test_source_that_cannot_be_found():
    with pytest.raises(UnsupportedError, match="source of forward.*and it stores"):
        stage(NoSource().eval(), (torch.ones(1, 2),))


def test_too_many_forks_name_the_if():
    def f(x):
        out = {}
        for _ in range(12):
            if x.sum() > 0:
                out[len(out)] = x
            x = x * 0.9
        return out

    with pytest.raises(PathExplosionError) as caught:
        stage(f, (torch.ones(1, 2),), max_paths=100)
    assert "if x.sum() > 0" in str(caught.value)
