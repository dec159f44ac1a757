# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``build``: the whole pipeline, read from top to bottom."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

from dycl_tvm import compile, passes
from dycl_tvm.artifact import Artifact
from dycl_tvm.codegen.cross import compiler_for
from dycl_tvm.codegen.cuda import add_device_code
from dycl_tvm.codegen.machine import machine_of, runs_here
from dycl_tvm.compile import DEFAULT_TUNING_SECONDS, FAMILIES, Accuracy, KernelOptions, has_amx
from dycl_tvm.errors import UsageError
from dycl_tvm.example_inputs import TensorSpec, check_model, identifier, is_exported_program, name_of, normalise
from dycl_tvm.frontend.onnx import is_onnx
from dycl_tvm.frontend.python import stage as stage_python
from dycl_tvm.garbage import young_garbage_only
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.hcfg.verify import verify as check_invariants
from dycl_tvm.progress import Phases, ProgressLike
from dycl_tvm.target import ResolvedTarget, TargetLike, check_buildable, resolve_target
from dycl_tvm.verify import Certificate, Level
from dycl_tvm.verify.compiled import check_compiled
from dycl_tvm.verify.graphs import copied_graph, digest
from dycl_tvm.verify.model import check_model as check_model_against
from dycl_tvm.verify.passes import check_passes

__all__ = ["TensorSpec", "build", "simplify", "stage", "stage_model"]


