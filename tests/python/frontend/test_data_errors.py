# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Errors of PyTorch's functions that depend on the elements of tensors, where the program has a handler for them."""

from __future__ import annotations

import pytest
from test_hunted import check_refused, check_right

_HEADER = """
import contextlib
from torch.nn import functional as F
table = nn.Embedding.from_pretrained(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
class Found(Exception):
    pass
class Timer:
    def __enter__(self): return self
    def __exit__(self, *error): return None
class Swallow(Timer):
    def __exit__(self, kind, *error): return kind is IndexError
@contextlib.contextmanager
def swallow():
    try:
        yield
    except IndexError:
        pass
"""
RIGHT = {
    "the handler is for other errors": """
def net(x):
    ids = x.long().clamp(0, 2)
    try:
        y = table(ids).sum() + {0: 1}[int(x.sum() > 0)]
    except (KeyError, AttributeError):
        y = x.sum()
    return y
""",
    "the handlers are for the program's own errors": """
def net(x):
    ids, own = x.long().clamp(0, 2), (Found, type("Lost", (RuntimeError,), {}))
    try:
        with contextlib.suppress(Found):
            y = table(ids).sum()
            if x.sum() > 0: raise Found
            y = y - 1
        if x.sum() > 1: raise own[1]
        return y
    except own:
        return table(ids) * 2
""",
    "whatever the elements are, as staging finds too": """
def net(x):
    try:
        y = torch.cat([x, x[:, :1]])
    except RuntimeError:
        y = x + 1
    return y
""",
    "nothing is swallowed": """
def net(x):
    ids, n = x.long().clamp(0, 2), 0
    with Timer(), contextlib.suppress(KeyError), contextlib.nullcontext():
        try:
            y = table(ids)
            if x.sum() > 0: n += 1
        finally:
            n += 2
    return y, n
""",
    "positions that are within the bounds": """
def net(x):
    try:
        best = x.argmax(1)
        y = x[:, best], x.gather(1, best[:, None])
        if x.sum() > 0: raise IndexError
        return y
    except IndexError:
        return x
""",
    "functions without such errors": """
def net(x):
    try:
        y = torch.softmax(x @ x.t(), 1).sqrt().log() / x.sum(1) // 2
        z = x.round().int().float().pow(2).cumsum(0)
        if x.sum() > 0: raise RuntimeError("stop")
    except Exception:
        return x
    return y, z
""",
    "a handler that only raises": """
def net(x):
    ids = x.long().clamp(0, 2)
    try:
        try:
            y = table(ids) + x.index_select(1, ids[0, :2]).sum() + x.gather(1, ids).sum()
            if x.sum() > 1: raise RuntimeError("too much")
        except IndexError as error:
            message = f"ids must be below 3"
            raise IndexError(message) from error
    except (IndexError, RuntimeError):
        raise
    return y.sum() if x.sum() > 0 else y
""",
}
REFUSED = {
    "a name that comes to stand for another error": (
        "global Found\ntry:\n    y = table(x.abs().argmax(1))\n    Found = IndexError\n    y = table(x.long())\nexcept Found:\n    y = x",
        "embedding() raises IndexError",
    ),
    "a variable that comes to stand for another error": (
        "kind = Found\ntry:\n    y = table(x.argmax(1))\n    kind = OSError, IndexError\n    y = table(x.long())\nexcept kind:\n    y = x",
        "embedding() raises IndexError",
    ),
    "a handler": ("try:\n    y = table(x.long())\nexcept IndexError:\n    y = x", "embedding() raises IndexError"),
    "a handler that raises what another one catches": (
        "try:\n    try:\n        y = table(x.long())\n    except IndexError as e:\n        raise Found from e\nexcept Found:\n    y = x",
        "embedding() raises IndexError",
    ),
    "a handler that raises on one path": (
        "try:\n    y = table(x.long())\nexcept IndexError:\n    y = x\n    if x.sum() > 0: raise",
        "embedding() raises IndexError",
    ),
    "a handler that raises where it does not return": (
        "try:\n    y = table(x.long())\nexcept IndexError:\n    if x.sum() > 0: return x\n    raise",
        "embedding() raises IndexError",
    ),
    "any exception": ("try:\n    y = x[:, x[0].long()]\nexcept:\n    y = x", "getitem() raises IndexError"),
    "a written index": ("try:\n    x[:, x[0].long()] = 1\nexcept Exception:\n    pass\ny = x", "setitem() raises IndexError"),
    "a division": ("try:\n    y = x.int() // x[0].int()\nexcept RuntimeError:\n    y = x", "floordiv() raises RuntimeError"),
    "a division by zero": ("try:\n    y = x.long() // 0\nexcept RuntimeError:\n    y = x", "floordiv() raises RuntimeError"),
    "a class that is in a variable": (
        "E = IndexError\ntry:\n    y = table(x.long())\nexcept E:\n    y = x",
        "embedding() raises IndexError",
    ),
    "a class that is computed": (
        "try:\n    y = x.gather(1, x.long())\nexcept (KeyError, *[RuntimeError]):\n    y = x",
        "gather() raises RuntimeError",
    ),
    "a singular matrix": ("try:\n    y = torch.linalg.inv(x @ x.t())\nexcept RuntimeError:\n    y = x", "linalg_inv() raises _LinAlgError"),
    "no factors": ("try:\n    y = torch.cholesky(x @ x.t())\nexcept RuntimeError:\n    y = x", "cholesky() raises _LinAlgError"),
    "a power": ("try:\n    y = x.long() ** int(x[0, 0])\nexcept RuntimeError:\n    y = x", "raises RuntimeError"),
    "classes": ("try:\n    y = F.one_hot(x.long(), 4)\nexcept RuntimeError:\n    y = x", "one_hot() raises RuntimeError"),
    "a probability": ("try:\n    y = F.binary_cross_entropy(x, x)\nexcept RuntimeError:\n    y = x", "raises RuntimeError"),
    "a finally that returns": ("try:\n    y = table(x.long())\nfinally:\n    return x", "embedding() raises IndexError"),
    "a manager that swallows": ("y = x\nwith Swallow():\n    y = table(x.long())", "embedding() raises IndexError"),
    "suppress": ("y = x\nwith contextlib.suppress(LookupError):\n    y = table(x.long())", "embedding() raises IndexError"),
    "a generator that swallows": ("y = x\nwith swallow():\n    y = table(x.long())", "embedding() raises IndexError"),
    "within a function that is called": (
        "def step(x):\n    return table(x.long())\ntry:\n    y = step(x)\nexcept IndexError:\n    y = x",
        "embedding() raises IndexError",
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    check_right(_HEADER + RIGHT[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, why = REFUSED[name]
    check_refused(f"{_HEADER}def net(x):\n    " + body.replace("\n", "\n    ") + "\n    return y\n", why)
