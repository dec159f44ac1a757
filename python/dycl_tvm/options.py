# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The options of a build, checked before any long work."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import get_args

from dycl_tvm import passes
from dycl_tvm.codegen.cpu_levels import check_levels
from dycl_tvm.codegen.cross import compiler_for
from dycl_tvm.codegen.machine import machine_of, runs_here
from dycl_tvm.compile import DEFAULT_TUNING_SECONDS, FAMILIES, Accuracy, KernelOptions, has_amx
from dycl_tvm.errors import UsageError
from dycl_tvm.target import ResolvedTarget, TargetLike, TargetsLike, check_buildable, resolve_targets
from dycl_tvm.verify.certificate import Level


def check_target(target: TargetsLike, host: TargetLike | None) -> ResolvedTarget:
    """Return the machine to build for.

    Raises
    ------
    TargetError
        If it says nothing, or nothing that can be built for.
    CompileError
        If there is no cross-compiler; the message says how to get one.
    """
    resolved = resolve_targets(target, host)
    check_buildable(resolved)
    if resolved.better:
        check_levels([machine_of(t) for t in (resolved.target, *resolved.better)])
    if not resolved.is_native:  # a build for this machine may as well be only looked at
        compiler_for(machine_of(resolved.target), resolved.glibc)
    return resolved


def check_backends(target: ResolvedTarget, enabled: Collection[str]) -> None:
    """Refuse backends whose code stands in a library once, where it has code for several CPUs.

    Raises
    ------
    UsageError
        If there are any.
    """
    if target.better and enabled:
        raise UsageError("enable_backends is for a library with code for one CPU; leave it out, or give one target")


def check_kernel_options(
    target: ResolvedTarget,
    disable_families: Collection[str],
    accuracy: Accuracy,
    layout_planning: bool,
    tune: bool | float,
    tuning_file: str | os.PathLike[str] | None,
) -> KernelOptions:
    """Return how kernels are chosen.

    Raises
    ------
    UsageError
        If the options make no sense, or not for the target.
    """
    if accuracy not in get_args(Accuracy):
        raise UsageError(f"accuracy is one of {', '.join(get_args(Accuracy))}, not {accuracy!r}")
    if accuracy == "fp16" and str(target.target.kind) != "cuda":
        raise UsageError("accuracy='fp16' is for GPUs, not for this target; CPUs have 'bf16', and model.half() is compiled as it is")
    if accuracy == "bf16x3" and not has_amx(target.target):
        raise UsageError("accuracy='bf16x3' is for CPUs with AMX, such as target 'llvm -mcpu=sapphirerapids'; this target has none")
    unknown = set(disable_families) - FAMILIES
    if isinstance(disable_families, str) or unknown:
        raise UsageError(f"disable_families is a collection of names among {', '.join(sorted(FAMILIES))}, not {disable_families!r}")
    if not isinstance(tune, (bool, int, float)) or not 0 <= tune < math.inf:
        raise UsageError(f"tune is True, or how many seconds may be spent on measurements, not {tune!r}")
    seconds = DEFAULT_TUNING_SECONDS if tune is True else float(tune)
    if seconds and disable_families:
        raise UsageError("tune chooses among all families, for later builds too: leave out disable_families or tune")
    if seconds and not all(map(runs_here, (target.target, *target.better))):
        raise UsageError(
            "tune measures kernels on this machine, which the target is not; tune on a machine of its kind and give tuning_file"
        )
    return KernelOptions(accuracy, frozenset(disable_families), layout_planning, seconds, os.fspath(tuning_file) if tuning_file else "")


def check_passes(disabled: Collection[str]) -> None:
    """Refuse names that are no passes, before any long work.

    Raises
    ------
    UsageError
        With the names that there are.
    """
    if isinstance(disabled, str):
        raise UsageError(f"disable_passes is a collection of names: [{disabled!r}]")
    known = [pass_name for pass_name, _ in passes.PASSES[:-1]]
    for pass_name in disabled:
        if pass_name not in known:
            raise UsageError(f"there is no pass {pass_name!r} that could be left out; there are {', '.join(known)}")


def check_staged(*given: object) -> None:
    """Refuse what was decided when a network was staged.

    Raises
    ------
    UsageError
        If anything is given.
    """
    if any(option is not None for option in given):
        raise UsageError("a quantised network has its inputs and their sizes: give them to quantize, and only the network to build")


def check_level(verify: str) -> None:
    """Refuse what says nothing about how far a build proves itself.

    Raises
    ------
    UsageError
        With what there is.
    """
    if verify not in get_args(Level):
        raise UsageError(f"verify is one of {', '.join(get_args(Level))}, not {verify!r}")


def check_user_metadata(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a library is to tell of itself in its user's words.

    Raises
    ------
    UsageError
        If it is more than texts by names.
    """
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"user_metadata maps texts to texts; it is no {type(given).__name__}")
    found = dict(given or {})
    for key, text in found.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise UsageError(f"user_metadata maps texts to texts, not {key!r} to {text!r}")
        if not key or "\0" in key + text:
            raise UsageError(f"user_metadata: {key!r}: a key has a character at least, and no text has a NUL")
        try:
            (key + text).encode()
        except UnicodeEncodeError:
            raise UsageError(f"user_metadata: {key!r}: {text!r} is no text that could be written (UTF-8)") from None
    return found
