# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Programs of the hunt as a compiled library: many in one, which an input chooses among, because a build takes seconds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from judge import OPTIONS, SESSIONS, Verdict, compare_sessions, eager, load, net_of, reason_of

import dycl_tvm
from dycl_tvm.errors import DyclError, UnsupportedError

SOURCE = """
import torch

class Batch(torch.nn.Module):
    def __init__(self, nets):
        super().__init__()
        self.nets = torch.nn.ModuleList(nets)

    def forward(self, x, which):
        k = int(which)
        for i, net in enumerate(self.nets):
            if k == i:
                return net(x)
"""


def judge_built(sources: list[str], verify: str = "default") -> list[Verdict]:
    """Build programs that were staged and found right, and compare every call of every session with eager."""
    nets = [net_of(source) for source in sources]
    options = {**OPTIONS, "max_paths": OPTIONS["max_paths"] * 2}
    with tempfile.TemporaryDirectory() as folder:
        try:
            art = dycl_tvm.build(
                load(SOURCE).Batch(nets).eval(), (SESSIONS[0][0].clone(), torch.tensor(0)), target="llvm", verify=verify, **options
            )
            library = Path(folder) / "batch.so"
            module = dycl_tvm.load(art.export_library(library), art.save_params(library.with_suffix(".params")))
        except UnsupportedError as error:  # what the programs leave for the next call multiplies their paths
            if len(sources) == 1:
                return [Verdict("refused", reason_of(error))]
            half = len(sources) // 2
            return [*judge_built(sources[:half], verify), *judge_built(sources[half:], verify)]
        except DyclError as error:
            return [Verdict("crashed", f"{type(error).__name__}: {error}")] * len(sources)
        return [_compare(module, number, source) for number, source in enumerate(sources)]


def _compare(module: Any, number: int, source: str) -> Verdict:
    def new() -> Any:
        session = module.new_session()
        return lambda x: session(x, torch.tensor(number))

    return compare_sessions([eager(source, session) for session in SESSIONS], new, "built")
