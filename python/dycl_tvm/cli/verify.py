# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm verify``: a finished library against the model that it was built of."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from dycl_tvm.cli.arguments import MODEL_FORMS, MODEL_HELP, model_options, new_parser
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.cli.models import model_and_inputs
from dycl_tvm.cli.run import find_params

_EPILOG = f"""\
The model is staged again, with the options of the build; its graph must be the one of the library. Then the graph is compared with the
model by forced execution, and the library with the graph on random inputs, in turns, until the time is over.

{MODEL_FORMS}
examples:
  dycl-tvm verify net.so my_model.py:net --input 1x3x32x32 --seconds 60
  dycl-tvm verify model.so zoo:sdn_mobilenet
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "verify", "compare a finished library with its model", _EPILOG)
    command.add_argument("library", metavar="LIBRARY", help="the .so written by dycl-tvm compile")
    command.add_argument("model", help=MODEL_HELP)
    model_options(command)
    command.add_argument("--params", metavar="FILE", help="its weights; by default the library's name with .params, unless they are inside")
    command.add_argument("--seconds", type=float, default=10.0, metavar="S", help="about how long to look (default 10)")
    command.add_argument("--json", action="store_true", help="print what was compared as JSON")
    command.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    from dycl_tvm.build import stage
    from dycl_tvm.errors import ArtifactError
    from dycl_tvm.hcfg.digest import digest
    from dycl_tvm.hcfg.vectors import BY_RULE, chosen
    from dycl_tvm.runtime import load
    from dycl_tvm.staging import example_call
    from dycl_tvm.verify.by_inputs import check_by_inputs
    from dycl_tvm.verify.by_inputs import example_call as random_call
    from dycl_tvm.verify.model import check_model
    from dycl_tvm.verify.staged_with import from_json

    module = load(args.library, find_params(args.library, args.params))
    model, inputs = model_and_inputs(args.model, args.state_dict, args.input, args.quiet)
    names = ("name", "max_paths", "max_loop_trips", "max_recursion", "max_length", "specialize", "keep_print")
    given = {key: getattr(args, key) for key in names} | inputs
    options = from_json(module.certificate.get("staging", {})) | {key: v for key, v in given.items() if v is not None and v is not False}
    graph = stage(model, **options, passes=False, progress=not args.quiet)
    known = module.certificate.get("graph", "")
    if not known:
        raise ArtifactError(f"{args.library} has no certificate that says of which graph it was made; build it without verify='off'")
    if known != digest(graph):
        raise ArtifactError(f"{args.library} was not made of {args.model}: code, weights, inputs or options are others")
    call = example_call(model, options.get("example_inputs"), options.get("example_kwargs"), options.get("input_shapes"))
    fixed = options.get("input_values")
    end = time.monotonic() + args.seconds
    rounds: list[dict[str, Any]] = []
    while not rounds or time.monotonic() < end:
        seed = 1000 * len(rounds)
        module.reset_state()
        control = check_model(model, graph, call, seed=seed, input_values=fixed, device=options.get("device", "cpu"))
        with chosen(BY_RULE):
            library = check_by_inputs(_Fresh(module), graph, call or random_call(graph, seed), "default", seed)
        rounds.append({"seed": seed, "control": control.__dict__, "library": library.__dict__})
    if args.json:
        print(json.dumps(rounds, indent=2))
        return OK
    last = rounds[-1]
    print(f"{args.library} does what {args.model} does, as far as {len(rounds)} rounds tell:")
    for part, what in (("control", "model against graph"), ("library", "library against graph")):
        calls = sum(r[part]["calls"] for r in rounds)
        edges = max(r[part]["edges"] for r in rounds)
        print(f"  {what}: {calls} calls, {edges} of {last[part]['edges_total']} edges")
    return OK


class _Fresh:
    """A module that forgets its state before every call, as each run of the graph begins anew."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._module.reset_state()
        return self._module(*args, **kwargs)
