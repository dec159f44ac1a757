# Licensed under the Apache License, Version 2.0; see LICENSE.
# ruff: noqa: UP031, UP032  (the older ways to make texts are what is tested)
"""Texts of which a part is known only at run time: they may be put together, and into exceptions and messages that are left out."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest
import torch
from differential import check
from torch import Tensor

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python import stage

ONES = torch.ones(3)
LOGGER = logging.getLogger(__name__)


class Mismatch(ValueError):
    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} ({code})")
        self.what = what


class Described(Exception):
    def __init__(self, what: str) -> None:
        self.what = what

    def __str__(self) -> str:
        return f"it is {self.what}"


def made_before(x: Tensor) -> Tensor:
    n = int(x.sum())
    message = f"bad {n}"
    if n < 0:
        raise ValueError(message)
    return x * n


def made_by_a_function(x: Tensor) -> Tensor:
    n = int(x.sum())

    def check(holds: bool, message: object) -> None:
        if not holds:
            text = message() if callable(message) else message
            raise ValueError("no message" if text is None else text)

    check(n >= 0, lambda: f"bad {n}")
    return x * n


def of_two_numbers(x: Tensor) -> Tensor:
    low, high = int(x.min()), float(x.max())
    if low < 0:
        raise ValueError("from " + f"{low:3d}" + f" to {high!r:>5} of {(low, [high], 'a')} and {x.shape}")
    return x


def of_a_tensor(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"values {x} of {x.dtype}")
    return x


def by_str(x: Tensor) -> Tensor:
    n = int(x.sum())
    text = str(n) + " is " + "bad"
    if n < 0:
        raise ValueError(text)
    return x * n


def of_the_users_class(x: Tensor) -> Tensor:
    n = int(x.sum())
    if n < 0:
        raise Mismatch(f"sum {n}", 3)
    return x * n


def with_a_text_of_its_own(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise Described(f"{x.sum().item()}")
    return x


def in_a_loop(x: Tensor) -> Tensor:
    i = 0
    while x.sum() > i:
        what = f"trip {i}"
        if i > 9:
            raise RuntimeError(what)
        i += 1
    return x * i


def handed_on(x: Tensor) -> Tensor:
    try:
        return made_before(x)
    except KeyError as error:
        return x + len(str(error))


def checked(x: Tensor) -> Tensor:
    n = int(x.sum())
    torch._check_with(KeyError, n >= 0, lambda: f"bad {n}")
    torch._check_tensor_all_with(IndexError, x < 4, lambda: f"large {x}")
    return x * n


def by_percent(x: Tensor) -> Tensor:
    n, whole = float(x.sum()), int(x.sum())
    message = "%s: %d of %5.2f%% and %-4s|" % ("sum", whole, n, 3)
    if n < 0:
        raise ValueError(message + "%(low)s in %(all)s" % {"low": x.min(), "all": [whole]})
    return x * n


def by_format(x: Tensor) -> Tensor:
    n = float(x.sum())
    if n < 0:
        raise ValueError("{{{}}} of {:.3f} and {!r:>3}; ".format(3, n, "a") + "{0} {what} {0:e}".format(x.sum(), what=x.shape))
    return x * n


def by_join(x: Tensor) -> Tensor:
    low, high = int(x.min()), int(x.max())
    if low < 0:
        raise ValueError(", ".join(str(k) for k in (low, 2, high)) + "; ".join(["a", f"{high}"]))
    return x * high


MESSAGES = {
    by_percent: "sum: <known at run time> of <known at run time>% and 3   |<known at run time> in [<known at run time>]",
    by_format: "{3} of <known at run time> and 'a'; <known at run time> torch.Size([3]) <known at run time>",
    by_join: "<known at run time>, 2, <known at run time>a; <known at run time>",
    made_before: "bad <known at run time>",
    made_by_a_function: "bad <known at run time>",
    of_two_numbers: "from <known at run time> to <known at run time> of (<known at run time>, [<known at run time>], 'a') "
    "and torch.Size([3])",
    of_a_tensor: "values <known at run time> of torch.float32",
    by_str: "<known at run time> is bad",
    of_the_users_class: "sum <known at run time> (3)",
    in_a_loop: "trip <known at run time>",
    handed_on: "bad <known at run time>",
    checked: "'bad <known at run time>'",
}
FAILING = {in_a_loop: 20 * ONES}


@pytest.mark.parametrize("net", MESSAGES)
def test_messages_of_exceptions(net) -> None:
    staged, failing = stage(net, (ONES,)).interpret(), FAILING.get(net, -ONES)
    assert torch.equal(staged(ONES), net(ONES))
    with pytest.raises(Exception) as raised:
        net(failing)
    with pytest.raises(Exception) as ours:
        staged(failing)
    assert raised.type.__name__ in (type(ours.value).__name__, getattr(ours.value, "kind", ""))
    assert MESSAGES[net] in str(ours.value)


def logged(x: Tensor) -> Tensor:
    n = int(x.sum())
    warnings.warn(f"{n} items", stacklevel=1)
    LOGGER.info(f"{x} of {n}")
    return x * n


def test_messages_that_are_left_out() -> None:
    staged = stage(logged, (ONES,)).interpret()
    with pytest.warns(UserWarning, match="items"):
        assert torch.equal(staged(2 * ONES), logged(2 * ONES))


def is_read(x: Tensor) -> Tensor:
    try:
        return made_before(x)
    except ValueError as error:
        return x + len(str(error))


def has_a_length(x: Tensor) -> Tensor:
    return x * len(f"{int(x.sum())}")


def is_a_key(x: Tensor) -> Tensor:
    return x * {"3.0": 2}.get(f"{x.sum().item()}", 1)


def is_compared(x: Tensor) -> Tensor:
    return x + 1 if f"{x.sum().item()}" == "3.0" else x


def has_a_width_from_data(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("%*d" % (int(x.sum()), 3))
    return x


def is_a_character(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("{:c}".format(int(x.sum())))
    return x


def is_no_int(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("%d" % float(x.sum()))
    return x


def is_returned(x: Tensor) -> tuple[Tensor, str]:
    return x, f"{x.sum().item():.2f}"


class Keeps(torch.nn.Module):
    last = ""

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, f"{x.sum().item():.1f}"
        return x + len(before)


@pytest.mark.parametrize(
    "net",
    [
        with_a_text_of_its_own,
        is_read,
        has_a_length,
        is_a_key,
        is_compared,
        is_returned,
        has_a_width_from_data,
        is_a_character,
        is_no_int,
        Keeps(),
    ],
    ids=lambda net: getattr(net, "__name__", "kept"),
)
def test_what_needs_the_text_is_refused(net) -> None:
    with pytest.raises(UnsupportedError):
        stage(net, (ONES,))


def wrong_format(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise KeyError(f"{int(x.sum()):zz}")
    return x


def too_few(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise KeyError("%d %d" % int(x.sum()))
    return x


def is_no_text(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise KeyError(f"{x:.2f}")
    return x


@pytest.mark.parametrize("net", [wrong_format, too_few, is_no_text])
def test_formats_that_python_refuses(net) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        net(-ONES)
    try:
        staged = stage(net, (ONES,)).interpret()
    except UnsupportedError:
        return
    with pytest.raises(Exception) as ours:
        staged(-ONES)
    assert raised.type.__name__ in (type(ours.value).__name__, getattr(ours.value, "kind", ""))


def test_what_is_known_is_a_text() -> None:
    def net(x: Tensor) -> tuple[Tensor, str, int]:
        k = 3
        known = f"{k:03d}|{k!r}|{'é'!a}|{x.shape[0]}|{torch.tensor(2)}|{[k]}|{k:{k}}|{{}}"
        return x, known, len(f"{known}!")

    assert stage(net, (ONES,)).interpret()(ONES)[1:] == net(ONES)[1:]


def texts_of_a_truth(x: Tensor) -> tuple[Any, ...]:
    f = bool(x.sum() > 0)
    return f"{f}", str(f), f"{f!r:>7}", f"{f:d}", "%s" % f, "%d" % f, "{} {}".format(f, 1), len(str(f)), repr(f)  # noqa: UP031, UP032


def a_truth_names_an_item(x: Tensor) -> Tensor:
    f = bool(x.sum() > 0)
    return {"True": x * 2, "False": x}[str(f)] + (1 if f"{f}" == "True" else 2)


def keys_of_truths(x: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i in range(3):
        found[f"positive={bool(x[i] > 0)}"] = x[i]
    return found


@pytest.mark.parametrize("net", [texts_of_a_truth, a_truth_names_an_item, keys_of_truths])
def test_the_text_of_a_truth_parts_the_paths(net) -> None:
    check(net, [(torch.tensor(v),) for v in ([1.0, 2, -1], [-1.0, -2, -3], [1.0, -1, -1], [-5.0, 1, 1])], paths=2)
