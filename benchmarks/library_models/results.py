# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What became of each model, in a JSON file that grows model by model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Results:
    """The file of results; each change is written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, suite: str) -> dict[str, Any]:
        """Return the results of a suite by the names of its models."""
        return self._data.setdefault(suite, {})

    def put(self, suite: str, name: str, result: dict[str, Any]) -> None:
        """Keep a result; a process that is ended meanwhile leaves the old file."""
        self.of(suite)[name] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".part")
        draft.write_text(json.dumps(self._data, indent=1))
        os.replace(draft, self._path)
