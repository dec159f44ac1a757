# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What all tests share: the threads of each process are kept few, because several run side by side."""

from __future__ import annotations

import os

_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THREADS = max(1, (os.cpu_count() or 1) // _WORKERS)
# Before torch and TVM are imported: their pools are sized then.
os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))
os.environ.setdefault("TVM_NUM_THREADS", str(_THREADS))

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(_THREADS)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test begins with the same random numbers, whatever ran before it in its process."""
    torch.manual_seed(0)
