# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The operators that rewritten code calls, under the name ``_dy``: this module is that namespace."""

from __future__ import annotations

import builtins
import inspect
import operator
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch

from dycl_tvm.errors import DyclError, UnsupportedError
from dycl_tvm.frontend.python.attributes import delattr, setattr
from dycl_tvm.frontend.python.calls.builtins import class_of
from dycl_tvm.frontend.python.calls.call import call, tail_call
from dycl_tvm.frontend.python.calls.comprehensions import each_of, generator_of, list_of
from dycl_tvm.frontend.python.calls.contexts import With as with_
from dycl_tvm.frontend.python.calls.effects import is_opaque, operate
from dycl_tvm.frontend.python.calls.growing_lists import GrowingLists
from dycl_tvm.frontend.python.calls.imports import importing, note_module
from dycl_tvm.frontend.python.calls.kept_lists import KeptList, contained
from dycl_tvm.frontend.python.calls.list_uses import tensors_of_lists
from dycl_tvm.frontend.python.calls.searches import equal_item, known_key
from dycl_tvm.frontend.python.calls.unread import only_writes
from dycl_tvm.frontend.python.flow.branches import Finally as finally_
from dycl_tvm.frontend.python.flow.branches import Frame as frame
from dycl_tvm.frontend.python.flow.branches import If as if_
from dycl_tvm.frontend.python.flow.branches import bool_op, bool_op_within, decided, ifexp, not_, tested
from dycl_tvm.frontend.python.flow.choices import by_position, put, switch
from dycl_tvm.frontend.python.flow.for_loops import For as for_
from dycl_tvm.frontend.python.flow.iteration import started, unpacked
from dycl_tvm.frontend.python.flow.names import is_name, named
from dycl_tvm.frontend.python.flow.operands import evaluated
from dycl_tvm.frontend.python.flow.raised import caught, cause, raising
from dycl_tvm.frontend.python.flow.suspended import Block as block
from dycl_tvm.frontend.python.flow.truth import truth
from dycl_tvm.frontend.python.flow.variables import bound, shows_locals, users_locals, users_names
from dycl_tvm.frontend.python.flow.while_loops import While as while_
from dycl_tvm.frontend.python.program import program, special_method
from dycl_tvm.frontend.python.source.ownership import are_of_libraries
from dycl_tvm.frontend.trace.by_code import by_code
from dycl_tvm.frontend.trace.control_flow import ControlFlow
from dycl_tvm.frontend.trace.heap.places import MUTABLE, in_slots, space_of
from dycl_tvm.frontend.trace.join import undecided
from dycl_tvm.frontend.trace.join.formats import percent
from dycl_tvm.frontend.trace.join.poison import Poison, is_unbound, use
from dycl_tvm.frontend.trace.join.texts import Text, is_among, joined, text_of
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values import numbers as scalars
from dycl_tvm.frontend.trace.values.arrays import RunTimeArray, number_of
from dycl_tvm.frontend.trace.values.blame import attempt, judge, of_program
from dycl_tvm.frontend.trace.values.identity import are_one
from dycl_tvm.frontend.trace.values.recorder import item

__all__ = [
    "apart_from_groups",
    "attr_to_augment",
    "augment",
    "augment_attr",
    "augment_item",
    "block",
    "bool_op",
    "bool_op_within",
    "bound",
    "call",
    "caught",
    "cause",
    "chain",
    "changing_globals",
    "class_of",
    "code",
    "compare",
    "computed",
    "decided",
    "delattr",
    "delitem",
    "each_of",
    "finally_",
    "for_",
    "frame",
    "generator_of",
    "getitem",
    "guard",
    "if_",
    "ifexp",
    "importing",
    "joined",
    "list_of",
    "match_false",
    "match_none",
    "match_subject",
    "match_true",
    "module_globals",
    "namespace",
    "new",
    "not_",
    "own_globals",
    "percent",
    "raising",
    "setattr",
    "setitem",
    "shows_locals",
    "slice",
    "staging_errors",
    "started",
    "tail_call",
    "tested",
    "text_of",
    "unpacked",
    "users_locals",
    "users_names",
    "while_",
    "with_",
]

