# Licensed under the Apache License, Version 2.0; see LICENSE.
"""An application of Ray Serve run from the command line, on a cluster or on this machine alone."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions

from dycl_tvm.serve.ray_serve import SERVICER


def start(address: str | None, host: str, http_port: int, grpc_port: int, **options: Any) -> bool:
    """Join a cluster, or start one of this machine's own, with Serve's proxies; a negative port of gRPC means none.

    Parameters
    ----------
    options
        More arguments of ``ray.init``.

    Returns
    -------
    bool
        Whether the cluster is one of others: an address is given, or ``RAY_ADDRESS``.
    """
    joins = bool(address or os.environ.get("RAY_ADDRESS"))
    if not joins:
        # Nobody is to reach a cluster of this machine's own from outside.
        options |= {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
        # Ray's workers stand back for everything else on a machine. A server does not.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Serve takes a proxy that is not ready in three times 5 seconds for dead and starts another one: a busy machine never has one.
        os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    ray.init(address, **{"log_to_driver": not joins, **options})
    functions = [SERVICER] if grpc_port >= 0 else []
    serve.start(
        http_options=HTTPOptions(host=host, port=max(http_port, 0)),
        grpc_options=gRPCOptions(port=max(grpc_port, 0), grpc_servicer_functions=functions),
    )
    return joins


def run(application: Any, name: str, route: str, address: str | None, host: str, http_port: int, grpc_port: int) -> None:
    """Run an application until SIGTERM or SIGINT; on a cluster of others it is left there, and this returns when it runs."""
    joins = start(address, host, http_port, grpc_port, logging_level="warning")
    serve.run(application, name=name, route_prefix=route)
    print(
        f"serving on Ray: HTTP {host}:{http_port}{route.rstrip('/')}" + (f", gRPC {host}:{grpc_port}" if grpc_port >= 0 else ""), flush=True
    )
    if joins:
        return
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    while not told.wait(0.5):  # a wait without end would keep Python from its signal handlers
        pass
    serve.shutdown()  # replicas finish what they have
    ray.shutdown()
