# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm compile``: a model to a shared library."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dycl_tvm.cli.arguments import MODEL_FORMS, MODEL_HELP, model_options, new_parser, positive, target_options
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.cli.models import blaming_inputs, model_and_inputs
from dycl_tvm.errors import UsageError

if TYPE_CHECKING:
    from dycl_tvm.artifact import Artifact

_EPILOG = f"""\
{MODEL_FORMS}
examples:
  dycl-tvm compile model.onnx -i batch=int:1 -o model.so
  dycl-tvm compile zoo:sdn_mobilenet -o model.so --params model.params
  dycl-tvm compile my_model.py:net --input 1x3x32x32 --target "llvm -mcpu=skylake-avx512" -o net.so --embed-params
  dycl-tvm compile my_package.nets:make_net() -i 1x16:int64 -i mask=1x16:bool -o net.so --hcfg net.html
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "compile", "compile a model to a shared library", _EPILOG)
    command.add_argument("model", help=MODEL_HELP)
    model_options(command)
    target_options(command)
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the shared library to write (model.so)")
    command.add_argument("--params", metavar="FILE", help="the weights file to write; by default the library's name with .params")
    command.add_argument(
        "--disable-backend", action="append", default=[], metavar="NAME", help="give no region to this backend (repeatable)"
    )
    command.add_argument(
        "--enable-backend",
        action="append",
        default=[],
        metavar="NAME",
        help="give this backend all that it can take, such as onednn; NAME:faster what it expects to be faster with (repeatable)",
    )
    command.add_argument(
        "--disable-family", action="append", default=[], metavar="NAME", help="choose no kernel of this family (repeatable)"
    )
    command.add_argument(
        "--accuracy",
        choices=("strict", "default", "bf16", "bf16x3", "fp16"),
        default="default",
        help="of kernels: strict leaves out fast algorithms that round more, bf16 computes in bfloat16 where the CPU can, "
        "bf16x3 in sums of three bfloat16 on CPUs with AMX, "
        "fp16 stores weights in float16 and multiplies in it on GPUs",
    )
    command.add_argument(
        "--tune", type=float, default=0.0, metavar="SECONDS", help="measure kernels on this machine for so long, instead of estimating"
    )
    command.add_argument(
        "--tuning-file", metavar="FILE", help="where measured choices are kept; by default in the cache folder of the user"
    )
    command.add_argument(
        "--verify",
        choices=("default", "full", "off"),
        default="default",
        help="how far the build proves itself: within a small part of its time, as far as it can, or not at all",
    )
    command.add_argument(
        "--open-signs",
        action="store_true",
        help="accept that the result depends on signs of eigenvectors or singular vectors, which PyTorch leaves open",
    )
    command.add_argument(
        "--strip-source", action="store_true", help="leave the text of the model's source lines out of the library; line numbers stay"
    )
    command.add_argument(
        "--user-metadata",
        type=_key_and_text,
        action="append",
        default=[],
        metavar="KEY=TEXT",
        help="what the library is to tell of itself, such as version=3; several times",
    )
    command.add_argument("--embed-params", action="store_true", help="put the weights inside the library and write no second file")
    command.add_argument(
        "--sanitize",
        choices=("address", "undefined", "thread"),
        default="",
        help="compile the C++ of the library with this sanitizer, for a program that is compiled with it too",
    )
    command.add_argument("--emit-source", metavar="FILE", help="write the generated C++ of the dispatcher too")
    command.add_argument("--hcfg", metavar="FILE", help="write the control flow graph too, as .txt, .dot, .svg or .html")
    command.add_argument("--cases", metavar="FILE", help="run the model in eager and write inputs and outputs, for dycl-tvm deploy (.npz)")
    command.add_argument("--num-cases", type=positive, default=16, metavar="N", help="how many calls --cases records (default 16)")
    command.add_argument("--json", action="store_true", help="print the report as JSON")
    command.set_defaults(handler=_handle)


def _key_and_text(given: str) -> tuple[str, str]:
    key, equals, text = given.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{given}' has no '=': it is KEY=TEXT")
    return key, text


def build_model(args: argparse.Namespace, model: Any, inputs: dict[str, Any]) -> Artifact:
    """Build a model with the options of a command."""
    from dycl_tvm.build import build

    return build(
        model,
        **inputs,
        target=args.target,
        host=args.host,
        name=args.name,
        disable_passes=args.disable_pass,
        disable_backends=args.disable_backend,
        enable_backends=args.enable_backend,
        disable_families=args.disable_family,
        accuracy=args.accuracy,
        tune=args.tune,
        tuning_file=args.tuning_file,
        max_paths=args.max_paths,
        max_loop_trips=args.max_loop_trips,
        max_recursion=args.max_recursion,
        max_length=args.max_length,
        specialize=args.specialize,
        keep_print=args.keep_print,
        open_signs=args.open_signs,
        strip_source=args.strip_source,
        user_metadata=dict(args.user_metadata),
        verify=args.verify,
        progress=not args.quiet,
    )


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.cli.pictures import check_output, write_graph, write_text
    from dycl_tvm.cli.recording import record
    from dycl_tvm.runtime.trailer import read_trailer

    output = Path(args.output)
    if args.embed_params and args.params:
        raise UsageError("--embed-params writes no weights file; leave out --params")
    params = Path(args.params) if args.params else output.with_suffix(".params")
    if params == output:
        raise UsageError("the library and the weights would be the same file; give --params another name")
    for path in (args.output, None if args.embed_params else str(params), args.emit_source, args.cases):
        check_output(path)
    check_output(args.hcfg, is_picture=True)
    model, inputs = model_and_inputs(args.model, args.state_dict, args.input, args.quiet)
    with blaming_inputs(args.model, model, inputs):
        artifact = build_model(args, model, inputs)
    _write_pair(artifact, output, None if args.embed_params else params, args.cxx, args.sanitize)
    if args.emit_source:
        write_text(args.emit_source, artifact.source())
    if args.hcfg:
        write_graph(artifact.hcfg, args.hcfg)
    if args.cases:
        record(args.cases, args.model, model, read_trailer(output), args.num_cases)
    report = artifact.report()
    if args.json:
        print(json.dumps({k: v for k, v in dataclasses.asdict(report).items() if k != "passes"}, indent=2))
    else:
        print(report)
        print(f"  {'wrote':<13}{output}" + ("" if args.embed_params else f", {params}"))
    return OK


def _write_pair(artifact: Artifact, library: Path, params: Path | None, cxx: str, sanitize: str) -> None:
    """Write the library and, if they are not inside, its weights: both, or neither where one fails."""
    if params is None:
        artifact.export_library(library, embed_params=True, cxx=cxx, sanitize=sanitize)
        return
    # The weights lie beside the library until it is there: a file that cannot be written is found before anything is replaced.
    with tempfile.TemporaryDirectory(prefix=f"{params.name}.", dir=params.parent) as folder:
        written = artifact.save_params(Path(folder) / params.name)
        artifact.export_library(library, cxx=cxx, sanitize=sanitize)
        os.replace(written, params)
