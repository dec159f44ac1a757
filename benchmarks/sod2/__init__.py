# Licensed under the Apache License, Version 2.0; see LICENSE.
"""SoD2's experiment, inputs of random shapes, next to ONNX Runtime and TVM: ``make bench-sod2``."""
