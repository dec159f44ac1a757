# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The front end for ``torch.export``: the graph of an exported program, with its control flow operators, becomes an HCFG."""

from __future__ import annotations

from dycl_tvm.frontend.exported.program import example_inputs_of, stage_exported

__all__ = ["example_inputs_of", "stage_exported"]
