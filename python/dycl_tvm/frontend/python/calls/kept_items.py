# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a list holds of which tensors have the items as their rows, and what stands for its methods."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dycl_tvm.frontend.python.calls.kept_rows import Form, settled
from dycl_tvm.frontend.trace.clock import OwnValue
from dycl_tvm.frontend.trace.join.poison import Poison
from dycl_tvm.frontend.trace.values.grown import Grown


class Items:
    """What such a list holds: a place that lives on between calls."""

    def __init__(self, form: Form, rows: Mapping[str, torch.Tensor], of: Any) -> None:
        #: What one item is, and the attributes of this that have the items as their rows.
        self.form, self.columns = form, [f"items{name}" for name in rows]
        vars(self).update(zip(self.columns, rows.values()))
        self.most, self.is_deque = getattr(of, "maxlen", None), isinstance(of, collections.deque)
        #: Of a copy: what it was copied of.
        self.parent: Any = None
        #: Called where paths leave the list with different lengths, before they part.
        self.differs: Callable[[], None] | None = None
        #: Called with what all items are, where one comes that is none of those known before.
        self.widen: Callable[[Form], None] | None = None
        #: How many rolled loops go over the items.
        self.loops = 0

    @property
    def rows(self) -> list[torch.Tensor]:
        """The tensors that have the items as their rows."""
        found = [vars(self)[name] for name in self.columns]
        if self.differs is not None and any(isinstance(rows, Poison) for rows in found):
            self.differs()
        made = [settled(rows) for rows in found]
        for rows in made:
            if isinstance(rows, Grown):
                rows.contiguous_ = True  # so was each item, whatever joined the rows
        return made


class KeptMethod(OwnValue):
    """A method of such a list; it does not lead to it."""

    __slots__ = ("_do",)

    def __init__(self, do: Callable[..., Any]) -> None:
        self._do = do

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Do it; what is given by name, and is no argument of it, is another use."""
        return self._do(*given, **named)
