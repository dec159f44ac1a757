# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The lowered form of an HCFG: flat instruction lists over one planned arena. Codegen prints it as C++.

Everything is a number here: slots are places in memory, registers are host scalars, blocks are indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from dycl_tvm.hcfg.nodes import InputPair, Origin
from dycl_tvm.hcfg.sizes import InputSize, Span
from dycl_tvm.hcfg.types import ScalarKind, TensorType, Type

Space = Literal["arena", "input", "weight", "state"]


@dataclass(frozen=True)
class Slot:
    """A tensor at a fixed place.

    ``space`` ``arena``: ``offset`` bytes into the session's arena (64-byte aligned). ``input``, ``weight``, ``state``:
    the ``index``-th tensor of that space, ``offset`` is 0.

    In the arena ``index`` is the home, 0 for most. Slots of another home begin at one place, may count on it that they are the same bytes,
    and on nothing else that lies there: what is of no home or of another one only shares the place, at another time.
    """

    type: TensorType
    space: Space
    index: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Reg:
    """A host scalar register: an int64, a double or a bool."""

    index: int
    kind: ScalarKind


Scalar = Union[Reg, int, float, bool]


@dataclass(frozen=True)
class Kernel:
    """A compiled function ``__tvm_ffi_<symbol>`` with the TVMFFISafeCallType ABI; all arguments are ``DLTensor*``."""

    symbol: str
    backend: str


@dataclass(frozen=True)
class KernelCall:
    """Run a kernel; ``inputs`` of its arguments come first, the outputs last. ``number`` counts the calls of the program from 0.

    ``lines`` are the user's lines whose operations the call of the sub-DNN computes.
    """

    number: int
    kernel: int
    args: tuple[Slot, ...]
    sub_dnn: str
    inputs: int = 0
    lines: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class HostInstr:
    """``dst = op(args)``; the operations of :class:`dycl_tvm.hcfg.nodes.HostOp` less ``item`` and ``to_tensor``.

    ``text`` is the template of ``print``, the name of a clock or the error of a check.
    """

    op: str
    dst: Reg
    args: tuple[Scalar, ...]
    origin: Origin | None = None
    text: str | None = None


@dataclass(frozen=True)
class SetReg:
    """``dst = src`` (same kind)."""

    dst: Reg
    src: Scalar


@dataclass(frozen=True)
class ReadItem:
    """Read the one element of a tensor into a register."""

    dst: Reg
    src: Slot


@dataclass(frozen=True)
class WriteItem:
    """Write a scalar into a tensor of one element, converted to its dtype."""

    dst: Slot
    src: Scalar


@dataclass(frozen=True)
class CopyTensor:
    """Copy a tensor (same dtype and size; source and destination never overlap in part)."""

    dst: Slot
    src: Slot


@dataclass(frozen=True)
class Push:
    """Put a scalar or a tensor on the stack of recursive functions, which is empty when a call begins."""

    src: Union[Slot, Scalar]


@dataclass(frozen=True)
class Pop:
    """Take what was pushed last from the stack; it is of this type."""

    dst: Union[Slot, Reg]


Instr = Union[KernelCall, HostInstr, SetReg, ReadItem, WriteItem, CopyTensor, Push, Pop]


def slots_of(instr: Instr) -> tuple[Slot, ...]:
    """Return the tensors that an instruction reads or writes."""
    if isinstance(instr, KernelCall):
        return instr.args
    if isinstance(instr, ReadItem):
        return (instr.src,)
    if isinstance(instr, WriteItem):
        return (instr.dst,)
    if isinstance(instr, (Push, Pop)):
        at = instr.src if isinstance(instr, Push) else instr.dst
        return (at,) if isinstance(at, Slot) else ()
    return (instr.src, instr.dst) if isinstance(instr, CopyTensor) else ()


@dataclass(frozen=True)
class Goto:
    """Go to a block after ``moves`` (already in an order in which no move overwrites what a later one reads)."""

    target: int
    moves: tuple[Instr, ...] = ()


