# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The network of ``serve_load.py`` in ONNX Runtime under Ray Serve, with the same reading and writing of requests."""

from __future__ import annotations

import asyncio
from typing import Any

from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from dycl_tvm.serve import rest
from dycl_tvm.serve.messages import Response as Answer
from dycl_tvm.serve.messages import Tensor


async def _to_replica(scope: Any, receive: Any, send: Any) -> None:
    await serve.get_replica_context().servable_object.asgi(scope, receive, send)


@serve.ingress(lambda: Starlette(routes=[Mount("/", _to_replica)]))
class Replica:
    """One session of ONNX Runtime with one thread."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        from dycl_tvm.onnx_export import OnnxModel

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._model = OnnxModel(path, options)
        self.asgi = Starlette(routes=[Route("/v2/models/net/infer", self._infer, methods=["POST"])])

    async def _infer(self, request: Request) -> Response:
        body = await request.body()
        asked, as_bytes = rest.decode(body, request.headers.get("inference-header-content-length"))
        try:
            y = await asyncio.to_thread(self._model, asked.inputs["x"].array)
        except Exception as error:  # ONNX Runtime has a type for each status, of which wrong shapes are one
            return JSONResponse({"error": str(error)}, 400)
        content, length = rest.encode(Answer("net", "1", [Tensor("output", "FP32", y)]), as_bytes)
        return Response(content, headers={} if length is None else {"Inference-Header-Content-Length": str(length)})


def application_of(path: str, options: dict[str, Any]) -> Any:
    """Return the application, deployed as that of dycl_tvm is."""
    logging = {"enable_access_log": False}
    return serve.deployment(Replica).options(max_ongoing_requests=3, logging_config=logging, **options).bind(path)
