# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm inspect``: what an artefact holds, or the control flow graph of a model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dycl_tvm.cli.arguments import MODEL_FORMS, model_options, new_parser
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.cli.models import blaming_inputs, is_graph_file, model_and_inputs
from dycl_tvm.errors import UsageError

if TYPE_CHECKING:
    from dycl_tvm.hcfg.nodes import HCFG

_EPILOG = f"""\
A model is staged and simplified but not compiled, which takes seconds. An artefact is opened but none of its code is run.

{MODEL_FORMS}
examples:
  dycl-tvm inspect model.so
  dycl-tvm inspect model.so --json
  dycl-tvm inspect model.so --profile trace.json -o net.html
  dycl-tvm inspect zoo:sdn_mobilenet
  dycl-tvm inspect my_model.py:net --input 1x3x32x32 -o net.html
  dycl-tvm inspect my_model.py:net --input 1x3x32x32 --format dot | dot -Tpdf -o net.pdf
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    from dycl_tvm.cli.pictures import FORMATS

    command = new_parser(commands, "inspect", "show what an artefact holds, or the control flow graph of a model", _EPILOG)
    command.add_argument("what", metavar="ARTEFACT_OR_MODEL", help="a .so written by dycl-tvm compile, or a model as below")
    model_options(command)
    command.add_argument("-o", "--output", metavar="FILE", help="write to a file (.txt, .dot, .svg, .html) instead of stdout")
    command.add_argument("-f", "--format", choices=FORMATS, help="by default that of the file's ending, or text")
    command.add_argument("--json", action="store_true", help="of an artefact: its metadata as JSON")
    command.add_argument(
        "--profile", metavar="FILE", help="of an artefact: draw its control flow with the times of a profile (.svg, .html)"
    )
    command.add_argument("--before-passes", action="store_true", help="of a model: the graph as it was staged")
    command.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    if args.what.endswith(".so") or (":" not in args.what and not is_graph_file(args.what) and Path(args.what).is_file()):
        return _artefact(args)
    if args.profile:
        raise UsageError("--profile is for the artefact that was profiled")
    if args.json:
        raise UsageError("--json is for artefacts; for a model use --format")
    from dycl_tvm.cli.pictures import check_output, render, write_graph

    check_output(args.output, is_picture=args.format is None)
    graph = stage_and_simplify(args, not args.before_passes)
    if args.output:
        write_graph(graph, args.output, args.format)
    else:
        print(render(graph, args.format or "text"))
    return OK


def stage_and_simplify(args: argparse.Namespace, simplified: bool = True) -> HCFG:
    """Return the graph of the model that the options of a command name."""
    from dycl_tvm.build import stage

    model, inputs = model_and_inputs(args.what, args.state_dict, args.input, args.quiet)
    with blaming_inputs(args.what, model, inputs):
        return stage(
            model,
            **inputs,
            passes=simplified,
            disable_passes=args.disable_pass,
            progress=not args.quiet,
            name=args.name,
            max_paths=args.max_paths,
            max_loop_trips=args.max_loop_trips,
            max_recursion=args.max_recursion,
            max_length=args.max_length,
            specialize=args.specialize,
            keep_print=args.keep_print,
        )


def _artefact(args: argparse.Namespace) -> int:
    from dycl_tvm.cli.pictures import write_text
    from dycl_tvm.runtime.trailer import read_trailer

    metadata = read_trailer(args.what)
    if args.profile:
        return _profiled(args, metadata)
    if args.format not in (None, "text"):
        raise UsageError(f"an artefact holds no graph to draw as {args.format}; inspect the model, or compile with --hcfg FILE")
    text = json.dumps(metadata, indent=2) if args.json else _describe(metadata)
    if args.output:
        write_text(args.output, text + "\n")
    else:
        print(text)
    return OK


def _profiled(args: argparse.Namespace, metadata: dict[str, Any]) -> int:
    """Draw the control flow of an artefact with what a profile of it says."""
    from dycl_tvm.cli.measured import measured_of
    from dycl_tvm.cli.pictures import check_output, format_of, write_text
    from dycl_tvm.hcfg.html import to_html
    from dycl_tvm.hcfg.skeleton import skeleton
    from dycl_tvm.hcfg.svg import to_svg
    from dycl_tvm.runtime.profile import load_profile
    from dycl_tvm.runtime.trailer import levels_of

    check_output(args.output, is_picture=args.format is None)
    fmt = args.format or (format_of(args.output) if args.output else "html")
    if fmt not in ("svg", "html"):
        raise UsageError(f"a profile is drawn as svg or html, not as {fmt}")
    profile = load_profile(args.profile)
    measured = next(filter(profile.is_of, levels_of(metadata)), None)  # code for another CPU has other blocks
    if measured is None:
        raise UsageError(f"the profile {args.profile!r} is of another build than {args.what!r}")
    draw = to_svg if fmt == "svg" else to_html
    text = draw(skeleton(measured), measured_of(profile))
    if args.output:
        write_text(args.output, text)
    else:
        print(text)
    return OK


def _describe(metadata: dict[str, Any]) -> str:
    from dycl_tvm.hcfg.sizes import sizes_text
    from dycl_tvm.runtime.certificate import summary
    from dycl_tvm.runtime.path import source_line
    from dycl_tvm.runtime.tensors import type_text
    from dycl_tvm.runtime.trailer import levels_of

    target = metadata["target"]
    backends: dict[str, int] = {}
    for kernel in metadata["kernels"]:
        backends[kernel["backend"]] = backends.get(kernel["backend"], 0) + 1
    sub_dnns = {call["sub_dnn"] for call in metadata["calls"]}
    counts = ", ".join(f"{n} by {name}" for name, n in sorted(backends.items()))
    lines = [
        f"{metadata['name']} for {target['triple']}" + (f", {target['mcpu']}" if target["mcpu"] else ""),
        f"  weights   {metadata['weights']} tensors, {metadata['weights_bytes']:,} bytes, "
        + ("inside" if metadata["embedded_params"] else "in a params file"),
        f"  arena     {metadata['arena_bytes']:,} bytes",
        f"  kernels   {len(metadata['kernels'])} ({counts}), called at {len(metadata['calls'])} places in {len(sub_dnns)} sub-DNNs",
        *(
            f"  besides   for {better['target']['mcpu']}: {len(better['kernels'])} kernels, an arena of {better['arena_bytes']:,} bytes"
            for better in levels_of(metadata)[1:]
        ),
        *(["user metadata"] if metadata.get("user_metadata") else []),
        *(f"  {key}: {text}" for key, text in metadata.get("user_metadata", {}).items()),
        "verified",
        *(f"  {line}" for line in summary(metadata.get("certificate", {}))),
        *(["left out"] if metadata.get("left_out") else []),
        *(f"  {line}" for line in metadata.get("left_out", [])),
        "inputs",
        *(f"  {name}: {type_text(leaf)}" for name, leaf in zip(metadata["input_names"], metadata["inputs"])),
        *(["sizes"] if metadata.get("sizes") else []),
        *(f"  {size['name']}: {size['min']} to {size['max']}, as each call decides" for size in metadata.get("sizes", [])),
        *(f"  {sizes_text(of)}: has a path of its own" for of in metadata.get("special_sizes", [])),
        *(
            f"  sessions for {sizes_text(need['sizes'])}: an arena of {need['arena_bytes']:,} bytes"
            for need in metadata.get("session_needs", [])
        ),
        "decisions",
        *(f"  {k}: {decision['kind']} {source_line(decision['origin'])}" for k, decision in enumerate(metadata["decisions"])),
        "return sites",
    ]
    for k, site in enumerate(metadata["sites"]):
        lines += [f"  {k}: {source_line(site['origin'])}", f"     {structure_text(site['structure'])}"]
    return "\n".join(lines)


def structure_text(structure: dict[str, Any]) -> str:
    """Return a structure the way Python would write it."""
    if "leaf" in structure:
        return str(structure["type"])
    if "const" in structure:
        return repr(structure["const"])
    if "tuple" in structure:
        items = [structure_text(s) for s in structure["tuple"]]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if "rows" in structure:
        return f"[{structure_text(structure['item'])}, ...]"
    if "list" in structure:
        return f"[{', '.join(structure_text(s) for s in structure['list'])}]"
    if "namedtuple" in structure:
        pairs = zip(structure["fields"], structure["items"])
        return f"{structure['namedtuple']}({', '.join(f'{name}={structure_text(s)}' for name, s in pairs)})"
    if "object" in structure:
        attributes = structure.get("attributes", ())
        return f"{structure['object']}({', '.join(f'{name}={structure_text(s)}' for name, s in attributes)})"
    return "{" + ", ".join(f"{key!r}: {structure_text(s)}" for key, s in structure["dict"]) + "}"
