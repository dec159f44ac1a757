# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The protocol on Ray Serve: replicas, autoscaling, updates and routing are Ray's; a replica does what a server of one machine does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import grpc
from ray import serve
from starlette.applications import Starlette
from starlette.routing import Mount

from dycl_tvm.errors import ArtifactError
from dycl_tvm.runtime.trailer import read_trailer
from dycl_tvm.serve.failures import RequestError
from dycl_tvm.serve.grpc_messages import CLASSES
from dycl_tvm.serve.grpc_service import GrpcCalls
from dycl_tvm.serve.http_app import HttpApp
from dycl_tvm.serve.metrics import RayMetrics
from dycl_tvm.serve.repository import ModelFiles, Repository
from dycl_tvm.serve.settings import Settings

#: For ``grpc_servicer_functions`` of Ray Serve.
SERVICER = "dycl_tvm.serve.grpc_service.add_GRPCInferenceServiceServicer_to_server"
#: Requests that a replica has in hand beyond those that run: few, since others that are free could take them.
_AHEAD = 2


async def _to_replica(scope: Any, receive: Any, send: Any) -> None:
    await serve.get_replica_context().servable_object.asgi(scope, receive, send)


@serve.ingress(lambda: Starlette(routes=[Mount("/", _to_replica)]))
class Replica:
    """A process with its own sessions of all models.

    Parameters
    ----------
    models : sequence of (ModelFiles, str)
        Each with the fingerprint of the library that was deployed.
    settings : Settings
    """

    def __init__(self, models: Sequence[tuple[ModelFiles, str]], settings: Settings) -> None:
        metrics = RayMetrics()
        repository = Repository([files for files, _ in models], settings, metrics)
        for (files, fingerprint), model in zip(models, repository.models.values()):
            if model.metadata["fingerprint"] != fingerprint:
                raise ArtifactError(f"'{files.library}' is not the library that was deployed: deploy the new one")
        self.asgi = HttpApp(repository, settings, metrics).asgi()
        self._calls = GrpcCalls(repository, metrics)

    async def ServerLive(self, request: Any) -> Any:
        """The server answers."""
        return self._calls.server_live()

    async def ServerReady(self, request: Any) -> Any:
        """Whether the replica takes requests."""
        return self._calls.server_ready()

    async def ServerMetadata(self, request: Any) -> Any:
        """Describe the server."""
        return self._calls.server_metadata()

    async def ModelReady(self, request: Any, grpc_context: Any) -> Any:
        """Whether a model takes requests."""
        try:
            return self._calls.model_ready(request)
        except RequestError as error:
            return _failed(grpc_context, error, "ModelReadyResponse")

    async def ModelMetadata(self, request: Any, grpc_context: Any) -> Any:
        """Describe a model."""
        try:
            return self._calls.model_metadata(request)
        except RequestError as error:
            return _failed(grpc_context, error, "ModelMetadataResponse")

    async def ModelInfer(self, request: Any, grpc_context: Any) -> Any:
        """Run a model."""
        try:
            return await self._calls.model_infer(request, None)
        except RequestError as error:
            return _failed(grpc_context, error, "ModelInferResponse")


def _failed(context: Any, error: RequestError, response: str) -> Any:
    """Tell Ray which error the client is to be told; the response is not sent."""
    context.set_code(grpc.StatusCode[error.status.grpc])
    context.set_details(str(error))
    return CLASSES[response]()


def deployment(
    library: str | os.PathLike[str] | Sequence[ModelFiles],
    params: str | os.PathLike[str] | None = None,
    *,
    settings: Settings | None = None,
    sticky: bool = False,
    **options: Any,
) -> serve.Application:
    """Return an application of Ray Serve: ``serve.run(deployment("net.so", "net.params", num_replicas=2))``.

    Parameters
    ----------
    library : path-like, or sequence of ModelFiles
        The library, or several models that each replica is to have. Every machine with replicas must have the files at these paths. For
        models that grow and shrink each for itself make several applications.
    params : path-like, optional
        The weights of one library.
    settings : Settings, optional
        By default one session for each core of ``ray_actor_options={"num_cpus": n}``, at least one, each with one thread.
    sticky : bool
        Send requests with one ``x-session-id`` to one replica, by consistent hashing: for sequences, whose state is in a replica.
    **options
        Those of ``ray.serve.deployment``: ``num_replicas``, ``autoscaling_config``, ``ray_actor_options``, ...
    """
    models = [ModelFiles(library, params)] if isinstance(library, (str, os.PathLike)) else list(library)
    placed = [
        replace(files, library=os.path.abspath(files.library), params=None if files.params is None else os.path.abspath(files.params))
        for files in models
    ]
    # The fingerprints are arguments of the replicas, so that a library that was built again is an update for Ray.
    described = [(files, read_trailer(str(files.library))["fingerprint"]) for files in placed]
    cores = max(int((options.get("ray_actor_options") or {}).get("num_cpus", 1)), 1)
    settings = settings or Settings(sessions=cores, queue=_AHEAD, threads=1)
    options.setdefault("name", "dycl_tvm")
    options.setdefault("logging_config", {"enable_access_log": False})
    options.setdefault("max_ongoing_requests", settings.sessions + min(settings.queue, _AHEAD))
    if sticky:
        options.setdefault("request_router_config", _sticky_routing())
    return serve.deployment(Replica).options(**options).bind(described, settings)


def _sticky_routing() -> Any:
    from ray.serve.config import RequestRouterConfig

    # Another replica does not have the state, so that there is none to fall back to.
    return RequestRouterConfig(
        request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
        request_router_kwargs={"num_fallback_replicas": 0},
    )
