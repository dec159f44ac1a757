# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The parameters of a request, as Triton has them: sequences and time-outs; and ``seed``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dycl_tvm.serve.failures import invalid
from dycl_tvm.serve.messages import Parameter


@dataclass(frozen=True)
class Call:
    """What the parameters of a request ask for. ``sequence`` is None where it belongs to none, ``seconds`` where it may take any time."""

    sequence: int | str | None = None
    start: bool = False
    end: bool = False
    seconds: float | None = None
    seed: int | None = None


def call_of(parameters: Mapping[str, Parameter]) -> Call:
    """Return what the parameters ask for; those of other names are for others (the protocol wants them ignored)."""
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, (bool, float)):
        raise invalid(f"the parameter sequence_id must be an integer or a string, got {sequence!r}")
    start, end = _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
    if not sequence and (start or end):
        raise invalid("sequence_start and sequence_end need a sequence_id, which is neither 0 nor empty")
    timeout = _integer(parameters, "timeout", 0) or 0
    seed = _integer(parameters, "seed", None)
    return Call(sequence or None, start, end, timeout / 1e6 if timeout else None, seed)


def _flag(parameters: Mapping[str, Parameter], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"the parameter {name} must be true or false, got {value!r:.40}")
    return value


def _integer(parameters: Mapping[str, Parameter], name: str, default: int | None) -> int | None:
    value = parameters.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63):
        raise invalid(f"the parameter {name} must be an integer that is not negative, got {value!r:.40}")
    return value