AssertionError = builtins.AssertionError
locals = builtins.locals
own_globals = builtins.globals
slice = builtins.slice  # rewritten code makes its slices by this name, whatever `slice` means to the user
_IN_PLACE = {
    "add": operator.iadd,
    "sub": operator.isub,
    "mul": operator.imul,
    "truediv": operator.itruediv,
    "floordiv": operator.ifloordiv,
    "mod": operator.imod,
    "pow": operator.ipow,
    "matmul": operator.imatmul,
    "and_": operator.iand,
    "or_": operator.ior,
    "xor": operator.ixor,
    "lshift": operator.ilshift,
    "rshift": operator.irshift,
}
_BUILTIN_LOOKUP = {dict.__getitem__, OrderedDict.__getitem__, defaultdict.__getitem__}
_MODULE_LOOKUP = {torch.nn.ModuleList.__getitem__, torch.nn.Sequential.__getitem__}
_COMPARISONS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def new(x: Any) -> Any:
    """Note that a container is made here."""
    if type(x) is list:
        return current().get(GrowingLists).made(x, sys._getframe(1))
    for part in vars(x).values() if isinstance(x, type) else ():
        current().heap.born(getattr(part, "__func__", part))
    if isinstance(x, (types.FunctionType, type)):
        program().trampolines.reach(x)
    return current().heap.born(x) if isinstance(x, (*MUTABLE, types.FunctionType, type)) or hasattr(type(x), "__next__") else x


def computed(x: Any) -> Any:
    """Note that a container is made here, if it is one that a binary operator gives."""
    if type(x) is list:
        return current().get(GrowingLists).made(x, sys._getframe(1))
    return current().heap.born(x) if type(x) in _MADE_BY_OPERATORS else x


_MADE_BY_OPERATORS = frozenset((dict, set, deque, bytearray, OrderedDict, defaultdict, Counter))


# -- comparisons ------------------------------------------------------------------------------------------------------------
def compare(op: str, a: Any, b: Any) -> Any:
    """``a is b``, ``a in b`` and their negations (and the six others, for chains)."""
    if op in _COMPARISONS:
        return attempt(_COMPARISONS[op], a, b)
    if a is b and op in ("is", "is_not") and not is_unbound(a):
        return op == "is"  # one object of staging is one in eager too, on every path
    if op in ("is", "is_not") and (type(a) is Text or type(b) is Text) and not isinstance(b if type(a) is Text else a, (str, Poison)):
        return op == "is_not"  # a text is no None
    if op in ("in", "not_in") and is_name(a) and _holds_texts(b):
        found = is_among(a, b)
        return found if op == "in" else not_(found)
    for x in (a, b):
        if isinstance(x, Poison):
            use(x)
    if op in ("is", "is_not"):
        same = _identical(a, b)
        return same if op == "is" else not_(same)
    found = _contains(b, a)
    return found if op == "in" else not_(found)


def _holds_texts(x: Any) -> bool:
    """Whether something is a container of Python's own that holds texts only."""
    return type(x) in (tuple, list, dict, set, frozenset) and all(type(item) is str for item in x)


def _identical(a: Any, b: Any) -> Any:
    """Identity as in eager; of a run-time number with True, False or another number: equality of value and type."""
    if (scalars.is_symbolic(a) or scalars.is_symbolic(b)) and a is not b:
        numbers = [x for x in (a, b) if scalars.is_symbolic(x) or isinstance(x, (bool, int, float))]
        if len(numbers) == 2 and all(scalars._kind(scalars.operand_of(x)) == "bool" for x in numbers):
            return a == b
        if len(numbers) == 2:
            raise UnsupportedError("the identity (`is`) of a number known only at run time", current().origin(), "compare with ==")
    return are_one(a, b)


