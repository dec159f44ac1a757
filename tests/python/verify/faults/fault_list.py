# Licensed under the Apache License, Version 2.0; see LICENSE.
"""All faults that are planted, by room."""

from __future__ import annotations

from fault_back_end import FAULTS as BACK_END
from fault_graphs import FAULTS as GRAPHS
from fault_harness import Fault
from fault_pass_list import FAULTS as PASSES
from fault_variants import FAULTS as FRONT_END

FAULTS: list[Fault] = [*FRONT_END, *GRAPHS, *PASSES, *BACK_END]