@dataclass(frozen=True)
class CondGoto:
    """Two-way branch; ``decision`` numbers the branches and switches of the program from 0."""

    decision: int
    cond: Scalar
    then: Goto
    orelse: Goto
    origin: Origin | None = None


@dataclass(frozen=True)
class SwitchGoto:
    """Multi-way branch; an index outside of ``targets`` is a run-time IndexError."""

    decision: int
    index: Scalar
    targets: tuple[Goto, ...]
    origin: Origin | None = None


@dataclass(frozen=True)
class Leave:
    """Return: ``moves`` store the state, then ``values`` are read: the leaves of return site ``site``."""

    site: int
    values: tuple[Union[Slot, Scalar], ...]
    moves: tuple[Instr, ...] = ()


@dataclass(frozen=True)
class Fail:
    """End in a run-time error of an exception type and message."""

    kind: str
    message: str
    origin: Origin | None = None


@dataclass
class CodeBlock:
    """Straight-line code.

    ``name`` and ``origin`` are for the reader of the generated source; ``trips`` is how often the loop that begins here comes back at
    most each time it is reached, where that is known.
    """

    name: str
    instrs: list[Instr]
    end: Union[Goto, CondGoto, SwitchGoto, Leave, Fail]
    origin: Origin | None = None
    trips: int | None = None

    def gotos(self) -> tuple[Goto, ...]:
        """Return the edges out of the block, in order; of a branch, that of a true condition first."""
        if isinstance(self.end, Goto):
            return (self.end,)
        if isinstance(self.end, CondGoto):
            return (self.end.then, self.end.orelse)
        return self.end.targets if isinstance(self.end, SwitchGoto) else ()

    def all_instrs(self) -> Iterator[Instr]:
        """Yield the instructions of the block, then the moves of its edges or of its return."""
        yield from self.instrs
        for edge in self.gotos():
            yield from edge.moves
        if isinstance(self.end, Leave):
            yield from self.end.moves


@dataclass
class Site:
    """A return site: output structure (JSON form) and the types of its leaves, in order."""

    structure: Any
    types: list[Type]
    origin: Origin | None = None


@dataclass
class Weight:
    """A tensor of the params file. ``data``: contiguous CPU ``torch.Tensor``."""

    name: str
    type: TensorType
    data: Any


@dataclass
class StateHome:
    """Where a state variable lives between calls, and what it begins with.

    ``home`` is a Slot of space ``state`` or a Reg that keeps its value; ``initial`` a weight's index or a number.
    """

    name: str
    home: Union[Slot, Reg]
    initial: Union[int, float, bool]


@dataclass(frozen=True)
class Workspace:
    """A place in the memory that the launches of one kernel share, ``offset`` bytes from its beginning."""

    offset: int