@young_garbage_only()
def build(
    model: Any,
    example_inputs: Any = None,
    *,
    target: TargetLike = "llvm",
    host: TargetLike | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Any] | None = None,
    input_values: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable_passes: Collection[str] = (),
    disable_backends: Collection[str] = (),
    enable_backends: Collection[str] = (),
    disable_families: Collection[str] = (),
    accuracy: Accuracy = "default",
    layout_planning: bool = True,
    tune: bool | float = False,
    tuning_file: str | os.PathLike[str] | None = None,
    max_paths: int | None = None,
    max_loop_trips: int | None = None,
    keep_print: bool = False,
    verify: Level = "default",
    progress: ProgressLike = None,
) -> Artifact:
    """Compile a dynamic network.

    Parameters
    ----------
    model : nn.Module, bound method of one, function, torch.export.ExportedProgram, ONNX model
        Its ``forward`` may branch and loop on tensor values. The source is neither edited nor annotated; the weights
        are those of the moment of the call. An exported program brings its control flow as ``torch.cond`` and its like, and
        its example inputs. An ONNX model is a path that ends in ``.onnx``, or a ``ModelProto``; it needs no example inputs.
    example_inputs : tuple, or a single tensor
        Positional arguments of the shapes and dtypes that the artefact will take: tensors, NumPy arrays,
        :class:`TensorSpec`, ``torch.empty(..., device="meta")``, Python numbers, and tuples, lists and dicts of them.
        The values of tensors play no part.
    target : str, dict or tvm.target.Target
        See :func:`dycl_tvm.target.resolve_target`. ``"llvm"`` runs on CPUs of this architecture that are not very old
        (AVX2 on x86-64), ``"native"`` is tuned for the CPU that builds.
    host : same, optional
        CPU that runs the dispatcher of a device target, where the target does not say it.
    example_kwargs : dict, optional
        Keyword arguments, like ``example_inputs``.
    input_shapes : dict, optional
        For models that have dynamic dimensions of their own (exported programs): the shape of an input by its name. The others keep
        the shape of their example.
        For ONNX models also the size of a symbolic dimension by its symbol, a list of shapes for a sequence, and None for an
        optional that is not given.
    input_values : dict, optional
        For ONNX models: inputs whose values are fixed now, so that shapes may follow from them. The artefact does not have these inputs.
    name : str, optional
        Name of the network in generated source and symbols; by default that of the model's class.
    disable_passes : collection of str
        Graph passes to leave out (for ablation); names are in ``dycl_tvm.passes.PASSES``.
    disable_backends : collection of str
        Backends that may not take regions of the network.
    enable_backends : collection of str
        Backends that take every region that they can, such as ``["onednn"]``, or with ``["onednn:faster"]`` those for which they
        expect to be faster. See docs/backends.md.
    disable_families : collection of str
        Kernel families that may not be chosen (``winograd``, ``direct``, ...; see docs/backends.md).
    accuracy : str
        ``"strict"``: no algorithm whose rounding errors are larger than those of direct sums (no Winograd F(4,3)). ``"default"``:
        float32 throughout. ``"bf16"``: factors of products may be rounded to bfloat16 where the CPU computes with them. ``"bf16x3"``
        (CPUs with AMX): factors may be sums of three bfloat16, with errors like those of float32. ``"fp16"`` (GPUs): weights of products
        are stored in float16 and factors rounded to it where there are tensor cores; sums and results are float32.
    layout_planning : bool
        False converts the inputs and outputs of each packed kernel at its place (for ablation).
    tune : bool or float
        Measure candidates of each convolution and product on this machine, for at most so many seconds (True: 120), instead of trusting
        the estimates; the target must be a CPU that this machine can stand for. The choices are kept in ``tuning_file``.
    tuning_file : path, optional
        By default ``$DYCL_TUNING_FILE`` or ``dycl_tvm/tuned.json`` in the user's cache folder. If it exists it is read,
        whether ``tune`` is given or not.
    max_paths : int, optional
        Bound on the paths that are explored where sides of a branch cannot be merged.
    max_loop_trips : int, optional
        Bound on the trips of every loop of a Python forward whose trip count is known only at run time; one trip more ends
        the call in a RunError. Loops in which a list grows need it: they are unrolled that far.
    keep_print : bool
        Keep the calls of ``print`` in a Python forward: the artefact writes their text to the standard output of its process, at
        the same places and in the same order as eager. Otherwise they are refused.
    verify : str
        How far the build proves itself before it returns: ``"default"`` within a small part of its time, ``"full"`` as far as it can,
        ``"off"`` not at all. What was proved is ``Artifact.certificate``; see docs/verification.md.
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
    VerificationError
        If the graph or a kernel does something else than the model: with the smallest path found and both results.
    """
    phases = Phases(progress)
    resolved = resolve_target(target, host)
    check_buildable(resolved)
    check_tool_chain(resolved)
    check_names_of_passes(disable_passes)
    if verify not in get_args(Level):
        raise UsageError(f"verify is one of {', '.join(get_args(Level))}, not {verify!r}")
    options = _kernel_options(resolved, disable_families, accuracy, layout_planning, tune, tuning_file)
    graph = stage_model(
        model,
        example_inputs,
        example_kwargs=example_kwargs,
        input_shapes=input_shapes,
        input_values=input_values,
        name=name,
        max_paths=max_paths,
        max_loop_trips=max_loop_trips,
        keep_print=keep_print,
        phases=phases,
    )
    call = example_call_of(model, example_inputs, example_kwargs, input_shapes) if verify != "off" else None
    staged = copied_graph(graph) if verify != "off" else None
    control = passed = kernels = None
    if staged is not None:
        with phases.phase("verify", "the model against its graph"):
            control = check_model_against(model, staged, call, level=verify, input_values=input_values)
    stats = simplify(graph, disable_passes, phases)
    if staged is not None:
        with phases.phase("verify", "the graph before and after the passes"):
            passed = check_passes(staged, graph, call, level=verify)
    with phases.phase("compile", f"{len(graph.sub_dnns())} sub-DNNs"):
        lowered = compile.lower(
            graph,
            resolved.target,
            disabled_backends=disable_backends,
            enabled_backends=enable_backends,
            progress=phases.step,
            options=options,
        )
        lowered.library = add_device_code(lowered.program, lowered.library)
    if staged is not None:
        with phases.phase("verify", "the kernels"):
            kernels = check_compiled(graph, lowered, resolved.target, resolve_target("native").target, verify, accuracy)
    certificate = Certificate(verify, 0, digest(staged) if staged is not None else "", control, passed, kernels)
    lowered.program.certificate = certificate.as_dict()
    return Artifact(graph, lowered, resolved, stats, phases)


