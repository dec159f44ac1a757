# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Comprehensions, generator expressions and lists of iterators, of as many items as the run says: rolled loops.

``each`` is what is made of an item: a function of what takes the results, and of the item; it returns what the former does, or False.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NoReturn, cast

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.calls.growing_lists import GrowingLists, users_frame
from dycl_tvm.frontend.python.calls.iterators import Filter, OwnIterator, own
from dycl_tvm.frontend.python.calls.kept_lists import KeptMethod
from dycl_tvm.frontend.python.flow.branches import ifexp
from dycl_tvm.frontend.python.flow.for_loops import For, SymbolicRange, is_rolled
from dycl_tvm.frontend.python.flow.iteration import ByIndex, InTurn, in_turn
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source import plain_lists
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.grown import Grown
from dycl_tvm.frontend.trace.values.grown_parts import row_of

Each = Callable[[Callable[[Any], Any], Any], Any]


def _itself(x: Any) -> Any:
    return x


def list_of(made: list[Any], items: Any, whole: Callable[[Any], list[Any]], each: Each) -> Any:
    """Return the list that a comprehension makes of some items; ``made`` is an empty one."""
    lists, frame = current().get(GrowingLists), sys._getframe(1)
    if not is_rolled(items):
        return lists.made(whole(items), frame)
    return lists.collected(made, frame, "", lambda found: _collected(found, items, each))


def generator_of(items: Any, whole: Callable[[Any], Any], each: Each, every: bool, flat: bool) -> Any:
    """Return the generator of an expression; ``every`` item gives one result, or a ``flat`` one has a single ``for``."""
    if not is_rolled(items):
        return current().heap.born(whole(items))
    source = own(items) if issubclass(type(items), ByIndex) else _RowsOf(items) if isinstance(items, Grown) else items
    return RunTimeGenerator(source=source, each=each, every=every, flat=flat, used=False)


def each_of(items: Any, body: Callable[[Any], Any]) -> bool:
    """Do something with each item, as a ``for`` statement does whose body assigns no variable."""
    loop = For(items, (), False, False)
    for item in loop.iterate({}):
        with loop:
            body(loop.item(item))
            loop.end({})
        if loop.stop:
            break
    if loop.completed:
        with loop.orelse():
            pass
    loop.finish({})
    return False


class _RowsOf(ByIndex):
    """The rows of a tensor, of which the run says how many there are."""

    def __init__(self, rows: Grown) -> None:
        self._rows = rows

    def in_turn(self) -> InTurn:
        """Return what a loop goes over."""
        return InTurn(self._rows.sizes()[0], lambda index: row_of(self._rows, index), ())


class RunTimeGenerator(OwnIterator):
    """A generator expression over as many items as the run says."""

    kind = types.GeneratorType
    moves = "used"
    source: Any
    each: Each
    every: bool
    flat: bool
    used: Any

    def in_turn(self) -> InTurn | None:
        """Return what is made of the items, one of each, when a loop asks for it."""
        inner = in_turn(self.source) if self.every and self.used is False else None
        if inner is None:
            return None
        return InTurn(inner.count, lambda index: self.each(_itself, inner.item(index)), (*inner.of, self), computes=True)

    def __next__(self) -> NoReturn:
        raise UnsupportedError(
            "the items of a generator expression are asked for one by one, and how many there are the run says",
            current().origin(),
            "make a list of them ([... for ...]), or write a `for` loop with what the generator does in its body",
        )


def _was_used(x: RunTimeGenerator) -> bool:
    """Whether a generator is at its end."""
    if isinstance(x.used, Poison):
        use(x.used)
    return bool(x.used)


#: What takes all items before it does anything that the program sees.
_TAKE_ALL = (list, tuple, sorted, sum, set, frozenset)
_METHODS_THAT_TAKE_ALL = ("extend", "join", "__iadd__")


def taken(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call with a list in the place of the items, if the callee takes all of them."""
    if not (is_counted_by_the_run if callee is sorted else has_items_of_the_run)(args[0]):
        return args
    takes_all = type(callee) is KeptMethod or any(callee is x for x in _TAKE_ALL)
    if type(callee) is types.BuiltinFunctionType and not takes_all:
        is_limit = (callee is max or callee is min) and len(args) == 1 and kwargs.get("key") is None
        takes_all = is_limit or callee.__name__ in _METHODS_THAT_TAKE_ALL
    return (listed(args[0]), *args[1:]) if takes_all else args


def has_items_of_the_run(x: Any) -> bool:
    """Whether something, which is no list, has as many items as the run says."""
    if issubclass(type(x), RunTimeGenerator):
        return True
    return issubclass(type(x), OwnIterator) and (is_rolled(x) or (type(x) is Filter and is_rolled(x.source)))


def is_counted_by_the_run(x: Any) -> bool:
    """Whether something is such, or a range that is as long as the run says."""
    return has_items_of_the_run(x) or issubclass(type(x), SymbolicRange)


def extreme_by_key(callee: Any, items: Any, given: dict[str, Any]) -> Any:
    """Return what ``max`` or ``min``, the callee, gives by a key, which is asked for before the next item is."""
    call = program().operators.call
    pairs = listed(items, "pairs", lambda x: (x, call(given["key"], x)))

    def best() -> Any:
        return program().operators.getitem(call(callee, pairs, key=itemgetter(1)), 0)

    if "default" not in given:
        return best()
    return ifexp(call(len, pairs) > 0, best, lambda: given["default"])


def listed(x: Any, of: str = "items", made_of: Callable[[Any], Any] = _itself) -> Any:
    """Return a list of what is made of the items that an iterator gives."""
    lists, frame, items, each = current().get(GrowingLists), users_frame(), x, _put
    if issubclass(type(x), RunTimeGenerator):
        if _was_used(x):
            return lists.made([], frame, of)
        x.put("used", True)
        items, each = x.source, x.each
    elif type(x) is Filter:
        items = x.source

        def each(put: Callable[[Any], Any], item: Any) -> Any:
            found = item if x.function is None else program().operators.call(x.function, item)
            wanted = found if x.wanted else program().operators.not_(found)
            return ifexp(wanted, lambda: put(item), lambda: False)

    return lists.collected([], frame, of, lambda found: _collected(found, items, each, made_of))


def _put(put: Callable[[Any], Any], item: Any) -> Any:
    return put(item)


def _collected(made: Any, items: Any, each: Each, made_of: Callable[[Any], Any] = _itself) -> Any:
    def put(x: Any) -> bool:
        program().operators.call(made.append, made_of(x))
        return False

    each_of(items, lambda item: each(put, item))
    return made


def quantified_items(x: Any, every: bool) -> Any:
    """Return whether all items that an iterator gives are true, or any is: what is behind the first that decides is not asked for."""
    if not issubclass(type(x), RunTimeGenerator):
        return None
    if not x.flat:
        next(x)
    if _was_used(x):
        return every

    def asked(item: Any) -> Any:
        found = scalars.wrap(truth(item))
        return program().operators.not_(found) if every else found

    each = x.each
    asking = RunTimeGenerator(source=x.source, each=lambda _, item: each(asked, item), every=True, flat=True, used=False)
    with x.gone_over():  # nobody knows which items are left
        pass
    found = program().run_function(cast(Any, plain_lists.any_of), (asking,), {})
    return program().operators.not_(found) if every else found
