# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Where the time of a network goes: by kernel, sub-DNN, block, line and path. Made by :meth:`dycl_tvm.runtime.Module.profile`."""

from __future__ import annotations

from dycl_tvm.runtime.profile.profile import PathTimes, Profile, Row
from dycl_tvm.runtime.profile.recording import Recording
from dycl_tvm.runtime.profile.trace import load_profile

__all__ = ["PathTimes", "Profile", "Recording", "Row", "load_profile"]
