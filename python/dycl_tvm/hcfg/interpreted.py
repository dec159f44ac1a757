# Licensed under the Apache License, Version 2.0; see LICENSE.
"""A graph that is called like the model it was staged from, and like a loaded module, without being compiled."""

from __future__ import annotations

from typing import Any

import torch

from dycl_tvm.errors import InputError
from dycl_tvm.hcfg.cuda_draws import KINDS
from dycl_tvm.hcfg.draws import DEFAULT_GENERATOR
from dycl_tvm.hcfg.interpreter import Watcher, graph_initial, interpret
from dycl_tvm.hcfg.nodes import HCFG, Block, Branch, Origin, Return, Switch
from dycl_tvm.hcfg.sizes import shape_text
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime.path import Decision, Path, SourceLine
from dycl_tvm.runtime.seeds import seed_bits
from dycl_tvm.runtime.structure import flatten, flatten_call, is_call

_MOST_DECISIONS = 4096


class InterpretedModule:
    """A network run by the reference interpreter, with its state between calls. Made by :meth:`HCFG.interpret`.

    Parameters
    ----------
    graph : HCFG
    watcher : Watcher, optional
        Hears what runs, see :class:`dycl_tvm.hcfg.interpreter.Watcher`.

    Attributes
    ----------
    graph : HCFG
    """

    def __init__(self, graph: HCFG, watcher: Watcher | None = None) -> None:
        self.graph, self._watcher = graph, watcher or Watcher()
        self._numbers = {b: k for k, b in enumerate(b for b in graph.blocks if isinstance(b.terminator, (Branch, Switch)))}
        self.reset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network.

        Returns
        -------
        What the model returns on this path. The inputs stay as they are.

        Raises
        ------
        InputError
            If an input has a wrong structure, dtype or shape; the message names it.
        Exception
            What the model raises on this path. The state is then as before the call.
        """
        self._path = Path(None, None, ())
        leaves = [x.detach() if isinstance(x, torch.Tensor) else x for x in self._leaves(args, kwargs)]
        steps = _Steps(self._watcher)
        try:
            result, _ = interpret(self.graph, leaves, self._state, watcher=steps)
        except Exception:
            self._path = self._path_of(steps, failed=True)
            raise
        self._path = self._path_of(steps, failed=False)
        return result

    def reset(self) -> None:
        """Put the state variables back to their initial values."""
        self._state = [graph_initial(v.initial) for v in self.graph.state]
        self._path = Path(None, None, ())

    def manual_seed(self, seed: int) -> None:
        """Give the random numbers a seed, as ``torch.manual_seed`` does; until then, and after :meth:`reset`, it is 67280421310721."""
        states: dict[object, torch.Tensor] = {kind.state: kind.of_seed(seed_bits(seed)) for kind in KINDS.values()}
        for k, variable in enumerate(self.graph.state):
            if variable.name == DEFAULT_GENERATOR:
                self._state[k] = states[variable.type]

    @property
    def last_path(self) -> Path:
        """The path that the last call took; empty if its inputs were refused."""
        return self._path

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        structure = self.graph.input_structure
        try:
            if is_call(structure):
                named = flatten_call(structure, args, kwargs, self.graph.input_names)
            elif kwargs:
                raise TypeError(f"takes no inputs by name, got {', '.join(kwargs)}")
            else:
                named = flatten(structure, args)
        except (TypeError, ValueError) as error:
            raise InputError(f"'{self.graph.name}' {error}") from None
        free = {(d.input, d.dim) for size in self.graph.sizes for d in size.dims}
        for k, (value, (name, leaf)) in enumerate(zip(self.graph.inputs, named)):
            if isinstance(value.type, TensorType):
                found = TensorType(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch.")) if isinstance(leaf, torch.Tensor) else None
                alike = found is not None and found.dtype == value.type.dtype and len(found.shape) == len(value.type.shape)
                if (
                    found is None
                    or not alike
                    or any(n != m and (k, d) not in free for d, (n, m) in enumerate(zip(found.shape, value.type.shape)))
                ):
                    expected = shape_text(value.type, k, self.graph.sizes)
                    raise InputError(f"input '{name}': expected a tensor {expected}, got {found or f'a {type(leaf).__name__}'}")
        self._check_pairs(named)
        return [leaf for _, leaf in named]

    def _check_pairs(self, named: list[tuple[str, Any]]) -> None:
        """Check of which inputs it matters whether they are one."""
        for pair in self.graph.input_pairs:
            (first, a), (second, b) = named[pair.first], named[pair.second]
            if not a.numel() or not b.numel():
                continue
            (begin, end), (start, until) = _range_of(a), _range_of(b)
            same = a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.shape == b.shape
            if {"one": not same, "apart": begin < until and start < end, "different": same}[pair.kind]:
                raise InputError(pair.refused(first, second))

    def _path_of(self, steps: _Steps, failed: bool) -> Path:
        branches = []
        for block, index in steps.edges:
            term = block.terminator
            if isinstance(term, (Branch, Switch)):
                choice = index if isinstance(term, Switch) else index == 0
                branches.append(Decision(self._numbers[block], choice, _line(term.origin)))
        kept = tuple(branches[-_MOST_DECISIONS:])
        last = steps.edges[-1][0].edges()[steps.edges[-1][1]].target if steps.edges else self.graph.entry
        if failed or not isinstance(last.terminator, Return):
            return Path(None, None, kept, len(branches) - len(kept))
        site = next(k for k, s in enumerate(self.graph.return_sites()) if s is last.terminator.site)
        return Path(site, _line(last.terminator.site.origin), kept, len(branches) - len(kept))

    def __repr__(self) -> str:
        return f"<{self.graph.name}, interpreted>"


def _range_of(t: torch.Tensor) -> tuple[int, int]:
    """Return where the elements of a tensor lie."""
    begin, extent = t.data_ptr(), sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    return begin, begin + t.element_size() * (1 + extent)


class _Steps(Watcher):
    """The edges of a run, of which another watcher hears too."""

    def __init__(self, other: Watcher) -> None:
        self.edges: list[tuple[Block, int]] = []
        self._other = other
        self.item, self.defined, self.ran = other.item, other.defined, other.ran  # type: ignore[method-assign]

    def took(self, block: Block, index: int) -> None:
        self.edges.append((block, index))
        self._other.took(block, index)


def _line(origin: Origin | None) -> SourceLine:
    return SourceLine("", 0, "", "") if origin is None else SourceLine(origin.file, origin.line, origin.function, origin.code)
