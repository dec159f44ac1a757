# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Which leaves of a model's state one call may leave as one object, or in one memory: the next call finds copies of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from dycl_tvm.frontend.python.holders import Holders
from dycl_tvm.frontend.python.made_objects import refuse_two_names
from dycl_tvm.frontend.trace.heap.places import Place
from dycl_tvm.frontend.trace.join.captured import Captured, Items, TensorLeaf, is_container
from dycl_tvm.frontend.trace.session import current
from dycl_tvm.frontend.trace.values.constants import constants
from dycl_tvm.frontend.trace.values.identity import Identities, Identity, identity_of
from dycl_tvm.frontend.trace.values.storage import Storage
from dycl_tvm.frontend.trace.values.tensors import storage_of

Path = tuple[Any, ...]
_First = dict[Path, tuple[str, Captured]]


class Sharing:
    """What is known of names that may be of one thing. A leaf that goes to another place takes along whatever it may be one with.

    Attributes
    ----------
    shared : set of Path
        Containers that another name may have.
    replaced : dict
        Where calls leave another container than there was, and which of the model's own they leave there.
    links : set
        Two paths of tensors that may lie in one memory, or a path and such a tensor of the model's.
    kept_inputs : set of Path
        Tensors that a call may leave as one of its inputs.
    found : dict
        Where the run at hand has found containers that another name may have.
    """

    def __init__(self, holders: Holders, lives_on: Callable[[Any], bool]) -> None:
        self._holders, self._lives_on = holders, lives_on
        self.shared, self.kept_inputs = set[Path](), set[Path]()
        self.replaced: dict[Path, dict[int, Any]] = {}
        self.links: set[tuple[Path, Any]] = set()
        self.found: dict[Identity, Path] = {}

    @property
    def size(self) -> tuple[int, ...]:
        """Differs with everything found."""
        return tuple(map(len, (self.shared, self.links, self.kept_inputs, self.replaced)))

    def note(
        self,
        left: dict[Path, Captured],
        changed: list[tuple[Place, Any]],
        made: dict[Path, Storage],
        first: dict[Path, tuple[str, Captured]],
    ) -> None:
        """Note what a path leaves.

        Parameters
        ----------
        left : dict
            The leaves that it leaves, and containers.
        changed : list
            The places of the model that it has changed, and what they held before.
        made : dict
            The memory of the tensors that it has found.
        first : dict
            Names of the paths, and what they held before the first call.
        """
        if any(isinstance(c, Items) for c in left.values()):
            self._note_containers({path: c for path, c in left.items() if isinstance(c, Items)}, changed, first)
        homes: dict[Identity, Path] = {}
        found = {identity_of(storage): path for path, storage in made.items()}
        for path, c in left.items():
            if isinstance(c, TensorLeaf):
                for memory in identity_of(storage_of(c.obj)).all_parts():  # of a joined tensor: all that it may lie in
                    home = found.get(memory)
                    if memory.outside == "input" or home in self.kept_inputs:
                        self.kept_inputs.add(path)
                    if homes.setdefault(memory, path) != path:
                        self.links.add((homes[memory], path))
                    real = constants().real_at(memory)
                    if real is not None:
                        self.links.add((path, real))
                    if home is not None and home != path:
                        self.links |= {(path, twin) for twin in self._twins_of(home) if not _is_path(twin, path)}

    def _twins_of(self, path: Path) -> list[Any]:
        """Return what a leaf may be one with where a call finds it."""
        return [b if a == path else a for a, b in self.links if a == path or _is_path(b, path)]

    def _note_containers(self, left: dict[Path, Items], changed: list[tuple[Place, Any]], first: dict[Path, tuple[str, Captured]]) -> None:
        """Note which of the containers that a path leaves behind another name has too, or had before the first call."""
        before, now = self._holders.count(changed)
        now.update(id(c.obj) for path, c in left.items() if self._is_in_new(path, left))
        parts = Counter(part for c in left.values() for part in identity_of(c.obj).all_parts())
        held = {identity for x, identity in list(current().get(Identities).known.values()) if now[id(x)]}
        for path, c in left.items():
            mine = identity_of(c.obj)
            if any(parts[part] > 1 or part in held for part in mine.all_parts() - {mine}):
                mine.settle("whether another name has it")
            name, initial = first[path]
            homes = {self.found[part] for part in mine.all_parts() & self.found.keys()} - {path}
            if now[id(c.obj)] > 1 or before[id(initial.obj)] > 1 or path[:-1] in self.shared or homes:
                self.shared.add(path)
                if not is_container(c.obj):
                    refuse_two_names(c.obj, name)
            if path in self.replaced and self._lives_on(c.obj):
                self.replaced[path][id(c.obj)] = c.obj
            for home in homes & self.replaced.keys():
                self.replaced.setdefault(path, {}).update(self.replaced[home])

    def _is_in_new(self, path: Path, left: dict[Path, Items]) -> bool:
        """Whether what stands at a path is in a container that is none of the model's: all it holds is not counted elsewhere."""
        around = left.get(path[:-1])
        if around is None:
            return False
        return self._is_in_new(path[:-1], left) if isinstance(around.obj, tuple) else not self._lives_on(around.obj)


def _is_path(twin: Any, path: Path) -> bool:
    """Whether the second of a link is a path, that one."""
    return isinstance(twin, tuple) and twin == path
