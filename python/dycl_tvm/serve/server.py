# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A server of this machine: HTTP and gRPC in one process, in one event loop, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc
import uvicorn

from dycl_tvm.errors import UsageError
from dycl_tvm.serve.grpc_service import GrpcCalls, GrpcServicer, add_GRPCInferenceServiceServicer_to_server, add_stream_to_server
from dycl_tvm.serve.http_app import HttpApp
from dycl_tvm.serve.http_protocol import bounded_protocol
from dycl_tvm.serve.metrics import PrometheusMetrics
from dycl_tvm.serve.repository import ModelFiles, Repository
from dycl_tvm.serve.settings import Settings

_LOG = logging.getLogger("dycl_tvm.serve")


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the whole server has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class Server:
    """A server of models.

    Parameters
    ----------
    models : sequence of ModelFiles
    settings : Settings, optional
    host : str
    http_port, grpc_port : int or None
        0: any port that is free; None: without that protocol.
    """

    def __init__(
        self,
        models: Sequence[ModelFiles],
        settings: Settings | None = None,
        host: str = "127.0.0.1",
        http_port: int | None = 8000,
        grpc_port: int | None = 8001,
    ) -> None:
        if http_port is None and grpc_port is None:
            raise UsageError("give a port for HTTP or for gRPC")
        self._settings = settings or Settings()
        self._metrics = PrometheusMetrics()
        self.repository = Repository(models, self._settings, self._metrics)
        self._host, self._http_port, self._grpc_port = host, http_port, grpc_port
        self._told_to_end = 0
        self._end = asyncio.Event()

    async def run(self, started: Callable[[int | None, int | None], None] = lambda http, grpc: None) -> None:
        """Serve until SIGTERM, SIGINT or :meth:`end`; ``started`` is told the ports.

        Then requests that are there have ``Settings.grace`` seconds to end, others are refused. A second signal does not wait.
        """
        loop = asyncio.get_running_loop()
        http, http_task, http_port = await self._start_http()
        calls, grpc_port = await self._start_grpc()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        try:
            started(http_port, grpc_port)
            await self._end.wait()
            await self._drain()
            if http is not None:
                http.should_exit = True
            # What has not ended by now is cancelled, and says so to its client.
            ends = [asyncio.ensure_future(calls.stop(0.5))] if calls is not None else []
            await asyncio.gather(*ends, *([http_task] if http_task is not None else []))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            self.repository.close()

    def end(self) -> None:
        """Let the server end; the second time, at once."""
        self._told_to_end += 1
        self.repository.ending = True
        self._end.set()

    async def _drain(self) -> None:
        _LOG.info("ending: waiting for the requests that are there")
        drained = asyncio.ensure_future(self.repository.idle(self._settings.grace))
        while not drained.done() and self._told_to_end < 2:
            await asyncio.wait({drained}, timeout=0.05)
        if not (drained.done() and drained.result()):
            drained.cancel()
            _LOG.warning("ending with requests that have not ended")

    async def _start_http(self) -> tuple[_Uvicorn | None, asyncio.Task[None] | None, int | None]:
        if self._http_port is None:
            return None, None, None
        try:
            listener = _listener(self._host, self._http_port)
        except OSError as error:
            raise OSError(f"HTTP on {self._host}:{self._http_port}: {error}") from None
        config = uvicorn.Config(
            HttpApp(self.repository, self._settings, self._metrics).asgi(),
            loop="asyncio",
            http=bounded_protocol(self._settings.patience),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=self._settings.max_connections,
            timeout_graceful_shutdown=1,
        )
        server = _Uvicorn(config)
        return server, asyncio.ensure_future(server.serve([listener])), listener.getsockname()[1]

    async def _start_grpc(self) -> tuple[grpc.aio.Server | None, int | None]:
        if self._grpc_port is None:
            return None, None
        most = self.repository.max_body
        options = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._settings.max_connections)
        servicer = GrpcServicer(GrpcCalls(self.repository, self._metrics))
        add_GRPCInferenceServiceServicer_to_server(servicer, server)
        add_stream_to_server(servicer, server)
        try:
            port = server.add_insecure_port(f"{self._host}:{self._grpc_port}")
        except RuntimeError as error:
            raise OSError(f"gRPC on {self._host}:{self._grpc_port}: {error}") from None
        await server.start()
        return server, port


def _listener(host: str, port: int) -> socket.socket:
    # Not socket.create_server: it leaves the protocol open, and asyncio then does not send small parts of responses at once.
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
