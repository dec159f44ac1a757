# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The models of a server, by name, and whether it takes requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dycl_tvm._version import __version__
from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import load
from dycl_tvm.serve.failures import RequestError, Status
from dycl_tvm.serve.metrics import Metrics
from dycl_tvm.serve.model import VERSION, ServedModel
from dycl_tvm.serve.settings import Settings
from dycl_tvm.serve.signature import Port

EXTENSIONS = ["binary_tensor_data", "sequence", "timeout", "seed"]


@dataclass(frozen=True)
class ModelFiles:
    """A library with its weights, and the name by which clients ask for it; None: the name of the network.

    ``largest_sizes`` are as :func:`dycl_tvm.load` has them: a request with larger ones is refused, and sessions take less memory.
    """

    library: str | os.PathLike[str]
    params: str | os.PathLike[str] | None = None
    name: str | None = None
    largest_sizes: Mapping[str, int] | None = None


class Repository:
    """The models of a server.

    Parameters
    ----------
    files : sequence of ModelFiles
    settings : Settings
    metrics : Metrics
    """

    def __init__(self, files: Sequence[ModelFiles], settings: Settings, metrics: Metrics) -> None:
        self.models: dict[str, ServedModel] = {}
        self.ending = False
        for given in files:
            module = load(given.library, given.params, num_threads=settings.threads, largest_sizes=given.largest_sizes)
            name = given.name or module.name
            if name in self.models:
                raise UsageError(f"two models have the name '{name}'; give one of them another (NAME=LIBRARY)")
            self.models[name] = ServedModel(name, module, settings, metrics)
        if not self.models:
            raise UsageError("there is no model to serve")

    @property
    def max_body(self) -> int:
        """Bytes that a request may have, whichever model it is for."""
        return max(model.max_body for model in self.models.values())

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a model, or raise the error for the client."""
        model = self.models.get(name)
        if model is None:
            raise RequestError(Status.NOT_FOUND, f"there is no model '{name:.80}'; there are {', '.join(self.models)}")
        if version not in ("", VERSION):
            raise RequestError(Status.NOT_FOUND, f"the model '{name}' has no version '{version:.20}', only {VERSION}")
        return model

    def check_open(self) -> None:
        """Raise the error for the client if the server is ending."""
        if self.ending:
            raise RequestError(Status.UNAVAILABLE, "the server is ending and takes no new requests")

    async def idle(self, seconds: float) -> bool:
        """Wait until no request is there; False if that takes longer."""
        end = asyncio.get_running_loop().time() + seconds
        while any(model.waiting_or_running for model in self.models.values()):
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(0.01)
        return True

    def close(self) -> None:
        """Let the threads of all models end."""
        for model in self.models.values():
            model.close()


def server_metadata() -> dict[str, Any]:
    """Return the protocol's description of the server."""
    return {"name": "dycl-tvm", "version": __version__, "extensions": EXTENSIONS}


def model_metadata(model: ServedModel) -> Mapping[str, Any]:
    """Return the protocol's description of a model."""

    def shown(port: Port) -> dict[str, Any]:
        return {"name": port.name, "datatype": port.datatype, "shape": list(port.shape)}

    inputs, outputs = [shown(want.port) for want in model.signature.inputs], [shown(port) for port in model.signature.ports()]
    return {"name": model.name, "versions": [VERSION], "platform": "dycl_tvm", "inputs": inputs, "outputs": outputs}
