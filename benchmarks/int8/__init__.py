# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Eight bits: networks of real size against the integer kernels of ONNX Runtime and OpenVINO, and accuracy on real data."""
