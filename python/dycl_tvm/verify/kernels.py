# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Compiled sub-DNNs against ATen: the very kernels that are shipped, on numbers that were chosen to be awkward."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from dycl_tvm.compile import Lowered
from dycl_tvm.compile.program import KernelCall, Slot
from dycl_tvm.errors import VerificationError
from dycl_tvm.hcfg.cuda_draws import CUDA, moved
from dycl_tvm.hcfg.draws import STATE, is_draw
from dycl_tvm.hcfg.nodes import HCFG, Block, Constant, SubDNN, SubDNNCall
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.verify.budget import Budget
from dycl_tvm.verify.certificate import Kernels
from dycl_tvm.verify.memory import CompiledKernels, Memory, pack, unpack
from dycl_tvm.verify.of_sizes import OfSizes, SizesOfBlocks, draw_sizes
from dycl_tvm.verify.operation import Undefined
from dycl_tvm.verify.reference import (
    Deviation,
    Reference,
    Work,
    compare,
    eliminates,
    has_complex,
    has_products,
    spreads_infinities,
    work_of,
)

#: Disturbed runs of a comparison, and of one that is in doubt.
_SAMPLES, _MORE_SAMPLES = 2, 24
#: Seconds that a comparison takes beside its reference: for itself, for an element that is drawn, for a byte of the memory.
_COMPARISON, _DRAWN, _BYTE = 5e-4, 1.5e-8, 1e-9


@dataclass(frozen=True)
class Regime:
    """A kind of operands: ``scale`` of normally distributed numbers, or the ``values`` among which a ``share`` of the elements is drawn.

    Not ``anywhere``: only where it is known what such operands must give. ``thorough`` is for the full check. Whole numbers are drawn
    among ``whole``; where PyTorch refuses these (they are indices), among zero and one. ``matrices`` that are square are symmetric and
    positive: these have all factors.
    """

    name: str
    scale: float = 1.0
    values: tuple[float, ...] = ()
    share: float = 1.0
    anywhere: bool = True
    thorough: bool = False
    whole: tuple[int, ...] = (0, 1)
    matrices: bool = False


_SIGNED = (-100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 100)
_TINY, _HUGE = 1e-40, 3e38
REGIMES = (
    Regime("normal"),
    Regime("positive matrices", matrices=True),
    Regime("ties", values=(-1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0), whole=(-2, -1, 0, 1, 2)),
    Regime("small", 1e-6),
    Regime("large", 1e3, whole=_SIGNED),
    Regime("huge", 1e20, anywhere=False, thorough=True),
    Regime("infinities", values=(math.inf, -math.inf), share=0.05, anywhere=False),
    Regime("NaN", values=(math.nan,), share=0.02, anywhere=False),
    Regime("ties of NaN", values=(math.nan, math.inf, -math.inf, 1.0), anywhere=False),
    Regime("extremes", values=(_HUGE, -_HUGE, 1e38, 1e30, 1e19, 1e10, 1e5, 88.0, -88.0, 1e-5, 1e-6, 1e-19, 1e-38, _TINY, -_TINY, 0.0, -0.0,
           math.inf, -math.inf, math.nan, 0.5, -0.5, 1.5, 2.5, 1.0, -1.0), anywhere=False,
           whole=(*_SIGNED, *(v for bits in (7, 8, 15, 31, 63) for v in (2**bits - 1, 1 - 2**bits)))),
)  # fmt: skip


