# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Short names of the paths of a network, for metrics: which decisions a run took, and where it returned."""

from __future__ import annotations

from dycl_tvm.runtime import Module, Path

#: Paths that have a name of their own; a network with loops may have any number, and every name is a time series.
_MOST = 100
_LETTERS = 24


class PathLabels:
    """The names of the paths that the sessions of a library have taken so far."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def of(self, session: Module) -> str:
        """Return the name of the path of the session's last run."""
        key = session.path_key
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= _MOST:
                return "other"
            name = self._names[key] = _name(session.last_path)
        return name


def _name(path: Path) -> str:
    letters = "".join(("T" if b.choice else "F") if isinstance(b.choice, bool) else f"[{b.choice}]" for b in path.branches)
    shown = letters if len(letters) <= _LETTERS else f"{letters[:_LETTERS]}... of {len(path.branches) + path.omitted} decisions"
    where = f"{path.origin.file}:{path.origin.line}" if path.origin is not None and path.origin.line else f"return {path.site}"
    return f"{shown} {where}".strip()
