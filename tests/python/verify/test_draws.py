# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The checks of a build find draws that are not PyTorch's: by one bit of one number, from a wrong state, with a wrong state left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dycl_tvm
from dycl_tvm.compile import templates
from dycl_tvm.errors import VerificationError


def network(x: Any) -> Any:
    """Draws in a branch and around it."""
    y = x + torch.rand(4, 5)
    if y.sum() > 10:
        y = y + torch.bernoulli(x.sigmoid())
    return y, torch.multinomial(x.softmax(-1), 2)


X = torch.linspace(-1, 1, 20).reshape(4, 5)


#: Draws as it should, and leaves a generator that has drawn once more.
SPOILED = """static int Spoiled(const TVMFFIAny* args) {
  int done = dycl::random::BernoulliEach<float, float>(args);
  dycl::random::Generator(dycl::Arguments(args).data(3)).Next();
  return done;
}
"""


def _replaced(old: str, new: str) -> Callable[[str], str]:
    def change(source: str) -> str:
        head, include, body = source.partition("using namespace dycl;")
        assert old in body
        return head + include + "\n" + SPOILED.replace("static", "[[maybe_unused]] static") + body.replace(old, new)

    return change


FAULTS = {
    "one bit": _replaced("Uniform<float>(args, 0x0.0p+0, 0x1.0000000000000p+0)", "Uniform<float>(args, 0x0.0p+0, 0x1.000002p+0)"),
    "another distribution": _replaced("Uniform<float>(args, 0x0.0p+0, 0x1.0000000000000p+0)", "Exponential<float>(args, 1)"),
    "another state": _replaced("return dycl::random::BernoulliEach<float, float>(args)", "return Spoiled(args)"),
    "columns for rows": _replaced("(args, false)", "(args, true)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = templates.source_of
    monkeypatch.setattr(templates, "source_of", lambda symbols: FAULTS[fault](right(symbols)))
    with pytest.raises(VerificationError):
        dycl_tvm.build(network, (X,))


def test_right_kernels_pass_and_are_counted() -> None:
    certificate = dycl_tvm.build(network, (X,), verify="full").certificate
    assert certificate["kernels"]["checked"] == certificate["kernels"]["total"] > 3
    assert certificate["control"]["edges"] == certificate["control"]["edges_total"]