def check_kernels(
    graph: HCFG,
    lowered: Lowered,
    compiled: CompiledKernels,
    *,
    accuracy: str = "default",
    budget: Budget,
    seed: int = 0,
    thorough: bool = False,
    known: Collection[str] = (),
) -> Kernels:
    """Run each distinct sub-DNN of a build as it was compiled, and compare it with ATen.

    Parameters
    ----------
    graph : HCFG
        After the passes.
    lowered : Lowered
        What was compiled of it.
    compiled : CompiledKernels
        Its kernels, which run on this machine.
    accuracy : str
        As :func:`dycl_tvm.build` has it.
    budget : Budget
        What it may take.
    seed : int
        Of all random numbers.
    thorough : bool
        Also magnitudes that only the most careful algorithms survive.
    known : collection of str
        Sub-DNNs that were compared with ATen in float32 already: they are left out where float64 would take too long.

    Raises
    ------
    VerificationError
        If a result differs by more than rounding errors can explain.
    """
    sites = sorted(_sites(lowered), key=lambda site: site.seconds(torch.float64))
    if not sites:
        return Kernels(total=len(graph.sub_dnns()), checked=len(graph.sub_dnns()))
    checker = _Checker(graph, lowered, compiled, accuracy, seed)
    done = set(known)
    for number, regime in enumerate(REGIMES):
        if regime.thorough and not thorough:
            continue
        for site in sites:
            wide = torch.float64
            if number == 0 and not budget.allows(site.seconds(wide)):
                wide = torch.float32
            if not budget.allows(site.seconds(wide)) or (wide == torch.float32 and site.sub.name in known):
                continue
            if checker.check(site, number, wide):
                budget.spend(site.seconds(wide))
                done.add(site.sub.name)
    missing = [s.sub.name for s in sites if s.sub.name not in done]
    reason = f"{len(missing)} of {len(sites)} sub-DNNs would have taken too long" if missing else ""
    total = len(graph.sub_dnns())
    return dataclasses.replace(checker.result, checked=total - len(missing), total=total, reason=reason)


@dataclass
class _Site:
    """A place at which a sub-DNN is called, and the instructions that the call became.

    ``memory`` is how many bytes the network has, ``work`` what its reference takes.
    """

    sub: SubDNN
    block: Block
    step: SubDNNCall
    calls: list[KernelCall]
    args: list[Slot | None]
    results: list[Slot | None]
    memory: int
    work: Work

    def seconds(self, wide: torch.dtype) -> float:
        """Return about how many seconds a comparison takes."""
        drawn = sum(a.type.numel for v, a in zip(self.step.args, self.args) if a is not None and not isinstance(v, Constant))
        return self.work.seconds(1 + _SAMPLES, wide) + _COMPARISON + _DRAWN * drawn + _BYTE * self.memory


def _sites(lowered: Lowered) -> Iterator[_Site]:
    """Yield the first place of each sub-DNN that has kernels at all."""
    seen: set[int] = set()
    where = lowered.placement
    for block, code in zip(where.blocks, lowered.program.blocks, strict=True):
        for step in block.steps:
            if isinstance(step, SubDNNCall) and id(step.callee) not in seen:
                seen.add(id(step.callee))
                calls = [code.instrs[k] for k in where.instrs[id(step)]]
                if calls:
                    # what no kernel reads may have its memory taken by what one does
                    args = [where.slots.get(id(a)) if id(a) in where.reads[id(step)] else None for a in step.args]
                    results = [where.slots.get(id(r)) for r in step.outputs]
                    yield _Site(step.callee, block, step, calls, args, results, lowered.program.arena_bytes, work_of(step.callee))  # type: ignore[arg-type]