@dataclass(frozen=True)
class GridSize:
    """How many blocks a launch has along an axis (0 for x), where a size of the call decides.

    The size goes through ``steps`` (multiply, add, divide), each of which rounds up; the launch has that many blocks, at most those of
    its grid, and none if they are not positive.
    """

    axis: int
    size: int
    steps: tuple[tuple[int, int, int], ...]

    def at(self, size: int, most: int) -> int:
        """Return the number of blocks of a grid of ``most``."""
        for multiply, add, divide in self.steps:
            size = -(-(size * multiply + add) // divide)
        return min(max(size, 0), most)


@dataclass(frozen=True)
class Launch:
    """A launch of a device function: constant but for the addresses of the tensors, and for what ``sizes`` say of its grid.

    ``shared_bytes`` is the dynamic shared memory. An argument is the number of a tensor of the call, or a place in the workspace.
    With ``library`` the function is one of the host that lets a library put its work on the stream.
    """

    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[Union[int, Workspace], ...]
    library: bool = False
    sizes: tuple[GridSize, ...] = ()


#: What a device does without the host.
DeviceStep = Union[KernelCall, CopyTensor]


@dataclass(frozen=True)
class DeviceBranch:
    """A branch on an item that the device itself can take: its sides are work for the device and meet again.

    Attributes
    ----------
    decision : int
        Its number.
    item : Slot
        A bool (two sides: what is done where it is false, then where it is true) or the number of a side.
    sides : tuple
        What each side does, with the moves of its edges.
    negated : bool
        Whether the condition is that the bool is false.
    """

    decision: int
    item: Slot
    sides: tuple[tuple[DeviceStep, ...], ...]
    negated: bool = False


@dataclass(frozen=True)
class Segment:
    """A stretch of the program that needs nothing of the host: from an instruction of one block to the beginning of another.

    Attributes
    ----------
    block, start : int
        It begins at that instruction of that block, and replaces what follows there.
    steps : tuple
        What is done, in order.
    end : int
        The block at which the program goes on.
    """

    block: int
    start: int
    steps: tuple[Union[DeviceStep, DeviceBranch], ...]
    end: int


@dataclass(frozen=True)
class DeviceCode:
    """What a program needs whose tensors live on a device: all its slots are then addresses there.

    Attributes
    ----------
    kind, arch : str
        ``cuda`` and the architecture, such as ``sm_72``.
    launches : tuple
        For each kernel of the program its launches in order.
    workspace_bytes : int
        The largest workspace of a kernel; no two kernels run at once.
    source : str
        The device functions as the builder's compiler takes them. It is no part of an artefact.
    segments : tuple of Segment
        Where branches can be taken on the device; the blocks do the same with branches on the host.
    """

    kind: str
    arch: str
    launches: tuple[tuple[Launch, ...], ...]
    workspace_bytes: int
    source: str
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Need:
    """What a session needs all of whose calls have sizes of at most these.

    Attributes
    ----------
    most : tuple of int
        For each of ``Program.sizes``.
    arena : int
        Bytes of the arena.
    """

    most: tuple[int, ...]
    arena: int


@dataclass
class Program:
    """A whole lowered network. Block 0 is the entry. ``device`` is None where all runs on the CPU. ``amx``: LLVM's names
    of the features whose tiles kernels use.

    ``certificate`` is what the build has proved about itself, a plain dict. ``input_pairs``, ``left_out``, ``sizes`` and
    ``special_sizes`` are those of the HCFG; the homes of the sizes are the last of ``inputs``. ``needs``: of sessions for smaller sizes.
    """

    name: str
    input_structure: Any
    input_names: list[str]
    inputs: list[Union[Slot, Reg]]
    blocks: list[CodeBlock]
    sites: list[Site]
    kernels: list[Kernel]
    weights: list[Weight]
    regs: list[ScalarKind]
    arena_bytes: int
    state: list[StateHome] = field(default_factory=list)
    device: DeviceCode | None = None
    amx: tuple[str, ...] = ()
    certificate: dict[str, Any] = field(default_factory=dict)
    input_pairs: list[InputPair] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    sizes: list[InputSize] = field(default_factory=list)
    special_sizes: list[dict[str, Span]] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    #: Whether libraries are to hold the lines of the user's source by their numbers only.
    strip_source: bool = False
    #: What the library tells of itself in its user's words.
    user_metadata: dict[str, str] = field(default_factory=dict)

    @property
    def entry_names(self) -> list[str]:
        """The names of ``inputs``: those that the caller gives, and then the sizes."""
        return [*self.input_names, *(size.name for size in self.sizes)]

    def calls(self) -> list[KernelCall]:
        """Return the kernel calls in the order of their numbers."""
        found = [i for b in self.blocks for i in b.instrs if isinstance(i, KernelCall)]
        return sorted(found, key=lambda c: c.number)


@dataclass(frozen=True)
class KernelLibrary:
    """What the linker gets: objects of the kernels, and C/C++ sources of external backends.

    ``objects`` and ``sources`` are pairs (file name, contents).
    """

    objects: tuple[tuple[str, bytes], ...]
    sources: tuple[tuple[str, str], ...] = ()
    link_flags: tuple[str, ...] = ()
