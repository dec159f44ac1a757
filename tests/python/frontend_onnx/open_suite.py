# Licensed under the Apache License, Version 2.0; see LICENSE.
"""ONNX's own node tests with the dimensions of their inputs left open: one by one, and all of a case together.

Which dimensions of a case may change, and which change together only, no table says: it is asked of an oracle (ONNX Runtime, or ONNX's
reference evaluator where that has no kernel) that reproduces the expected outputs of the case. A dimension that may not change by itself
is tried with one other of its size, then with all of them. `make onnx-suite ONNX_ARGS=--open` prints the table.
"""

from __future__ import annotations

import collections
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import node_suite
import numpy as np
import onnx
import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator

import dycl_tvm
from dycl_tvm import Dim
from dycl_tvm.errors import DyclError, InternalError, UnsupportedError, UsageError
from dycl_tvm.frontend.onnx.backend import InterpretedBackend, run_graph, to_numpy
from dycl_tvm.frontend.onnx.node import from_array
from dycl_tvm.frontend.onnx.opened import open_model

#: An input and one of its dimensions.
Place = tuple[str, int]
Feed = dict[str, Any]
#: The reference evaluator is asked for no more elements than this: some of its operators take minutes.
SMALL = 10_000


@dataclass
class Variant:
    """A case with some dimensions left open.

    Attributes
    ----------
    case : str
    groups : tuple
        The places of each size that a call decides.
    status : str
        ``right``, ``refused``, ``wrong`` or ``crash``.
    reason : str
    calls : int
        How many calls were compared.
    """

    case: str
    groups: tuple[tuple[Place, ...], ...]
    status: str = "right"
    reason: str = ""
    calls: int = 0

    def __str__(self) -> str:
        return f"{self.case} " + " ".join("=".join(f"{name}.{k}" for name, k in group) for group in self.groups)


