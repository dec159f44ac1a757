# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Every build proves itself: the model in plain eager against what was built of it, on paths that need no inputs to be found.

Three parts, each with its own share of the certificate: control (the unedited program against the staged graph), passes (the graph before
against the graph after), kernels (compiled sub-DNNs against ATen in float64). Nothing here shares code with the front ends.
"""

from __future__ import annotations

from dycl_tvm.verify.certificate import Certificate, Control, Kernels, Level, Passes

__all__ = ["Certificate", "Control", "Kernels", "Level", "Passes"]