#: What finds an item by its hash; and what compares one item after the other.
_BY_HASH: Any = dict, set, frozenset, type({}.keys()), type(OrderedDict().keys())
_IN_ORDER: Any = list, tuple, deque, range, type({}.values()), type(OrderedDict().values())


def _contains(container: Any, x: Any) -> Any:
    if isinstance(container, torch.Tensor):
        known = isinstance(x, (torch.Tensor, int, float)) or scalars.is_symbolic(x)
        return item((container == x).any()) if known else x in container
    method = special_method(container, "__contains__")
    if method is not None:
        return scalars.wrap(truth(method(x)))
    if isinstance(container, _BY_HASH):  # tensors by identity, numbers by value
        if isinstance(x, torch.Tensor):
            return any(are_one(x, i) for i in container if isinstance(i, torch.Tensor))
        items: Any = [i for i in container if isinstance(i, (bool, int, float))]
        symbolic = scalars.is_symbolic(x)
    elif isinstance(container, _IN_ORDER):
        found = contained(container, x) if issubclass(type(container), KeptList) else None
        if found is not None:
            return found
        items = list(container)
        symbolic = any(scalars.is_symbolic(i) or isinstance(i, (torch.Tensor, Poison)) for i in (x, *items))
    else:
        return attempt(operator.contains, unpacked(container), x)
    if not symbolic:
        return attempt(operator.contains, container, x)
    if len(items) == 0:
        return False
    tests = [lambda i=i: equal_item(x, i) for i in items]
    return tested(bool_op("or", True, tests[0](), *tests[1:]))


def chain(ops: tuple[str, ...], first: Any, *rest: Any) -> Any:
    """``first < rest[0]() < rest[1]()``: each operand evaluated once, and only if needed."""
    left = first

    def link(position: int) -> Any:
        nonlocal left
        right = evaluated(rest[position])
        result = compare(ops[position], left, right)
        left = right
        return result

    return bool_op("and", False, link(0), *[lambda i=i: link(i) for i in range(1, len(ops))])


def match_subject(x: Any, class_depth: int) -> Any:
    """Check the subject of a ``match`` statement; its class patterns reach so deep into it (-1: it has none)."""
    if isinstance(x, Poison):
        use(x)
    if class_depth < 0:
        return x
    if scalars.is_symbolic(x):
        reason = "a class pattern matches a number that is known only at run time"
        raise UnsupportedError(reason, current().origin(), "use value patterns, or if/elif with isinstance")
    if class_depth > 0:
        for part in _parts_of_subject(x):
            match_subject(part, class_depth - 1)
    return x


def _parts_of_subject(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple, deque)):
        return list(x)
    if isinstance(x, dict):
        return list(x.values())
    return [*(space_of(x) or {}).values(), *(v for _, v in in_slots(x))]


