# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a suite gives: a model, and the calls that it is compared in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A model in evaluation mode, and the arguments and keyword arguments of its calls; it is built with those of the first.

    ``options`` are those of the build.
    """

    model: Any
    calls: list[Call]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """Models that others have written.

    Attributes
    ----------
    names : callable
        Returns the names of its models.
    load : callable
        Returns the case of a name.
    candidates : callable
        Returns the names that the rule of the suite gives for the installed library; its list has those of them that eager runs.
    package : str
        The library that they come from.
    about : str
        How they were chosen, and how small they are.
    """

    names: Callable[[], list[str]]
    load: Callable[[str], Case]
    candidates: Callable[[], list[str]]
    package: str
    about: str


def seeded(k: int) -> torch.Generator:
    """Return the random numbers of a call."""
    return torch.Generator().manual_seed(k)
