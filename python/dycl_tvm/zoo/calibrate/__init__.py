# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Calibration: random weights are adjusted so that different inputs take different paths."""

from __future__ import annotations

from dycl_tvm.zoo.calibrate.captions import calibrate_captioning
from dycl_tvm.zoo.calibrate.exits import calibrate_exits
from dycl_tvm.zoo.calibrate.gates import calibrate_block_drop, calibrate_skip_net

__all__ = ["calibrate_block_drop", "calibrate_captioning", "calibrate_exits", "calibrate_skip_net"]
