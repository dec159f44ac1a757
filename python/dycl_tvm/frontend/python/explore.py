# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Staging: running the user's forward on tensors without data, and recording what it does on every path."""

from __future__ import annotations

import array
import hashlib
import io
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from dycl_tvm.errors import PathExplosionError, UnsupportedError
from dycl_tvm.frontend.python.calls.call import run_method, special_method
from dycl_tvm.frontend.python.calls.class_patches import ClassPatches, is_library_class
from dycl_tvm.frontend.python.flow.parting import part
from dycl_tvm.frontend.python.persistent_state import ModelState
from dycl_tvm.frontend.python.results import Leaves, structure_of
from dycl_tvm.frontend.python.source.locate import current_origin
from dycl_tvm.frontend.trace.heap.journal import MUTABLE, Contents, Journal
from dycl_tvm.frontend.trace.join.join import Joined
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.record import Builder, Event
from dycl_tvm.frontend.trace.session import Dead, ForkRequired, set_current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.recorder import Recorder, item
from dycl_tvm.frontend.trace.values.tensors import Storage, clock, tensor_type
from dycl_tvm.frontend.trace.values.torch_calls import FunctionRecorder
from dycl_tvm.hcfg.nodes import Block, Constant, Operand, Origin, Raise, Return, ReturnSite, Value

#: How many times the forward may be run again because paths could not be joined.
MAX_RUNS = 1000


#: Objects whose contents are not saved before a change.
_UNSAVED = (bytearray, array.array, np.ndarray, io.IOBase)
#: Errors that Python and PyTorch raise on a program's own values.
_PYTHON_ERRORS = (LookupError, TypeError, AttributeError, ValueError, ZeroDivisionError, OverflowError, AssertionError, RuntimeError)
#: Words of messages that come from staging itself.
_OWN_WORDS = (
    "HostInt",
    "HostFloat",
    "HostBool",
    "SymInt",
    "SymFloat",
    "SymBool",
    "StagedTensor",
    "meta",
    "Symbolic",
    "Poison",
    "Chosen",
    "stage",
)


@dataclass(eq=False)
class Site:
    """A place at which both sides of a decision were explored.

    ``index`` is its event number; ``target`` the site to fork so that this one's sides part for good: the earliest
    one that was still open around it, or itself.
    """

    index: int
    block: Block | None
    steps: int
    cond: Operand | None
    origin: Origin | None
    clock: int
    target: Any = None
    #: The site is a loop: "forking" it runs its first iterations unrolled.
    is_loop: bool = False
    unroll: int = 0
    #: The decision is a choice among objects; forked, it is made by one test an object.
    choice: bool = False


