# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Attributes: reads by name, and stores."""

from __future__ import annotations

import builtins
import types
from typing import Any

import torch

from dycl_tvm.frontend.trace.heap.places import attribute_of
from dycl_tvm.frontend.trace.heap.settings import SETTINGS
from dycl_tvm.frontend.trace.join.poison import Poison, is_unbound, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.blame import attempt
from dycl_tvm.frontend.trace.values.identity import settle


def getattr(ask: Any, *args: Any) -> Any:
    """``getattr``, ``hasattr``, ``vars`` and ``dir`` of the user's objects."""
    return attempt(ask, *args)


def setattr(value: Any, obj: Any, name: str) -> None:
    """``obj.name = value``."""
    if isinstance(obj, Poison):
        use(obj)
    if isinstance(obj, types.ModuleType):
        current().journal.touch(SETTINGS, surely=False)  # torch.backends has some that look like attributes
    if name in _PARTS and isinstance(obj, torch.Tensor):
        attempt(_set_part, obj, name, value)
        return
    _settle_tensor(obj, name)
    if not (name == "data" and isinstance(obj, torch.Tensor)):  # which changes nothing, or is refused
        current().heap.changing_attribute(obj, name)
    if name == "__dict__" and type(value) is dict:
        current().heap.is_namespace(value, obj)
    attempt(builtins.setattr, obj, name, value)


def _settle_tensor(obj: Any, name: str) -> None:
    """Let the paths part where an attribute is the program's own, and the tensor one of several."""
    if isinstance(obj, torch.Tensor) and not hasattr(torch.Tensor, name):
        settle(obj, f"the attribute `{name}`")


#: Attributes of tensors that are views of their memory.
_PARTS = ("real", "imag")


def _set_part(obj: torch.Tensor, name: str, value: Any) -> None:
    part: torch.Tensor = builtins.getattr(obj, name)
    part.copy_(value) if isinstance(value, torch.Tensor) else part.fill_(value)


def delattr(obj: Any, name: str) -> None:
    """``del obj.name``."""
    if isinstance(obj, Poison):
        use(obj)
    _settle_tensor(obj, name)
    deleting(obj, name)
    current().heap.changing_attribute(obj, name)
    attempt(builtins.delattr, obj, name)


def deleting(obj: Any, name: str) -> None:
    """Settle whether there is an attribute that is about to be deleted."""
    held = attribute_of(obj, name).read()
    if is_unbound(held):
        use(held)
