# Licensed under the Apache License, Version 2.0; see LICENSE.
"""PyTorch's samples with a size that is decided at run time, by the caller or by data: empty, one, between, the bound, and beyond it."""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from check import Outcome, failed, in_halves, of_sample
from samples import SEED, Sample
from torch import Tensor

import dycl_tvm
from dycl_tvm.errors import DyclError, InputError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import LimitError
from dycl_tvm.hcfg.verify import verify

#: Who decides a size: the shape of an input; a number, which is the end of a slice; a mask, which picks elements.
WAYS = ("caller", "slice", "mask")
#: Bounds are not smaller, so that there is a size between.
_LEAST_BOUND = 3

Place = tuple[int, int]


@dataclass(frozen=True)
class Sized:
    """A sample of whose tensors the dimensions ``places`` (tensor, dimension) have one size, up to ``bound``."""

    sample: Sample
    places: tuple[Place, ...]
    bound: int

    @property
    def name(self) -> str:
        """The sample and the dimensions."""
        return f"{self.sample.name} " + " ".join(f"{k}.{d}" for k, d in self.places)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that are tried; the first is that of the example."""
        return (self.bound - 1, self.bound, 1, 0)

    def tensors(self, size: int) -> tuple[Tensor, ...]:
        """Return the tensors with that size: the elements of the sample's, again and again."""
        given = [t.clone() for t in self.sample.tensors]
        for k, d in self.places:
            given[k] = given[k].index_select(d, torch.arange(size) % given[k].shape[d])
        return tuple(given)

    def at(self, size: int) -> Sample:
        """Return the sample as it is at a size."""
        return replace(self.sample, name=f"{self.name} = {size}", tensors=self.tensors(size))

    def runs(self) -> int:
        """Return at how many of the sizes eager runs; 0 if it runs only with the sizes that the sample has."""
        return sum(_runs(self.at(n)) for n in self.sizes) if _runs(self.at(self.bound - 1)) and _runs(self.at(self.bound)) else 0


def _runs(sample: Sample) -> bool:
    try:
        sample.eager()
    except Exception:
        return False
    return True


def sized(sample: Sample, limit: int | None = None) -> Iterator[Sized]:
    """Yield a sample with each of its dimensions as a size, and those of its other dimensions that have to go with it."""
    seen: set[tuple[Place, ...]] = set()
    dense = [(k, t) for k, t in enumerate(sample.tensors) if t.layout == torch.strided]
    dimensions = [(k, d) for k, t in dense for d in range(t.ndim) if t.shape[d] > 0]
    for place in dimensions:
        if limit is not None and len(seen) >= limit:
            return
        found = [Sized(sample, group, _bound(sample, place)) for group in _groups(sample, place, dimensions)]
        best = max(found, key=Sized.runs)
        if best.places not in seen and best.runs():
            seen.add(best.places)
            yield best


def _bound(sample: Sample, place: Place) -> int:
    return max(sample.tensors[place[0]].shape[place[1]], _LEAST_BOUND)


def _groups(sample: Sample, place: Place, dimensions: Sequence[Place]) -> Iterator[tuple[Place, ...]]:
    """Yield which dimensions may be of one size: one, those at the same place from the right or the left, all that are as long, pairs."""

    def size(of: Place) -> int:
        return sample.tensors[of[0]].shape[of[1]]

    def from_right(of: Place) -> int:
        return of[1] - sample.tensors[of[0]].ndim

    alike = [p for p in dimensions if size(p) == size(place)]
    yield (place,)
    yield tuple(p for p in alike if from_right(p) == from_right(place))
    yield tuple(p for p in alike if p[1] == place[1])
    yield tuple(alike)
    for other in alike:
        if other != place:
            yield tuple(sorted((place, other)))


def _program(case: Sized, way: str) -> Callable[..., Any]:
    run, places = case.sample.run, case.places

    def caller(*tensors: Tensor) -> Any:
        return run(*tensors)

    def by_data(decides: Tensor, *tensors: Tensor) -> Any:
        picks = slice(0, int(decides)) if way == "slice" else decides
        given = list(tensors)
        for k, d in places:
            given[k] = given[k][(slice(None),) * d + (picks,)]
        return run(*given)

    return caller if way == "caller" else by_data


def _inputs(case: Sized, way: str, size: int) -> tuple[Tensor, ...]:
    if way == "caller":
        return case.tensors(size)
    if way == "slice":
        return (torch.tensor(size), *case.tensors(case.bound))
    return (torch.arange(case.bound) < size, *case.tensors(case.bound))


def _shapes(case: Sized, name: str = "N") -> list[dict[int, Any] | None]:
    size = dycl_tvm.Dim(name, min=0, max=case.bound)
    dims = [{d: size for j, d in case.places if j == k} for k in range(len(case.sample.tensors))]
    return [of or None for of in dims]