class Stage:
    """One staging of one forward. Everything that the operators share is here."""

    def __init__(
        self,
        names: dict[int, str],
        state: ModelState,
        max_runs: int = MAX_RUNS,
        max_loop_trips: int | None = None,
        keep_print: bool = False,
    ) -> None:
        self.builder = Builder(current_origin)
        self.journal = Journal()
        self.max_runs, self.max_loop_trips, self.keep_print = max_runs, max_loop_trips, keep_print
        self.names, self.state = names, state
        self.classes = ClassPatches(run_method)
        self._patched_globals: set[int] = set()
        self.state_params: list[Value] = []
        #: What is known of the elements of integer tensors: the least and the largest.
        self.bounds: dict[Value, tuple[int, int]] = {}
        self.folded: dict[Any, Any] = {}
        self.metas: dict[Any, Any] = {}
        self._literals: dict[Any, Constant] = {}
        self._constants: dict[int, tuple[torch.Tensor, Constant]] = {}
        self._real_storages: dict[int, tuple[torch.Tensor, Storage]] = {}
        self._births: dict[int, tuple[Any, int]] = {}
        self.guarded: dict[int, Any] = {}
        self.open_sites: list[Site] = []
        self.native_depth = 0
        self.guard_depth = 0
        #: Event numbers at which the rounds of the rolled loops around the place at hand began.
        self.rolling: list[int] = []
        #: What may be undone around the place at hand: (moment of its beginning, site, or the loop that may yet be rolled).
        self.undoable: list[tuple[int, Any]] = []
        self.departures = 0
        #: The last join of the run at hand.
        self.joined: Joined | None = None
        self._root_next = False
        self._mark = self.run_started = 0
        self._work: list[list[Event]] = []
        self._forks: dict[Origin | None, int] = {}
        self.frames: list[Any] = []

    # -- runs -------------------------------------------------------------------------------------------------------------
    def explore(self, run: Callable[[], Any]) -> None:
        """Run the program until every path has been recorded."""
        self._work = [[]]
        runs = 0
        while self._work:
            runs += 1
            if runs > self.max_runs:
                self._explode()
            self._run(run, self._work.pop())

    def _run(self, run: Callable[[], Any], prefix: list[Event]) -> None:
        self.builder.begin_run(prefix)
        self.open_sites, self.native_depth, self.guard_depth, self._root_next, self.frames = [], 0, 0, False, []
        self.rolling, self.undoable, self.joined = [], [], None
        self.guarded.clear()
        mark, depth = self.journal.open(), self.journal.depth() - 1
        set_current(self)
        try:
            # without oneDNN a recurrent layer is recorded as the operations that it consists of
            with torch.no_grad(), _without_onednn(), _without_dynamo(), Recorder(), FunctionRecorder():
                self.state.enter(self.state_params)
                self._mark, self.run_started = mark, next(clock)
                result = run()
                if self.builder.block is not None:
                    self.leave_by_return(result)
        except ForkRequired as fork:
            self._split(fork)
        except Dead:
            pass
        except UnsupportedError:
            raise
        except Exception as error:
            self._user_error(error)
        finally:
            set_current(None)
            self.journal.rollback(mark)
            self.journal.close_to(depth)

    def _user_error(self, error: Exception) -> None:
        """An exception that the forward raised on this path."""
        if self.builder.block is None or not self._is_users(error):
            raise UnsupportedError(
                f"the forward raised {type(error).__name__} while it was compiled: {error}", _origin_of(error), _advice(error)
            ) from error
        if self.open_sites:
            # other paths wait to be joined with this one, which will not come: part them
            self._split(ForkRequired(self.open_sites[0].target, f"one path raises {type(error).__name__}"))
        else:
            self.leave_by_raise(error)

    def _is_users(self, error: Exception) -> bool:
        """Whether eager raises the exception too, on this path: the program raises it itself, or Python does on its own values."""
        if getattr(error, "__dycl_raised__", False) or isinstance(error, UnboundLocalError):
            return True
        conditional = self.builder.block is not None and self.builder.block is not self.builder.entry
        return conditional and isinstance(error, _PYTHON_ERRORS) and not any(word in str(error) for word in _OWN_WORDS)

    def _split(self, fork: ForkRequired) -> None:
        """Give each side of a site a run of its own from the site on."""
        site: Site = fork.site
        builder = self.builder
        self._forks[site.origin] = self._forks.get(site.origin, 0) + 1
        events, own = builder.events[: site.index], builder.events[site.index]
        builder.undo_to(site.index)
        self._work = [w for w in self._work if len(w) <= site.index or w[site.index] is not own]
        if site.is_loop:
            self._work.append([*events, (("loop",), replace(site, unroll=fork.unroll), None)])
        elif site.choice:
            self._work.append([*events, (("choose",), None, None)])
        else:
            assert site.block is not None and site.cond is not None
            then, orelse = builder.part(site.block, site.cond, site.origin)
            self._work += [[*events, orelse], [*events, then]]

    def _explode(self) -> None:
        origin = max(self._forks, key=lambda o: self._forks[o])
        raise PathExplosionError(
            f"more than {self.max_runs} paths cannot share their continuation; this decision alone forks {self._forks[origin]} times",
            origin,
            "give the variables that the sides set the same type and structure on both sides, or raise max_paths",
        )

    # -- decisions ----------------------------------------------------------------------------------------------------------
    def truth(self, x: Any) -> Any:
        """Return the truth of a value: a bool, or an operand of type bool."""
        if isinstance(x, Poison):
            use(x)
        if isinstance(x, torch.Tensor):
            if x.numel() != 1:
                return bool(torch.empty(tuple(x.shape), device="meta")) if x.numel() == 0 else _ambiguous(x)
            x = item(x)
        if scalars.is_symbolic(x):
            return scalars.truth_operand(x)
        for name in ("__bool__", "__len__"):
            method = special_method(x, name)
            if method is not None:
                return self.truth(method())
            if hasattr(type(x), name):
                break
        return bool(x)

    def decide(self, cond: Operand) -> bool:
        """Decide a truth test that cannot be explored in place: follow one side, and leave the other to another run."""
        if not isinstance(cond, Value):
            return bool(cond)
        known = self.decided()
        if known is not None:
            return known
        if self.open_sites:
            self.fork(self.open_sites[0].target, "a truth test stands where both sides cannot be explored in place")
        if self.rolling:
            self.refuse_in_loop("a truth test stands where both sides cannot be explored in place", self.origin())
        builder = self.builder
        origin = self.origin()
        self._forks[origin] = self._forks.get(origin, 0) + 1
        then, orelse = builder.part(builder.here(), cond, origin)
        self._work.append([*builder.events, orelse])
        _, (_, block), undo = then
        builder.event(("decide",), lambda: (True, block), undo)
        builder.block = block
        return True

    def follow(self, site: Site) -> bool:
        """Fork a site whose first side is being run, by going on with that side in this run; return whether that can be done.

        It can if nothing else waits, and nothing on the side was made for a join with the other.
        """
        if self.open_sites != [site] or self.rolling:
            return False
        other = self.builder.follow(site.index)
        if other is None:
            return False
        self._forks[site.origin] = self._forks.get(site.origin, 0) + 1
        self._work.append([*self.builder.events[: site.index], other])
        self.close_site(site)
        return True

    def decided(self) -> bool | None:
        """Return the decision that this run was started with for the test at hand, if there is one."""
        event = self.builder.peek()
        if event is None or event[0] != ("decide",):
            return None
        choice, block = self.builder.event(("decide",), lambda: None)
        self.builder.block = block
        return bool(choice)

    def open_site(self, cond: Operand, choice: bool = False) -> Site:
        """Begin to explore all sides of a decision."""
        site = self._make_site(cond, choice)
        self.open_sites.append(site)
        return site

    def choice_site(self) -> Site:
        """Return a site for a choice that is not explored where it is made."""
        return self._make_site(None, True)

    def chosen_by_tests(self) -> bool:
        """Whether the choice at hand was forked."""
        event = self.builder.peek()
        if event is None or event[0] != ("choose",):
            return False
        self.builder.event(("choose",), lambda: None)
        return True

    def _make_site(self, cond: Operand | None, choice: bool) -> Site:
        index = self.builder.cursor
        block, steps = self.builder.mark()
        site: Site = self.builder.event(("explore",), lambda: Site(index, block, steps, cond, self.origin(), next(clock), choice=choice))
        site.target = self.open_sites[0].target if self.open_sites else site
        return site

    def close_site(self, site: Site) -> None:
        """Note that nothing waits any more to be joined with a side of the site."""
        if site in self.open_sites:
            self.open_sites.remove(site)

    def loop_site(self) -> Site:
        """Begin a loop that may be rolled."""
        index = self.builder.cursor
        site: Site = self.builder.event(("loop",), lambda: Site(index, None, 0, None, self.origin(), 0, is_loop=True))
        site.target, site.clock = site, next(clock)
        return site

    def fork(self, site: Any, reason: str) -> None:
        """Re-run with the decision of ``site`` fixed. Does not return."""
        if not isinstance(site, Site):
            site.refuse(reason)
        if site.is_loop and not site.unroll:
            raise ForkRequired(site, reason, 1)
        if site.is_loop:
            raise UnsupportedError(
                f"{reason}; the loop's trip count is known only at run time, so its state must keep one type",
                self.origin() or site.origin,
                "give the variable a value of its final type and shape before the loop",
            )
        if self.rolling and site.index >= self.rolling[0]:
            self.refuse_in_loop(reason, site.origin)
        raise ForkRequired(site, reason)

    def check_index(self, index: Any, size: int) -> Any:
        """Bring an index into ``range(size)``; one outside is an IndexError on that path."""
        bounds = scalars.bounds_of(index)
        if bounds is not None and bounds[0] >= 0 and bounds[1] < size:
            return index
        inside = (index >= -size) & (index < size)
        cond = scalars.operand_of(inside)
        message = f"index out of range: only -{size} to {size - 1} can index the dimension"
        if isinstance(cond, Value):
            if self.guard_depth or self.native_depth:
                if not self.decide(cond):
                    raise IndexError(message)
            else:
                fine, bad = self.builder.new_block("inside"), self.builder.new_block("outside")
                self.builder.branch(cond, fine, bad)
                self.builder.block = bad
                self.builder.terminate(Raise("IndexError", message, self.origin()))
                self.builder.block = fine
        elif not cond:
            raise IndexError(message)
        return scalars.select(index < 0, index + size, index)

    def refuse_in_loop(self, reason: str, origin: Origin | None) -> None:
        """Paths cannot part for good within a loop that will be a loop in the HCFG."""
        raise UnsupportedError(
            f"two paths through the body of a loop cannot be joined ({reason}), and the loop's trip count is known only at run time",
            origin,
            "leave variables and containers with the same type and length on all paths through the body, "
            "and keep break and return out of try and with",
        )

    def unroll(self, site: Site, reason: str) -> None:
        """Re-run with a loop unrolled up to the bound that the user gave: its state grows. Does not return."""
        if self.max_loop_trips is None or site.unroll > 1:
            raise UnsupportedError(
                f"{reason} in a loop whose trip count is known only at run time",
                self.origin() or site.origin,
                "write into a tensor of fixed size, or give the loop a bound: build(..., max_loop_trips=N)",
            )
        raise ForkRequired(site, reason, self.max_loop_trips)

    # -- leaving --------------------------------------------------------------------------------------------------------------
    def take_root(self) -> bool:
        """Whether the function body that begins now is the outermost one."""
        root, self._root_next = self._root_next, False
        return root

    def offer_root(self, offered: bool) -> None:
        """Say whether the next function body to begin returns from the whole network."""
        self._root_next = offered

    def leave_by_return(self, value: Any, origin: Origin | None = None) -> None:
        """End the path with a return site; or with several, where paths were joined that return different structures."""
        parted = False
        for view in part(self, self._mark, value, origin):
            parted = True
            self._return(value, origin, view)
        if not parted:
            self._return(value, origin)

    def _return(self, value: Any, origin: Origin | None, view: Callable[[Any], Any] | None = None) -> None:
        leaves = Leaves()
        structure = structure_of(value, leaves, origin, view)
        site = self.builder.event(("site",), lambda: ReturnSite(structure, origin))
        self.builder.terminate(Return(site, leaves.operands, self.state.leave(self._mark)))
        self.departures += 1

    def leave_by_raise(self, error: BaseException) -> None:
        """End the path with a run-time error."""
        origin = _origin_of(error)
        self.builder.terminate(Raise(type(error).__name__, str(error), origin))
        self.departures += 1

    def may_raise(self, error: Exception, native_depth: int) -> bool:
        """Whether an exception surely leaves the whole network, so that its path ends here."""
        return (
            self._is_users(error)
            and not isinstance(error, (StopIteration, StopAsyncIteration))
            and self.guard_depth == 0
            and self.native_depth == 0
        )

    def checkpoint(self) -> Any:
        """Take down which paths wait where (for a loop that may take back a round)."""
        return list(self.open_sites), list(self.rolling), self.departures, [(f, len(f._paths), len(f._tokens)) for f in self.frames]

    def restore_checkpoint(self, saved: Any) -> None:
        """Forget the paths that came to wait since :meth:`checkpoint`."""
        self.open_sites, self.rolling, self.departures, frames = list(saved[0]), list(saved[1]), saved[2], saved[3]
        for frame, paths, tokens in frames:
            del frame._paths[paths:]
            del frame._tokens[tokens:]

    # -- objects --------------------------------------------------------------------------------------------------------------
    def origin(self) -> Origin | None:
        """Return the place in the user's code that is being run."""
        return current_origin()

    def born(self, x: Any) -> Any:
        """Note that an object is made now."""
        self._births[id(x)] = (x, next(clock))
        return x

    def is_newer(self, x: Any, moment: int) -> bool:
        """Whether an object is known to have been made after a moment."""
        if isinstance(x, Storage):
            return x.born > moment
        known = self._births.get(id(x))
        return known is not None and known[0] is x and known[1] > moment

    def changing(self, x: Any) -> None:
        """Save the contents of a container that is about to be changed."""
        if isinstance(x, MUTABLE):
            site = self.guarded.get(id(x))
            if site is not None:
                self.fork(site, f"a {type(x).__name__} that two variables share on one path only is changed")
            self.journal.touch(Contents(x))
        elif isinstance(x, _UNSAVED):
            self._cannot_undo(x, f"a {type(x).__name__} made before a branch is changed in it")

    def advancing(self, x: Any) -> None:
        """Check an iterator that is about to be advanced: that cannot be undone, so it must have been made on the path at hand."""
        if is_iterator(x):
            self._cannot_undo(x, "an iterator made before a branch is advanced in it")

    def _cannot_undo(self, x: Any, reason: str) -> None:
        """What is changed now cannot be undone, so it must have been made on the path at hand."""
        for moment, owner in self.undoable:
            if not self.is_newer(x, moment):
                if isinstance(owner, Site):
                    self.fork(owner.target, reason)
                owner.advanced = True

    def patch_classes_of(self, function: types.FunctionType) -> None:
        """Let the classes that a function can name run rewritten."""
        if not self.is_newer(function, self.run_started):
            self.state.add_function(function)
        if id(function.__globals__) in self._patched_globals:
            return
        self._patched_globals.add(id(function.__globals__))
        for value in list(function.__globals__.values()):
            if isinstance(value, type):
                self.classes.patch(value)

    def refuse_metadata_change(self, t: torch.Tensor) -> None:
        """The shape of a tensor object is not saved before a change, so the object must have been made on the path at hand."""
        for moment, owner in self.undoable:
            if t.storage_.born <= moment:  # type: ignore[attr-defined]
                if isinstance(owner, Site):
                    self.fork(owner.target, "the shape of a tensor made before a branch is changed in place in it")
                owner.advanced = True

    def constant(self, t: torch.Tensor) -> Constant:
        """Return the constant of a real tensor."""
        known = self._constants.get(id(t))
        if known is None:
            with torch.utils._python_dispatch._disable_current_modes():  # type: ignore[attr-defined]
                data = t.detach().contiguous()
                # an expanded tensor of one element counts as contiguous, and cannot be seen as bytes
                data = data.clone(memory_format=torch.contiguous_format) if 0 in data.stride() else data
                data = data if data.device.type == "cpu" else data.cpu()
                name = self.names.get(id(t), "")
                constant = Constant(tensor_type(t), data, name) if name else self._literal(data)
            known = self._constants[id(t)] = (t, constant)
        return known[1]

    def _literal(self, data: torch.Tensor) -> Constant:
        """Return the constant of a tensor that the program makes itself: one for equal contents, so that replays agree."""
        contents = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        key = (data.dtype, tuple(data.shape), hashlib.sha256(contents).digest())
        if key not in self._literals:
            self._literals[key] = Constant(tensor_type(data), data.clone())
        return self._literals[key]

    def written_storage(self, t: torch.Tensor) -> Storage | None:
        """Return the storage of a real tensor that has been written to."""
        known = self._real_storages.get(id(t))
        return known[1] if known is not None and known[1].value is not self.constant(t) else None

    def storage_to_write(self, t: torch.Tensor, note_only: bool = False) -> Storage:
        """Return the storage that stands for a real tensor's memory."""
        known = self._real_storages.get(id(t))
        if known is None:
            storage = Storage(self.constant(t))
            storage.born = 0
            known = self._real_storages[id(t)] = (t, storage)
        return known[1]

    def real_tensor_of(self, storage: Storage) -> torch.Tensor | None:
        """Return the real tensor that a storage stands for."""
        return next((t for t, s in self._real_storages.values() if s is storage), None)

    def iterate(self, iterable: Any) -> Iterator[Any]:
        """Iterate as a ``for`` statement does."""
        if isinstance(iterable, Poison):
            use(iterable)
        iterator = iter(iterable)
        if iterator is not iterable:
            yield from iterator
            return
        while True:
            self.advancing(iterator)
            try:
                item = next(iterator)
            except StopIteration:
                return
            yield item


def is_iterator(x: Any) -> bool:
    """Whether ``x`` is an iterator whose position cannot be saved (that of a user's class is in its attributes)."""
    return hasattr(type(x), "__next__") and not isinstance(x, torch.Tensor) and is_library_class(type(x))


@contextmanager
def _without_onednn() -> Iterator[None]:
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _without_dynamo() -> AbstractContextManager[Any]:
    """Run what torch.compile has wrapped as it was written. PyTorch's compiler is not imported for that: it takes a second."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return cast(AbstractContextManager[Any], torch.compiler.set_stance("force_eager"))  # type: ignore[no-untyped-call]


def _ambiguous(x: torch.Tensor) -> Any:
    raise RuntimeError(f"Boolean value of Tensor with {'more than one value' if x.numel() else 'no values'} is ambiguous")


def _origin_of(error: BaseException) -> Origin | None:
    """Return the innermost place in the user's code that an exception came through."""
    from dycl_tvm.frontend.python.source.locate import is_library_file, origin_at

    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_library_file(code.co_filename):
            found = origin_at(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return found


def _advice(error: Exception) -> str:
    return "check that the model runs in eager on the example inputs; if it does, this construct is not supported yet"