def example_call_of(
    model: Any, example_inputs: Any, example_kwargs: Mapping[str, Any] | None, input_shapes: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the example inputs of a model as a call; None for a model that has none (ONNX)."""
    if is_onnx(model):
        return None
    if is_exported_program(model) and example_inputs is None and not example_kwargs:
        from dycl_tvm.frontend import exported

        return normalise(*exported.example_inputs_of(model, input_shapes))
    return normalise(example_inputs, example_kwargs)


def stage(
    model: Any,
    example_inputs: Any = None,
    *,
    passes: bool = True,
    example_kwargs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Any] | None = None,
    input_values: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable_passes: Collection[str] = (),
    max_paths: int | None = None,
    max_loop_trips: int | None = None,
    keep_print: bool = False,
    progress: ProgressLike = None,
) -> HCFG:
    """Return the control flow graph of a model without compiling it: ``graph.interpret()`` is called like the model.

    Parameters
    ----------
    passes : bool
        Whether the graph is as it is compiled, or as it was staged.
    model, example_inputs, ...
        As :func:`build` has them.

    Raises
    ------
    UsageError, UnsupportedError
        As :func:`build`.
    """
    check_names_of_passes(disable_passes)
    phases = Phases(progress)
    graph = stage_model(
        model,
        example_inputs,
        example_kwargs=example_kwargs,
        input_shapes=input_shapes,
        input_values=input_values,
        name=name,
        max_paths=max_paths,
        max_loop_trips=max_loop_trips,
        keep_print=keep_print,
        phases=phases,
    )
    if passes:
        simplify(graph, disable_passes, phases)
    return graph


def check_tool_chain(target: ResolvedTarget) -> None:
    """Refuse to begin where the compiler that the end needs is missing; a build for this machine may as well be only looked at.

    Raises
    ------
    CompileError
        If there is no cross-compiler; the message says how to get one.
    """
    if not target.is_native:
        compiler_for(machine_of(target.target), target.glibc)


def _kernel_options(
    target: ResolvedTarget,
    disable_families: Collection[str],
    accuracy: Accuracy,
    layout_planning: bool,
    tune: bool | float,
    tuning_file: str | os.PathLike[str] | None,
) -> KernelOptions:
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
    if seconds and not runs_here(target.target):
        raise UsageError(
            "tune measures kernels on this machine, which the target is not; tune on a machine of its kind and give tuning_file"
        )
    return KernelOptions(accuracy, frozenset(disable_families), layout_planning, seconds, os.fspath(tuning_file) if tuning_file else "")


def stage_model(
    model: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    input_shapes: Mapping[str, Any] | None = None,
    input_values: Mapping[str, Any] | None = None,
    name: str | None = None,
    max_paths: int | None = None,
    max_loop_trips: int | None = None,
    keep_print: bool = False,
    phases: Phases,
) -> HCFG:
    """Return the control flow graph of a model as the front end sees it; the parameters are those of :func:`build`."""
    if is_onnx(model):
        if example_inputs is not None or example_kwargs:
            raise UsageError("an ONNX model says itself what its inputs are; give sizes that it leaves open as input_shapes")
        return _stage_onnx(model, input_shapes, input_values, name, max_paths, phases)
    if input_values is not None:
        raise UsageError("input_values is for ONNX models; in Python, give a function that has the value")
    if is_exported_program(model):
        return _stage_exported(model, example_inputs, example_kwargs, input_shapes, name, phases)
    if input_shapes is not None:
        raise UsageError("input_shapes is for models with dynamic dimensions of their own; this one takes those of its example inputs")
    check_model(model)
    args, kwargs = normalise(example_inputs, example_kwargs)
    options = {k: v for k, v in (("max_paths", max_paths), ("max_loop_trips", max_loop_trips)) if v is not None}
    with phases.phase("stage", "run the forward symbolically"):
        graph = stage_python(model, args, kwargs, name=identifier(name) if name else name_of(model), keep_print=keep_print, **options)
        check_invariants(graph)
    return graph


def _stage_onnx(
    model: Any,
    input_shapes: Mapping[str, Any] | None,
    input_values: Mapping[str, Any] | None,
    name: str | None,
    max_paths: int | None,
    phases: Phases,
) -> HCFG:
    from dycl_tvm.frontend.onnx import stage_onnx

    with phases.phase("stage", "run the ONNX graph symbolically"):
        graph = stage_onnx(model, input_shapes=input_shapes, input_values=input_values, name=name, max_paths=max_paths)
        graph.name = identifier(graph.name)
        check_invariants(graph)
    return graph


def _stage_exported(
    program: Any,
    example_inputs: Any,
    example_kwargs: Any,
    input_shapes: Mapping[str, Sequence[int]] | None,
    name: str | None,
    phases: Phases,
) -> HCFG:
    from dycl_tvm.frontend import exported

    if example_inputs is None and not example_kwargs:
        args, kwargs = normalise(*exported.example_inputs_of(program, input_shapes))
    elif input_shapes is not None:
        raise UsageError("give the shapes of an exported program by example_inputs or by input_shapes, not by both")
    else:
        args, kwargs = normalise(example_inputs, example_kwargs)
    with phases.phase("stage", f"read {len(program.graph.nodes)} nodes"):
        graph = exported.stage_exported(program, args, kwargs, name=identifier(name or "exported"))
        check_invariants(graph)
    return graph


def simplify(graph: HCFG, disable_passes: Collection[str], phases: Phases) -> passes.PassStats:
    """Run the passes on a graph, in place; afterwards its steps are calls of sub-DNNs."""
    check_names_of_passes(disable_passes)
    with phases.phase("passes", f"simplify {len(graph.blocks)} blocks"):
        return passes.run_passes(graph, disable_passes)


def check_names_of_passes(disabled: Collection[str]) -> None:
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
