# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An early-exit classifier on real data: trained here on scikit-learn's handwritten digits, compiled once, and run at many thresholds.

The network leaves at the first of its exits that is sure enough. How sure is an input, so that accuracy is traded for latency while the
network runs, without another build. Prints accuracy, latency and where inputs left on the test images, and draws them with ``--plot``. Ends
with 0 if every answer is PyTorch's.

Needs ``pip install scikit-learn``.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import dycl_tvm

#: An image is run so often at a threshold, and the quickest run counts: what else the machine does is not the network's.
REPEATS = 3
THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.01)
CLASSES, LARGEST = 10, 16.0


class EarlyExit(nn.Module):
    """Stages of convolutions with an exit behind each."""

    def __init__(self, widths: tuple[int, ...] = (8, 48, 96, 128)) -> None:
        super().__init__()
        inputs = (1, *widths[:-1])
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, stride=2 if k == 1 else 1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            )
            for k, (before, width) in enumerate(zip(inputs, widths))
        )
        self.exits = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, CLASSES)) for width in widths)

    def scores(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the scores of each exit: what is trained."""
        for stage, leave in zip(self.stages, self.exits):
            x = stage(x)
            yield leave(x)

    def forward(self, x: torch.Tensor, threshold: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the scores of the first exit that is sure enough, or of the last one, and which it was."""
        for number, (stage, leave) in enumerate(zip(self.stages, self.exits)):
            x = stage(x)
            scores = leave(x)
            if number == len(self.exits) - 1 or torch.softmax(scores, 1).max() >= threshold:
                return scores, number
        raise ValueError("a network without exits")


@dataclass(frozen=True)
class Row:
    """What came of the test images at one threshold; latency in microseconds."""

    threshold: float
    accuracy: float
    mean: float
    largest: float
    exits: Counter[int]
    equal: bool


def trained(images: torch.Tensor, labels: torch.Tensor, epochs: int) -> EarlyExit:
    """Return a network of which every exit was trained."""
    model = EarlyExit()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            loss = sum(nn.functional.cross_entropy(scores, labels[batch]) for scores in model.scores(images[batch]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
        slower.step()
        print(f"training, epoch {epoch + 1:2} of {epochs}: loss {float(loss):.3f}", flush=True)
    return model.eval()


def measured(module: dycl_tvm.Module, model: EarlyExit, images: torch.Tensor, labels: torch.Tensor, threshold: float) -> Row:
    """Run all images at one threshold, and compare each answer with PyTorch's."""
    times, right, exits, equal = [], 0, Counter[int](), True
    at = torch.tensor(threshold)
    for image, label in zip(images.split(1), labels):
        taken = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            scores, number = module(image, at)
            taken.append((time.perf_counter() - begun) * 1e6)
        times.append(min(taken))
        with torch.no_grad():
            expected, expected_number = model(image, at)
        equal &= number == expected_number and torch.allclose(torch.as_tensor(scores), expected, rtol=1e-3, atol=1e-3)
        right += int(scores.argmax()) == int(label)
        exits[number] += 1
    return Row(threshold, right / len(images), float(np.mean(times)), float(np.quantile(times, 0.99)), exits, equal)


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy against latency, as SVG: any browser opens it."""
    width, height, left, below = 640, 400, 60, 50
    points = [(row.mean, 100 * row.accuracy, f"{row.threshold:g}" if row.threshold <= 1 else "last exit") for row in rows]
    columns, lines = _ticks(0, max(x for x, _, _ in points)), _ticks(min(y for _, y, _ in points), max(y for _, y, _ in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - columns[0]) / (columns[-1] - columns[0])
        up = (y - lines[0]) / (lines[-1] - lines[0])
        return left + across * (width - left - 70), (height - below) - up * (height - below - 40)

    parts = [f'<text x="{width / 2}" y="22" font-size="15" text-anchor="middle">One library, many thresholds</text>']
    parts.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">mean latency, µs</text>')
    parts.append(
        f'<text transform="translate(15 {height / 2}) rotate(-90)" text-anchor="middle">accuracy on images not trained on, %</text>'
    )
    for kind, ticks in (("x", columns), ("y", lines)):
        for tick in ticks:
            begin = place(tick, lines[0]) if kind == "x" else place(columns[0], tick)
            end = place(tick, lines[-1]) if kind == "x" else place(columns[-1], tick)
            parts.append(f'<path d="M{begin[0]:.1f} {begin[1]:.1f} L{end[0]:.1f} {end[1]:.1f}" stroke="#ddd"/>')
            label = (begin[0], begin[1] + 16, "middle") if kind == "x" else (begin[0] - 6, begin[1] + 4, "end")
            parts.append(f'<text x="{label[0]:.1f}" y="{label[1]:.1f}" text-anchor="{label[2]}">{tick:g}</text>')
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(mean, accuracy) for mean, accuracy, _ in points))
    parts.append(f'<polyline points="{line}" fill="none" stroke="steelblue"/>')
    for mean, accuracy, name in points:
        x, y = place(mean, accuracy)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="steelblue"/><text x="{x + 6:.1f}" y="{y + 13:.1f}">{name}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"]), encoding="utf-8")
    print(f"drawn in {path}")


def _ticks(least: float, most: float) -> list[float]:
    """Return round numbers, the first not above and the last not below."""
    rough = max(most - least, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.floor(least / step)
    return [step * k for k in range(first, max(math.ceil(most / step), first + 1) + 1)]


def main() -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help="of training (default 15: half a minute)")
    parser.add_argument("--images", type=int, default=600, help="how many test images are run at each threshold (default 600)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw accuracy against latency, as SVG")
    asked = parser.parse_args()
    if asked.plot and asked.plot.suffix != ".svg":
        parser.error(f"--plot writes SVG: {asked.plot.with_suffix('.svg')}")
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images / LARGEST, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    parts = train_test_split(images, labels, test_size=600, random_state=0, stratify=digits.target)
    model = trained(parts[0], parts[2], asked.epochs)

    artifact = dycl_tvm.build(model, (parts[1][:1], torch.tensor(0.9)), name="digits", progress=True)
    with tempfile.TemporaryDirectory() as folder:
        library = artifact.export_library(Path(folder) / "digits.so")
        module = dycl_tvm.load(library, artifact.save_params(Path(folder) / "digits.params"), num_threads=1)
        print(f"\n{library.stat().st_size:,} bytes of code\n\nthreshold  accuracy  mean, µs  p99, µs  left at exits         as eager")
        rows = []
        for threshold in THRESHOLDS:
            row = measured(module, model, parts[1][: asked.images], parts[3][: asked.images], threshold)
            shares = "  ".join(f"{row.exits[k] / sum(row.exits.values()):4.0%}" for k in range(len(model.exits)))
            print(f"{threshold:9g}  {row.accuracy:8.1%}  {row.mean:8.1f}  {row.largest:7.1f}  {shares}  {'yes' if row.equal else 'NO'}")
            rows.append(row)
        if asked.plot:
            draw(rows, asked.plot)
    return 0 if all(row.equal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
