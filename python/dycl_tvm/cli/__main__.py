# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``python -m dycl_tvm.cli``."""

import sys

from dycl_tvm.cli.main import main

sys.exit(main())
