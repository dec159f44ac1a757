# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Path coverage: which paths a network has, inputs that take them, and which of them a set of inputs exercised.

A :class:`Flow` is the skeleton of a network's control flow, of a graph or of an artefact; :func:`list_paths` lists its paths;
:class:`Coverage` notes which were taken; :func:`search` looks for inputs that take others. An artefact needs neither torch
nor TVM for this.
"""

from __future__ import annotations

from dycl_tvm.coverage.flow import Flow, FlowBlock, Key, ListedPath, Listing, count_paths, flow_of_artifact, flow_of_graph, list_paths
from dycl_tvm.coverage.latency import Estimate, NetworkBound, NoBound, estimates, network_bound, path_bounds
from dycl_tvm.coverage.record import Coverage, Seen
from dycl_tvm.coverage.runners import ArtifactRunner, GraphRunner, Outcome, Runner
from dycl_tvm.coverage.search import search

__all__ = [
    "ArtifactRunner", "Coverage", "Estimate", "Flow", "FlowBlock", "GraphRunner", "Key", "ListedPath", "Listing", "NetworkBound",
    "NoBound", "Outcome", "Runner", "Seen", "count_paths", "estimates", "flow_of_artifact", "flow_of_graph", "list_paths",
    "network_bound", "path_bounds", "search",
]  # fmt: skip
