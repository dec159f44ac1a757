# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Convolutional trunks of image classifiers, as encoders for captioning."""

from __future__ import annotations

from dycl_tvm.zoo.encoders.googlenet import GoogLeNetTrunk
from dycl_tvm.zoo.encoders.resnext import ResNeXtTrunk

__all__ = ["GoogLeNetTrunk", "ResNeXtTrunk"]