class _Checker:
    def __init__(self, graph: HCFG, lowered: Lowered, kernels: CompiledKernels, accuracy: str, seed: int) -> None:
        self.program, self.kernels, self.accuracy, self.seed = lowered.program, kernels, accuracy, seed
        self.memory, self.fronts, self.size_slots = Memory(lowered.program), lowered.fronts, lowered.placement.sizes
        self.of_sizes, self.of_blocks, self.result = OfSizes(graph), SizesOfBlocks(graph), Kernels()

    def check(self, site: _Site, number: int, wide: torch.dtype) -> bool:
        """Compare one execution; whether there was one."""
        regime = REGIMES[number]
        reference = Reference(site.sub, self.accuracy, wide)
        if (not regime.anywhere or has_complex(site.sub)) and self._blind(site.sub, regime, reference):
            return False
        if regime.matrices and not eliminates(site.sub):
            return False
        floats = any(a is not None and a.type.dtype.startswith(("float", "bfloat", "complex")) for a in site.args)
        draws = [regime.whole, (0, 1)] if regime.whole != (0, 1) and not _trusts_indices(site.sub) else [(0, 1)]
        if number and not floats:
            draws.remove((0, 1))  # that was tried with the first regime
        noise = torch.Generator().manual_seed(self.seed * 1009 + number)
        sizes = draw_sizes(self.program, noise, self.of_blocks.spans(site.block))
        for whole in draws:
            try:
                args = self.place(site, regime, whole, noise, sizes)
                expected = reference.expect(args, _SAMPLES, self.seed)
                break
            except Undefined:
                continue
        else:
            return False
        cut = self.fronts.cut(site.sub.name, [r.type for r in site.step.outputs], sizes)
        got = self.run(site)
        found = compare(expected, got, cut=cut)
        if found.error > 1:  # in doubt: more samples, what eager itself gives, and what fused multiplications give
            with torch.no_grad():
                others = [reference.in_own_types(args), reference.fused(args)]
            more = reference.expect(args, _MORE_SAMPLES if site.work.seconds(1, wide) < 0.1 else 6, self.seed + 1)
            more.samples += expected.samples
            found = compare(more, got, others, cut)
            if found.error > 1:
                self.fail(site, regime, found)
        self.result = dataclasses.replace(self.result, runs=self.result.runs + 1)
        if found.error > self.result.largest_error:
            self.result = dataclasses.replace(self.result, largest_error=round(found.error, 4), worst=site.sub.name)
        return True

    def _blind(self, sub: SubDNN, regime: Regime, reference: Reference) -> bool:
        """Whether nobody can say what operands of a kind must give: sums overflow in the one order and not in the other."""
        if regime.anywhere:  # PyTorch divides by a complex zero in several ways, by where an element lies
            return 0.0 in regime.values and any(word in op.op for op in sub.ops for word in ("div", "reciprocal", "pow"))
        if regime.name == "extremes" and not has_complex(sub):
            return not reference.element_wise
        if regime.name == "huge" and (has_products(sub) or any("norm" in op.op for op in sub.ops)):  # squares beyond what float32 holds
            return True
        if any(op.op.startswith("aten.mode.") for op in sub.ops):  # PyTorch brings NaN into no order before it counts
            return True
        return spreads_infinities(sub) or has_complex(sub) or (has_products(sub) and self.accuracy not in ("default", "strict"))

    def place(self, site: _Site, regime: Regime, whole: Sequence[int], noise: torch.Generator, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Fill the memory with operands; return what a kernel finds there."""
        self.memory.poison()
        taken = [slot for call in site.calls for slot in call.args]
        for k, at in self.size_slots.items():
            if at in taken:  # where no kernel asks for the size any more, it may be the place of an operand
                self.memory.tensor(at).fill_(self.fronts.bounds.numbers(sizes)[k])
        given: list[torch.Tensor] = []
        for value, slot in zip(site.step.args, site.args):
            if isinstance(value, Constant):
                given.append(value.data)
                continue
            drawn = _operand(site.sub, value.type, regime, whole, noise)  # type: ignore[arg-type]
            told = self.of_sizes.tensor(value, drawn, sizes)
            drawn = self.fronts.known(value, drawn, sizes) if told is None else told
            given.append(drawn)
            if slot is None:
                continue
            array = pack(drawn, slot.type)
            if slot.space == "arena":
                self.memory.tensor(slot).copy_(array)
            else:
                (self.memory.inputs if slot.space == "input" else self.memory.state)[slot.index] = array
        # two operands may lie at one place: what is there counts
        return [
            g if isinstance(a, Constant) or s is None else unpack(self.memory.tensor(s), a.type).clone()  # type: ignore[arg-type]
            for g, a, s in zip(given, site.step.args, site.args)
        ]

    def run(self, site: _Site) -> list[torch.Tensor | None]:
        """Run the kernels of a call; nothing but their own results may change. None stands for results that have no memory."""
        before = self.memory.arena.clone()
        for call in site.calls:
            self.memory.call(self.kernels, call)
        results = [
            None if s is None else r.data if isinstance(r, Constant) else unpack(self.memory.tensor(s), r.type).clone()  # type: ignore[arg-type]
            for r, s in zip(site.step.outputs, site.results)
        ]
        written = self.memory.arena
        for call in site.calls:
            for slot in call.args:
                if slot.space == "arena":
                    before[slot.offset : slot.offset + slot.type.nbytes] = written[slot.offset : slot.offset + slot.type.nbytes]
        self.memory.check_guards(site.sub.name)
        if not torch.equal(before, written):
            raise VerificationError(f"the kernels of {site.sub.name} write to memory that is not theirs")
        return results

    def fail(self, site: _Site, regime: Regime, found: Deviation) -> None:
        """Say what is wrong."""
        symbols = ", ".join(dict.fromkeys(self.program.kernels[c.kernel].symbol for c in site.calls))
        ops = ", ".join(dict.fromkeys(op.op.removeprefix("aten.").rpartition(".")[0] for op in site.sub.ops))
        where = f" ({site.step.origin})" if site.step.origin else ""
        raise VerificationError(
            f"a compiled sub-DNN differs from PyTorch: {site.sub.name}{where}, on operands of the kind {regime.name!r}: {found.text}\n"
            f"operators: {ops}\nkernels: {symbols}\nThe build is wrong, and nothing was written. Please report it."
        )


def _trusts_indices(sub: SubDNN) -> bool:
    """Whether a sub-DNN has an operator that does not look whether its indices are in range, in PyTorch neither."""
    return any("_unsafe" in op.op for op in sub.ops)


def _operand(sub: SubDNN, type_: TensorType, regime: Regime, whole: Sequence[int], noise: torch.Generator) -> torch.Tensor:
    """Return an operand of a sub-DNN: of a draw the state of a generator somewhere in its course, or probabilities."""
    if not is_draw(sub.ops[0].op) or regime.name != "normal" or type_.dtype == "int64":
        return _draw(type_, regime, whole, noise)
    if type_ == CUDA.state:
        seed, passed = torch.randint(0, 1 << 40, (2,), generator=noise).tolist()
        return moved(CUDA.of_seed(seed * seed), passed // 4 * 4)
    if type_ != STATE:
        return torch.rand(type_.shape, generator=noise).to(getattr(torch, type_.dtype))
    seed, passed = torch.randint(0, 1300, (2,), generator=noise).tolist()
    generator = torch.Generator().manual_seed(seed)
    torch.randn(passed % 3, generator=generator)
    torch.rand(passed, generator=generator)
    return generator.get_state()


def _draw(type_: TensorType, regime: Regime, whole: Sequence[int], noise: torch.Generator) -> torch.Tensor:
    """Return a random tensor."""
    if type_.is_complex:
        return torch.view_as_complex(_draw(type_.parts, regime, whole, noise))
    dtype = getattr(torch, type_.dtype)
    if dtype == torch.bool:
        return torch.rand(type_.shape, generator=noise) < 0.5
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        fits = torch.tensor([v for v in whole if info.min < v <= info.max], dtype=dtype)
        return fits[torch.randint(0, len(fits), type_.shape, generator=noise)]
    drawn = torch.randn(type_.shape, generator=noise) * regime.scale
    if regime.values:
        among = torch.tensor(regime.values, dtype=torch.float64).to(dtype).double()
        chosen = among[torch.randint(0, len(among), type_.shape, generator=noise)]
        drawn = torch.where(torch.rand(type_.shape, generator=noise) < regime.share, chosen, drawn.double())
    if regime.matrices and drawn.dim() > 1 and drawn.shape[-1] == drawn.shape[-2]:
        drawn = drawn @ drawn.mT / drawn.shape[-1] + torch.eye(drawn.shape[-1])
    return drawn.to(dtype)