class _Singleton:
    """Stands for True, False or None in a pattern: equal to what is that object. Patterns would ask `is`, of values of staging itself."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, value: bool | None) -> None:
        self._value = value

    def __eq__(self, subject: object) -> Any:
        if scalars.is_symbolic(subject) and scalars._kind(scalars.operand_of(subject)) != "bool":
            return False
        return compare("is", subject, self._value)

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(
            "a pattern of True, False or None meets an object that compares itself by __eq__", current().origin(), "use if and `is`"
        )


match_true, match_false, match_none = _Singleton(True), _Singleton(False), _Singleton(None)


# -- items and attributes ---------------------------------------------------------------------------------------------
def getitem(obj: Any, index: Any) -> Any:
    """``obj[index]``."""
    if is_name(index) and (names := _names_in(obj)) is not None:
        return named(names, index, lambda name: getitem(obj, name), KeyError)
    if isinstance(index, Poison):
        use(index)
    index = _index_into(obj, index)
    if only_writes(obj, "__getitem__"):
        return obj[index]
    found_by_position = by_position(obj, "__getitem__")
    if scalars.is_symbolic(index) and found_by_position:
        return switch(obj, index)
    if scalars.is_symbolic(index) and type(obj) is np.ndarray and obj.ndim == 1:
        return switch(list(obj), index)  # numbers of their own: what is written to the array later is not in them
    if isinstance(index, torch.Tensor) and found_by_position:
        return getitem(obj, _index_of(index))
    if type(obj) is torch.nn.ModuleList and type(index) is int:
        found = _item_of_modules(obj, index)
        if found is not None:
            return note_module(found)
    if type(obj) is torch.nn.ModuleList and type(index) is builtins.slice:
        return call(torch.nn.ModuleList.__getitem__, obj, index)
    of_modules = isinstance(obj, torch.nn.Module) and getattr(type(obj), "__getitem__", None) in _MODULE_LOOKUP
    if of_modules and not isinstance(index, (int, str, builtins.slice)):
        return switch(list(obj._modules.values()), _index_of(index) if isinstance(index, torch.Tensor) else index)
    if _is_by_number(obj, index):
        return _getitem_dict(obj, index)
    if isinstance(obj, defaultdict):
        current().heap.changing(obj)
    return note_module(_operate(operator.getitem, obj, index))


def _index_into(obj: Any, index: Any) -> Any:
    """Return an index with what an object takes in the place of what stands for NumPy's numbers, or for lists of numbers."""
    if isinstance(obj, torch.Tensor):
        return tensors_of_lists(index)
    return index if type(obj) is RunTimeArray else number_of(index)


def _names_in(obj: Any) -> Any:
    """Return the names of the items of a table that simply has those; None of anything else."""
    if isinstance(obj, dict):
        return obj if type(obj).__getitem__ in _BUILTIN_LOOKUP and not hasattr(type(obj), "__missing__") else None
    if isinstance(obj, torch.nn.ModuleDict):
        return obj.__dict__.get("_modules") if type(obj).__getitem__ is torch.nn.ModuleDict.__getitem__ else None
    return None


def _item_of_modules(modules: torch.nn.ModuleList, index: int) -> Any:
    """Return ``modules[index]`` as its own method finds it; None where that is not simply a module in its table."""
    table = modules.__dict__.get("_modules")
    if type(table) is not dict or not -len(table) <= index < len(table):
        return None
    return table.get(str(index % len(table)))


def _index_of(t: torch.Tensor) -> Any:
    if t.dtype.is_floating_point or t.numel() != 1:
        raise of_program(TypeError("only integer tensors of a single element can be converted to an index"))
    return scalars.convert(t.item(), "int")


def _is_by_number(obj: Any, key: Any) -> bool:
    """Whether an item of a dict is named by a number known only at run time."""
    return isinstance(obj, dict) and scalars.is_symbolic(key) and type(obj).__getitem__ in _BUILTIN_LOOKUP


def _known_key(obj: Any, key: Any) -> Any:
    """Return the key of a dict that a number known only at run time is equal to: each that may be is tried. Itself, if it is none."""
    if not _is_by_number(obj, key):
        return key
    if scalars._kind(scalars.operand_of(key)) == "bool":
        return scalars.known(key)
    return next((k for k in obj if isinstance(k, (bool, int, float)) and key == k), key)  # the test forks: this is not rewritten


def _getitem_dict(obj: dict[Any, Any], key: Any) -> Any:
    """Read at a number known only at run time."""
    known = _known_key(obj, key)
    return _missing_item(obj, known) if scalars.is_symbolic(known) else getitem(obj, known)


def _missing_item(obj: dict[Any, Any], key: Any) -> Any:
    """Return what a dict gives for a key that it does not have."""
    missing = special_method(obj, "__missing__")
    if isinstance(obj, Counter) and type(obj).__missing__ is Counter.__missing__:
        return 0
    if missing is not None or hasattr(type(obj), "__missing__"):
        return missing(key) if missing is not None else attempt(operator.getitem, obj, key)
    raise _no_such_key(key)


