# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What each part of the compiler is worth: the same networks with a part left out, by the arguments of ``build``."""

from __future__ import annotations

from typing import Any

from dycl_tvm.passes import PASSES

#: Name and arguments of ``dycl_tvm.build``. What it does not take yet is shown as such.
ABLATIONS: dict[str, dict[str, Any]] = {
    "no graph passes": {"disable_passes": [name for name, _ in PASSES[:-1]]},
    "no deduplication": {"deduplicate": False},
    "no layout planning": {"layout_planning": False},
    "no Winograd": {"disable_families": ["winograd"]},
    "strict accuracy": {"accuracy": "strict"},
}


def folder_name(ablation: str) -> str:
    """Return the name of the folder of an ablation's artefact, which is also the contender's after ``ours:``."""
    return ablation.replace(" ", "-")
