# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Orders of rows of which it is known only at run time how long they are: which of equal elements PyTorch takes follows from that.

Importing the file makes them PyTorch operators of the namespace ``dycl_order``; here they are PyTorch's own functions.
"""

from __future__ import annotations

import torch

NAMESPACE = "dycl_order"
_library = torch.library.Library(NAMESPACE, "DEF")
_library.define("topk(Tensor x, Tensor n, Tensor k, int most, bool largest, bool sorted) -> (Tensor, Tensor)")


def _topk(x: torch.Tensor, n: torch.Tensor, k: torch.Tensor, most: int, largest: bool, sorted: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first ``k`` of the first ``n`` elements along the middle of three dimensions, in ``most`` places; else zeros."""
    length = min(max(int(n), 0), x.shape[1])
    count = min(max(int(k), 0), length, most)
    values, places = x.narrow(1, 0, length).topk(count, 1, largest, sorted)
    made = x.new_zeros(x.shape[0], most, x.shape[2]), torch.zeros(x.shape[0], most, x.shape[2], dtype=torch.int64)
    for whole, part in zip(made, (values, places)):
        whole.narrow(1, 0, count).copy_(part)
    return made


_library.impl("topk", _topk, "CompositeExplicitAutograd")
