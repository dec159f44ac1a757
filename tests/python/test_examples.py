# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The worked examples, with little training: each compares itself with eager, and its exit code says what came of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "name, needs, arguments, said",
    [
        ("early_exit", ("sklearn",), ("--epochs", "1", "--images", "8", "--plot", "plot.svg"), "drawn in plot.svg"),
        ("text_generator", ("grpc", "tritonclient", "uvicorn"), ("--steps", "2", "--letters", "20"), ", the same as eager"),
    ],
)
def test_an_example_does_what_eager_does(name: str, needs: tuple[str, ...], arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    if missing := [need for need in needs if importlib.util.find_spec(need) is None]:
        pytest.skip(f"without {missing}: pip install 'dycl-tvm[examples]'")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=variables, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    for plot in tmp_path.iterdir():
        _look_at(plot, done.stdout)


def _look_at(plot: Path, printed: str) -> None:
    """A point for each row of the table that was printed, inside of the picture, and those that took longer lie to the right."""
    picture = ElementTree.parse(plot).getroot()
    width, height = map(float, picture.attrib["viewBox"].split()[2:])
    points = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in picture.iter("{http://www.w3.org/2000/svg}circle")]
    means = [float(row[1]) for row in re.findall(r"^ *[\d.]+ +([\d.]+)% +([\d.]+) .* yes$", printed, flags=re.MULTILINE)]
    assert len(points) == len(means) == 10
    assert all(0 < x < width and 0 < y < height for x, y in points)
    longer = [(k, m) for k in range(10) for m in range(10) if means[k] < means[m]]
    assert all(points[k][0] <= points[m][0] for k, m in longer)
