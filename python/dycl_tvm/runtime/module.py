# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A loaded network: call it like the model it was compiled from."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from operator import index
from typing import Any

from dycl_tvm.errors import UsageError
from dycl_tvm.runtime import capi, forks
from dycl_tvm.runtime.asynchronous import RunFuture, Ticket
from dycl_tvm.runtime.calls import Caller, new_caller
from dycl_tvm.runtime.inputs import Inputs, are_of_torch
from dycl_tvm.runtime.largest_sizes import bounded, checked, session_options
from dycl_tvm.runtime.last_call import LastCall
from dycl_tvm.runtime.library import destroy, making, unload
from dycl_tvm.runtime.log import Level, set_log
from dycl_tvm.runtime.model import Model
from dycl_tvm.runtime.priorities import Priority, priority_number
from dycl_tvm.runtime.profile.budget import NO_BUDGET, Budget, Budgets
from dycl_tvm.runtime.profile.profile import Profile
from dycl_tvm.runtime.profile.recording import CAPACITY, Recording
from dycl_tvm.runtime.profile.ring import Ring
from dycl_tvm.runtime.seeds import seed_bits
from dycl_tvm.runtime.signals import signal_that_stops
from dycl_tvm.runtime.streams import stream_handle
from dycl_tvm.runtime.structure import Cuts, parts_of, unflatten
from dycl_tvm.runtime.targets import Bound, Targets
from dycl_tvm.runtime.tensors import copy_out, is_torch
from dycl_tvm.runtime.turns import Arena, Turn

_UNUSUAL = object()
_ALWAYS = nullcontext()


