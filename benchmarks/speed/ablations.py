# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What each part of the compiler is worth: the same networks with a part left out, by options of the compiler."""

from __future__ import annotations

from typing import Any

from dycl_tvm.passes import PASSES

#: Name and options of :func:`speed.compiling.compile_network`. What the compiler does not take is shown as such.
ABLATIONS: dict[str, dict[str, Any]] = {
    "no graph passes": {"disable_passes": [name for name, _ in PASSES[:-1]]},
    "no deduplication": {"lower": {"dedup": False}},
    "no layout planning": {"layout_planning": False},
    "no Winograd": {"disable_families": ["winograd"]},
}


def folder_name(ablation: str) -> str:
    """Return the name of the folder of an ablation's artefact, which is also the contender's after ``ours:``."""
    return ablation.replace(" ", "-")
