# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What one build proves about itself, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from dycl_tvm.compile import Lowered
from dycl_tvm.hcfg.copies import copied_graph
from dycl_tvm.hcfg.digest import digest
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.vectors import BY_RULE, chosen, places_of
from dycl_tvm.progress import Phases
from dycl_tvm.target import resolve_target
from dycl_tvm.verify.budget import BuildBudget
from dycl_tvm.verify.certificate import Certificate, Control, Kernels, Level, Passes
from dycl_tvm.verify.compiled import check_compiled
from dycl_tvm.verify.model import check_model
from dycl_tvm.verify.open_vectors import check_any_vectors, note, refuse
from dycl_tvm.verify.passes import check_passes
from dycl_tvm.verify.rewritten import Makers, check_rewrites
from dycl_tvm.verify.runs import Call
from dycl_tvm.verify.staged_with import as_json


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run eager on one thread: networks are run once an answer, and on a busy machine the threads of one layer wait long for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Proof:
    """Collects the parts of a certificate.

    Parameters
    ----------
    level : str
        With ``off`` nothing is done.
    graph : HCFG
        As staged; it may be changed afterwards.
    phases : Phases
        Measures how long each part takes, which the certificate does not say.
    staging : dict
        The options with which the graph was staged.
    """

    def __init__(self, level: Level, graph: HCFG, phases: Phases, staging: Mapping[str, Any] = MappingProxyType({}), seed: int = 0) -> None:
        self._level, self._phases, self._seed = level, phases, seed
        self._staging = as_json(staging) if level != "off" else {}
        self._staged = copied_graph(graph) if level != "off" else None
        self._budget = BuildBudget(level)
        self._call: Call | None = None
        self._control: Control | None = None
        self._passes: Passes | None = None
        self._kernels: Kernels | None = None

    def of_control(
        self, model: Any | None, call: Call | None, input_values: Mapping[str, Any] | None, graph: HCFG, open_signs: bool
    ) -> None:
        """Compare the model with the graph; with all vectors that there could be, unless their signs are accepted as they come.

        Without a model the graph itself is what is compiled.
        """
        self._call = call
        places = places_of(graph)
        if self._staged is not None and model is not None:

            def check() -> Control:
                return check_model(
                    model,
                    self._staged,  # type: ignore[arg-type]
                    call,
                    level=self._level,
                    seed=self._seed,
                    input_values=input_values,
                    budget=self._budget.for_control(),
                    device=self._staging.get("device", "cpu"),
                )

            with self._phases.phase("verify", "the model against its graph"), _one_thread():
                self._control = check_any_vectors(places, check) if places and not open_signs else check()
        elif places and not open_signs:
            refuse(places, "and a build without its model, or with verify='off', does not find out whether the result depends on them")
        graph.left_out += dict.fromkeys(note(place, not open_signs) for place in places)

    def of_another_rounding(self, before: Makers, graph: HCFG) -> None:
        """Take a graph, which rounds otherwise than the model in a way that its results may show, for what is compiled from here on.

        What its operations were before is compared with them, one by one.
        """
        if self._staged is not None:
            with self._phases.phase("verify", "sums of integers"), _one_thread():
                check_rewrites(before, graph, self._seed)
            self._staged = copied_graph(graph)

    def of_passes(self, graph: HCFG) -> None:
        """Compare the graph with what the passes made of it."""
        if self._staged is not None:
            with self._phases.phase("verify", "the graph before and after the passes"), _one_thread():
                budget = self._budget.for_passes()
                self._passes = check_passes(self._staged, graph, self._call, level=self._level, seed=self._seed, budget=budget)

    def of_kernels(self, graph: HCFG, lowered: Lowered, target: Any, accuracy: str) -> None:
        """Compare the kernels, and the instructions that call them, with the graph."""
        if self._staged is not None:
            with self._phases.phase("verify", "the kernels"), _one_thread(), chosen(BY_RULE):
                here = resolve_target("native").target
                self._kernels = check_compiled(graph, lowered, target, here, self._level, accuracy, self._seed, self._budget)

    def certificate(self) -> Certificate:
        """Return what was proved."""
        graph = digest(self._staged) if self._staged is not None else ""
        return Certificate(self._level, self._seed, graph, self._staging, self._control, self._passes, self._kernels)
