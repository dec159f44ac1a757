# Licensed under the Apache License, Version 2.0; see LICENSE.
"""State that changes where the journal does not look: generators that are given up, memory shared with arrays, objects that die."""

from __future__ import annotations

import pytest
import torch
from programs_outside_of_the_journal import RIGHT
from test_hunted import X, check_refused, check_right

import dycl_tvm
from dycl_tvm.errors import InputError
from dycl_tvm.frontend.python import stage

REFUSED = {
    "gen dropped by break finally": (
        """
def net(x):
    log = []
    def g():
        try:
            for i in range(4):
                yield i
        finally:
            log.append(1)
    for i in g():
        if x.sum() > i:
            break
        x = x + 1
    return x, len(log)
""",
        "within a `try` or `with`",
    ),
    "gen var reassigned": (
        """
def net(x):
    log = []
    def g():
        try:
            yield x
            yield x * 2
        finally:
            log.append(x)
    it = g()
    y = next(it)
    if x.sum() > 0:
        it = None
    return y, len(log)
""",
        "within a `try` or `with`",
    ),
    "next of temp": (
        """
def net(x):
    log = [0]
    def g():
        try:
            yield x
            yield x * 2
        finally:
            log[0] += 1
    y = next(g())
    return y + log[0]
""",
        "within a `try` or `with`",
    ),
    "with pending": (
        """
class C:
    def __init__(self, log): self.log = log
    def __enter__(self): return self
    def __exit__(self, *a): self.log.append(2)
def net(x):
    log = []
    def g():
        with C(log):
            yield x
            yield x + 1
    for y in g():
        if y.sum() > 2: break
    return y, len(log)
""",
        "within a `try` or `with`",
    ),
    "except GeneratorExit": (
        """
def net(x):
    log = []
    def g():
        try:
            yield x
            yield x
        except GeneratorExit:
            log.append("exit")
            raise
    for y in g():
        if y.sum() > 0: break
    return x, len(log)
""",
        "within a `try` or `with`",
    ),
    "itertools.islice of gen": (
        """
import itertools
def net(x):
    log = []
    def g():
        try:
            for i in range(5): yield i
        finally:
            log.append(1)
    s = 0
    for i in itertools.islice(g(), 2): s += i
    return x + len(log) + s
""",
        "within a `try` or `with`",
    ),
    "from_numpy tensor written": (
        """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)
    t[0] = 7.0
    return x + float(a[0])
""",
        "that may lie in the memory of a NumPy array",
    ),
    "attr array shared from init": (
        """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = np.ones(3, dtype=np.float32)
        self.register_buffer("h", torch.from_numpy(self.a))
    def forward(self, x):
        self.h.add_(1)
        return x + float(self.a[0])
""",
        "that may lie in the memory of a NumPy array",
    ),
    "tensor numpy written": (
        """
def net(x):
    t = torch.zeros(3)
    a = t.numpy()
    a[0] = 3
    return x + t
""",
        "memory is changed that a tensor shares",
    ),
    "view then array write": (
        """
import numpy as np
def net(x):
    a = np.zeros(3, dtype=np.float32)
    t = torch.from_numpy(a)[None]
    y = x + t
    a[0] = 2
    return y + t
""",
        "whose memory was changed as that of a NumPy array",
    ),
    "kept then written next": (
        """
import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = np.zeros(3, dtype=np.float32)
        self.t = torch.zeros(3)
    def forward(self, x):
        self.t += 1
        y = x + float(self.a[0])
        self.t = torch.from_numpy(self.a)
        return y
""",
        "lies in the memory of a NumPy array after a call",
    ),
    "replaced with input": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = {"h": torch.zeros(2, 3)}
    def forward(self, x):
        if x.sum() > 0:
            self.d["h"] = x
        else:
            self.d["h"].add_(1)
        return x + self.d["h"]
""",
        "may be an input of an earlier call",
    ),
    "both": (
        """
def net(x):
    v = x.sum().item()
    try:
        r = abs(v) ** v
    except OverflowError:
        r = -1.0
    return x, r
""",
        "whether a power of two numbers",
    ),
    "weakref alive": (
        """
import weakref
class O: pass
def net(x):
    o = O()
    r = weakref.ref(o)
    if x.sum() > 0: o = None
    return x + (r() is None)
""",
        "depends on when Python gives an object up",
    ),
    "weakref.finalize": (
        """
import weakref
class O: pass
LOG = []
def net(x):
    o = O()
    weakref.finalize(o, LOG.append, 1)
    del o
    return x + len(LOG)
""",
        "depends on when Python gives an object up",
    ),
    "weakvaluedict": (
        """
import weakref
class O: pass
def net(x):
    d = weakref.WeakValueDictionary()
    o = O()
    d["k"] = o
    n = len(d)
    del o
    return x + n, len(d)
""",
        "depends on when Python gives an object up",
    ),
    "refcount": (
        """
import sys
def net(x):
    l = []
    return x + sys.getrefcount(l)
""",
        "depends on when Python gives an object up",
    ),
    "atexit": (
        """
import atexit
LOG = []
def net(x):
    atexit.register(LOG.append, 1)
    return x + len(LOG)
""",
        "atexit.register() changes a setting of the whole process",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_program_is_right(name: str) -> None:
    check_right(RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_the_program_is_refused(name: str) -> None:
    check_refused(*REFUSED[name])


def writes(x, y):
    x.add_(1)
    return y * 2


def asks(x, y):
    return x + (1 if x is y else 2)


def reads(x, y):
    return x + y


@pytest.mark.parametrize("model", [writes, asks])
def test_inputs_that_must_not_be_one(model) -> None:
    call = stage(model, (X.clone(), X * 2)).interpret()
    assert torch.equal(call(X.clone(), X * 3), model(X.clone(), X * 3))
    t = X.clone()
    with pytest.raises(InputError, match="'x' and 'y' lie in one memory"):
        call(t, t)
    wide = torch.zeros(3, 3)
    if model is writes:
        with pytest.raises(InputError, match="changes one of them in place"):
            call(wide[:2], wide[1:])
    else:
        assert torch.equal(call(wide[:2], wide[1:]), wide[:2] + 2)


def test_inputs_that_are_only_read_may_be_one() -> None:
    t = X.clone()
    assert torch.equal(stage(reads, (X.clone(), X * 2)).interpret()(t, t), t + t)


def test_inputs_that_must_be_one_view() -> None:
    t = X.clone()
    call = stage(reads, (t, t.view(2, 3))).interpret()
    assert torch.equal(call(t, t.view(2, 3)), t + t)
    with pytest.raises(InputError, match="expected one tensor, as in the example inputs"):
        call(t, X * 2)


def test_a_library_checks_its_inputs(tmp_path) -> None:
    artifact = dycl_tvm.build(writes, (X.clone(), X * 2), verify="off")
    net = dycl_tvm.load(artifact.export_library(tmp_path / "net.so"), artifact.save_params(tmp_path / "net.params"))
    t, wide = X.clone(), torch.zeros(3, 3)
    assert torch.equal(net(X.clone(), X * 3), X * 6)
    for pair in ((t, t), (wide[:2], wide[1:])):
        with pytest.raises(InputError, match="'x' and 'y' lie in one memory"):
            net(*pair)


def test_an_operator_of_pytorchs_that_the_program_holds_is_none_of_its_state() -> None:
    """Its caches change when it is called; what is behind an operator of another namespace is not known."""
    text = """
op, slices = torch.ops.aten._safe_softmax.default, torch.ops.aten.slice
def net(x):
    return op(x, 1) if x.sum() > 0 else slices(x, 0, 1)
"""
    check_right(text)
    never_called = "torch.ops.prims.bessel_i1e.default"  # the first call fills its caches, whoever makes it
    check_refused(text.replace("torch.ops.aten._safe_softmax.default", never_called).replace("op(x, 1)", "op(x)"), "changes its type")


def test_what_staging_tries_for_itself_leaves_no_trace_in_caches_of_pytorch() -> None:
    def net(x):
        try:
            x = x.abs().log_()
        except ValueError:
            x = x + 1
        return x if x.sum() > 0 else -x

    torch.get_device_module.cache_clear()
    stage(net, (torch.ones(2, 3),))
    assert torch.get_device_module.cache_info().misses == 0
