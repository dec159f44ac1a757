# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The generated dispatcher against its Program: the very object that is linked, with kernels that only watch.

The object of the dispatcher is linked a second time, with kernels that call back into this process. There each call is compared with what
the Program, run by Python, calls at that moment: which kernel, with which tensors, holding which numbers. What a kernel "computes" is
drawn at random, for both, so that decisions fall this way and that whatever the network computes; results, path and state must agree.
"""

from __future__ import annotations

import ctypes
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dycl_tvm.codegen import toolchain
from dycl_tvm.codegen.toolchain import Compiler
from dycl_tvm.compile.program import (
    CondGoto,
    HostInstr,
    KernelCall,
    Program,
    ReadItem,
    Reg,
    Slot,
    SwitchGoto,
)
from dycl_tvm.errors import RunError, VerificationError
from dycl_tvm.hcfg.sizes import padded
from dycl_tvm.hcfg.types import TensorType
from dycl_tvm.runtime import capi
from dycl_tvm.runtime.library import Library, open_library
from dycl_tvm.runtime.model import Model
from dycl_tvm.runtime.module import Module
from dycl_tvm.runtime.params_place import ParamsPlace
from dycl_tvm.verify.machine import Endless, Machine, random_tensor
from dycl_tvm.verify.memory import POISON
from dycl_tvm.verify.of_sizes import draw_sizes
from dycl_tvm.verify.stand_ins import StandIns

#: Of a tensor so many bytes are compared at its begin and at its end, and made up where a kernel writes it.
_BYTES = 2048
#: Runs that bring nothing new, after which it is enough.
_IDLE = 15
#: Calls of kernels after which a run is given up, and after which no further run is begun.
_LONG, _ENOUGH = 3000, 5000
#: How often a check of elements fails: what stands behind many of them must come up too.
_FAILS = 0.02
_STUB = """#include <stdint.h>
#include <tvm/ffi/c_api.h>
typedef int (*Hook)(int kernel, const TVMFFIAny* args, int count);
static Hook hook;
__attribute__((visibility("default"))) void dycl_verify_hook(Hook h) { hook = h; }
__attribute__((visibility("default"))) int64_t dycl_verify_clock(void) { return 1500000000000000000; }
#define KERNEL(k, name) \\
  __attribute__((visibility("default"))) int __tvm_ffi_##name(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) { \\
    (void)self, (void)result; \\
    return hook(k, args, count); \\
  }
