# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``build``: the whole pipeline, read from top to bottom."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dycl_tvm import codegen, compile, passes
from dycl_tvm.artifact import Artifact
from dycl_tvm.codegen.toolchain import link_shared
from dycl_tvm.compile import Accuracy
from dycl_tvm.example_inputs import TensorSpec, written_sizes
from dycl_tvm.garbage import young_garbage_only
from dycl_tvm.hcfg.nodes import HCFG
from dycl_tvm.options import (
    check_backends,
    check_kernel_options,
    check_level,
    check_passes,
    check_staged,
    check_target,
    check_user_metadata,
)
from dycl_tvm.progress import Phases, ProgressLike
from dycl_tvm.quantization import Quantized
from dycl_tvm.staging import StagingOptions, example_call, stage_model
from dycl_tvm.target import TargetLike, TargetsLike
from dycl_tvm.verify import Level
from dycl_tvm.verify.proof import Proof
from dycl_tvm.verify.rewritten import makers

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TensorSpec", "build", "simplify", "stage"]


@young_garbage_only()
def build(
    model: Any,
    example_inputs: Any = None,
    *,
    target: TargetsLike = "llvm",
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
    max_recursion: int | None = None,
    max_length: int | None = None,
    dynamic_shapes: Any = None,
    specialize: Sequence[Any] | None = None,
    max_seconds: float | None = None,
    max_memory: int | None = None,
    keep_print: bool = False,
    open_signs: bool = False,
    strip_source: bool = False,
    user_metadata: Mapping[str, str] | None = None,
    verify: Level = "default",
    progress: ProgressLike = None,
) -> Artifact:
    """Compile a dynamic network.

    Parameters
    ----------
    model : nn.Module, bound method of one, function, torch.export.ExportedProgram, ONNX model, Quantized
        Its ``forward`` may branch and loop on tensor values. The source is neither edited nor annotated; the weights
        are those of the moment of the call. An exported program brings its control flow as ``torch.cond`` and its like, and
        its example inputs. An ONNX model is a path that ends in ``.onnx``, or a ``ModelProto``; it needs no example inputs,
        and neither does what :func:`dycl_tvm.quantize` returns.
    example_inputs : tuple, or a single tensor
        Positional arguments of the shapes and dtypes that the artefact will take: tensors, NumPy arrays,
        :class:`TensorSpec`, ``torch.empty(..., device="meta")``, Python numbers, and tuples, lists and dicts of them.
        The values of tensors play no part.
    target : str, dict, tvm.target.Target, or a sequence of them
        See :func:`dycl_tvm.target.resolve_targets`. ``"llvm"`` runs on CPUs of this architecture that are not very old
        (AVX2 on x86-64), ``"native"`` is tuned for the CPU that builds; ``"portable"`` has code for CPUs with AVX2 and for those with
        AVX-512, and takes the one that fits when it is loaded. A list of CPUs of x86-64 does so for these.
    host : same, optional
        CPU that runs the dispatcher of a device target, where the target does not say it.
    example_kwargs : dict, optional
        Keyword arguments, like ``example_inputs``.
    input_shapes : dict, optional
        For models that have dynamic dimensions of their own (exported programs): the shape of an input by its name. The others keep
        the shape of their example.
        For ONNX models also the size of a symbolic dimension by its symbol, a list of shapes for a sequence, and None for an
        optional that is not given; sizes that stay open are given bounds by ``dynamic_shapes``.
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
        float32 throughout. ``"bf16"``: factors of products, and images between kernels, may be rounded to bfloat16 where the CPU computes
        with it. ``"bf16x3"`` (CPUs with AMX): factors may be sums of three bfloat16, with errors like those of float32. ``"fp16"`` (GPUs):
        weights of products are stored in float16 and factors rounded to it where there are tensor cores; sums and results are float32.
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
    max_recursion : int, optional
        Bound on the calls of a function that are under way, where tensors decide how deep it calls itself, by default 1000 as in Python;
        one more ends the call in a RunError.
    max_length : int, optional
        Bound on every size of a Python forward that tensors decide and that nothing else bounds (``torch.arange(durations.sum())``); one
        more ends the call in a RunError. So does a call after which the model would keep a longer tensor or list than that (a cache), and
        a loop that makes one longer. Room is made, and time spent, for tensors of that length, so give what is needed. Without
        ``dynamic_shapes`` it is the largest size too of dimensions that an ONNX model, or a program of ``torch.export``, leaves open.
    dynamic_shapes : mapping or sequence, optional
        Sizes of the inputs of a Python forward that each call decides, as in ``torch.export``: by parameter, and for each dimension a
        :class:`Dim` or ``torch.export.Dim`` with a largest value, ``{"ids": {1: Dim("T", max=512)}}``, or what follows from one, ``2 * T``.
        A tensor may have several; room is made, and time spent, for tensors of the largest sizes. For ONNX models also a
        size by the symbol of dimensions, ``{"batch": Dim("batch", max=32)}``.
    specialize : sequence of int, dict or str, optional
        Sizes of which the artefact has a path of its own, beside the one that serves all: ``[1, 128]``, or, by name,
        ``[{"B": 1, "T": 128}, {"T": 512}, "T<=64"]``. A call of exactly these sizes, or up to them, takes the first that fits, which is as
        fast as a build for them alone. Each costs about the time and the code of such a build, and weights where its kernels want them in
        another layout.
    max_seconds, max_memory : float, int, optional
        How many seconds, and bytes of memory, may be spent on running a Python forward symbolically, by default 600 and 4 GiB. A program
        that takes more is refused with the line that costs most.
    keep_print : bool
        Keep the calls of ``print`` in a Python forward: the artefact writes their text to the standard output of its process, at
        the same places and in the same order as eager. Otherwise they are refused.
    open_signs : bool
        Accept that the result depends on the signs of eigenvectors or singular vectors, which PyTorch leaves open: those of the artefact
        follow a rule of its own. Otherwise only networks that give the same for any signs are compiled, which the build finds out.
    strip_source : bool
        Leave the text of the model's source lines out of the library: paths and errors then show files and line numbers only. Files are
        named as Python imports them, never by where they lie on this machine.
    user_metadata : mapping of str to str, optional
        What the library is to tell of itself, such as ``{"version": "3"}``: ``Module.user_metadata``, ``dycl_user_metadata`` in C,
        ``dycl-tvm inspect``. It changes nothing else: params files of builds that differ in it only fit either.
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
    InternalError
        If something fails that should not: a defect of this package.
    """
    # the options
    phases = Phases(progress)
    machine = check_target(target, host)
    check_backends(machine, enable_backends)
    kernel_options = check_kernel_options(machine, disable_families, accuracy, layout_planning, tune, tuning_file)
    check_passes(disable_passes)
    check_level(verify)
    told = check_user_metadata(user_metadata)

    # the front end: what the model does on every path
    staging: StagingOptions = {
        "input_shapes": input_shapes,
        "input_values": input_values,
        "name": name,
        "max_paths": max_paths,
        "max_loop_trips": max_loop_trips,
        "max_recursion": max_recursion,
        "max_length": max_length,
        "dynamic_shapes": written_sizes(example_inputs, example_kwargs) if dynamic_shapes is None else dynamic_shapes,
        "specialize": specialize,
        "max_seconds": max_seconds,
        "max_memory": max_memory,
        "keep_print": keep_print,
    }
    if str(machine.target.kind) == "cuda":
        staging["device"] = "cuda"
    if isinstance(model, Quantized):  # staged before it was quantised
        check_staged(example_inputs, example_kwargs, input_shapes, input_values, dynamic_shapes, specialize)
        graph, call = model.graph(), model.example
    else:
        graph = stage_model(model, example_inputs, example_kwargs=example_kwargs, phases=phases, **staging)
        call = example_call(model, example_inputs, example_kwargs, input_shapes)

    # the model in eager against its graph; a quantised network is its graph
    proof = Proof(verify, graph, phases, staging)
    proof.of_control(None if isinstance(model, Quantized) else model, call, input_values, graph, open_signs)

    # from here on sums of quantised numbers are those of integers: another rounding, which quantisation shows (docs/quantization.md)
    before = makers(graph)
    if passes.quantised(graph, disable_passes):
        proof.of_another_rounding(before, graph)

    # the passes: a smaller graph, of calls of sub-DNNs
    stats = simplify(graph, _of_device(disable_passes, staging), phases)
    proof.of_passes(graph)

    # the kernels, and the graph as instructions that call them; where a library is for several CPUs, for each of them
    lowered = []
    for k, cpu in enumerate((machine.target, *machine.better)):
        which = f" for {cpu.attrs['mcpu']}" if machine.better else ""
        with phases.phase("compile", f"{len(graph.sub_dnns())} sub-DNNs{which}"):
            lowered.append(
                compile.lower(
                    graph,
                    cpu,
                    disabled_backends=disable_backends,
                    enabled_backends=enable_backends,
                    progress=phases.step,
                    options=kernel_options,
                    link=link_shared,
                    tag=f"_cpu{k}" if k else "",
                )
            )
        program = lowered[-1].program
        proof.of_kernels(graph, lowered[-1], cpu, accuracy)
        program.certificate, program.strip_source, program.user_metadata = proof.certificate().as_dict(), strip_source, told
    if machine.better:
        codegen.share_weights([of.program for of in lowered])

    # the code: the instructions as C++, the images of device functions; it is linked where the artefact is written
    first, *others = lowered
    with phases.phase("codegen", f"{len(first.program.blocks)} blocks"):
        code = codegen.generate_code(first.program, first.library)
    better = [codegen.CPULevel(of.program, of.library, codegen.machine_of(cpu)) for of, cpu in zip(others, machine.better)]
    return Artifact(graph, first, code, machine, stats, phases, better)


