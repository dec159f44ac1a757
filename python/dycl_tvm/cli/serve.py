# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``dycl-tvm serve``: answer requests of the Open Inference Protocol. Needs neither torch nor TVM."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import sys
from typing import TYPE_CHECKING, Any

from dycl_tvm.cli.arguments import largest_sizes, new_parser, positive
from dycl_tvm.cli.exit_codes import OK
from dycl_tvm.cli.run import find_params
from dycl_tvm.errors import UsageError

if TYPE_CHECKING:
    from dycl_tvm.serve.repository import ModelFiles

_EPILOG = """The protocol is that of KServe v2 and Triton; docs/serving.md has its parameters. SIGTERM ends the server when its requests are
answered.

examples:
  dycl-tvm serve net.so net.params
  dycl-tvm serve --model small=a.so,a.params --model large=b.so,b.params --sessions 4
  curl localhost:8000/v2/models/net
  dycl-tvm serve --model short=net.so,net.params --model long=net.so,net.params --largest-sizes short:T=64
  dycl-tvm serve net.so net.params --ray --replicas 4 --cpus 0.5
"""
#: Of Settings: options that are numbers, what they are in the help, and their types.
_BOUNDS: tuple[tuple[str, Any, str], ...] = (
    ("sessions", positive, "calls that run at the same time, for each model (default: one for each core)"),
    ("queue", int, "calls that may wait, for each model; more are refused as busy (default 64)"),
    ("threads", positive, "threads of each session (default: the sessions share one for each core)"),
    ("sequences", int, "sequences that may be open, for each model (default 256)"),
    ("sequence-idle", float, "seconds after which a sequence that nobody calls is forgotten (default 300)"),
    ("max-body", positive, "bytes of a request (default: what the inputs need as text)"),
    ("max-connections", positive, "connections of HTTP, and calls of gRPC (default 1000)"),
    ("patience", float, "seconds that a client has to send a request (default 30)"),
    ("grace", float, "seconds that requests have to end after SIGTERM (default 30)"),
)


def add_parser(commands: Any) -> None:
    """Add the sub-command."""
    command = new_parser(commands, "serve", "serve artefacts over HTTP and gRPC by the Open Inference Protocol (KServe v2)", _EPILOG)
    command.add_argument("library", metavar="LIBRARY", nargs="?", help="the .so written by dycl-tvm compile")
    command.add_argument("params", metavar="PARAMS", nargs="?", help="its weights; by default the library's name with .params")
    command.add_argument("--model", action="append", default=[], metavar="NAME=LIBRARY[,PARAMS]", help="one more model (repeatable)")
    command.add_argument(
        "--largest-sizes",
        action="append",
        default=[],
        metavar="[MODEL:]NAME=N,...",
        help="take no requests with larger sizes, such as T=64, for LIBRARY or a --model (repeatable): sessions take less memory then",
    )
    command.add_argument("--host", default="127.0.0.1", help="the address to listen at (default 127.0.0.1, this machine only)")
    command.add_argument("--http-port", type=int, default=8000, metavar="N", help="default 8000; 0: a free one; -1: without HTTP")
    command.add_argument("--grpc-port", type=int, default=8001, metavar="N", help="default 8001; 0: a free one; -1: without gRPC")
    for name, kind, text in _BOUNDS:
        command.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    ray = command.add_argument_group("Ray Serve")
    ray.add_argument("--ray", action="store_true", help="run on Ray Serve, on a cluster or on this machine alone")
    ray.add_argument("--ray-address", metavar="ADDRESS", help="the cluster (default: the environment's RAY_ADDRESS, or a new one)")
    ray.add_argument("--app", default="dycl_tvm", metavar="NAME", help="the application; one of that name is updated (default dycl_tvm)")
    ray.add_argument("--route", default="/", metavar="PREFIX", help="where HTTP finds the application (default /)")
    ray.add_argument("--replicas", type=positive, default=1, metavar="N", help="processes (default 1)")
    ray.add_argument("--max-replicas", type=positive, metavar="N", help="let Ray start up to N as the load grows")
    ray.add_argument("--cpus", type=float, default=1.0, metavar="F", help="cores of each replica; fractions share one (default 1)")
    ray.add_argument("--sticky", action="store_true", help="requests with one x-session-id go to one replica: for sequences")
    command.set_defaults(handler=_handle)


def _handle(args: argparse.Namespace) -> int:
    needed = ("starlette", "uvicorn", "httptools", "grpc", "google.protobuf", "prometheus_client", *(["ray"] if args.ray else []))
    missing = [name for name in needed if not _installed(name)]
    if missing:
        extra = "serve,ray" if args.ray else "serve"
        raise UsageError(f"{', '.join(missing)} missing: pip install 'dycl-tvm[{extra}]'")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    files = _models(args)
    names = [name.replace("-", "_") for name, _, _ in _BOUNDS]
    bounds = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return _serve_on_ray(args, files, bounds) if args.ray else _serve_here(args, files, bounds)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package of a package
        return False


def _models(args: argparse.Namespace) -> list[ModelFiles]:
    from dycl_tvm.serve.repository import ModelFiles

    sizes: dict[str, dict[str, int]] = {}
    for text in args.largest_sizes:
        model, _, written = text.rpartition(":")
        sizes.setdefault(model, {}).update(largest_sizes(written))
    files = []
    if args.library:
        files.append(ModelFiles(args.library, find_params(args.library, args.params), largest_sizes=sizes.pop("", {})))
    for text in args.model:
        name, equals, paths = text.partition("=")
        library, _, params = paths.partition(",")
        if not (name and equals and library):
            raise UsageError(f"--model is NAME=LIBRARY or NAME=LIBRARY,PARAMS, got {text!r}")
        files.append(ModelFiles(library, find_params(library, params or None), name, sizes.pop(name, {})))
    if not files:
        raise UsageError("give a LIBRARY, or --model NAME=LIBRARY")
    if sizes:
        raise UsageError(
            f"--largest-sizes is for {' and '.join(f'--model {name}' if name else 'a LIBRARY' for name in sizes)}, which there is not"
        )
    return files


def _serve_here(args: argparse.Namespace, files: list[ModelFiles], bounds: dict[str, Any]) -> int:
    from dycl_tvm.serve.server import Server
    from dycl_tvm.serve.settings import Settings

    ports = [None if port < 0 else port for port in (args.http_port, args.grpc_port)]
    server = Server(files, Settings(**bounds), args.host, *ports)

    def started(http: int | None, grpc: int | None) -> None:
        where = [f"{kind} {args.host}:{port}" for kind, port in (("HTTP", http), ("gRPC", grpc)) if port is not None]
        print(f"serving {', '.join(server.repository.models)} on {', '.join(where)}", flush=True)

    asyncio.run(server.run(started))
    return OK


def _serve_on_ray(args: argparse.Namespace, files: list[ModelFiles], bounds: dict[str, Any]) -> int:
    from dycl_tvm.serve.ray_cluster import run
    from dycl_tvm.serve.ray_serve import deployment
    from dycl_tvm.serve.settings import Settings

    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": args.cpus}}
    if args.max_replicas:
        options["autoscaling_config"] = {"min_replicas": args.replicas, "max_replicas": args.max_replicas}
    else:
        options["num_replicas"] = args.replicas
    settings = Settings(**{"sessions": max(int(args.cpus), 1), "queue": 2, "threads": 1, **bounds}) if bounds else None
    application = deployment(files, settings=settings, sticky=args.sticky, **options)
    run(application, args.app, args.route, args.ray_address, args.host, args.http_port, args.grpc_port)
    return OK