@dataclass
class Case:
    """A node test: its model with open dimensions, its inputs and what gives the right outputs."""

    name: str
    fixed: Feed = field(default_factory=dict)
    _grown: dict[tuple[Place, ...], int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = node_suite.cases()[self.name]
        self.model = onnx.ModelProto()
        self.model.CopyFrom(case.model)
        self.rtol, self.atol = case.rtol, max(case.atol, node_suite.NOISE.get(self.name, 0.0))
        inputs, expected = case.data_sets[0]
        self.feed: Feed = {i.name: node_suite.array(x) for i, x in zip(self.model.graph.input, inputs)}
        self.expected = [node_suite.array(x) for x in expected]
        _without_shapes(self.model.graph)
        small = sum(np.size(x) for x in self.feed.values() if not isinstance(x, list)) < SMALL
        makers = [_runtime, _reference] if small else [_runtime]
        self.oracles = [o for make in makers if (o := make(self.model)) is not None and self.agrees(o, self.feed, self.expected)]

    def agrees(self, oracle: Any, feed: Feed, want: list[Any]) -> bool:
        """Whether an oracle gives some outputs."""
        try:
            node_suite.compare(want, oracle(feed), max(self.rtol, 1e-4), max(self.atol, 1e-5))
        except Exception:  # whatever it raises: it is none for these inputs
            return False
        return True

    def outputs(self, feed: Feed) -> Iterator[list[Any]]:
        """Yield what the first oracle gives for inputs, if it takes them, and then what others give."""
        for oracle in self.oracles:
            try:
                yield oracle(feed)
            except Exception:  # whatever it raises: the inputs are none for it
                if oracle is self.oracles[0]:
                    return

    def may_be(self, sizes: dict[Place, int]) -> bool:
        """Whether the case may have other sizes of some dimensions."""
        return next(self.outputs(self.at(sizes)), None) is not None

    def at(self, sizes: dict[Place, int]) -> Feed:
        """Return the inputs with other sizes of some dimensions; their elements are those of the case, over and over."""
        feed = dict(self.feed)
        for (name, axis), size in sizes.items():
            x = np.asarray(feed[name])
            had = x.shape[axis]
            x = x if had else np.ones([*x.shape[:axis], 1, *x.shape[axis + 1 :]], x.dtype)
            feed[name] = np.take(x, np.arange(size) % max(had, 1), axis)
        return feed

    def arrays(self, result: Any) -> list[Any]:
        """Return the outputs in the result of a program."""
        outputs = self.model.graph.output
        return [to_numpy(x, o.type) for x, o in zip([result] if len(outputs) == 1 else [result[o.name] for o in outputs], outputs)]

    def places(self) -> list[Place]:
        """Return the dimensions of the inputs that are not fixed."""
        return [
            (name, k)
            for name, x in self.feed.items()
            if name not in self.fixed and x is not None and not isinstance(x, list)
            for k in range(np.ndim(x))
        ]

    def size(self, group: Sequence[Place]) -> int:
        """Return the size that the places of a group have in the case."""
        name, k = group[0]
        return int(np.shape(self.feed[name])[k])

    def grown(self, group: Sequence[Place]) -> int | None:
        """Return a larger size that the places of a group may have; None if they may have none."""
        key = tuple(group)
        if key not in self._grown:
            had = self.size(group)
            self._grown[key] = next((n for n in (had + 1, 2 * had) if n > had and self.may_be(dict.fromkeys(group, n))), None)
        return self._grown[key]

    def groups(self) -> list[tuple[Place, ...]]:
        """Return the places that change together, for each dimension that may change."""
        found: list[tuple[Place, ...]] = []
        for place in self.places():
            if any(place in group for group in found):
                continue
            alike = [p for p in self.places() if p != place and self.size([p]) == self.size([place])]
            tried = [(place,), *((place, other) for other in alike)]
            tried += [(place, *(p for p in alike if p[1] == place[1])), (place, *alike)]
            found += [g for g in tried if self.grown(g) is not None][:1]
        return found


def _without_shapes(graph: Any) -> None:
    """Leave open what a graph says of the sizes of its values."""
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape") if value.type.HasField("tensor_type") else None
    for value in graph.input:
        if value.type.HasField("tensor_type"):
            for k, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"{value.name}_{k}"
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _without_shapes(attribute.g)


def _runtime(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # it has no kernel for something
        return None
    return lambda feed: session.run(None, feed)


def _reference(model: Any) -> Any:
    try:
        evaluator = ReferenceEvaluator(model)
    except Exception:
        return None
    return lambda feed: evaluator.run(None, feed)


def variants(case: Case) -> Iterator[Variant]:
    """Yield a case with each of its dimensions left open, and with all of them."""
    groups = case.groups()
    for group in groups:
        yield Variant(case.name, (group,))
    if len(groups) > 1:
        together: list[tuple[Place, ...]] = []
        for group in groups:
            if not any(p in g for p in group for g in together) and case.may_be(_sizes([*together, group], case, 0)):
                together.append(group)
        if len(together) > 1:
            yield Variant(case.name, tuple(together))


def _sizes(groups: Sequence[Sequence[Place]], case: Case, more: int) -> dict[Place, int]:
    return {p: (case.grown(g) or 0) + more for g in groups for p in g}


def run_variant(case: Case, variant: Variant) -> Variant:
    """Stage a case with open dimensions, and compare its runs with those of the oracle."""
    own = {p: case.size(g) for g in variant.groups for p in g}
    large = _sizes(variant.groups, case, 0)
    calls = [own, large, _sizes(variant.groups, case, 1), dict.fromkeys(own, 1)]
    calls += [{**own, **{p: large[p] for p in g}} for g in variant.groups[:-1]] if len(variant.groups) > 1 else []
    open_dims: dict[str, dict[int, Dim]] = {}
    for number, group in enumerate(variant.groups):
        size = Dim(f"N{number}", min=min(1, case.size(group)), max=max(case.size(group), large[group[0]]) + 1)
        for name, k in group:
            open_dims.setdefault(name, {})[k] = size
    shapes: dict[str, Any] = {
        n: None if x is None else [np.shape(v) for v in x] if isinstance(x, list) else np.shape(x) for n, x in case.feed.items()
    }
    free = {n: s for n, s in shapes.items() if n not in case.fixed}

    def eager(feed: Feed) -> list[list[Any]]:
        """Return what PyTorch makes of the program of the model: ONNX Runtime's convolution of an image without rows does not end."""
        program = open_model(case.model, free, case.fixed, open_dims).program
        try:
            found = program.function(*(_tensors(feed[name]) for name in program.inputs))
        except Exception:
            return []
        return [case.arrays(found)]

    try:
        graph = dycl_tvm.stage(case.model, input_shapes=free, input_values=case.fixed or None, dynamic_shapes=open_dims, passes=False)
        for sizes in calls:
            feed = case.at(sizes)
            wanted = iter([case.expected]) if sizes == own else case.outputs(feed) if all(sizes.values()) else iter(eager(feed))
            first = next(wanted, None)
            if first is not None:
                try:
                    found = run_graph(graph, {n: x for n, x in feed.items() if n not in case.fixed})
                except (RuntimeError, ValueError, IndexError):
                    if eager(feed):
                        raise
                    continue  # an error of PyTorch's: an image that is smaller than the window
                have = case.arrays(found)
                if not any(case.agrees(lambda _, have=have: have, feed, want) for want in (first, *wanted)):
                    shown = f"{[np.shape(v) for v in have]} for {[np.shape(v) for v in first]}"
                    return _ended(variant, "wrong", f"at {sorted(sizes.items())}: {shown}")
                variant.calls += 1
    except (UnsupportedError, UsageError) as error:
        return _ended(variant, "refused", error.reason if isinstance(error, UnsupportedError) else str(error))
    except InternalError as error:
        return _ended(variant, "crash", str(error).strip())
    except DyclError as error:
        return _ended(variant, "wrong", f"{type(error).__name__}: {error}")
    except Exception as error:  # anything else is a defect, whatever it is
        return _ended(variant, "crash", f"{type(error).__name__}: {str(error).strip()[-300:]}")
    return variant


def _tensors(x: Any) -> Any:
    return None if x is None else [_tensors(v) for v in x] if isinstance(x, list) else from_array(x)


def _ended(variant: Variant, status: str, reason: str) -> Variant:
    variant.status, variant.reason = status, reason
    return variant


def opened(name: str) -> Case | None:
    """Return a case whose dimensions can be opened; None if it is refused with fixed ones, or no oracle runs it."""
    torch.manual_seed(0)
    try:
        fixed = node_suite.run_case(name, InterpretedBackend)
    except Exception:
        return None
    made = Case(name)
    made.fixed = {n: made.feed[n] for n in fixed}
    return made if made.oracles else None


def results(names: Sequence[str]) -> Iterator[Variant]:
    """Yield what became of each variant of some cases."""
    for name in names:
        case = opened(name)
        if case is not None:
            for variant in variants(case):
                yield run_variant(case, variant)


def kind_of(reason: str) -> str:
    """Return what many refusals have in common."""
    reason = re.sub(r"'[^']*'", "'...'", reason.split("\n")[0])
    reason = re.sub(r"\[[^\]]*\]", "[...]", re.sub(r" whose lengths? .*", "", reason))
    return re.sub(r"\b\d+\b", "#", reason)[:140]


def main(pattern: str, file: str) -> int:
    """Run the cases whose name matches and print what became of them; the exit status is 1 if a result is wrong."""
    names = [name for name in node_suite.cases() if re.search(pattern, name)]
    found: list[Variant] = []
    for k, name in enumerate(names):
        found += results([name])
        if k % 100 == 99:
            print(f"{k + 1} of {len(names)} cases", file=sys.stderr)
    counts = collections.Counter(v.status for v in found)
    cases, calls = len({v.case for v in found}), sum(v.calls for v in found)
    shown = ", ".join(f"{counts[s]} {s} ({100 * counts[s] / max(len(found), 1):.1f} %)" for s in ("right", "refused", "wrong", "crash"))
    print(f"{len(found)} choices of open dimensions of {cases} cases, {calls} calls: {shown}")
    for reason, count in collections.Counter(kind_of(v.reason) for v in found if v.status == "refused").most_common():
        print(f"  refused {count:4d}  {reason}")
    for variant in found:
        if variant.status in ("wrong", "crash"):
            print(f"  {variant.status:7s} {variant}: {variant.reason}")
    if file:
        with open(file, "w", encoding="utf-8") as opened_file:
            json.dump({str(v): [v.status, v.reason] for v in found}, opened_file, indent=1)
    return 1 if counts["wrong"] or counts["crash"] else 0
