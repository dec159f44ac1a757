# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm compile --cases``: what the model gives in eager, written down for ``dycl-tvm deploy`` to compare with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dycl_tvm.cli.arrays import as_call, make_inputs
from dycl_tvm.errors import UsageError


def record(path: str, reference: str, model: Any, metadata: dict[str, Any], count: int) -> int:
    """Run a model in eager and write its inputs and outputs; return the number of calls.

    Networks of the zoo bring inputs that take many paths; others get random ones.

    Raises
    ------
    UsageError
        If the model cannot be run in eager.
    """
    from dycl_tvm.deploy import record_cases
    from dycl_tvm.verify.as_on_gpu import drawing_as_on

    if not callable(model):
        raise UsageError(f"{reference} cannot be run in eager, so there is nothing to record; leave out --cases")
    calls = list(islice(_calls(reference, metadata), count))
    with drawing_as_on((metadata.get("device") or {"kind": "cpu"})["kind"]):
        return record_cases(path, model, [positional for positional, _ in calls], [named for _, named in calls])


def _calls(reference: str, metadata: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    if reference.startswith("zoo:"):
        from dycl_tvm import zoo

        for args in zoo.load(reference.partition(":")[2]).inputs(1 << 30):
            yield args, {}
        return
    seed = 0
    while True:
        leaves = [_tensor(leaf, kind["dtype"]) if kind["type"] == "tensor" else leaf for leaf, kind in _drawn(metadata, seed)]
        yield as_call(metadata, leaves)
        seed += 1


def _drawn(metadata: dict[str, Any], seed: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    return iter(zip(make_inputs(metadata, [], seed, 2), metadata["inputs"]))


def _tensor(array: Any, dtype: str) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
