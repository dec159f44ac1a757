# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Functions of PyTorch's that are run as they are, though something may stand for them: that calls them so."""

from __future__ import annotations

from typing import Any


class AsItIs:
    """Calls such a function.

    Parameters
    ----------
    function : function
    """

    __slots__ = ("function",)

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)
