# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What becomes of samples: right, refused with a typed error, wrong, or crashed."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from samples import COARSE, SEED, TIES, UNDEFINED, Sample, tensors_of
from torch import Tensor

import dycl_tvm
from dycl_tvm.build import simplify
from dycl_tvm.compile.importer import import_sub_dnns
from dycl_tvm.errors import DyclError, InternalError, InvariantError, VerificationError
from dycl_tvm.frontend.python import stage
from dycl_tvm.hcfg.interpreter import interpret
from dycl_tvm.hcfg.verify import verify
from dycl_tvm.progress import Phases
from dycl_tvm.target import resolve_target

T = TypeVar("T")

#: How far a result may be from eager's, relatively, and as a part of its largest element if that is below 1.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Outcome:
    """``kind`` is right, refused, wrong or crashed."""

    kind: str
    sample: str
    text: str = ""


def difference(want: Any, got: Any) -> str:
    """Return where two results differ, or nothing."""
    wanted, given = tensors_of(want), tensors_of(got)
    if len(wanted) != len(given):
        return f"{len(given)} results instead of {len(wanted)}"
    return next(filter(None, map(_difference, wanted, given)), "")


def of_sample(sample: Sample, got: Any) -> str:
    """Return where a result differs from eager's, as far as the operator defines it, or nothing."""
    if sample.operator in UNDEFINED:
        return ""
    want = sample.eager()
    if sample.operator in TIES:
        want, got = tensors_of(want)[:1], tensors_of(got)[:1]
    found = difference(want, got)
    return "" if found and _is_nearer(sample, want, got) else found


def _is_nearer(sample: Sample, want: Any, got: Any) -> bool:
    """Whether results are nearer to those in float64 than eager's: in halves, as some kernels sum in these, and of coarse operators."""
    wanted, given = tensors_of(want), list(map(_like, tensors_of(want), tensors_of(got)))
    coarse = (torch.float16, torch.bfloat16, *((torch.float32, torch.complex64) if sample.operator in COARSE else ()))
    if not all(isinstance(t, Tensor) and t.dtype in coarse for t in wanted):
        return False
    with torch.no_grad():
        exact = tensors_of(sample.run(*map(_wide, sample.tensors)))
    return all(bool((g - e).abs().max() <= (w - e).abs().max()) for w, g, e in zip(wanted, given, exact, strict=True))


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.complex128) if t.is_complex() else t.double() if t.is_floating_point() else t.clone()


def _difference(want: Any, got: Any) -> str:
    if not isinstance(want, Tensor):
        return "" if want == got or (want != want and got != got) else f"{got} instead of {want}"
    got = _like(want, got)
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype == torch.bool and bool((got.contiguous().view(torch.uint8) > 1).any()):
        return "bools whose bytes are neither 0 nor 1"
    if want.is_complex():
        want, got = (torch.view_as_real(t.resolve_conj()) for t in (want, got))
    if not want.dtype.is_floating_point:
        away = want != got
    else:
        finite = want[want.isfinite()].abs()
        bound = TOLERANCE[want.dtype]
        scale = min(1.0, float(finite.max())) if finite.numel() else 1.0
        away = ~torch.isclose(got.double(), want.double(), rtol=bound, atol=bound * scale, equal_nan=True)
    return f"{got[away][:4].tolist()} instead of {want[away][:4].tolist()} ({int(away.sum())} of {want.numel()})" if away.any() else ""


def _like(want: Any, got: Any) -> Any:
    """Return a result as a tensor: an artefact without inputs returns arrays, bfloat16 as its bits."""
    if not isinstance(want, Tensor) or isinstance(got, Tensor):
        return got
    return torch.as_tensor(got).view(torch.bfloat16) if want.dtype == torch.bfloat16 else torch.as_tensor(got)


def failed(sample: Sample, error: Exception) -> Outcome:
    """Return what an error says: a defect that the build found itself is one all the same."""
    kind = "wrong" if isinstance(error, VerificationError) else "refused"
    if not isinstance(error, DyclError) or isinstance(error, (InternalError, InvariantError)):
        kind = "crashed"
    return Outcome(kind, sample.name, f"{type(error).__name__}: {error}")


def _program(sample: Sample) -> Callable[..., Any]:
    run = sample.run

    def forward(*tensors: Tensor) -> Any:
        return run(*tensors)

    return forward


def staged(sample: Sample) -> Outcome:
    """Compare the staged graph, run by the reference interpreter, with eager."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = stage(_program(sample), tuple(t.clone() for t in sample.tensors))
            verify(graph)
            got = interpret(graph, [t.clone() for t in sample.tensors])[0]
        except Exception as error:
            return failed(sample, error)
        text = of_sample(sample, got)
    return Outcome("wrong" if text else "right", sample.name, text)


def convertible(sample: Sample) -> Outcome:
    """Whether a sample passes the front end and the import to Relax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = stage(_program(sample), tuple(t.clone() for t in sample.tensors))
            simplify(graph, (), Phases(False))
            with resolve_target("llvm", None).target:
                import_sub_dnns(graph.sub_dnns())
        except Exception as error:
            return failed(sample, error)
    return Outcome("right", sample.name)


def compiled(samples: Sequence[Sample]) -> list[Outcome]:
    """Build samples as one network and compare each result with eager; a build that fails is taken in halves."""
    return in_halves(samples, _compared, failed)


def in_halves(
    cases: Sequence[T], together: Callable[[Sequence[T]], list[Outcome]], alone: Callable[[T, Exception], Outcome]
) -> list[Outcome]:
    """Return what becomes of cases that are tried together; where that fails, of each half, and of one that fails ``alone``."""
    if not cases:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return together(cases)
        except Exception as error:
            if len(cases) == 1:
                return [alone(cases[0], error)]
            half = len(cases) // 2
            return in_halves(cases[:half], together, alone) + in_halves(cases[half:], together, alone)


def _compared(samples: Sequence[Sample]) -> list[Outcome]:
    outcomes = []
    for sample, result in zip(samples, _results(samples)):
        text = of_sample(sample, result)
        outcomes.append(Outcome("wrong" if text else "right", sample.name, text))
    return outcomes


def _results(samples: Sequence[Sample]) -> Any:
    runs, spans, tensors = [], [], []
    for sample in samples:
        runs.append(sample.run)
        spans.append((len(tensors), len(tensors) + len(sample.tensors)))
        tensors += [t.clone() for t in sample.tensors]

    def forward(*given: Tensor) -> Any:
        found = []
        for run, (a, b) in zip(runs, spans):
            torch.manual_seed(SEED)
            found.append(run(*given[a:b]))
        return tuple(found)

    artifact = dycl_tvm.build(forward, tuple(tensors))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        module = dycl_tvm.load(artifact.export_library(path / "m.so"), artifact.save_params(path / "m.params"))
        return module(*tensors)
