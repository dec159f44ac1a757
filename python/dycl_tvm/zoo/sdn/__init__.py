# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Shallow-Deep networks: image classifiers with internal classifiers, that stop at the first confident one."""

from __future__ import annotations

from dycl_tvm.zoo.sdn.mobilenet import MobileNetSDN
from dycl_tvm.zoo.sdn.network import InternalClassifier, ShallowDeepNetwork
from dycl_tvm.zoo.sdn.resnet import ResNetSDN
from dycl_tvm.zoo.sdn.vgg import VGG16BNSDN
from dycl_tvm.zoo.sdn.wideresnet import WideResNetSDN

__all__ = ["VGG16BNSDN", "InternalClassifier", "MobileNetSDN", "ResNetSDN", "ShallowDeepNetwork", "WideResNetSDN"]
