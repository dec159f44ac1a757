# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Plain eager under observation: every number that a tensor gives to Python is seen, and may be answered by an oracle.

Paths depend on tensors only where a tensor crosses into Python: ``bool``, ``item``, ``int``, ``float``, ``index``, ``tolist``, ``equal``.
Below the dispatcher all of them are reads of one element, whoever asks: the program, a library, PyTorch's own C++. Nothing is rewritten.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dycl_tvm.hcfg.hostops import Number
from dycl_tvm.verify.elements import Bounds, Memories, contents, is_whole
from dycl_tvm.verify.functions import SeesFunctions, nothing_compiled, takes_functions
from dycl_tvm.verify.operators import Operator, operator_of, tensors_in
from dycl_tvm.verify.places import Place, user_place

aten = torch.ops.aten

#: Small tensors that are made of Python's numbers are known by their contents.
_SMALL = 16
#: Arguments that are known by themselves, with their type: 1 is not True. (Floats are not: -0.0 equals 0.0.)
_ATOMS = frozenset((int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))
#: Bounds on one call of a program.
_MOST_OPERATIONS, _MOST_SECONDS = 50_000, 5.0
#: Seconds between two looks at the calls that are under way.
_TICK = 0.5
#: How a program asks a tensor for a number.
_ASKS = frozenset(
    getattr(torch.Tensor, name)
    for name in ("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "item", "is_nonzero", "equal", "allclose")
) | {torch.is_nonzero, torch.equal, torch.allclose}


@dataclass
class Crossing:
    """One number that a tensor gave to Python.

    ``number`` names the computation: what is computed twice from the same has one number. ``free`` tells whether the inputs have a
    part in it, so that another answer is possible. ``lines`` are the places in the program, the innermost first, ``site`` is the
    instruction there, ``column`` where its expression begins in the line (0: not known). ``bounds`` hold for every input.
    """

    number: int
    dtype: torch.dtype
    real: Number
    answer: Number
    free: bool
    lines: list[tuple[str, int]]
    site: tuple[str, int, int]
    column: int = 0
    bounds: Bounds | None = None


class _Known:
    """What is known of a tensor at one version of its contents."""

    __slots__ = ("bounds", "free", "number", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, number: int, free: bool, bounds: Bounds | None, version: int) -> None:
        self.tensor, self.version = weakref.ref(tensor), version
        self.number, self.bounds = number, bounds
        self.free = free and tensor.numel() > 0  # what is computed of no elements is a constant


class Endless(BaseException):
    """More crossings, operations or seconds than a run may have: the program does not end with these answers."""


class _Deadline:
    """Ends a call that goes on for ever without asking a tensor anything, such as a loop over Python's own numbers.

    A build makes hundreds of calls, and a thread for each would cost more than most of them: one looks after all, while there are some.
    """

    _lock = threading.Lock()
    _running: ClassVar[set[_Deadline]] = set()
    _watcher: ClassVar[threading.Thread | None] = None

    def __init__(self, seconds: float) -> None:
        self._ends, self._thread, self._fired = time.monotonic() + seconds, threading.get_ident(), False

    @classmethod
    def _watch(cls) -> None:
        while True:
            time.sleep(_TICK)
            with cls._lock:
                if not cls._running:
                    cls._watcher = None
                    return
                for late in [d for d in cls._running if d._ends < time.monotonic()]:
                    cls._running.remove(late)
                    late._fired = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(late._thread), ctypes.py_object(Endless))

    @classmethod
    def _forked(cls) -> None:
        """Begin anew in a process that has none of the other threads."""
        cls._lock, cls._watcher = threading.Lock(), None
        cls._running.clear()

    def __enter__(self) -> None:
        with self._lock:
            self._running.add(self)
            if self._watcher is None:
                _Deadline._watcher = threading.Thread(target=self._watch, name="dycl-deadlines", daemon=True)
                _Deadline._watcher.start()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._lock:
            self._running.discard(self)
        if self._fired and kind is not Endless:  # it is on its way
            time.sleep(0.1)


os.register_at_fork(after_in_child=_Deadline._forked)


