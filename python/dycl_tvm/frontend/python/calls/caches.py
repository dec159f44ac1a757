# Licensed under the Apache License, Version 2.0; see LICENSE.
"""``functools.lru_cache`` and ``functools.cache``, whose table lies in C: staging keeps one of its own."""

from __future__ import annotations

import functools
from typing import Any

from dycl_tvm.errors import UnsupportedError
from dycl_tvm.frontend.trace.join.poison import Poison, use
from dycl_tvm.frontend.trace.session import current


def cached_call(cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cached(*args, **kwargs)
