# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``build``: the whole pipeline, read from top to bottom."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dycl_tvm import compile, passes
from dycl_tvm.artifact import Artifact
from dycl_tvm.errors import UsageError
from dycl_tvm.example_inputs import TensorSpec, check_model, identifier, name_of, normalise
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.progress import Phases, ProgressLike
from dycl_tvm.target import TargetLike, check_buildable, resolve_target

__all__ = ["TensorSpec", "build", "stage_and_simplify"]


def build(
    model: Any,
    example_inputs: Any = None,
    *,
    target: TargetLike = "llvm",
    host: TargetLike | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable_passes: Collection[str] = (),
    max_paths: int | None = None,
    progress: ProgressLike = None,
) -> Artifact:
    """Compile a dynamic network.

    Parameters
    ----------
    model : nn.Module, bound method of one, or function
        Its ``forward`` may branch and loop on tensor values. The source is neither edited nor annotated; the weights
        are those of the moment of the call.
    example_inputs : tuple, or a single tensor
        Positional arguments of the shapes and dtypes that the artefact will take: tensors, NumPy arrays,
        :class:`TensorSpec`, ``torch.empty(..., device="meta")``, Python numbers, and tuples, lists and dicts of them.
        The values of tensors play no part.
    target : str, dict or tvm.target.Target
        See :func:`dycl_tvm.target.resolve_target`. ``"llvm"`` runs on every machine of this architecture, ``"native"``
        is tuned for the CPU that builds.
    host : same, optional
        CPU that runs the dispatcher of a device target, where the target does not say it.
    example_kwargs : dict, optional
        Keyword arguments, like ``example_inputs``.
    name : str, optional
        Name of the network in generated source and symbols; by default that of the model's class.
    disable_passes : collection of str
        Graph passes to leave out (for ablation); names are in ``dycl_tvm.passes.PASSES``.
    max_paths : int, optional
        Bound on the paths that are explored where sides of a branch cannot be merged.
    progress : bool or callable, optional
        True: a line on stderr when a phase begins and ends. A callable gets these lines.

    Returns
    -------
    Artifact
        With ``export_library``, ``save_params``, ``hcfg``, ``ir_module``, ``report()``.

    Raises
    ------
    UsageError, TargetError
        If the arguments make no sense; the message says what to give.
    UnsupportedError
        If the control flow cannot be compiled: with the user's file, line and code. There is never a wrong artefact.
    CompileError
        If a kernel cannot be compiled.
    """
    phases = Phases(progress)
    resolved = resolve_target(target, host)
    check_buildable(resolved)
    graph, pass_stats = stage_and_simplify(
        model,
        example_inputs,
        example_kwargs=example_kwargs,
        name=name,
        disable_passes=disable_passes,
        max_paths=max_paths,
        progress=phases,
    )
    with phases.phase("compile", f"{len(graph.sub_dnns())} sub-DNNs"):
        lowered = compile.lower(graph, resolved.target)
    return Artifact(graph, lowered, resolved, pass_stats, phases)


def stage_and_simplify(
    model: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable_passes: Collection[str] = (),
    max_paths: int | None = None,
    progress: ProgressLike | Phases = None,
) -> tuple[HCFG, passes.PassStats]:
    """Run the part of :func:`build` that knows no target: from the model to its control flow graph, ready to compile.

    The parameters are those of :func:`build`.
    """
    phases = progress if isinstance(progress, Phases) else Phases(progress)
    check_model(model)
    args, kwargs = normalise(example_inputs, example_kwargs)
    _check_passes(disable_passes)
    options = {} if max_paths is None else {"max_paths": max_paths}

    with phases.phase("stage", "run the forward symbolically"):
        graph = stage(model, args, kwargs, **options)
        graph.name = identifier(name) if name else name_of(model)
        verify(graph)
    with phases.phase("passes", f"simplify {len(graph.blocks)} blocks"):
        pass_stats = passes.run_passes(graph, disable_passes)
        verify(graph)
    return graph, pass_stats


def _check_passes(disabled: Collection[str]) -> None:
    if isinstance(disabled, str):
        raise UsageError(f"disable_passes is a collection of names: [{disabled!r}]")
    known = [pass_name for pass_name, _ in passes.PASSES]
    for pass_name in disabled:
        if pass_name not in known:
            raise UsageError(f"there is no pass {pass_name!r}; there are {', '.join(known)}")
