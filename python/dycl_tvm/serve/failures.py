# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What may go wrong with a request, with the status of HTTP and of gRPC that says so."""

from __future__ import annotations

import enum
import logging

from dycl_tvm.errors import CancelledError, DeadlineError, DyclError, InputError, RunError, UsageError

_LOG = logging.getLogger("dycl_tvm.serve")


class Status(enum.Enum):
    """(HTTP status, name of the gRPC status)."""

    OK = (200, "OK")
    INVALID = (400, "INVALID_ARGUMENT")
    NOT_FOUND = (404, "NOT_FOUND")
    SLOW = (408, "DEADLINE_EXCEEDED")
    TOO_LARGE = (413, "RESOURCE_EXHAUSTED")
    ENCODING = (415, "INVALID_ARGUMENT")
    RAISED = (422, "INVALID_ARGUMENT")
    CANCELLED = (499, "CANCELLED")
    INTERNAL = (500, "INTERNAL")
    #: All places are taken: another moment, or another replica, may have one.
    BUSY = (503, "RESOURCE_EXHAUSTED")
    #: The server is ending.
    UNAVAILABLE = (503, "UNAVAILABLE")
    DEADLINE = (504, "DEADLINE_EXCEEDED")

    @property
    def http(self) -> int:
        """The status of HTTP."""
        return self.value[0]

    @property
    def grpc(self) -> str:
        """The name of the status of gRPC."""
        return self.value[1]


class RequestError(Exception):
    """A request that is not answered with a result.

    Parameters
    ----------
    status : Status
    message : str
        What is wrong, in a sentence that the client is told.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def invalid(message: str) -> RequestError:
    """Return the error of a request that does not make sense."""
    return RequestError(Status.INVALID, message)


def as_request_error(error: Exception) -> RequestError:
    """Return what a client is told about an exception; of what nobody expected, only that it happened."""
    if isinstance(error, RequestError):
        return error
    kinds: tuple[tuple[type[Exception], Status], ...] = (
        (InputError, Status.INVALID),
        (RunError, Status.RAISED),
        (DeadlineError, Status.DEADLINE),
        (CancelledError, Status.CANCELLED),
        (UsageError, Status.INVALID),
        (DyclError, Status.INTERNAL),
    )
    for kind, status in kinds:
        if isinstance(error, kind):
            return RequestError(status, str(error))
    _LOG.error("a request failed", exc_info=error)
    return RequestError(Status.INTERNAL, "the server failed; its log says why")
