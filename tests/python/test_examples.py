# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The worked examples, with little training: each compares itself with eager, and its exit code says what came of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "name, needs, arguments, said",
    [
        ("early_exit", ("sklearn",), ("--epochs", "1", "--images", "8"), "as eager"),
        ("text_generator", ("grpc", "tritonclient", "uvicorn"), ("--steps", "2", "--letters", "20"), ", the same as eager"),
    ],
)
def test_an_example_does_what_eager_does(name: str, needs: tuple[str, ...], arguments: tuple[str, ...], said: str) -> None:
    if missing := [need for need in needs if importlib.util.find_spec(need) is None]:
        pytest.skip(f"without {missing}: pip install 'dycl-tvm[examples]'")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py", *arguments], env=variables, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
