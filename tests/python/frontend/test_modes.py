# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Code that goes around PyTorch's modes, by which staging sees what a program does: it is right, or refused where it stands."""

from __future__ import annotations

import copy
from collections.abc import Callable

import modes_library as library
import pytest
import torch
from differential import same
from judge import load
from test_random import as_library, check_against_eager

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.modes import are_on
from dycl_tvm.frontend.trace.values.recorder import Recorder

X = torch.tensor([[1.0, 0.5, 2.0], [-0.5, 1.0, 0.25]])
HEADER = """
import operator, threading, _thread
import torch
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from torch import nn
from torch.overrides import _pop_mode_temporarily as pop_function_mode
from torch.testing._internal.common_methods_invocations import wrapper_set_seed
from torch.testing._internal.common_utils import freeze_rng_state
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _pop_mode_temporarily, _push_mode
EARLIER = ThreadPool(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.zeros(3))
    def forward(self, x):
        self.b += x[0]
"""
RIGHT = {
    "the generator is frozen": "with freeze_rng_state(): y = torch.rand(3)\nreturn x + torch.rand(3), y, torch.rand(2)",
    "it is frozen and seeded": """
y = torch.rand(3)
with freeze_rng_state():
    torch.manual_seed(5)
    y = y + torch.rand(3)
return x + y, torch.rand(2)""",
    "a function is called with a seed": "return wrapper_set_seed(nn.functional.dropout, x, 0.5, True), torch.rand(2)",
    "the default generator, by operators": """
state = operator.methodcaller("get_state")(torch.default_generator)
y = torch.rand(3)
operator.methodcaller("set_state", state)(torch._C.default_generator)
return x + y, torch.rand(2), torch.default_generator is torch._C.default_generator""",
    "methods of the class of generators": """
state = torch.Generator.get_state(torch.default_generator)
y = torch.rand(3)
torch.Generator.set_state(torch.default_generator, state)
return x + y, torch.rand(2)""",
    "the modes of subclasses only": "with torch._C.DisableTorchFunctionSubclass(): y = x.sum().item()\nreturn x * y",
}
REFUSED = {
    "ATen's, in C": ("with torch._C._DisableTorchDispatch(): y = x * 2\nreturn y", "switched off"),
    "by a handler": ("try:\n    with torch._C._DisableTorchDispatch(): y = x * 2\nexcept Exception: y = x\nreturn y", "switched off"),
    "ATen's": ("with _disable_current_modes(): y = self.b * 2\nreturn y", "switched off"),
    "in place and back": ("with _disable_current_modes(): self.b.add_(1)\nreturn x + self.b", "switched off"),
    "for a draw": ("with _pop_mode_temporarily(): y = torch.rand(2)\nreturn x, y", "switched off"),
    "by hand": ("mode = _pop_mode()\ny = torch.rand(2)\n_push_mode(mode)\nreturn x, y", "switched off"),
    "those of functions": ("with pop_function_mode(): y = x.sum().item()\nreturn x * y", "switched off"),
    "those of functions, in C": ("with torch._C.DisableTorchFunction(): y = self.b.numpy().sum()\nreturn x * float(y)", "switched off"),
    "keys": (
        "with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)): y = x + 1\nreturn y",
        "modes are switched off",
    ),
    "DLPack of what is written": ("return x * torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(self.b))", "to_dlpack"),
    "a pool of threads": ("with ThreadPool(1) as pool: y = pool.apply(torch.mul, (self.b, 2))\nreturn x * y", "thread is started"),
    "an executor": ("with ThreadPoolExecutor(1) as pool: y = pool.submit(torch.rand, 2).result()\nreturn x, y", "thread is started"),
    "a thread": ("_thread.start_new_thread(torch.neg, (self.b,))\nreturn x", "starts a thread"),
    "a pool that was there before": ("return x * EARLIER.map(torch.neg, [self.b])[0]", "cannot be"),
}


def net_of(body: str) -> torch.nn.Module:
    return load(HEADER + "\n".join(f"        {line}" for line in body.strip().splitlines()) + "\n").Net().eval()


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    net = net_of(RIGHT[name])
    call = dycl_tvm.stage(net, (X,)).interpret()
    if any("generator" in v.name for v in call.graph.state):
        call.manual_seed(3)
    net = copy.deepcopy(net)
    torch.manual_seed(3)
    for x in (X, -X, X):
        want = net(x.clone())
        state = torch.get_rng_state()
        assert same(want, call(x.clone()))
        torch.set_rng_state(state)


def _dispatch_keys() -> list[str]:
    return [repr(torch._C._dispatch_tls_local_include_set()), repr(torch._C._dispatch_tls_local_exclude_set())]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, words = REFUSED[name]
    keys = _dispatch_keys()
    with pytest.raises(UnsupportedError, match=words) as refused:
        dycl_tvm.stage(net_of(body), (X,))
    assert refused.value.origin is not None
    assert torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
    assert _dispatch_keys() == keys
    assert not are_on(Recorder)


IN_A_LIBRARY: dict[str, Callable[[torch.Tensor], object]] = {
    "computes": lambda x: library.computes(x),
    "computes in C": lambda x: library.computes_in_c(x),
    "copies in C": lambda x: library.copies_in_c(x),
    "swallows what is raised": lambda x: library.swallows(x),
    "draws": lambda x: (x, library.draws()),
    "changes what it gave": lambda x: (x + library.made(), library.change(), x + 1),
}


@pytest.mark.parametrize("name", IN_A_LIBRARY)
def test_a_library_that_does_it_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_library(monkeypatch, library), pytest.raises(UnsupportedError, match="switched off|random numbers"):
        dycl_tvm.stage(IN_A_LIBRARY[name], (X,))


def test_a_library_that_freezes_the_generator_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> object:
        return x + torch.rand(3), library.frozen(), torch.rand(2)

    with as_library(monkeypatch, library):
        call = dycl_tvm.stage(program, (X,)).interpret()
    call.manual_seed(2)
    check_against_eager(program, 2, lambda args: call(*args), inputs=[(X,), (-X,)])
