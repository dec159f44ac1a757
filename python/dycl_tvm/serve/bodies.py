# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The body of a request of HTTP, within bounds of size and time, and whether its client is still there."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from dycl_tvm.serve.failures import RequestError, Status, invalid

T = TypeVar("T")


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """Return the body, decompressed.

    Raises
    ------
    RequestError
        If it is larger than ``most`` bytes, takes longer than ``seconds``, is in an encoding that is not known, or ends early.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise RequestError(Status.ENCODING, f"the Content-Encoding {encoding!r:.40} is not supported; gzip and deflate are")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(most)
    try:
        body = await asyncio.wait_for(_collect(request, most), seconds)
    except asyncio.TimeoutError:
        raise RequestError(Status.SLOW, f"the body did not come within {seconds:g} seconds") from None
    except ClientDisconnect:
        raise RequestError(Status.CANCELLED, "the client has gone before its request was complete") from None
    return body if encoding == "identity" else _decompressed(body, most)


async def _collect(request: Request, most: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > most:
            raise _too_large(most)
    return b"".join(parts)


def _decompressed(body: bytes, most: int) -> bytes:
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # both gzip and zlib, whichever header there is
    try:
        plain = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise invalid(f"the body cannot be decompressed: {error}") from None
    if len(plain) > most:
        raise _too_large(most)
    if not reader.eof or reader.unused_data:
        raise invalid("the compressed body ends early, or too late")
    return plain


def _too_large(most: int) -> RequestError:
    return RequestError(Status.TOO_LARGE, f"the body is larger than {most} bytes, which is as much as a request of this model may have")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` gives, and cancel it if the client goes away. The body has been read."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RequestError(Status.CANCELLED, "the client has gone")
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
