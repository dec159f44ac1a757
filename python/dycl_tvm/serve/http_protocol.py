# Licensed under the Apache License, Version 2.0; see LICENSE.
"""uvicorn's protocol of HTTP with bounds: on the size of a head, and on the time that a client lets the server wait."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of the request line and the headers.
MAX_HEAD = 1 << 16


def bounded_protocol(patience: float) -> type[HttpToolsProtocol]:
    """Return the protocol for clients that are waited for no longer than so many seconds."""

    class BoundedProtocol(HttpToolsProtocol):
        """Ends the connection of a client that does not send what it began to send, or does not read what it asked for."""

        _head: int | None = 0  # bytes since the head of a request began; None: it is complete
        _read_alarm: asyncio.TimerHandle | None = None
        _write_alarm: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_more()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect_nothing()
            self.resume_writing()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head = 0
            self._expect_nothing()
            self._expect_more()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._head = None

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._expect_nothing()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head is not None and not self.transport.is_closing():
                self._head += len(data)
                if self._head > MAX_HEAD:
                    self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_alarm = self.loop.call_later(patience, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._write_alarm is not None:
                self._write_alarm.cancel()
                self._write_alarm = None

        def _expect_more(self) -> None:
            self._read_alarm = self.loop.call_later(patience, self._lost_patience)

        def _expect_nothing(self) -> None:
            if self._read_alarm is not None:
                self._read_alarm.cancel()
                self._read_alarm = None

        def _lost_patience(self) -> None:
            if self.flow.read_paused:  # the server does not read: an earlier request of the connection is being answered
                self._expect_more()
            else:
                self.transport.abort()

    return BoundedProtocol
