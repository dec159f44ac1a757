# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Elements of a buffer of which only a front counts, along some dimensions, moved together, and moved apart again.

Importing the file makes them PyTorch operators of the namespace ``dycl_moving``. Here they are written in PyTorch's operators, without
branches on values: what has no kernels for them is made of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

NAMESPACE = "dycl_moving"
#: All elements of a tensor, as a vector: first those that come before the lengths, in their order, then zeros.
TOGETHER = f"{NAMESPACE}.together.default"
#: A buffer with the first elements of a vector, in their order, at the places that come before the lengths; there are zeros elsewhere.
APART = f"{NAMESPACE}.apart.default"

_library = torch.library.Library(NAMESPACE, "DEF")
_library.define("together(Tensor x, Tensor[] lengths, int[] dims) -> Tensor")
_library.define("apart(Tensor x, Tensor[] lengths, int[] dims, int[] shape) -> Tensor")


def together(x: torch.Tensor, lengths: Sequence[torch.Tensor], dims: Sequence[int]) -> torch.Tensor:
    """Move elements together: ``lengths`` are those of the dimensions ``dims``, which ascend."""
    rooms, there, behind = _parts(x.shape, lengths, dims)
    place = torch.arange(math.prod(rooms))
    left, step = place, math.prod(rooms[1:])
    source: torch.Tensor | int = 0
    for d in range(len(rooms) - 1):  # how often the rest of the dimensions goes into what is left
        behind_it = _count([n if isinstance(n, int) else n.clamp(1, max(r, 1)) for n, r in zip(there[d + 1 :], rooms[d + 1 :])])
        source, left = source + torch.div(left, behind_it, rounding_mode="floor") * step, left % behind_it
        step = step // rooms[d + 1]
    inside = place < _count(there)
    # not a clamp: each that reads its operand several times doubles what TVM has to simplify
    rows = x.reshape(place.shape[0], behind).index_select(0, torch.where(inside, source + left, 0))
    return torch.where(inside.unsqueeze(1), rows, torch.zeros((), dtype=x.dtype)).reshape(-1)


def apart(x: torch.Tensor, lengths: Sequence[torch.Tensor], dims: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """Move elements apart: ``lengths`` are those of the dimensions ``dims`` of a buffer of a shape; they ascend."""
    rooms, there, behind = _parts(shape, lengths, dims)
    fits = x.shape[0] // behind
    source, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for d, (room, n) in enumerate(zip(rooms, there)):
        at = torch.arange(room).reshape([-1] + [1] * (len(rooms) - 1 - d))
        source = source * n + at
        inside = inside & (at < n)
    inside = (inside & (source < fits)).reshape(-1)
    rows = x.narrow(0, 0, fits * behind).reshape(fits, behind).index_select(0, torch.where(inside, source.reshape(-1), 0))
    return torch.where(inside.unsqueeze(1), rows, torch.zeros((), dtype=x.dtype)).reshape(tuple(shape))


def _parts(shape: Sequence[int], lengths: Sequence[torch.Tensor], dims: Sequence[int]) -> tuple[list[int], list[torch.Tensor | int], int]:
    """Return the extents up to the last dimension with a length, how much there is of each, and how many elements lie behind it."""
    last = dims[-1] + 1
    rooms = [int(n) for n in shape[:last]]
    there: list[torch.Tensor | int] = [*rooms]
    for d, n in zip(dims, lengths):
        there[d] = n.clamp(0, rooms[d])
    return rooms, there, math.prod(shape[last:])


def _count(there: Sequence[torch.Tensor | int]) -> torch.Tensor | int:
    count: torch.Tensor | int = 1
    for n in there:
        count = count * n
    return count


_library.impl("together", together, "CPU")
_library.impl("apart", apart, "CPU")
_library.impl("together", lambda x, lengths, dims: x.new_empty((math.prod(x.shape),)), "Meta")
_library.impl("apart", lambda x, lengths, dims, shape: x.new_empty(tuple(shape)), "Meta")
