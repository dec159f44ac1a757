# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks of the size that users have, in 32, 16 and 8 bits, next to ONNX Runtime, OpenVINO and PyTorch: ``make bench-real``."""
