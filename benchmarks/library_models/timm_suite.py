# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The smallest architectures of every family of ``timm``, on small images, with random weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from library_models.calls import Case, Suite, seeded

#: Height and width of the images: the first that an architecture takes.
SIDES = (64, 96, 128, 224, 256)
_CLASSES = 10
_NAMES = Path(__file__).with_name("timm.txt")


def load(name: str) -> Case:
    """Return a model of an architecture of ``timm``."""
    import timm

    problems = []
    for side in SIDES:
        for options in ({"img_size": side}, {}):
            try:
                model = timm.create_model(name, num_classes=_CLASSES, **options).eval()
                images = [torch.randn(1, 3, side, side, generator=seeded(k)) * (1 + k) for k in range(2)]
                with torch.no_grad():
                    model(images[0])
                return Case(model, [((x,), {}) for x in images])
            except (TypeError, ValueError, RuntimeError, AssertionError, IndexError) as error:  # it does not take this size
                problems.append(f"{side}: {error}")
    raise ValueError(f"takes images of none of the sizes: {problems[-1]}")


def candidates(each: int = 3) -> list[str]:
    """Return the architectures with the fewest parameters of each family."""
    import timm

    found = []
    for module in timm.list_modules():
        sizes = []
        for name in timm.list_models(module=module):
            with torch.device("meta"):
                try:
                    model = timm.create_model(name, num_classes=_CLASSES)
                except (RuntimeError, NotImplementedError):  # it reads values of its weights when it is made
                    continue
            sizes.append((sum(p.numel() for p in model.parameters()), name))
        found += [name for _, name in sorted(sizes)[:each]]
    return found


def names() -> list[str]:
    """Return the architectures that eager runs so."""
    return _NAMES.read_text().split() if importlib.util.find_spec("timm") else []


SUITE = Suite(
    names,
    load,
    candidates,
    "timm",
    "of each family of architectures those with the fewest parameters, unchanged, on images of 64 pixels or more",
)
