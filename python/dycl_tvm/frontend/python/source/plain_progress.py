# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A progress bar that shows nothing: like the user's own code, it runs rewritten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.session import current


class ProgressBar:
    """Stands for a bar of tqdm: it gives the items that the bar would, and leaves out what the bar shows."""

    def __init__(self, iterable: Any = None, desc: Any = None, total: Any = None, *args: Any, **kwargs: Any) -> None:
        self._items = iterable
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)
        self._total = None if total == float("inf") else total

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __bool__(self) -> bool:
        if self._total is not None:
            return bool(self._total > 0)
        if self._items is None:
            raise TypeError("bool() undefined when iterable == total == None")
        return bool(self._items)

    def __len__(self) -> Any:
        if self._items is None or not hasattr(self._items, "__len__"):
            return self._items.__length_hint__() if hasattr(self._items, "__length_hint__") else self._total
        return len(self._items)

    def __reversed__(self) -> Iterator[Any]:
        return _refuse("reversed()")  # type: ignore[no-any-return]

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def _show(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return _refuse(name)

    update = set_description = set_description_str = set_postfix = set_postfix_str = refresh = display = clear = close = unpause = _show


def bar(*args: Any, **kwargs: Any) -> ProgressBar:
    """Stand for ``tqdm.tqdm``."""
    return ProgressBar(*args, **kwargs)


def trange(*args: Any, **kwargs: Any) -> ProgressBar:
    """Stand for ``tqdm.trange``."""
    return ProgressBar(range(*args))


def _refuse(name: str) -> NoReturn:
    raise UnsupportedError(
        f"`{name}` of a progress bar is asked for, and progress bars are left out", current().origin(), "count in a variable of your own"
    )


def shown_items(iterable: Any) -> Any:
    """Return what a bar goes over; anything else as it is."""
    return iterable._items if type(iterable) is ProgressBar else iterable
