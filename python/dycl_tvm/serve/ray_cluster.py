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


def run(application: Any, name: str, route: str, address: str | None, host: str, http_port: int, grpc_port: int) -> None:
    """Run an application until SIGTERM or SIGINT.

    On a cluster of others (an address is given, or ``RAY_ADDRESS``) the application is left there, and this returns when it runs.
    """
    joins = bool(address or os.environ.get("RAY_ADDRESS"))
    # Nobody is to reach a cluster of this machine's own from outside.
    alone = {} if joins else {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
    ray.init(address, log_to_driver=not joins, logging_level="warning", **alone)
    functions = [SERVICER] if grpc_port >= 0 else []
    serve.start(
        http_options=HTTPOptions(host=host, port=max(http_port, 0)),
        grpc_options=gRPCOptions(port=max(grpc_port, 0), grpc_servicer_functions=functions),
    )
    serve.run(application, name=name, route_prefix=route)
    print(f"serving on Ray: HTTP {host}:{http_port}{route.rstrip('/')}" + (f", gRPC {host}:{grpc_port}" if functions else ""), flush=True)
    if joins:
        return
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    while not told.wait(0.5):  # a wait without end would keep Python from its signal handlers
        pass
    serve.shutdown()  # replicas finish what they have
    ray.shutdown()
