# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What the list of the zoo says about a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: An endless supply of arguments for calls of a network.
Samples = Iterator[tuple[Tensor, ...]]


@dataclass(frozen=True)
class Recipe:
    """How a network is made.

    Attributes
    ----------
    description : str
        One line.
    make : callable
        Returns the network, calibrated; the weights come from PyTorch's global generator, all else from the one given.
    samples : callable
        Returns an endless iterator of arguments, drawn from a generator.
    """

    description: str
    make: Callable[[torch.Generator], nn.Module]
    samples: Callable[[torch.Generator], Samples]
