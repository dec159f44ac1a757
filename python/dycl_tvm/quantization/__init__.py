# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Static quantisation to 8 bits after training: ranges by path, integers in the graph, what each layer loses.

``layers.py`` finds what can be quantised, ``observe.py`` runs the network for the ranges of its tensors, ``rewrite.py`` puts
quantisations into the graph, ``program.py`` is what comes out, with its report; ``static.py`` is read from top to bottom.
"""

from __future__ import annotations

from dycl_tvm.quantization.program import Agreement, LayerLoss, QuantizationReport, Quantized
from dycl_tvm.quantization.static import quantize

__all__ = ["Agreement", "LayerLoss", "QuantizationReport", "Quantized", "quantize"]
