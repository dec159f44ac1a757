# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a tensor is beside its elements: a parameter, a buffer, a tensor whose gradients are wanted.

A join makes one tensor of several, of which one may be a parameter. So an identity (:mod:`.identity`) says what its tensor is, and asking
for what depends on the path forks the join.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Role(NamedTuple):
    """What a tensor is that is more than its elements.

    Attributes
    ----------
    cls : type
        Its class.
    requires_grad : bool or None
        As PyTorch says; None for a view of what is one of several tensors, and requires gradients if that one does.
    is_leaf : bool
        As PyTorch says.
    has_grad : bool
        Whether it has gradients.
    is_parameter, is_buffer : bool
        The marks by which PyTorch knows parameters and buffers that are of other classes.
    """

    cls: type = torch.Tensor
    requires_grad: bool | None = False
    is_leaf: bool = True
    has_grad: bool = False
    is_parameter: bool = False
    is_buffer: bool = False

    def like(self, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor without elements of which ``isinstance`` says the same."""
        made: torch.Tensor = torch.empty(0, dtype=dtype).as_subclass(self.cls)
        for name, is_marked in (("_is_param", self.is_parameter), ("_is_buffer", self.is_buffer)):
            if is_marked:
                setattr(made, name, True)
        return made


#: That of a tensor which is nothing else: what is computed, and most inputs.
PLAIN = Role()
#: That of a tensor whose role changes in the forward, or from call to call.
UNKNOWN = Role(cls=object)


def role_of(t: torch.Tensor, stands_for: type | None = None) -> Role:
    """Return the role of a tensor; what is computed has none, because a graph has no gradients.

    ``stands_for`` is the class that a tensor of staging's has in eager.
    """
    with torch._C.DisableTorchFunction():  # staging itself looks at the tensor
        is_leaf = t.is_leaf
        if stands_for is not None:
            return Role(stands_for, is_leaf and t.requires_grad)
        marks = [bool(vars(t).get(name, False)) for name in ("_is_param", "_is_buffer")]
        return Role(type(t), t.requires_grad, is_leaf, is_leaf and t.grad is not None, *marks)
