# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The control flow graph: nodes, verifier, analyses, printers and reference interpreter."""

from dycl_tvm.hcfg import dot, html, session, svg, text  # noqa: F401  # a graph finds its printers and its session once they are imported
