# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The protocol over gRPC: the calls of the service, whatever server brings them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from dycl_tvm.serve import grpc_codec
from dycl_tvm.serve.failures import RequestError, as_request_error
from dycl_tvm.serve.grpc_messages import CLASSES, METHODS, PACKAGE, SERVICE, STREAM
from dycl_tvm.serve.metrics import Metrics
from dycl_tvm.serve.repository import Repository, model_metadata, server_metadata


class GrpcCalls:
    """The calls of the service; those that fail raise a ``RequestError``.

    Parameters
    ----------
    repository : Repository
    metrics : Metrics
    """

    def __init__(self, repository: Repository, metrics: Metrics) -> None:
        self._repository, self._metrics = repository, metrics

    def server_live(self) -> Any:
        """The server answers."""
        return CLASSES["ServerLiveResponse"](live=True)

    def server_ready(self) -> Any:
        """Whether the server takes requests."""
        return CLASSES["ServerReadyResponse"](ready=not self._repository.ending)

    def model_ready(self, request: Any) -> Any:
        """Whether a model takes requests."""
        self._repository.find(request.name, request.version)
        return CLASSES["ModelReadyResponse"](ready=not self._repository.ending)

    def server_metadata(self) -> Any:
        """Describe the server."""
        return CLASSES["ServerMetadataResponse"](**server_metadata())

    def model_metadata(self, request: Any) -> Any:
        """Describe a model."""
        return CLASSES["ModelMetadataResponse"](**model_metadata(self._repository.find(request.name, request.version)))

    async def model_infer(self, request: Any, seconds: float | None) -> Any:
        """Run a model, within so many seconds."""
        begun, model, code = time.monotonic(), "", "CANCELLED"
        try:
            served = self._repository.find(request.model_name, request.model_version)
            model = served.name
            self._repository.check_open()
            answer = grpc_codec.encode(await served.infer(grpc_codec.decode(request), seconds))
            code = "OK"
            return answer
        except Exception as error:
            found = as_request_error(error)
            code = found.status.grpc
            raise found from error
        finally:
            self._metrics.answered(model, "grpc", code, time.monotonic() - begun)

    async def model_stream_infer(self, requests: AsyncIterator[Any], seconds: Callable[[], float | None]) -> AsyncIterator[Any]:
        """Run models by the requests of a stream, one after the other. One that fails is answered, and the stream goes on."""
        answer = CLASSES["ModelStreamInferResponse"]
        async for request in requests:
            try:
                yield answer(infer_response=await self.model_infer(request, seconds()))
            except RequestError as error:
                yield answer(error_message=str(error), infer_response=CLASSES["ModelInferResponse"](id=request.id))


class GrpcServicer:
    """The calls as ``grpc.aio`` makes them, with the request and the context."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._calls = calls

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return self._calls.server_live()

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return self._calls.server_ready()

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return self._calls.server_metadata()

    async def ModelReady(self, request: Any, context: Any) -> Any:
        try:
            return self._calls.model_ready(request)
        except RequestError as error:
            await context.abort(grpc.StatusCode[error.status.grpc], str(error))

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        try:
            return self._calls.model_metadata(request)
        except RequestError as error:
            await context.abort(grpc.StatusCode[error.status.grpc], str(error))

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        try:
            return await self._calls.model_infer(request, context.time_remaining())
        except RequestError as error:
            await context.abort(grpc.StatusCode[error.status.grpc], str(error))

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for answer in self._calls.model_stream_infer(requests, context.time_remaining):
            yield answer


def add_GRPCInferenceServiceServicer_to_server(servicer: Any, server: Any) -> None:
    """Enter the calls of a servicer in a server, as the function of this name does that gRPC's tools generate."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            request_deserializer=CLASSES[f"{name}Request"].FromString,
            response_serializer=CLASSES[f"{name}Response"].SerializeToString,
        )
        for name in METHODS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", handlers),))


def add_stream_to_server(servicer: Any, server: Any) -> None:
    """Enter the call of streams, which Ray's proxy does not pass on."""
    handler = grpc.stream_stream_rpc_method_handler(
        getattr(servicer, STREAM),
        request_deserializer=CLASSES["ModelInferRequest"].FromString,
        response_serializer=CLASSES[f"{STREAM}Response"].SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", {STREAM: handler}),))
