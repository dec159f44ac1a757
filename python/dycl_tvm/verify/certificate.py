# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a build has proved about itself, as figures.

Everything here is the same in two builds of one model: it is written into the library. Seconds stand in the build's report.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

#: How much is checked: ``default`` within a small part of the build's time, ``full`` all that can be covered, ``off`` nothing.
Level = Literal["default", "full", "off"]


@dataclass(frozen=True)
class Control:
    """The unedited program in eager against the staged graph.

    Attributes
    ----------
    method : str
        ``forced`` (answers of an oracle wherever a tensor crosses into Python) or ``inputs`` (random inputs only, for models that have
        no Python forward); ``none`` with ``reason``.
    runs, calls
        Sequences of calls that were compared, and the calls in all of them together.
    edges, edges_total
        Edges of the graph's branches and switches that were taken, of all.
    untaken : tuple of str
        Those that were not, as the user's lines with the way out: up to twenty. Some of them no input can take, which nobody has proved.
    pairs, pairs_total
        Pairs of edges of different decisions that were taken in one call, of all.
    trips : tuple of str
        Numbers of trips that loops made: among ``0``, ``1``, ``2``, ``many``.
    crossings : int
        Numbers that tensors gave to Python, in all runs together.
    inconclusive : int
        Runs that said nothing, such as answers with which the program does not end.
    reason : str
        Why less was checked than asked for; empty if everything was.
    """

    method: str = "none"
    runs: int = 0
    calls: int = 0
    edges: int = 0
    edges_total: int = 0
    untaken: tuple[str, ...] = ()
    pairs: int = 0
    pairs_total: int = 0
    trips: tuple[str, ...] = ()
    crossings: int = 0
    inconclusive: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Passes:
    """The graph before the passes against the graph after them, with the same answers and the same tensors."""

    runs: int = 0
    calls: int = 0
    edges: int = 0
    edges_total: int = 0
    inconclusive: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Kernels:
    """Compiled sub-DNNs against ATen in float64.

    Attributes
    ----------
    checked, total : int
        Different sub-DNNs whose kernels were run, of all.
    runs : int
        Executions, of all together.
    largest_error : float
        The largest error in units of its bound: 1.0 lies on the bound.
    worst : str
        The sub-DNN that had it.
    calls : int
        Calls of the whole lowered program in step with its graph, in which every value was compared wherever it was read.
    edges, edges_total
        Edges of the program's branches and switches that these calls took, of all.
    twin : str
        The target for which kernels were compiled to be run here, where the build's own does not run on this machine; else empty.
    reason : str
        Why less was checked than asked for; empty if everything was.
    """

    checked: int = 0
    total: int = 0
    runs: int = 0
    largest_error: float = 0.0
    worst: str = ""
    calls: int = 0
    edges: int = 0
    edges_total: int = 0
    twin: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Certificate:
    """What one build has proved about itself.

    Attributes
    ----------
    level : str
        What was asked for, see :data:`Level`.
    seed : int
        Of all random choices.
    graph : str
        Digest of the graph before the passes, its weights included, by which ``dycl-tvm verify`` knows the model again.
    staging : dict
        The options with which the model was staged, those that were given.
    control, passes, kernels
        The three parts; None where a part was not asked for.
    """

    level: Level
    seed: int = 0
    graph: str = ""
    staging: dict[str, Any] = dataclasses.field(default_factory=dict)
    control: Control | None = None
    passes: Passes | None = None
    kernels: Kernels | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as a plain dict, as it stands in the library's description."""
        found = dataclasses.asdict(self)
        if self.control is not None:
            found["control"].update(trips=list(self.control.trips), untaken=list(self.control.untaken))
        return found
