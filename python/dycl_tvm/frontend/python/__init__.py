# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The Python front end: from an ordinary PyTorch forward to an HCFG."""

from __future__ import annotations

from dycl_tvm.frontend.python.stage_model import stage

__all__ = ["stage"]
