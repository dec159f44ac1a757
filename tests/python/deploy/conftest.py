# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Networks compiled for boards, each once, with what eager does on their inputs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "codegen"))  # handmade programs

from boards import Deployed, deploy  # noqa: E402
from servers import make_program  # noqa: E402


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The RPC server for this machine."""
    return make_program(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Deployed]:
    """Return a function from a network of the zoo and a board (None: this machine) to the artefact for it."""

    @functools.cache
    def get(name: str, board: object = None) -> Deployed:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return deploy(name, board, tmp_path_factory.mktemp(f"{name}-{getattr(board, 'name', 'here')}"))
        finally:
            torch.set_num_threads(threads)

    return get