def _no_such_key(key: Any) -> Any:
    """Return the error of a key that a dict does not have. Only a handler sees which: the text of an error is known at build time."""
    return raising(KeyError(key) if current().may_be_caught() else KeyError("a key known only at run time is not in the dict"))


def _operate(function: Any, obj: Any, *args: Any) -> Any:
    """Call an operator of Python's; what it changes of an object whose class is a library's is noted."""
    known = scalars.is_symbolic(obj) or not (is_opaque(obj) or (isinstance(obj, torch.nn.Module) and function is not operator.getitem))
    if known:
        return attempt(function, obj, *args)
    try:
        return operate(function, obj, *args)
    except Exception as error:
        judge(error, function, (obj, *args), {})
        raise


def setitem(value: Any, obj: Any, index: Any) -> None:
    """``obj[index] = value``."""
    for x in (obj, index, value) if isinstance(obj, torch.Tensor) else (obj, index):
        if isinstance(x, Poison):
            use(x)
    if type(obj) is RunTimeArray:
        obj.refuse("a change in place")
    index = _index_into(obj, index)
    set_by_position = isinstance(obj, list) and by_position(obj, "__setitem__")
    if set_by_position and isinstance(index, torch.Tensor):
        index = _index_of(index)
    if only_writes(obj, "__setitem__"):
        obj[index] = value
        return
    if set_by_position and scalars.is_symbolic(index):
        put(obj, index, value)
        return
    if scalars.is_symbolic(index) and program().state.lives_on(obj):
        program().state.unread.note_filled(obj)
    index = _known_key(obj, index)
    index = known_key(index) if _is_by_number(obj, index) else index
    current().heap.changing_item(obj, index)
    _operate(operator.setitem, obj, index, value)


def namespace(obj: Any) -> Any:
    """``obj.__dict__``."""
    if isinstance(obj, Poison):
        use(obj)
    space = obj.__dict__
    for value in space.values() if type(space) is dict else ():
        if is_unbound(value):
            use(value)  # whether it has this attribute depends on the path
    return current().heap.is_namespace(space, obj) if type(space) is dict else space


def code(x: Any) -> Any:
    """``x.__code__``: while a model is staged there is other code in its place."""
    return call(builtins.getattr, x, "__code__")


def module_globals(space: dict[str, Any]) -> dict[str, Any]:
    """``globals()``."""
    return current().heap.is_namespace(space, space)


def changing_globals(space: dict[str, Any], names: tuple[str, ...]) -> None:
    """Save global variables that are about to be assigned."""
    for name in names:
        current().heap.changing_attribute(space, name)


def delitem(obj: Any, index: Any) -> None:
    """``del obj[index]``."""
    if only_writes(obj, "__delitem__"):
        del obj[index]
        return
    index = _known_key(obj, index)
    if _is_by_number(obj, index):
        raise _no_such_key(index)
    current().heap.changing_item(obj, index)
    _operate(operator.delitem, obj, index)


def augment(op: str, x: Any, value: Any) -> Any:
    """``x op= value`` of a variable: the new value of the variable."""
    if op in ("add", "sub", "mul") and undecided.is_known(value) and undecided.can_be_an_operand(x):
        return undecided.computed(value, lambda one: augment(op, x, one))
    if only_writes(x, f"__{_IN_PLACE[op].__name__}__"):
        return _IN_PLACE[op](x, value)
    current().heap.changing(x)
    return _operate(_IN_PLACE[op], x, value)


def attr_to_augment(obj: Any, name: str) -> tuple[Any, str, Any]:
    """Return what :func:`augment_attr` changes, as it is: Python reads it before it evaluates what stands on the right."""
    return obj, name, namespace(obj) if name == "__dict__" else getattr(obj, name)


