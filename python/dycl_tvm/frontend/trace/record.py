# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Appends to the HCFG under construction, and replays.

Every change of the graph is an *event*. A fork re-runs the user's program from its start with one more decision
fixed; up to that decision the new run repeats the events of the old one, so the builder answers from the log
(the same blocks and values) and changes nothing. Staging is deterministic, which the builder checks event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.hcfg.nodes import Block, Branch, Edge, HostOp, Jump, Operand, Origin, TensorOp, Terminator, Value
from dycl_tvm.hcfg.types import TensorType, Type

#: What an event was, its result, and how to take back what it changed in the graph.
Event = tuple[Any, Any, Callable[[], Any] | None]


class Builder:
    """Builds blocks; ``block`` is the one under construction (None where no path leads), ``step`` is called for every event."""

    def __init__(self, origin: Callable[[], Origin | None], step: Callable[[], None]) -> None:
        self._origin, self._step = origin, step
        self.entry = Block("entry")
        self.block: Block | None = self.entry
        self.events: list[Event] = []
        self.cursor = 0
        self._replay_until = 0
        #: Events that are repeated next, those that come soonest last.
        self._repeated: list[Event] = []
        #: Called where a path ends by an exception, if what it leaves changed is of interest.
        self.on_raise: Callable[[], None] | None = None
        #: From which event up to which they are those of a path that has been recorded to its end, and when the two paths began.
        self._copied: list[tuple[int, int, int]] = []

    def begin_run(self, prefix: list[Event]) -> None:
        """Start a run that repeats ``prefix`` and then goes on by itself."""
        self.events, self._replay_until, self.cursor = list(prefix), len(prefix), 0
        self._repeated, self._copied = [], []
        self.block = self.entry

    def undo_to(self, index: int) -> None:
        """Take back every change that the events of this run made to the graph since event ``index``."""
        for _, _, undo in reversed(self.events[index:]):
            if undo is not None:
                undo()

    @property
    def replaying(self) -> bool:
        """Whether the next event is answered from the log."""
        return self.cursor < self._replay_until

    def event(self, key: Any, make: Callable[[], Any], undo: Callable[[], Any] | None = None) -> Any:
        """Record an event, or repeat it; return its result."""
        self._step()
        if self.cursor < self._replay_until:
            known, result, _ = self.events[self.cursor]
            if known != key:
                raise UnsupportedError(
                    f"the forward does not behave the same when it is run twice ({_brief(known)}, then {_brief(key)})",
                    self._origin(),
                    "keep randomness, time and state outside of the module out of the forward",
                )
            self.cursor += 1
            return result
        if self._repeated:
            known, result, undo = self._repeated.pop()
            assert known == key, f"a path does not begin as another did ({_brief(known)}, then {_brief(key)})"
            self.events.append((key, result, undo))
            self.cursor += 1
            return result
        result = make()
        self.events.append((key, result, undo))
        self.cursor += 1
        return result

    def peek(self) -> Event | None:
        """Return the next event, if it repeats one."""
        return self.events[self.cursor] if self.replaying else self._repeated[-1] if self._repeated else None

    def repeat(self, events: list[Event], copied: int, since: int) -> None:
        """Let the next events be these, if they are not in the log; ``copied`` of them are those of a path that has been recorded.

        ``since`` is the moment at which the two paths began.
        """
        if events:
            self._repeated = events[::-1]
        self._copied = [*[c for c in self._copied if c[1] > self.cursor], (self.cursor, self.cursor + copied, since)]

    def is_copied(self, moment: int) -> bool:
        """Whether what comes now to something made at a moment came there on a path that has been recorded to its end."""
        return any(self.cursor < until and moment < since for _, until, since in self._copied)

    def cut(self, start: int, end: int) -> list[Event]:
        """Take back everything from event ``end`` on; take the events from ``start`` up to there out of the log, and return them."""
        self.undo_to(end)
        own = self.events[start:end]
        del self.events[start:]
        self.cursor, self._repeated, self._replay_until = start, [], min(self._replay_until, start)
        self._copied = [c for c in self._copied if c[0] < start]
        return own

    # -- the graph ----------------------------------------------------------------------------------------------
    def here(self) -> Block:
        """Return the block under construction."""
        assert self.block is not None, "nothing can be recorded where no path leads"
        return self.block

    def repeated(self, op: str, operands: list[Value]) -> tuple[Value | None, ...] | None:
        """Return the outputs of a tensor operation if the next event repeats it; None otherwise."""
        if self.cursor >= self._replay_until:
            return None
        known, step, _ = self.events[self.cursor]
        if known != (op, *map(id, operands)):
            return None
        self._step()
        self.cursor += 1
        outputs: tuple[Value | None, ...] = step.outputs
        return outputs

    def tensor_op(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], types: list[TensorType | None], operands: list[Value]
    ) -> tuple[Value | None, ...]:
        """Append a tensor operation and return its outputs; ``operands`` are the values among its arguments."""
        step = TensorOp(op, args, kwargs, (), None)
        key = (op, *map(id, operands))

        def make() -> TensorOp:
            step.outputs = tuple(None if t is None else Value(t) for t in types)
            step.origin = self._origin()
            self.here().steps.append(step)
            return step

        outputs: tuple[Value | None, ...] = self.event(key, make, self._pop_step()).outputs
        return outputs

    def host_op(self, op: str, args: tuple[Operand, ...], type_: Type, text: str | None = None) -> Value:
        """Append a host operation and return its output; ``text`` is the template of ``print``."""
        key = (op, tuple(id(a) if isinstance(a, Value) else a for a in args), text)

        def make() -> HostOp:
            step = HostOp(op, args, Value(type_), self._origin(), text)
            self.here().steps.append(step)
            return step

        output: Value = self.event(key, make, self._pop_step()).output
        return output

    def _pop_step(self) -> Callable[[], Any]:
        block = self.here()
        return lambda: block.steps.pop()

    def new_block(self, name: str) -> Block:
        """Make an empty block."""
        block: Block = self.event(("block", name), lambda: Block(name, origin=self._origin()))
        return block

    def add_param(self, block: Block, type_: Type, name: str = "") -> Value:
        """Append a parameter to a block."""

        def make() -> Value:
            param = Value(type_, name)
            block.params.append(param)
            return param

        value: Value = self.event(("param", type_), make, lambda: block.params.pop())
        return value

    def raising(self) -> None:
        """Let who wants to know see what the path at hand leaves changed, which ends by an exception of the program's."""
        if self.on_raise is not None:
            self.on_raise()

    def terminate(self, terminator: Terminator) -> None:
        """End the block under construction."""

        def make() -> None:
            block = self.here()
            assert block.terminator is None, f"{block.name} is already terminated"
            block.terminator = terminator

        block = self.here()

        def undo() -> None:
            block.terminator = None

        self.event(("end", type(terminator).__name__), make, undo)
        self.block = None

    def jump(self, target: Block, args: list[Operand]) -> None:
        """End the block under construction with a jump."""
        self.terminate(Jump(Edge(target, args)))

    def branch(self, cond: Operand, then: Block, orelse: Block) -> None:
        """End the block under construction with a two-way branch."""
        self.terminate(Branch(cond, Edge(then), Edge(orelse), self._origin()))

    def part(self, block: Block, cond: Operand, origin: Origin | None) -> tuple[Event, Event]:
        """End a block with a branch whose sides belong to different runs; return the events with which these go on."""
        then, orelse = Block("then", origin=origin), Block("else", origin=origin)
        block.terminator = Branch(cond, Edge(then), Edge(orelse), origin)

        def undo() -> None:
            block.terminator = None

        return (("decide",), (True, then), undo), (("decide",), (False, orelse), undo)

    def resume(self, block: Block) -> None:
        """Take back the end of a block, and go on there."""
        end = block.terminator

        def make() -> None:
            block.terminator = None

        def undo() -> None:
            block.terminator = end

        self.event(("resume",), make, undo)
        self.block = block

    def follow(self, index: int) -> Event | None:
        """Make a decision of a branch whose first side is under construction, event ``index``: this run goes on with that side.

        Returns the event with which another run takes the other side; None if later events on this side refer to the branch.
        """
        keys = [key for key, _, _ in self.events[index:]]
        if self.replaying or keys[:4] != [("explore",), ("block", "then"), ("block", "else"), ("end", "Branch")]:
            return None
        if any(key[0] in ("explore", "choose", "loop") for key in keys[4:]):
            return None
        (_, then, _), (_, orelse, _), (_, _, undo) = self.events[index + 1 : index + 4]
        self.events[index : index + 4] = [(("decide",), (True, then), undo)]
        self.cursor = len(self.events)
        return ("decide",), (False, orelse), undo

    def mark(self) -> tuple[Block, int]:
        """Return the place at which the next step would stand."""
        block = self.here()
        return block, len(block.steps)

    def truncate(self, mark: tuple[Block, int]) -> None:
        """Take back everything from ``mark`` on, and go on there."""
        block, steps = mark
        saved: list[Any] = []

        def make() -> None:
            saved[:] = [block.steps[steps:], block.terminator]
            del block.steps[steps:]
            block.terminator = None

        def undo() -> None:
            block.steps[steps:], block.terminator = saved

        self.event(("truncate",), make, undo)
        self.block = block


def _brief(key: Any) -> str:
    return str(key[0] if isinstance(key, tuple) else key)
