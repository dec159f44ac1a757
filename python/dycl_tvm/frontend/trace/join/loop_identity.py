# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which objects the tensors at the header of a rolled loop are in eager, and how they lie in memory: a part of the fixpoint.

At the header a tensor is what it was before the loop, or what the body left: an older object, or one that the body of an earlier trip has
made. Of the latter it matters only whether two names have the same one.
"""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.frontend.trace.values.identity import Identity, identity_of, join_identities
from dycl_tvm.frontend.trace.values.layouts import layouts_of, meta_with, strides_of
from dycl_tvm.frontend.trace.values.tensors import StagedTensor, fresh_like, storage_of
from dycl_tvm.hcfg.nodes import Value

Path = tuple[Any, ...]


class LoopIdentities:
    """What is known of the tensors at a header; it grows from round to round.

    Parameters
    ----------
    clock : int
        When the loop began.
    site : object
        The loop.
    """

    def __init__(self, clock: int, site: Any) -> None:
        self._clock, self._site = clock, site
        #: What else a tensor may be: older objects, and one for every name that may have the same object.
        self._more: dict[Path, dict[Identity, None]] = {}
        self._strides: dict[Path, dict[tuple[int, ...], None]] = {}
        self._pairs: set[tuple[Path, Path]] = set()
        #: The names that have the objects made in the round at hand.
        self._holders: dict[Identity, Path] = {}

    def size(self) -> int:
        """Return how much is known."""
        return sum(map(len, self._more.values())) + sum(map(len, self._strides.values()))

    def header_tensor(self, path: Path, entry: torch.Tensor, param: Value) -> StagedTensor:
        """Make the tensor at the header; ``entry`` is what it is before the loop."""
        known, strides = layouts_of(entry), strides_of(entry)
        others = [s for s in self._strides.get(path, ()) if s not in strides]
        site = self._site if others or known is None else known.site
        made = fresh_like(meta_with(entry.shape, entry.dtype, [*strides, *others], site), param)
        join_identities(made, [entry], self._site, self._more.get(path, ()))
        join_identities(made.storage_, [storage_of(entry)], self._site)
        return made

    def begin(self) -> None:
        """Begin to compare with what the body left."""
        self._holders = {}

    def note(self, path: Path, back: torch.Tensor) -> None:
        """Note what the body left."""
        self._strides.setdefault(path, {}).update(dict.fromkeys(strides_of(back)))
        for identity in identity_of(back).all_parts():
            if identity.born <= self._clock:
                self._more.setdefault(path, {})[identity] = None
                continue
            other = self._holders.setdefault(identity, path)
            if other != path and (other, path) not in self._pairs:
                self._pairs.add((other, path))
                same = Identity()
                self._more.setdefault(other, {})[same] = None
                self._more.setdefault(path, {})[same] = None
