# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The networks, each made once for all tests."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dycl_tvm import zoo

HERE = Path(__file__).parent
# The helpers beside the tests.
sys.path.insert(0, str(HERE))


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one network in one process (``--dist loadgroup``), so that it is made and compiled once."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        if HERE in item.path.parents and parameters is not None and parameters.params.get("name") in zoo.names():
            item.add_marker(pytest.mark.xdist_group(parameters.params["name"]))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run on one thread: the layers are small, and on a busy machine the threads of one layer wait long for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def _load(name: str) -> zoo.Entry:
    return zoo.load(name)


@functools.cache
def _paths(name: str) -> Counter[zoo.Path]:
    return zoo.observed_paths(_load(name), 8 if name.startswith("caption") else 64)


@pytest.fixture(scope="session")
def network() -> Callable[[str], zoo.Entry]:
    """Return a function from a name to a network that no test may change."""
    return _load


@pytest.fixture(scope="session")
def paths() -> Callable[[str], Counter[zoo.Path]]:
    """Return a function from a name to the paths of the first inputs."""
    return _paths
