# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm zoo``: the networks that come along, and a check of each against eager."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from dycl_tvm.cli.arguments import new_parser, positive, target_options
from dycl_tvm.cli.exit_codes import FAILURE, OK
from dycl_tvm.cli.models import zoo_entry

_EPILOG = """\
examples:
  dycl-tvm zoo list
  dycl-tvm zoo describe skipnet38_rnn
  dycl-tvm zoo check sdn_mobilenet --count 64
"""


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "zoo", "list, describe and check the networks of the zoo", _EPILOG)
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = new_parser(actions, "list", "list the networks", "")
    listing.set_defaults(handler=_list)

    describing = new_parser(actions, "describe", "describe one network: inputs, weights, modules, paths that inputs take", "")
    describing.add_argument("name")
    describing.add_argument("-n", "--count", type=positive, default=32, metavar="N", help="inputs to try (default 32)")
    describing.set_defaults(handler=_describe)

    checking = new_parser(actions, "check", "compile one network and compare it with eager on many inputs", "")
    checking.add_argument("name")
    checking.add_argument("-n", "--count", type=positive, default=16, metavar="N", help="inputs to compare (default 16)")
    checking.add_argument("--seed", type=int, default=1, help="of the inputs (default 1)")
    checking.add_argument("--rtol", type=float, default=1e-4, help="relative error allowed (default 1e-4)")
    checking.add_argument("-q", "--quiet", action="store_true", help="no progress on stderr")
    target_options(checking)
    checking.set_defaults(handler=_check)


def _list(args: argparse.Namespace) -> int:
    from dycl_tvm import zoo

    width = max(map(len, zoo.names()))
    for name in zoo.names():
        print(f"{name:<{width}}  {zoo.describe(name)}")
    return OK


def _describe(args: argparse.Namespace) -> int:
    from dycl_tvm import zoo

    entry = zoo_entry(args.name, getattr(args, "quiet", False))
    weights = sum(p.numel() for p in entry.model.parameters())
    paths = zoo.observed_paths(entry, args.count)
    print(f"{entry.name}: {entry.description}")
    shapes = [f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in entry.example_inputs]
    print(f"  inputs   {', '.join(shapes)}")
    print(f"  weights  {weights:,}")
    print(f"  modules  {sum(1 for _ in entry.model.modules())}")
    print(f"  paths    {len(paths)} different on {args.count} inputs, the commonest {paths.most_common(1)[0][1]} times")
    return OK


def _check(args: argparse.Namespace) -> int:
    import torch

    from dycl_tvm.build import build
    from dycl_tvm.compare import difference, relative_error
    from dycl_tvm.runtime import load

    entry = zoo_entry(args.name, getattr(args, "quiet", False))
    artifact = build(entry.model, entry.example_inputs, target=args.target, host=args.host, name=entry.name, progress=not args.quiet)
    paths: Counter[str] = Counter()
    wrong, worst = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        library = artifact.export_library(Path(folder) / "model.so")
        module = load(library, artifact.save_params(Path(folder) / "model.params"))
        for number, inputs in enumerate(entry.inputs(args.count, args.seed)):
            with torch.no_grad():
                expected = entry.model(*inputs)
            actual = module(*inputs)
            paths[str(module.last_path)] += 1
            found = difference(expected, actual, args.rtol)
            if found is None:
                worst = max(worst, relative_error(expected, actual))
            else:
                wrong += 1
                print(f"input {number}: {found}")
    print(artifact.report())
    print(f"  {'agreement':<13}{args.count - wrong} of {args.count} inputs agree with eager, relative error at most {worst:.1e}")
    print(f"  {'paths run':<13}{len(paths)} different")
    return FAILURE if wrong else OK