class Module(LastCall):
    """A network in one session. Made by :func:`dycl_tvm.load`.

    Calls from several threads take turns. For calls that run at the same time give each thread its own session
    (:meth:`new_session`); the weights are shared. Ctrl-C ends a call in the main thread before its next kernel, unless the program has a
    handler of its own for it; :meth:`cancel` ends one in another thread.

    A copy (``copy.copy``, ``copy.deepcopy``) is another session over the same weights, with the state variables as they are in the
    original. A module is pickled as the paths of its files, with its state variables; who unpickles it needs the very same files there.

    Attributes
    ----------
    metadata : dict
        Names, input and output structures, return sites, kernels, target. The bounds of sizes are those of the session.
    """

    def __init__(
        self, model: Model, num_threads: int | None = None, arena: Any = None, largest_sizes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(model)
        self._classes = model.classes
        self._session = ctypes.c_void_p()
        self._arena = None if arena is None else Arena(arena)  # it lives as long as the session
        self._turn = Turn() if self._arena is None else self._arena.turn
        self._freeing = threading.RLock()  # what may be asked for in the middle of a call keeps the session from being freed
        self._output, self._taken = capi.Value(), ctypes.c_int32()  # what a call that holds the lock is told
        self._options = capi.RunOptions(ctypes.sizeof(capi.RunOptions))
        self._caller: Caller | None = None
        self._future: RunFuture | None = None
        self._largest_sizes = checked(largest_sizes)
        how = session_options(self._library, self._arena, self._largest_sizes)
        if how is None:
            self._check(self._library.dycl_session_create(model.handle, ctypes.byref(self._session)))
        else:
            self._check(self._library.dycl_session_create_with(model.handle, how, ctypes.byref(self._session)))
        # The session holds the weights, so the order in which the two go does not matter.
        self._free = weakref.finalize(self, destroy, self._library.dycl_session_destroy, self._session)
        self._free.atexit = False  # daemon threads may be in calls until the process ends
        self.metadata = bounded(model.metadata, self._library, self._session, self._largest_sizes)
        self._inputs = Inputs(self.metadata, model.classes)
        self._caller = new_caller(self._library, self._session, self.metadata, self._inputs.positional)
        self._budgets = Budgets(model.library, model.metadata)
        self._rings: list[Ring] = []  # what profiles that go on write to: it lives as long as the session
        self._num_threads = num_threads
        self._priority: Priority = "normal"
        self._device_branches = True
        self._site: int | None = None
        self._entered = False  # whether the last call got as far as the library, and has come back
        forks.tell(self)
        if num_threads is not None:
            self.set_num_threads(num_threads)

    def forked(self) -> None:
        """In a child of fork(): threads that do not exist there hold no lock. The library knows whether the session was running."""
        self._turn.forked()
        if not self._freeing.acquire(blocking=False):
            self._freeing = threading.RLock()
        else:
            self._freeing.release()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network.

        Returns
        -------
        The structure that the model returns at this return site. Tensors are torch tensors if an input is one, NumPy
        arrays otherwise (a bfloat16 tensor is then an array of its bits, uint16). A network for a GPU takes tensors in CPU memory
        and on that GPU; torch tensors that it returns are on the GPU if one of its inputs is.

        Raises
        ------
        InputError
            If an input has a wrong structure, dtype, shape or device; the message names it.
        RunError
            If the network raises on this path; ``kind`` is the exception type.
        CancelledError
            If :meth:`cancel` ended the call.
        """
        caller = self._caller
        if caller is not None and not kwargs:
            result = self._usual(caller, args, 0.0, None)
            if result is not _UNUSUAL:
                return result
        return self._run(args, kwargs, 0.0)

    def run(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        deadline_ms: float | None = None,
        budget_ms: float | None = None,
        profile: Profile | None = None,
    ) -> Any:
        """Run the network on ``args`` and ``kwargs`` as a call does, within a time.

        Parameters
        ----------
        args : sequence
            The positional inputs.
        kwargs : mapping, optional
            The inputs by name.
        deadline_ms : float, optional
            Milliseconds after which the run ends before its next kernel; at once if it is 0 or less.
        budget_ms : float, optional
            Milliseconds in which the run should end. At a decision one of whose sides leaves the network (an early exit) that side is
            taken, whatever its condition says, if going on takes longer than what remains; ``last_path.cut`` says so. The result is
            then what the model returns there, and not what it returns without a budget.
        profile : Profile, optional
            With a budget: what going on takes, by the 99th percentile of its runs.

        Raises
        ------
        DeadlineError
            If the run had not ended by then. The module can be called again, and its state is as before the call.
        """
        given = 0.0 if deadline_ms is None else -1.0 if deadline_ms <= 0 else deadline_ms
        if budget_ms is None:
            return self._run(tuple(args), dict(kwargs or {}), given)
        return self._any(tuple(args), dict(kwargs or {}), given, None, self._budgets.of(budget_ms, profile))

    def run_leaves(self, leaves: Sequence[Any], *, deadline_ms: float | None = None) -> tuple[int, list[Any]]:
        """Run the network on its inputs one by one, without the structures of Python around them.

        Parameters
        ----------
        leaves : sequence
            A value for each entry of ``metadata["inputs"]``.
        deadline_ms : float, optional
            As for :meth:`run`.

        Returns
        -------
        (int, list)
            The return site, and a value for each entry of ``metadata["sites"][site]["types"]``.
        """
        given = 0.0 if deadline_ms is None else -1.0 if deadline_ms <= 0 else deadline_ms
        return self._any(tuple(leaves), None, given, None)  # type: ignore[no-any-return]

    def run_async(self, *args: Any, **kwargs: Any) -> RunFuture:
        """Begin a call in a thread of its own; the inputs must stay as they are until it is over.

        Returns
        -------
        RunFuture
            A :class:`concurrent.futures.Future`, also for ``asyncio.wrap_future``. Its ``cancel()`` ends the call, whose exception is then
            a :class:`~dycl_tvm.CancelledError`.

        Raises
        ------
        UsageError
            If a call that was begun so has not ended. Calls of other threads take turns with it. :meth:`close` ends it.
        """
        with self._freeing:
            self._live()
            if self._future is not None and not self._future.done():
                raise UsageError(f"'{self.name}' has a call that has not ended; give the next one a session of its own (new_session)")
            future = RunFuture(lambda ticket: self._any(args, kwargs, 0.0, None, ticket=ticket), self.cancel)
            future.start()  # the system may refuse a thread; then there is no call
            self._future = future
        return future

    def bind(self, *, out: Any, direct: bool = False) -> Bound:
        """Return a callable that runs the network and writes its results into tensors of the caller, so that a call allocates nothing.

        Parameters
        ----------
        out : tensor, or what the model returns, of tensors
            Torch tensors and NumPy arrays of the result's shapes and dtypes, one element after the other, which may be written.
        direct : bool, optional
            Let the kernels that make the results write there, where the plan of the memory allows it and the memory begins at a multiple of
            64 bytes, so that nothing is copied. After a call that fails ``out`` then holds anything. Else it is written once a call has
            ended well.

        Returns
        -------
        Bound
            Called like the module; it returns ``out``.

        Raises
        ------
        UsageError
            If a result is no plain tensor, differs by the path, or is of another structure, dtype or shape than ``out``, or if two
            tensors of ``out`` share memory. An input may share memory with ``out``.
        """
        return Bound(self._run, Targets(self.metadata, out, direct))

    def profile(self, capacity: int = CAPACITY, every: int | None = None) -> Recording:
        """Return a profile of the calls inside of a ``with``: where their time goes, by kernel, sub-DNN, block, line and path.

        A call allocates nothing for it in the library; it takes three looks at the clock more, and where it is timed inside one for each
        kernel and decision.

        Parameters
        ----------
        capacity : int
            Events for which there is room: one for each kernel and each decision, and two for each call. Where there is none the
            oldest are lost, which the profile counts. :meth:`~dycl_tvm.runtime.profile.Recording.collect` makes room.
        every : int, optional
            Of so many runs one, chosen by chance, is timed inside; of the others times and paths alone are taken down. 1: all are. By
            default so many that by estimate calls take 2.5 % longer at most: all of a large network, few of one of tiny kernels
            (docs/profiling.md).

        Returns
        -------
        Recording
            ``with module.profile() as p: ...``; then ``print(p)``, ``p.paths()``, ``p.save("trace.json")``.

        Raises
        ------
        UsageError
            If the network runs on a GPU, or (in the ``with``) if the module is being profiled already.
        ArtifactError
            If the library was built before this was possible.
        """

        @contextmanager
        def session() -> Iterator[ctypes.c_void_p | None]:
            with self._call():
                yield None if self._model is None else self._session

        return Recording(self._library, self.metadata, session, self._rings, capacity, every)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], deadline_ms: float, into: Targets | None = None) -> Any:
        caller = self._caller
        if caller is not None and not kwargs and (into is None or into.direct is None):
            result = self._usual(caller, args, deadline_ms, into)
            if result is _UNUSUAL and caller.meet_torch():
                result = self._usual(caller, args, deadline_ms, into)
            if result is not _UNUSUAL:
                return result
        return self._any(args, kwargs, deadline_ms, into)

    def _usual(self, caller: Caller, args: tuple[Any, ...], deadline_ms: float, into: Targets | None) -> Any:
        """Run on usual inputs; if one is not usual nothing is done."""
        turn = self._turn
        with turn.lock:  # as in _call(), which costs a microsecond
            if turn.busy:
                raise self._in_a_call()
            if self._caller is not caller:  # closed while this thread waited
                self._live()
            turn.busy = True
            try:
                self._site, self._entered = None, False
                try:
                    done = caller.call(args, deadline_ms, signal_that_stops(), None if into is None else into.addresses)
                finally:
                    self._entered = True
                if done is None:
                    self._entered = False
                    return _UNUSUAL
                if type(done) is int:
                    self._check(done)
                site, leaves = done
                self._site = site
                if into is not None:
                    if leaves is None:
                        self._write(into)
                    return into.out
                if leaves is None:
                    return self._collect(site, are_of_torch(args))
                if caller.single[site]:
                    return leaves

                def made(k: int, _: Any) -> Any:  # whole or cut, as it is in the result
                    return leaves[k]

                return unflatten(self.metadata["sites"][site]["structure"], made, self._classes, made)
            finally:
                turn.busy = False

    def _any(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        deadline_ms: float,
        into: Targets | None,
        budget: Budget = NO_BUDGET,
        ticket: Ticket | None = None,
    ) -> Any:
        """Run on whatever inputs there are: the arguments of a call, or, if ``kwargs`` is None, leaves."""
        inputs = self._inputs
        try:
            leaves = inputs.counted(args) if kwargs is None else inputs.leaves(args, kwargs)
            prepared = [inputs.prepared(k, leaf) for k, leaf in enumerate(leaves)]
        except Exception:
            with self._call():
                self._site, self._entered = None, False
            raise
        torch_like = are_of_torch(leaves)
        options = self._options
        with self._call():
            inputs.fill(prepared)
            options.deadline_ms, options.cancel_on_signal = deadline_ms, signal_that_stops()
            budget.fill(options)
            options.cancelled = None if ticket is None else ticket.address
            self._site, self._entered = None, False
            with ticket or _ALWAYS:
                try:
                    if into is None or into.direct is None:
                        status = self._library.dycl_run_with(self._session, inputs.values, inputs.count, options, self._taken)
                    else:
                        given = inputs.values, inputs.count, into.direct, len(into.direct)
                        status = self._library.dycl_run_into(self._session, *given, options, self._taken)
                finally:
                    self._entered = True
            if status != capi.OK:
                self._check(status)
            site = self._site = self._taken.value
            if into is None:
                return (site, self._collect_leaves(site, torch_like)) if kwargs is None else self._collect(site, torch_like)
            if into.direct is None:
                self._write(into)
            return into.out

    def cancel(self) -> None:
        """End the call that goes on in another thread: before its next kernel, with a :class:`~dycl_tvm.CancelledError` there.

        The module can be called again at once, and its state is as before the call. Without a call it has no effect.
        """
        with self._freeing:
            if self._model is not None:
                self._library.dycl_cancel(self._session)

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Keep other threads out, and refuse what a signal handler asks for in the middle of a call of its own thread."""
        turn = self._turn
        with turn.lock:
            if turn.busy:
                raise self._in_a_call()
            turn.busy = True
            try:
                yield
            finally:
                turn.busy = False

    def _in_a_call(self) -> UsageError:
        return UsageError(f"'{self.name}' is in the middle of a call of this thread; give a signal handler a session of its own")

    def new_session(self, num_threads: int | None = None, arena: Any = None, largest_sizes: Mapping[str, int] | None = None) -> Module:
        """Return an independent module over the same weights, with its own state variables, for another thread.

        Parameters
        ----------
        num_threads : int, optional
            As for :func:`dycl_tvm.load`; those of this module where left out.
        arena : buffer, optional
            As for :func:`dycl_tvm.load`.
        largest_sizes : mapping, optional
            As for :func:`dycl_tvm.load`; those of this module where left out, and with ``{}`` those of the library.
        """
        with making(self._library):
            sizes = self._largest_sizes if largest_sizes is None else largest_sizes
            return Module(self._live(), self._num_threads if num_threads is None else num_threads, arena, sizes)

    def close(self) -> None:
        """Free the session now, and the weights if no other session has them. The module cannot be called any more.

        What is not closed is freed when nothing refers to it any more. ``with dycl_tvm.load(...) as module:`` closes at its end.
        """
        if self._future is not None:
            self._future.cancel()
        with self._call(), self._freeing:
            self._session, self._model, self._caller = ctypes.c_void_p(), None, None
            self._free()
            self._arena = None

    def unload(self) -> None:
        """Close the module and take its library out of memory: code, tables, and what its threads keep.

        Loading the file again then loads what is there now. Other libraries of the process go on, also those that used its threads.

        Raises
        ------
        UsageError
            If other modules of the library are not closed, or are being made. This one is closed then; once they are closed, call it again.
        ArtifactError
            If the library was built before this was possible.
        """
        self.close()
        unload(self._library)

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_num_threads(self, num_threads: int) -> None:
        """Give this module threads of its own; 0 goes back to those that the process shares."""
        if not hasattr(num_threads, "__index__") or not -1 < index(num_threads) < 1 << 31:
            raise UsageError(f"the number of threads must not be negative, and has 31 bits, got {num_threads!r}")
        with self._freeing:
            self._check(self._library.dycl_session_set_num_threads(self._session, index(num_threads)))
        self._num_threads = num_threads

    def set_priority(self, priority: Priority) -> None:
        """Say how important the calls of this module are beside those of others in the process, of whichever library.

        While a call of a higher priority goes on, kernels of the others run on the threads that call them alone, from their next one on:
        so the important one finds the shared threads free. Nobody waits.

        Parameters
        ----------
        priority : {"low", "normal", "high"}
            ``"normal"`` at first.
        """
        number = priority_number(priority)
        with self._freeing:
            self._check(self._library.dycl_session_set_priority(self._session, number))
        self._priority = priority

    def set_device_branches(self, on: bool) -> None:
        """Let the GPU take branches by itself where it can, or (False) let the host take all of them.

        On where nothing else is said. It needs a driver of CUDA 12.8 or newer; see ``docs/gpu.md``. Of no effect on CPUs.
        """
        with self._freeing:
            self._check(self._library.dycl_session_set_device_branches(self._session, int(on)))
        self._device_branches = on

    def set_cuda_stream(self, stream: Any) -> None:
        """Put the work of calls on a CUDA stream of the caller's: they wait for the GPU only where the host needs a value.

        Outputs are then on the GPU and hold in the order of the stream; an array that they are copied to in CPU memory is waited for.
        PyTorch makes tensors for them on its current stream, so call the module where ``stream`` is that one. What fails on the GPU after
        the last wait is told by a later call.

        Parameters
        ----------
        stream : object or None
            A ``torch.cuda.Stream``, an object with ``__cuda_stream__`` (CUDA Python, CuPy), or a ``cudaStream_t`` as a number; 0 is the
            default stream. It must live until another is set. None: calls go to a stream of the module's own, as at first.

        Raises
        ------
        UsageError
            If the network was built for CPUs.
        """
        handle = None if stream is None else stream_handle(stream)
        with self._call():
            self._check(self._library.dycl_session_set_cuda_stream(self._session, int(handle is not None), handle or None))

    def reset_state(self) -> None:
        """Put the state variables (what the model keeps between calls) back to their initial values."""
        with self._call():
            self._check(self._library.dycl_reset_state(self._session))

    def manual_seed(self, seed: int) -> None:
        """Give the random numbers of this module a seed, as ``torch.manual_seed`` does: the network then draws what it draws in PyTorch.

        A new module has the seed 67280421310721, that of a new ``torch.Generator``; so it has after :meth:`reset_state`. A network without
        random numbers takes any seed.
        """
        with self._call():
            self._check(self._library.dycl_manual_seed(self._session, seed_bits(seed)))

    def get_state(self) -> bytes:
        """Return the state variables, that of random numbers too, for :meth:`set_state` of a module of the same library."""
        size = ctypes.c_size_t()
        with self._call():
            self._check(self._library.dycl_get_state(self._session, None, 0, ctypes.byref(size)))
            state = ctypes.create_string_buffer(size.value)
            self._check(self._library.dycl_get_state(self._session, state, size.value, None))
        return state.raw

    def set_state(self, state: bytes) -> None:
        """Set the state variables to what :meth:`get_state` of a module of the same library gave."""
        with self._call():
            self._check(self._library.dycl_set_state(self._session, state, len(state)))

    def __copy__(self) -> Module:
        copy = self.new_session()
        if self._priority != "normal":
            copy.set_priority(self._priority)
        copy.set_device_branches(self._device_branches)
        copy.set_state(self.get_state())
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        model = self._live()
        if model.reopen is None or not model.params.can_be_reopened:
            raise UsageError(f"the module '{self.name}' cannot be pickled: its files have no paths from which it could be loaded again")
        files = (model.path, model.params.path, self._num_threads, model.classes.given, model.params.mmap)
        return model.reopen, (
            files,
            self.metadata["fingerprint"],
            self._device_branches,
            self.get_state(),
            self._priority,
            self._largest_sizes,
        )

    def set_log(self, function: Callable[[Level, str], None] | None, level: Level = "warning") -> None:
        """Send the texts of this library, of all its modules, to a function: ``function("print", "x is 3\\n")``.

        Parameters
        ----------
        function : callable or None
            It is called in the thread that runs, by one at a time, so it must not call a session that another thread may be running.
            A print of more than some hundred bytes comes in pieces. What it raises is shown and goes no further. None: prints go to the
            standard output again, and other texts nowhere.
        level : str
            ``"print"``: what the network prints (``keep_print``). ``"warning"``: also what went otherwise than was asked for, such as fewer
            threads.
        """
        set_log(self._library, function, level)

    def _collect(self, site: int, torch_like: bool) -> Any:
        def leaf(k: int, _: str) -> Any:
            return self._leaf(k, torch_like)

        def front(k: int, cuts: Cuts) -> Any:
            return self._leaf(k, torch_like, cuts)

        return unflatten(self.metadata["sites"][site]["structure"], leaf, self._classes, front)

    def _collect_leaves(self, site: int, torch_like: bool) -> list[Any]:
        described = self.metadata["sites"][site]
        parts = parts_of(described["structure"])
        cuts = [[(along, self._leaf(length, torch_like)) for along, length in parts.get(k, ())] for k in range(len(described["types"]))]
        return [self._leaf(k, torch_like, cut) for k, cut in enumerate(cuts)]

    def _leaf(self, k: int, torch_like: bool, front: Cuts = ()) -> Any:
        """Return an output of the last run, or, of one that is longer than the result, its first elements."""
        value = self._value(k)
        if value.type == capi.TENSOR:
            return copy_out(capi.DLTensor.from_address(value.address), torch_like, lambda to: self._copy_output(k, to), front)
        if value.type == capi.FLOAT:
            return value.v_float
        return bool(value.v_bool) if value.type == capi.BOOL else value.v_int

    def _value(self, k: int) -> capi.Value:
        value = self._output
        if (status := self._library.dycl_output(self._session, k, value)) != capi.OK:
            self._check(status)
        return value

    def _write(self, into: Targets) -> None:
        """Write the outputs of the last run into tensors of the caller, as if all were read before the first is written."""
        outputs = (capi.DLTensor.from_address(self._value(k).address) for k in range(len(into.tensors)))
        if into.written_before_read([(output.data or 0) + output.byte_offset for output in outputs]):
            into.fill([self._leaf(k, is_torch(leaf)) for k, leaf in enumerate(into.leaves)])
            return
        for k, tensor in enumerate(into.tensors):
            self._copy_output(k, tensor)

    def _copy_output(self, k: int, to: capi.DLTensor) -> None:
        self._check(self._library.dycl_copy_output(self._session, k, ctypes.byref(to)))

    def __repr__(self) -> str:
        return f"<Module {self.name} for {self.metadata['target']['triple']}>"
