# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Batch norms with a tame start.

A deep random network of batch norms and ReLUs is chaotic: differences between inputs grow from layer to layer, and so do
rounding errors, a hundredfold over the depth of these networks. Trained networks are not like that. The two forms below,
which authors also use to train deep networks, keep the random ones tame.
"""

from __future__ import annotations

from torch import nn


def residual_norm(channels: int) -> nn.BatchNorm2d:
    """Return the last batch norm of a residual branch: the branch starts weaker than the shortcut."""
    norm = nn.BatchNorm2d(channels)
    nn.init.constant_(norm.weight, 0.5)
    return norm


def open_norm(channels: int) -> nn.BatchNorm2d:
    """Return a batch norm before a ReLU that lets most values pass."""
    norm = nn.BatchNorm2d(channels)
    nn.init.constant_(norm.bias, 0.5)
    return norm