def augment_attr(op: str, obj: Any, name: str, old: Any, value: Any) -> None:
    """``obj.name op= value``."""
    new = augment(op, old, value)
    if name != "__dict__":
        setattr(new, obj, name)


def item_to_augment(obj: Any, index: Any) -> tuple[Any, Any, Any]:
    """Return what :func:`augment_item` changes, as it is: Python reads it before it evaluates what stands on the right."""
    known = _known_key(obj, index)
    return obj, known, _missing_item(obj, known) if _is_by_number(obj, known) else getitem(obj, known)


def augment_item(op: str, obj: Any, index: Any, old: Any, value: Any) -> None:
    """``obj[index] op= value``."""
    setitem(augment(op, old, value), obj, index)


# -- exceptions -----------------------------------------------------------------------------------------------------------
#: What a handler of the user's must not see.
staging_errors = (ControlFlow, DyclError)


class apart_from_groups:  # noqa: N801
    """Holds what steers staging while an ``except*`` might see it; the parts of that statement run within."""

    def __init__(self) -> None:
        self._held: BaseException | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the program is still on its way through the statement."""
        return self._held is None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, staging_errors):
            self._held = error
        return error is not None and error is self._held

    def go_on(self) -> None:
        """Raise what was held."""
        held, self._held = self._held, None
        if held is not None:
            raise held


class guard:  # noqa: N801  (rewritten code calls it like the other operators)
    """Marks that a handler of the user's surrounds the code; ``kinds`` is the text of what it catches, if that is names only."""

    yields = False

    def __init__(self, kinds: str = "", passes_on: bool = False) -> None:
        self.passes_on = passes_on
        self._frame: types.FrameType | None = sys._getframe(1)
        self._kinds: types.CodeType | None = None
        self._of_the_function = False
        #: What :meth:`is_for_libraries` has answered, and the state of the journal then: it stays so while the program changes nothing.
        self._for_libraries = True
        self._asked: tuple[int, int] | None = None
        if kinds:
            self._kinds, self._of_the_function = _compiled(self._frame.f_code, kinds)

    def __enter__(self) -> None:
        self._session = current()
        self._session.handlers.append(self)

    def __exit__(self, *error: object) -> None:
        self._session.leave(self)
        self._frame = None  # which holds this object

    def catches(self, error: Exception) -> bool:
        """Whether a handler is for such an exception, or may be."""
        try:
            return isinstance(error, self._caught())
        except Exception:  # not a name of here, or no class
            return True

    def lets_pass(self, error: Exception) -> bool:
        """Whether no handler is for such an exception."""
        return not self.catches(error)

    def passing(self, error: Exception) -> None:
        """Nothing is done where no handler is for the exception."""

    def is_for_libraries(self) -> bool:
        """Whether a handler is for exceptions that the user's code does not raise, or may be."""
        journal = self._session.journal
        now = (journal.touches, journal.undone)
        if self._asked != now or self._of_the_function:
            self._asked = now
            try:
                self._for_libraries = are_of_libraries(self._caught())
            except Exception:  # not a name of here, or no class
                self._for_libraries = True
        return self._for_libraries

    def _caught(self) -> Any:
        """Return the classes of exceptions that handlers are for, as the names stand now."""
        frame = self._frame
        if frame is None or self._kinds is None:
            return Exception
        return eval(self._kinds, frame.f_globals, frame.f_locals if self._of_the_function else None)


@by_code
def _compiled(function: types.CodeType, kinds: str) -> tuple[types.CodeType, bool]:
    """Compile the text of what handlers in a function catch; say whether it may name variables of the function too."""
    code = compile(kinds, "<handlers>", "eval")
    own = {*function.co_varnames, *function.co_cellvars, *function.co_freevars}
    return code, not own.isdisjoint(code.co_names) or not function.co_flags & inspect.CO_OPTIMIZED