@dataclass
class Log:
    """What one call of the program showed.

    ``work`` is an estimate of the seconds of its arithmetic; ``arrays`` says that it may have read elements of arrays, which is not seen.
    """

    crossings: list[Crossing] = field(default_factory=list)
    work: float = 0.0
    operations: int = 0
    unforced: set[str] = field(default_factory=set)
    arrays: bool = False


class Watch:
    """Runs calls of a program in eager, with an oracle for what tensors give to Python.

    Parameters
    ----------
    oracle : callable
        Gets a crossing (its answer is the truth) and returns the answer.
    before_write : callable
        Gets a tensor whose memory is about to be written.
    pinned : dict
        Sites where the truth is the answer; gets the numbers seen there.
    limit : int
        Bound on the crossings of one call.
    place : callable
        Gives the place that is being run; by default that of Python's stack.
    """

    def __init__(
        self,
        oracle: Callable[[Crossing], Number],
        before_write: Callable[[torch.Tensor], None],
        pinned: dict[tuple[str, int, int], set[Number]] | None = None,
        limit: int = 400,
        place: Callable[[], Place] = user_place,
    ) -> None:
        self._oracle, self._before_write, self._limit = oracle, before_write, limit
        self.pinned = {} if pinned is None else pinned
        self._place = place
        self.asked = True  # whether the program itself asks, and not an operator that takes numbers from tensors
        self._known: dict[int, _Known] = {}  # by the tensors' ids
        self._numbers: dict[Any, int] = {}
        self._answers: dict[int, Number] = {}
        self._in_arrays: list[torch.Tensor] = []
        self._told = False  # whether Python has a number in which the inputs have a part, beside truths
        self._memories = Memories()
        self.log = Log()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]) -> Any:
        """Call the program once; ``inputs`` are the tensors among its arguments."""
        self.log, self._told = Log(), False
        for tensor in inputs:
            self._memories.made(tensor, None)
            self._know(tensor, self._number(("input", object())), True)
        with _Deadline(_MOST_SECONDS), torch.no_grad(), nothing_compiled(), _plain_modules(), _Functions(self), _Operations(self):
            return function(*args, **kwargs)

    # -- what is known of tensors -----------------------------------------------------------------------------------------
    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _know(self, t: torch.Tensor, number: int, free: bool, bounds: Bounds | None = None, version: int | None = None) -> None:
        self._known[id(t)] = _Known(t, number, free, bounds, _version(t) if version is None else version)

    def known(self, t: torch.Tensor) -> _Known:
        """Return what is known of a tensor; of one that nobody computed, that it is a constant."""
        found = self._known.get(id(t))
        if found is not None and found.tensor() is not t:  # another one that lay there
            found = None
        if found is not None and found.version == _version(t):
            return found
        if found is not None and (found.free or self._memories.is_free(t)):  # changed through a view
            made = _Known(t, self._number(("changed", object())), True, self._memories.of(t) if is_whole(t) else None, _version(t))
        else:
            small = t.numel() <= _SMALL and t.device.type == "cpu"
            key = ("data", t.dtype, tuple(t.shape), _contents(t)) if small else ("made", object())
            made = _Known(t, self._number(key), False, contents(t), _version(t))
            if is_whole(t) and found is None:
                self._memories.made(t, made.bounds)
        self._known[id(t)] = made
        return made

    def computed(self, operator: Operator, args: Any, kwargs: Any, result: Any) -> None:
        """Note what an operation made, or what it wrote to."""
        key: list[Any] = [operator.name, object() if operator.random else operator.overload]
        inputs: list[_Known] = []
        self._describe(args, key, inputs)
        if kwargs:
            self._describe(kwargs, key, inputs)
        free = operator.random or (not operator.shape_only and any(k.free for k in inputs))
        number = self._number(tuple(key))
        found: list[torch.Tensor] = []
        tensors_in(result, found)
        if free and operator.decided_by is not None and all(map(_is_whole, found)):
            free = not any(not k.free and self._is_full(k.tensor(), operator.decided_by) for k in inputs)
        for k, out in enumerate(found):
            bounds = None
            if not operator.mutable and not operator.view:
                self._memories.new(out)
            if is_whole(out):
                bounds = operator.bounds(args, kwargs, k, self._bounds_of, out.dtype) if free else contents(out)
                if operator.mutable:
                    bounds = self._memories.written(out, bounds)
                elif not operator.view:
                    self._memories.made(out, bounds)
            # a view shares the version of what it is a view of, as soon as PyTorch has made it one
            version = inputs[0].version if operator.view and inputs else None
            self._know(out, self._number(("output", number, k)), free, bounds, version)
        if operator.mutable:
            written = operator.written(args, kwargs)
            if free or self._told:  # where it is written to, or the number itself, may be what a tensor told Python
                for t in written:
                    self._memories.freed(t)
            for k, out in enumerate(t for t in written if all(t is not o for o in found)):
                bounds = operator.bounds(args, kwargs, k, self._bounds_of, out.dtype) if is_whole(out) else None
                bounds = self._memories.written(out, bounds) if is_whole(out) else None
                self._know(out, self._number(("written", number, k)), free, bounds)

    def _bounds_of(self, x: Any) -> Bounds | None:
        """Return the bounds of an argument's elements."""
        if isinstance(x, torch.Tensor):
            return (0, 1) if x.dtype == torch.bool else self.known(x).bounds
        return (int(x), int(x)) if isinstance(x, int) else None

    @staticmethod
    def _is_full(t: torch.Tensor | None, number: int) -> bool:
        """Whether a tensor of integers or bools holds one number only; -1 stands for True too."""
        if t is None or not _is_whole(t):
            return False
        number = abs(number) if t.dtype == torch.bool else number
        with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
            return bool((t == number).all())

    def _describe(self, node: Any, key: list[Any], inputs: list[_Known]) -> None:
        kind = type(node)
        if kind in _ATOMS:
            key.append(kind)
            key.append(node)
        elif isinstance(node, torch.Tensor):
            known = self.known(node)
            inputs.append(known)
            key.append("t")
            key.append(known.number)
        elif isinstance(node, (list, tuple)):
            key.append(len(node))
            for item in node:
                self._describe(item, key, inputs)
        elif isinstance(node, dict):
            key.append(len(node))
            for name in sorted(node):
                key.append(name)
                self._describe(node[name], key, inputs)
        else:
            key.append((kind.__name__, repr(node)))

    # -- crossings --------------------------------------------------------------------------------------------------------
    def cross(self, number: int, dtype: torch.dtype, real: Number, free: bool, bounds: Bounds | None = None) -> Number:
        """Return the answer for one number that Python asks of a tensor."""
        place = self._place()
        site = (*(place.lines[0] if place.lines else ("", 0)), place.instruction)
        crossing = Crossing(number, dtype, real, real, free and self.asked, place.lines, site, place.column, bounds)
        if len(self.log.crossings) >= self._limit:
            raise Endless
        if crossing.free and crossing.site in self.pinned:
            self.pinned[crossing.site].add(real)
            crossing.free = False
        if crossing.free:
            self._told |= dtype != torch.bool
            if number not in self._answers:
                self._answers[number] = self._oracle(crossing)
            crossing.answer = self._answers[number]
        self.log.crossings.append(crossing)
        return crossing.answer

    def read(self, t: torch.Tensor, real: Number) -> Number:
        """Return the answer for the one element of a tensor."""
        known = self.known(t)
        return self.cross(known.number, t.dtype, real, self._may_be_forced(t), known.bounds)

    def read_all(self, t: torch.Tensor) -> list[Number]:
        """Return the answers for all elements of a tensor, in order."""
        known = self.known(t)
        with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
            real = t.reshape(-1).tolist()
        free = self._may_be_forced(t)
        if t.numel() == 1:
            return [self.cross(known.number, t.dtype, real[0], free, known.bounds)]
        return [self.cross(self._number(("element", known.number, k)), t.dtype, v, free, known.bounds) for k, v in enumerate(real)]

    def about_to_write(self, operator: Operator, args: Any, kwargs: Any) -> None:
        """Tell of every memory that an operation is about to change."""
        for t in operator.written(args, kwargs):
            self._before_write(t)

    def handed_out(self, t: torch.Tensor) -> None:
        """Note that a tensor's memory goes to somebody who is not seen (NumPy)."""
        self._before_write(t)
        if self.known(t).free:
            self.log.unforced.add("a tensor is handed to NumPy")

    def read_later(self, t: torch.Tensor) -> None:
        """Note that a tensor's memory becomes an array: what it holds is read where nobody sees it, so the truth is the answer."""
        self._before_write(t)
        self.log.arrays |= self.known(t).free
        self._in_arrays.append(t)

    def _may_be_forced(self, t: torch.Tensor) -> bool:
        in_array = any(torch._C._is_alias_of(t, other) for other in self._in_arrays)  # type: ignore[attr-defined]
        return self.known(t).free and not t.is_complex() and not in_array


