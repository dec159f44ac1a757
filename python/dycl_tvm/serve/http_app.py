# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The protocol over HTTP, as an ASGI application: for uvicorn here, for Ray Serve there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dycl_tvm.serve import rest
from dycl_tvm.serve.bodies import read_body, while_connected
from dycl_tvm.serve.failures import RequestError, Status, as_request_error
from dycl_tvm.serve.metrics import Metrics, PrometheusMetrics
from dycl_tvm.serve.repository import Repository, model_metadata, server_metadata
from dycl_tvm.serve.settings import Settings

_JSON_LENGTH = "Inference-Header-Content-Length"
#: Bodies beyond this many bytes are read in a thread, so that other requests go on meanwhile.
_LARGE = 1 << 16

Handler = Callable[[Request], Awaitable[Response]]


class HttpApp:
    """The handlers.

    Parameters
    ----------
    repository : Repository
    settings : Settings
    metrics : Metrics
    """

    def __init__(self, repository: Repository, settings: Settings, metrics: Metrics) -> None:
        self._repository, self._settings, self._metrics = repository, settings, metrics

    def asgi(self) -> Starlette:
        """Return the application."""
        model = "/v2/models/{name}"
        gets: list[tuple[str, Handler]] = [("/v2", self._server), ("/v2/health/live", self._live), ("/v2/health/ready", self._ready)]
        for path in (model, model + "/versions/{version}"):
            gets += [(path, self._model), (path + "/ready", self._model_ready)]
        if isinstance(self._metrics, PrometheusMetrics):
            gets.append(("/metrics", self._page))
        routes = [Route(path, handler, methods=["GET"]) for path, handler in gets]
        routes += [Route(path + "/infer", self._infer, methods=["POST"]) for path in (model, model + "/versions/{version}")]
        return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, RequestError: _request_error})

    async def _live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, _: Request) -> Response:
        ready = not self._repository.ending
        return JSONResponse({"ready": ready}, 200 if ready else Status.UNAVAILABLE.http)

    async def _server(self, _: Request) -> Response:
        return JSONResponse(server_metadata())

    async def _model(self, request: Request) -> Response:
        return JSONResponse(model_metadata(self._repository.find(**request.path_params)))

    async def _model_ready(self, request: Request) -> Response:
        model, ready = self._repository.find(**request.path_params), not self._repository.ending
        return JSONResponse({"name": model.name, "ready": ready}, 200 if ready else Status.UNAVAILABLE.http)

    async def _page(self, _: Request) -> Response:
        assert isinstance(self._metrics, PrometheusMetrics)
        text, kind = self._metrics.text()
        return Response(text, headers={"content-type": kind})

    async def _infer(self, request: Request) -> Response:
        begun, model = time.monotonic(), ""
        try:
            # What is refused is refused before its body is read.
            served = self._repository.find(**request.path_params)
            model = served.name
            self._repository.check_open()
            served.check_room()
            body = await read_body(request, served.max_body, self._settings.patience)
            head = request.headers.get(_JSON_LENGTH)
            asked, as_bytes = await asyncio.to_thread(rest.decode, body, head) if len(body) > _LARGE else rest.decode(body, head)
            answer = await while_connected(request, served.infer(asked))
            content, json_length = rest.encode(answer, as_bytes)
            headers = {"content-type": "application/json"}
            if json_length is not None:
                headers = {"content-type": "application/octet-stream", _JSON_LENGTH: str(json_length)}
            response = Response(content, headers=headers)
        except Exception as error:
            response = _answer(as_request_error(error))
        self._metrics.answered(model, "http", str(response.status_code), time.monotonic() - begun)
        return response


def _answer(error: RequestError) -> Response:
    headers = {"retry-after": "1"} if error.status in (Status.BUSY, Status.UNAVAILABLE) else None
    return JSONResponse({"error": str(error)}, error.status.http, headers)


async def _request_error(_: Request, error: Exception) -> Response:
    return _answer(as_request_error(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{request.method} {request.url.path:.200}: {error.detail}"}, error.status_code, error.headers)
