# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What all tests share: the threads of each process are kept few, because several run side by side."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_THREADS = max(1, (os.cpu_count() or 1) // _WORKERS)
# Before torch and TVM are imported: their pools are sized then.
os.environ.setdefault("OMP_NUM_THREADS", str(_THREADS))
os.environ.setdefault("TVM_NUM_THREADS", str(_THREADS))
# Kernels are kept for other tests, which compile the same networks again, but by no test that changes something of its process.
_KEPT_BYTES = str((1 << 30) - 1)  # a number that no test sets itself
os.environ["DYCL_CACHE_BYTES"] = _KEPT_BYTES

sys.path.insert(0, str(Path(__file__).parent))  # pages.py

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(_THREADS)


def _alone(change: Callable[..., None]) -> Callable[..., None]:
    """While a test has changed something of this process, what it compiles is kept for no other, and it takes nothing from others."""

    @functools.wraps(change)
    def changed(patch: pytest.MonkeyPatch, target: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(target, (type(os.environ), pytest.Config)) and os.environ.get("DYCL_CACHE_BYTES") == _KEPT_BYTES:
            patch.setenv("DYCL_CACHE_BYTES", "0")
        change(patch, target, *args, **kwargs)

    return changed


for _name in ("setattr", "delattr", "setitem", "delitem"):
    setattr(pytest.MonkeyPatch, _name, _alone(getattr(pytest.MonkeyPatch, _name)))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test begins with the same random numbers, whatever ran before it in its process."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share what is made once for their file in one process (``--dist loadgroup``)."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (made := _made_for_the_file(item)):
            # Each form of a fixture is made for itself, so the tests of one need not be beside those of another.
            forms = item.callspec.indices if hasattr(item, "callspec") else {}
            item.add_marker(pytest.mark.xdist_group(" ".join([item.path.name, *(f"{n}{forms[n]}" for n in made if n in forms)])))


def _made_for_the_file(item: pytest.Item) -> list[str]:
    """Return the fixtures of a test that are made once for its file. By their name, those that begin with ``_`` make nothing."""
    known = item._fixtureinfo.name2fixturedefs
    return sorted(name for name, found in known.items() if found[-1].scope == "module" and not name.startswith("_"))
