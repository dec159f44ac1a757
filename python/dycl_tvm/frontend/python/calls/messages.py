# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Messages of the program about itself, by ``warnings`` and ``logging``: for whoever runs it, and no part of what it computes.

They are left out. They are refused if the program may listen: a filter makes warnings errors, a block records them, or a handler or filter
of the logger is the user's own.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.python.program import program
from dycl_tvm.frontend.python.source.locate import is_library_package
from dycl_tvm.frontend.trace.heap.compiled import module_of
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.join.texts import Text
from dycl_tvm.frontend.trace.session import current


def leave_out_warning(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``warnings.warn``."""
    leave_out("a warning", args, kwargs)
    if any(action == "error" for action, *_ in warnings.filters):
        _refuse("a warning is given, and a filter of `warnings` makes it an error", "change the filter for the build")


def catch(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``warnings.catch_warnings``."""
    if kwargs.get("record"):
        _refuse("the forward records warnings, which are left out", "check what the warning is about")
    return callee(*args, **kwargs)


def leave_out_message(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``logger.info(...)`` and its kind, and those of :mod:`logging` itself."""
    leave_out("a message that is logged", args, kwargs)
    given = args[0] if args and isinstance(args[0], logging.Logger) else logging.root
    logger: logging.Logger | None = given
    while logger is not None:
        for part in (*logger.handlers, *logger.filters, *(f for h in logger.handlers for f in h.filters)):
            if not _is_installed(type(part)):
                _refuse(
                    f"a message is logged, and the logger has a {type(part).__name__}, which may do anything with it",
                    "take it from the logger for the build",
                )
        logger = logger.parent if logger.propagate else None


def _is_installed(cls: Any) -> bool:
    """Whether a class is Python's or that of an installed package."""
    name = module_of(cls)
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_library_package(name.split(".")[0]) or (file is not None and ("site-packages" in file or "dist-packages" in file))


def leave_out(what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note for the report that a call is left out. In eager its arguments are read."""
    for x in (*args, *kwargs.values()):
        if isinstance(x, Poison) and type(x) is not Text:
            use(x)
    program().leave_out(what)


def _refuse(reason: str, instead: str) -> None:
    raise UnsupportedError(reason, current().origin(), instead)


def ask(callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What only says which logger there is, or which messages it takes: that is as it is while the model is compiled."""
    return callee(*args, **kwargs)


_ASKED = ("isEnabledFor", "getEffectiveLevel", "hasHandlers", "getChild")
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
TABLE: dict[Any, Any] = {
    warnings.catch_warnings: catch,
    warnings.warn: leave_out_warning,
    warnings.warn_explicit: leave_out_warning,
    **dict.fromkeys([logging.getLogger, *(getattr(logging.Logger, name) for name in _ASKED)], ask),
    **dict.fromkeys([getattr(owner, name) for owner in (logging, logging.Logger) for name in _LEVELS], leave_out_message),
}
