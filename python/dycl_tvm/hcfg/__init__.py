# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The control flow graph: nodes, verifier, analyses, printers and reference interpreter."""

from __future__ import annotations

from typing import Any

from dycl_tvm.hcfg import dot, html, svg, text  # noqa: F401  # a graph finds its printers once they are imported
from dycl_tvm.hcfg.nodes import HCFG, interpreter_of_graphs


@interpreter_of_graphs
def _interpreted(graph: HCFG) -> Any:
    from dycl_tvm.hcfg.interpreted import InterpretedModule  # it needs PyTorch

    return InterpretedModule(graph)
