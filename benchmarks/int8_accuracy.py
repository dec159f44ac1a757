# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Two early-exit networks of the zoo, trained on scikit-learn's digits: what 8 bits change of classes and of paths.

python benchmarks/int8_accuracy.py [--networks NAME ...] [--epochs N] [--size N]
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import dycl_tvm
from dycl_tvm.zoo.sdn import MobileNetSDN, ResNetSDN, ShallowDeepNetwork

NETWORKS: dict[str, type[ShallowDeepNetwork]] = {"sdn_resnet56": ResNetSDN, "sdn_mobilenet": MobileNetSDN}
#: Images that are held out, of 1797.
_HELD_OUT = 400


def digits(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 3, size, size) around zero, and their classes, in a random order."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data = load_digits()
    images = torch.from_numpy(data.images).float() / 8 - 1
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    wide = nn.functional.interpolate(images[order, None], size=(size, size), mode="bilinear")
    return wide.expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(data.target).long()[order]


def logits_of_all_exits(model: ShallowDeepNetwork, x: torch.Tensor) -> list[torch.Tensor]:
    """Return what each classifier of a network says, whatever the ones before it say."""
    x = model.init_conv(x)
    found = []
    for block in model.layers:
        x, _, logits = block(x)
        if logits is not None:
            found.append(logits)
    return [*found, model.end_layers(x)]


def train(model: ShallowDeepNetwork, x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int = 64, rate: float = 2e-3) -> None:
    """Train all classifiers together."""
    model.train().requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for first in range(0, len(x), batch):
            chosen = order[first : first + batch]
            loss = sum(nn.functional.cross_entropy(out, y[chosen]) for out in logits_of_all_exits(model, x[chosen]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
            schedule.step()
    model.eval().requires_grad_(False)


def main() -> None:
    """Print what quantisation keeps, network by network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--size", type=int, default=32)
    args = parser.parse_args()
    images, classes = digits(args.size)
    for name in args.networks:
        torch.manual_seed(0)
        model = NETWORKS[name](input_size=args.size, confidence_threshold=0.9)
        start = time.perf_counter()
        train(model, images[_HELD_OUT:], classes[_HELD_OUT:], args.epochs)
        print(f"{name}: trained in {time.perf_counter() - start:.0f} s", flush=True)
        held_out = [images[k : k + 1] for k in range(_HELD_OUT)]
        quantised = dycl_tvm.quantize(model, [images[k : k + 1] for k in range(_HELD_OUT, _HELD_OUT + 100)], held_out=held_out)
        exits: dict[int, int] = {}
        right = [0, 0]
        for k, x in enumerate(held_out):
            for which, network in enumerate((model, quantised)):
                result = network(x)
                right[which] += int(result[0].argmax()) == int(classes[k])
            exits[int(result[1])] = exits.get(int(result[1]), 0) + 1
        print(f"  exits {dict(sorted(exits.items()))}; right: float32 {right[0]}, int8 {right[1]} of {_HELD_OUT}")
        print(quantised.report, flush=True)


if __name__ == "__main__":
    main()