def stage(
    model: Any,
    example_inputs: Any = None,
    *,
    passes: bool = True,
    example_kwargs: Mapping[str, Any] | None = None,
    disable_passes: Collection[str] = (),
    progress: ProgressLike = None,
    **options: Unpack[StagingOptions],
) -> HCFG:
    """Return the control flow graph of a model without compiling it: ``graph.interpret()`` is called like the model.

    Parameters
    ----------
    passes : bool
        Whether the graph is as it is compiled, or as it was staged.
    model, example_inputs, example_kwargs, disable_passes, progress, options
        As :func:`build` has them. The options are ``input_shapes``, ``input_values``, ``name``, ``max_paths``, ``max_loop_trips``,
        ``max_recursion``, ``max_length``, ``dynamic_shapes``, ``specialize``, ``max_seconds``, ``max_memory``, ``keep_print``, and
        ``device``: ``"cuda"`` draws random numbers as a GPU does.

    Raises
    ------
    UsageError, UnsupportedError
        As :func:`build`.
    """
    check_passes(disable_passes)
    phases = Phases(progress)
    if options.get("dynamic_shapes") is None:
        options["dynamic_shapes"] = written_sizes(example_inputs, example_kwargs)
    graph = stage_model(model, example_inputs, example_kwargs=example_kwargs, phases=phases, **options)
    if passes:
        simplify(graph, _of_device(disable_passes, options), phases)
    return graph


def _of_device(disabled: Collection[str], staging: StagingOptions) -> Collection[str]:
    """Return the passes that are left out: on a GPU a check of elements would wait for the device, in every run."""
    return {*disabled, "element_checks"} if staging.get("device") == "cuda" else disabled


def simplify(graph: HCFG, disable_passes: Collection[str], phases: Phases) -> passes.PassStats:
    """Run the passes on a graph, in place; afterwards its steps are calls of sub-DNNs."""
    check_passes(disable_passes)
    missing = passes.missing_checks(graph) if "element_checks" in disable_passes else 0
    if missing:
        graph.left_out.append(f"{missing} checks of elements: an index out of range, or a division by zero, gives some number and no error")
    with phases.phase("passes", f"simplify {len(graph.blocks)} blocks"):
        return passes.run_passes(graph, disable_passes)
