# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The certificate of a library in words."""

from __future__ import annotations

from typing import Any

#: So many edges that were not taken are shown.
_EDGES = 4


def summary(certificate: dict[str, Any]) -> list[str]:
    """Return a line for each part of what a build has proved about itself."""
    if not certificate or certificate["level"] == "off":
        return ["no: the build was asked not to"]
    lines = []
    control, passes, kernels = certificate["control"], certificate["passes"], certificate["kernels"]
    if control is not None and control["method"] == "none":
        lines.append(f"control: no, {control['reason']}")
    elif control is not None:
        trips = f", loops of {', '.join(control['trips'])} trips" if control["trips"] else ""
        covered = f"{control['edges']} of {control['edges_total']} edges, {control['pairs']} of {control['pairs_total']} pairs{trips}"
        lines.append(f"control: {control['calls']} calls by {control['method']} against eager, {covered}" + _open(control))
        untaken = control.get("untaken", [])
        lines += [f"  not taken: {edge}" for edge in untaken[:_EDGES]]
        lines += ["  not taken: ..."] if len(untaken) > _EDGES else []
    if passes is not None:
        lines.append(
            f"passes: {passes['calls']} calls before against after, {passes['edges']} of {passes['edges_total']} edges" + _open(passes)
        )
    if kernels is not None:
        error = f", the largest error {kernels['largest_error']:.2g} of its bound" if kernels["runs"] else ""
        twin = f", compiled for {kernels['twin']}" if kernels["twin"] else ""
        lines.append(f"kernels: {kernels['checked']} of {kernels['total']} sub-DNNs against float64{twin}{error}" + _open(kernels))
    return lines


def _open(part: dict[str, Any]) -> str:
    """Return what a part leaves open."""
    reason = f"; open: {part['reason']}" if part["reason"] else ""
    undecided = part.get("inconclusive", 0)
    return (f"; {undecided} runs said nothing" if undecided else "") + reason