class _Functions(TorchFunctionMode):
    """Sees what reads a tensor's memory without any operation."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:
            t = args[0]
            flat: list[Any] = self._watch.read_all(t)
            if not t.dim():
                return flat[0]
            for axis in range(t.dim() - 1, 0, -1):
                size = t.shape[axis]
                count = int(torch.Size(t.shape[:axis]).numel())
                flat = [flat[i * size : (i + 1) * size] for i in range(count)]
            return flat
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            self._watch.read_later(args[0])
        elif func in (torch.Tensor.data_ptr, torch.Tensor.untyped_storage):
            self._watch.handed_out(args[0])
        # A tensor that is an index or a size is read by the operator; the graph may as well take it as data.
        before, self._watch.asked = self._watch.asked, func in _ASKS
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._watch.asked = before


class _Operations(SeesFunctions, TorchDispatchMode):
    """Sees every operation, those that C++ calls by itself too."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nobody compiles under this mode, and PyTorch's compiler takes seconds to import

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if takes_functions(func):
            return self.call_functions(func, args, kwargs)
        watch = self._watch
        if func is aten._local_scalar_dense.default:
            return watch.read(args[0], func(*args))
        operator = operator_of(func)
        if operator.writes:
            watch.about_to_write(operator, args, kwargs)
        # Below a mode PyTorch takes conjugates for the tensors that they are of, where an operator is made of others (linalg.pinv).
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.Conjugate, False):
            result = func(*args, **kwargs)
        watch.log.work += operator.seconds(args, result)
        watch.log.operations += 1
        if watch.log.operations > _MOST_OPERATIONS:
            raise Endless
        if isinstance(result, (bool, int, float)) and not isinstance(result, torch.SymInt):
            tensors: list[torch.Tensor] = []
            tensors_in((args, kwargs), tensors)
            if not tensors or func.namespace != "aten" or not isinstance(result, bool):
                return result
            key: list[Any] = []
            inputs: list[_Known] = []
            watch._describe((args, kwargs), key, inputs)
            number = watch._number((func._opname, func._overloadname, tuple(key)))
            return watch.cross(number, torch.bool, result, any(k.free for k in inputs))
        watch.computed(operator, args, kwargs, result)
        return result


@contextlib.contextmanager
def _plain_modules() -> Iterator[None]:
    """Let PyTorch's modules take the ways that they take when nobody observes them.

    ``nn.TransformerEncoder`` makes nested tensors, and attention is one operator, unless ``__torch_function__`` is to be called: by the
    class of a tensor, or by a mode.
    """
    before = torch.overrides.has_torch_function
    torch.overrides.has_torch_function = _is_of_a_subclass
    try:
        yield
    finally:
        torch.overrides.has_torch_function = before


def _is_of_a_subclass(args: Iterable[Any]) -> bool:
    """What ``torch.overrides.has_torch_function`` says outside of all modes."""
    own = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return any(getattr(type(x), "__torch_function__", own[0]) not in own for x in args)


def _is_whole(t: torch.Tensor) -> bool:
    return not t.is_floating_point() and not t.is_complex()


def _version(t: torch.Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _contents(t: torch.Tensor) -> str:
    with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
        return repr(t.detach().tolist())