"""


class Dispatcher:
    """Checks dispatchers while they are linked: :meth:`watch` is what :func:`dycl_tvm.codegen.link` calls with the objects.

    Parameters
    ----------
    calls : int
        Runs at most.
    seed : int
        Of all random choices.

    Attributes
    ----------
    runs, decisions, decisions_total : int
        What was covered: runs, and ways out of branches and choices, of all.
    """

    def __init__(self, calls: int = 200, seed: int = 0) -> None:
        self.calls, self.seed = calls, seed
        self.runs = self.decisions = self.decisions_total = 0

    def watch(self, program: Program, compiler: Compiler, objects: Sequence[Path], metadata: dict[str, Any]) -> None:
        """Link a dispatcher with watching kernels, run it, and compare.

        Parameters
        ----------
        program : Program
        compiler : Compiler
            Of the machine that builds.
        objects : sequence of Path
            Those of the dispatcher and of the artefact's description, and those of the runtime.
        metadata : dict
            Of the library.

        Raises
        ------
        VerificationError
            If the dispatcher does something else than its Program.
        """
        with tempfile.TemporaryDirectory(prefix="dycl-verify-") as folder:
            weights = None if metadata["embedded_params"] else StandIns(program)
            module, library = _load(program, weights, compiler, objects, metadata, Path(folder))
            self._run(weights.program if weights is not None else program, module, library)
            module.unload()

    def _run(self, program: Program, module: Module, library: Library) -> None:
        watched = _Watched(program, library, self.seed)
        self.decisions_total = len(watched.open)
        idle = 0
        for call in range(self.calls):
            if call % 4 == 0:
                watched.machine.begin()
                module.reset_state()
            left = len(watched.open)
            watched.call(module)
            self.runs = call + 1
            idle = 0 if len(watched.open) < left else idle + 1
            if call >= 4 and (not watched.open or idle > _IDLE or watched.kernels > _ENOUGH):
                break
        self.decisions = self.decisions_total - len(watched.open)


def _load(
    program: Program, weights: StandIns | None, compiler: Compiler, objects: Sequence[Path], metadata: dict[str, Any], folder: Path
) -> tuple[Module, Library]:
    stub, out, params = folder / "stub.c", folder / "watched.so", folder / "watched.params"
    stub.write_text(_STUB + "".join(f"KERNEL({k}, {kernel.symbol})\n" for k, kernel in enumerate(program.kernels)))
    compiler.run(
        ["-x", "c", "-fPIC", "-O0", *toolchain.include_flags(), "-c", str(stub), "-o", str(stub.with_suffix(".o"))], "compile stubs"
    )
    inputs = [*map(str, objects), str(stub.with_suffix(".o"))]
    command = [*toolchain.LINK_FLAGS, *compiler.link_flags, "-o", str(out), *inputs, *toolchain.LINK_LIBRARIES]
    compiler.run(command, "link the dispatcher for its check")
    separate = weights is not None and bool(program.weights)
    if weights is not None and separate:
        weights.write(params, metadata["fingerprint"])
    library = open_library(str(out))
    # leaves only: structures are not the dispatcher's
    flat = {
        **metadata,
        "input_structure": _flat([t["type"] for t in metadata["inputs"]]),
        "sites": [{**site, "structure": _flat([t["type"] for t in site["types"]])} for site in metadata["sites"]],
    }
    return Module(Model(library, flat, ParamsPlace(params if separate else None)), num_threads=1), library


def _flat(types: Sequence[str]) -> dict[str, Any]:
    return {"tuple": [{"leaf": k, "type": t} for k, t in enumerate(types)]}


def _place(slot: Slot) -> tuple[str, int, int]:
    return slot.space, slot.index, slot.offset


def _questions(program: Program) -> Iterator[tuple[str, int, int]]:
    """Yield the places of what checks of elements read."""
    for block in program.blocks:
        checked = {i.args[0] for i in block.instrs if isinstance(i, HostInstr) and i.op == "check"}
        yield from (_place(i.src) for i in block.instrs if isinstance(i, ReadItem) and i.dst in checked)


class _Watched:
    """A Program in step with a dispatcher."""

    def __init__(self, program: Program, library: Library, seed: int) -> None:
        self.program, self.machine = program, Machine(program)
        self.choices, self.noise = random.Random(seed), torch.Generator().manual_seed(seed)
        self.open = {
            (b.end.decision, k)
            for b in program.blocks
            if isinstance(b.end, (CondGoto, SwitchGoto))
            for k in range(2 if isinstance(b.end, CondGoto) else len(b.end.targets))
        }
        ways = {float(k) for b in program.blocks if isinstance(b.end, SwitchGoto) for k in range(len(b.end.targets))}
        self.numbers = sorted(ways | {float(a) for b in program.blocks for i in b.instrs if isinstance(i, HostInstr) for a in _numbers(i)})
        self.questions = set(_questions(program))
        self.problem: Exception | None = None
        self.kernels = 0
        self._partly = False  # whether of some tensor the ends only were made up, so that nobody knows what lies between
        self.truth = 0.5
        self.steps: Iterator[KernelCall] = iter(())
        self.ahead: KernelCall | None = None
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        self._callback = kind(self._kernel)  # must live as long as the library
        library.dycl_verify_hook(self._callback)

    def call(self, module: Module) -> None:
        """Make one call of both."""
        self.truth = self.choices.choice((0.5, 0.5, 0.9, 0.1))  # of how many bools: loops of many trips are tried too
        inputs, given = self._inputs()
        self.problem, self.calls = None, 0
        self.steps = self.machine.call(inputs)
        try:
            self.ahead = next(self.steps, None)  # the Program goes first: what has no end there is not begun by the dispatcher
        except Endless:
            self.machine.begin()
            module.reset_state()
            return
        try:
            copies = {id(v): v.clone() for v in given if isinstance(v, torch.Tensor)}  # what is one tensor is one for the network
            got: tuple[str, Any] = ("returns", module(*(copies.get(id(v), v) for v in given)))
        except RunError as error:
            got = ("raises", error.kind)
        if isinstance(self.problem, (_Long, Endless)):
            self.machine.begin()
            module.reset_state()
            return
        if self.problem is not None:
            raise self.problem
        if self.ahead is not None:
            raise self._wrong("ends, where its program calls another kernel")
        taken = [(d.decision, int(d.choice)) for d in module.last_path.branches]
        if taken != self.machine.path[-len(taken) :] or (len(taken) != len(self.machine.path) and len(self.machine.path) <= 4096):
            raise self._wrong(f"took the decisions {taken[-8:]}, its program {self.machine.path[-8:]}")
        self.open -= set(self.machine.path)
        self._compare(got)

    def _compare(self, got: tuple[str, Any]) -> None:
        ended = self.machine.ended
        kind, error = ("raises", ended) if isinstance(ended, str) else ("returns", "")
        if got[0] != kind or (error and got[1] != error):
            raise self._wrong(f"{got[0]} {got[1] if got[0] == 'raises' else ''}, its program {kind} {error}")
        if not error:
            for k, (have, want) in enumerate(zip(got[1], self.machine.results, strict=True)):
                if not self._equal(have, want):
                    raise self._wrong(f"returns another result {k} than its program")

    def _kernel(self, kernel: int, args: int, count: int) -> int:
        """Stand for a kernel: compare its call with the Program's, and give both the same random results."""
        try:
            self.calls += 1
            self.kernels += 1
            if self.calls > _LONG:
                raise _Long
            instr = self.ahead
            if instr is None:
                raise self._wrong(f"calls {self.program.kernels[kernel].symbol}, where its program ends")
            if instr.kernel != kernel or count != len(instr.args):
                raise self._wrong(f"calls {self.program.kernels[kernel].symbol}, its program {self.program.kernels[instr.kernel].symbol}")
            given = ctypes.cast(args, ctypes.POINTER(_Argument))
            for k, slot in enumerate(instr.args):
                tensor = given[k].value.contents
                if tuple(tensor.shape[: tensor.ndim]) != slot.type.shape:
                    raise self._wrong(f"gives {self.program.kernels[kernel].symbol} an argument {k} of another shape")
                here = self.machine.memory.tensor(slot)
                if k < instr.inputs:
                    self._same(instr, k, tensor.data, here, slot)
                else:
                    self._fill(here, tensor.data, slot)
            self.ahead = next(self.steps, None)
        except Exception as error:  # it must not leave through C
            self.problem = error
            return -1
        return 0

    def _same(self, instr: KernelCall, k: int, address: int, here: torch.Tensor, slot: Slot) -> None:
        for start, size in _ends(slot.type.nbytes):
            have, want = ctypes.string_at(address + start, size), ctypes.string_at(here.data_ptr() + start, size)
            if have != want and any(h != w and w != POISON for h, w in zip(have, want)):
                call = f"{self.program.kernels[instr.kernel].symbol} (call {instr.number} of {instr.sub_dnn})"
                raise self._wrong(f"gives {call} other numbers in argument {k} ({slot.space}) than its program")

    def _fill(self, here: torch.Tensor, address: int, slot: Slot) -> None:
        """Give the Program and the dispatcher the same random numbers: all of a small tensor, of a large one those that are compared."""
        ends = _ends(slot.type.nbytes)
        if len(ends) == 1:
            here.copy_(self._invent(slot))
        else:
            self._partly = True
            flat, count = here.reshape(-1), _BYTES // here.element_size()
            some = random_tensor(TensorType((2 * count,), slot.type.dtype), self.noise)
            flat[:count], flat[-count:] = some[:count], some[count:]
        for start, size in ends:
            ctypes.memmove(address + start, here.data_ptr() + start, size)

    def _equal(self, have: Any, want: Any) -> bool:
        if not isinstance(want, torch.Tensor):
            return bool(have == want) or (have != have and want != want)
        if not isinstance(have, torch.Tensor):  # a network that is given no tensor returns arrays, bfloat16 as its bits
            have = torch.tensor(have)
            have = have.view(want.dtype) if want.dtype == torch.bfloat16 else have
        if have.shape != want.shape or have.dtype != want.dtype:
            return False
        bits = _raw(want)
        same = _raw(have) == bits
        return bool(same.all()) or (self._partly and bool((same | (bits == POISON)).all()))

    def _invent(self, slot: Slot) -> torch.Tensor:
        """Return random numbers; few together are likely to be read by the host, which compares them with its own."""
        drawn = random_tensor(slot.type, self.noise)
        if drawn.dtype == torch.bool:
            true = _FAILS if _place(slot) in self.questions else self.truth
            return torch.rand(slot.type.shape, generator=self.noise) < true
        if drawn.numel() <= 4 and self.numbers and drawn.dtype != torch.bool and self.choices.random() < 0.5:
            near = self.choices.choice(self.numbers) + self.choices.choice((0, 0, -1, 1, 1e-3, -1e-3))
            drawn = torch.full(slot.type.shape, near, dtype=torch.float64).to(drawn.dtype)
        return drawn

    def _inputs(self) -> tuple[list[Any], list[Any]]:
        """Return inputs of the Program, and what a caller gives for them: of buffers as much as the sizes say, and zeros behind it."""
        sizes = self.program.sizes
        inputs = [self._draw(home) for home in self.program.inputs[: len(self.program.input_names)]]
        given, numbers = list(inputs), draw_sizes(self.program, self.noise)
        for size, n in zip(sizes, numbers):
            for d in size.dims:
                given[d.input] = given[d.input].narrow(d.dim, 0, d.at(n)).contiguous()
        for k in {d.input for size in sizes for d in size.dims}:
            inputs[k] = padded(given[k], inputs[k].shape)
        for pair in self.program.input_pairs:
            if pair.kind == "one":
                inputs[pair.second], given[pair.second] = inputs[pair.first], given[pair.first]
        return [*inputs, *numbers], given

    def _draw(self, home: Slot | Reg) -> Any:
        if isinstance(home, Slot):
            return self._invent(home)
        return {"int": self.choices.randrange(4), "float": self.choices.gauss(0, 1), "bool": self.choices.random() < 0.5}[home.kind]

    def _wrong(self, what: str) -> VerificationError:
        return VerificationError(f"the generated dispatcher of {self.program.name} {what}; decisions on the way: {self.machine.path[-12:]}")


class _Long(Exception):
    """A loop that random numbers do not end."""


class _Argument(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.POINTER(capi.DLTensor)))


def _ends(size: int) -> tuple[tuple[int, int], ...]:
    """Return where the bytes of a tensor lie that are compared, as pairs of begin and size."""
    return ((0, size),) if size <= 2 * _BYTES else ((0, _BYTES), (size - _BYTES, _BYTES))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _numbers(instr: HostInstr) -> list[float]:
    return [float(a) for a in instr.args if isinstance(a, (int, float)) and not isinstance(a, bool) and abs(a) < 1e6]