def staged(case: Sized, way: str) -> Outcome:
    """Compare the staged graph, run by the reference interpreter at every size, with eager."""
    name = f"{case.name} by {way}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            shapes = (_shapes(case),) if way == "caller" else None
            graph = stage(_program(case, way), _inputs(case, way, case.bound - 1), dynamic_shapes=shapes)
            verify(graph)
        except Exception as error:
            return replace(failed(case.sample, error), sample=name)
        for size in case.sizes:
            outcome = _at(case, size, lambda size=size: graph.interpret()(*_inputs(case, way, size)))
            if outcome.kind != "right":
                return replace(outcome, sample=f"{name} = {size}")
        return Outcome("right", name) if way != "caller" else _beyond(name, lambda: graph.interpret()(*case.tensors(case.bound + 1)))


def _at(case: Sized, size: int, run: Callable[[], Any]) -> Outcome:
    """Return what becomes of a run at a size: an error is right where eager has one too."""
    sample = case.at(size)
    torch.manual_seed(SEED)
    try:
        got = run()
    except Exception as error:
        typed = isinstance(error, (DyclError, RuntimeError, ValueError, IndexError))
        kind = "right" if typed and not _runs(sample) else "limited" if typed and _is_limit(error) else "wrong"
        return Outcome(kind, sample.name, f"{type(error).__name__}: {error}")
    if not _runs(sample):
        return Outcome("wrong", sample.name, "no error, where eager has one")
    text = of_sample(sample, got)
    return Outcome("wrong" if text else "right", sample.name, text)


def _is_limit(error: Exception) -> bool:
    """Whether an error says that the artefact goes no further, where eager does."""
    return isinstance(error, LimitError) or "LimitError" in str(error) or "known only at run time" in str(error)


def _beyond(name: str, run: Callable[[], Any]) -> Outcome:
    try:
        run()
    except InputError:
        return Outcome("right", name)
    except Exception as error:
        return Outcome("wrong", name, f"beyond the bound: {type(error).__name__}: {error}")
    return Outcome("wrong", name, "beyond the bound: no error")


def outcomes_of(samples: Iterable[Sample], ways: Sequence[str], limit: int | None = None) -> list[tuple[Sized, str, Outcome]]:
    """Return what becomes of samples with each of their dimensions, at most so many, as a size, without compiling them."""
    return [(case, way, staged(case, way)) for sample in samples for case in sized(sample, limit) for way in ways]


def apart(function: Callable[[], Any]) -> Any:
    """Return what a function gives in a process of its own; None if it ends: of some sizes PyTorch's own kernels run out of memory."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(False)
    child = context.Process(target=lambda: sender.send(function()))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        child.join()


def built(cases: Sequence[tuple[Sized, str]]) -> list[Outcome]:
    """Build cases as one network, and compare each at every size with eager; a build that fails is taken in halves."""
    return in_halves(cases, _built, lambda one, error: replace(failed(one[0].sample, error), sample=_built_name(*one)))


def _built_name(case: Sized, way: str) -> str:
    return f"{case.name} by {way}, built"


def _built(cases: Sequence[tuple[Sized, str]]) -> list[Outcome]:
    programs = [_program(case, way) for case, way in cases]
    spans, shapes = [], []
    for k, (case, way) in enumerate(cases):
        of = _shapes(case, f"N{k}") if way == "caller" else [None] * (1 + len(case.sample.tensors))
        spans.append((len(shapes), len(shapes) + len(of)))
        shapes += of

    def forward(*given: Tensor) -> Any:
        found = []
        for program, (a, b) in zip(programs, spans):
            torch.manual_seed(SEED)
            found.append(program(*given[a:b]))
        return tuple(found)

    def inputs(step: int, beyond: int | None = None) -> list[Tensor]:
        found: list[Tensor] = []
        for k, (case, way) in enumerate(cases):
            found += _inputs(case, way, case.bound + 1 if k == beyond else _size(case, step))
        return found

    artifact = dycl_tvm.build(forward, tuple(inputs(0)), dynamic_shapes=(shapes,))
    outcomes = [Outcome("right", _built_name(*one)) for one in cases]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        module = dycl_tvm.load(artifact.export_library(path / "m.so"), artifact.save_params(path / "m.params"))
        for step in range(len(cases[0][0].sizes)):
            results = module(*inputs(step))
            for k, ((case, _), result) in enumerate(zip(cases, results)):
                outcome = _at(case, _size(case, step), lambda result=result: result)
                if outcome.kind != "right":
                    outcomes[k] = replace(outcome, sample=f"{outcomes[k].sample}: {outcome.sample}")
        for k, (_, way) in enumerate(cases):
            if way == "caller" and outcomes[k].kind == "right":
                outcomes[k] = _beyond(outcomes[k].sample, lambda k=k: module(*inputs(0, k)))
    return outcomes


def _size(case: Sized, step: int) -> int:
    """Return a size of a case in a network of several; one at which eager runs."""
    size = case.sizes[step]
    return size if _runs(case.at(size)) else case.bound
