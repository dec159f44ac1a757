# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A model that is served: requests of the protocol in, responses out, whatever transport brings them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dycl_tvm.runtime import Module
from dycl_tvm.serve.failures import RequestError, Status, as_request_error
from dycl_tvm.serve.messages import Request, Response
from dycl_tvm.serve.metrics import Metrics
from dycl_tvm.serve.parameters import Call, call_of
from dycl_tvm.serve.path_labels import PathLabels
from dycl_tvm.serve.sequences import Sequences
from dycl_tvm.serve.sessions import Outcome, Sessions, Work
from dycl_tvm.serve.settings import Settings
from dycl_tvm.serve.signature import Signature
from dycl_tvm.serve.slots import Slots

VERSION = "1"
#: Bytes that an element of an input takes as JSON at most, with room for how it is written, and those of all else.
_TEXT_OF_ELEMENT, _TEXT_OF_REST = 32, 1 << 20


class ServedModel:
    """A loaded library that answers requests. All calls are of one event loop.

    Parameters
    ----------
    name : str
        The name by which clients ask for it.
    module : Module
        The library.
    settings : Settings
    metrics : Metrics
    """

    def __init__(self, name: str, module: Module, settings: Settings, metrics: Metrics) -> None:
        self.name, self.metadata = name, module.metadata
        self.signature = Signature(module.metadata)
        self.max_body = settings.max_body or _TEXT_OF_ELEMENT * self.signature.elements() + _TEXT_OF_REST
        self.waiting_or_running = 0
        self._most = settings.sessions + settings.queue
        self._module, self._metrics = module, metrics
        self._keeps_state = bool(module.metadata["state"])
        self._slots = Slots(settings.sessions)
        self._sessions = Sessions(module, settings.sessions, PathLabels().of)
        self._sequences = Sequences(settings.sequences, settings.sequence_idle, self._sessions.give_back)

    async def infer(self, request: Request, seconds: float | None = None) -> Response:
        """Answer a request.

        Parameters
        ----------
        request : Request
        seconds : float, optional
            What the transport leaves; the request's own time-out may be shorter.

        Raises
        ------
        RequestError
            If there is no result; the message is for the client.
        """
        self.check_room()
        self.waiting_or_running += 1
        self._metrics.waiting_or_running(self.name, self.waiting_or_running)
        try:
            return await self._infer(request, seconds)
        except Exception as error:
            raise as_request_error(error) from error
        finally:
            self.waiting_or_running -= 1
            self._metrics.waiting_or_running(self.name, self.waiting_or_running)

    def check_room(self) -> None:
        """Raise the error for the client if no further request may wait."""
        if self.waiting_or_running >= self._most:
            raise RequestError(Status.BUSY, f"{self._most} requests of '{self.name}' run or wait, which is as many as may")

    async def _infer(self, request: Request, seconds: float | None) -> Response:
        begun = time.monotonic()
        call = call_of(request.parameters)
        given = [limit for limit in (seconds, call.seconds) if limit is not None]
        until = begun + min(given) if given else None
        self.signature.check_wanted(request.outputs)
        work = Work(
            self.signature.leaves(dict(request.inputs)), until, self._keeps_state and (call.start or call.sequence is None), call.seed
        )
        outcome = await (self._run_alone(work) if call.sequence is None else self._run_of_sequence(work, call))
        self._metrics.ran(self.name, outcome.path, time.monotonic() - begun - outcome.seconds, outcome.seconds)
        outputs = self.signature.outputs(outcome.site, outcome.leaves, request.outputs)
        parameters: dict[str, Any] = {"return_site": outcome.site}
        if call.sequence is not None:
            parameters |= {"sequence_id": call.sequence, "sequence_start": call.start, "sequence_end": call.end}
        return Response(self.name, VERSION, outputs, request.id, parameters)

    async def _run_alone(self, work: Work) -> Outcome:
        async with self._place(work):
            session, outcome = await self._sessions.run(work)
        self._sessions.give_back(session)
        return outcome

    async def _run_of_sequence(self, work: Work, call: Call) -> Outcome:
        assert call.sequence is not None
        async with self._sequences.turn(call.sequence, call.start, work.until) as sequence, self._place(work):
            session, outcome = await self._sessions.run(work, None if call.start else sequence.session)
            if session is not sequence.session:
                self._sequences.close(sequence)
                sequence.session = session
            if call.end:
                self._sequences.close(sequence)
        self._metrics.sequences(self.name, len(self._sequences))
        return outcome

    @asynccontextmanager
    async def _place(self, work: Work) -> AsyncIterator[None]:
        await self._slots.acquire(work.until)
        try:
            yield
        finally:
            self._slots.release()

    def close(self) -> None:
        """Let the threads end."""
        self._sessions.close()
