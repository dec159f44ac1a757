# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The static tables of a program's device code: launches, their arguments, and where the images are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dycl_tvm.codegen.cuda.architectures import number_of, ptx_version
from dycl_tvm.codegen.text import string, table, table_ref
from dycl_tvm.compile.program import (
    CopyTensor,
    DeviceBranch,
    DeviceCode,
    DeviceStep,
    KernelCall,
    Leave,
    Program,
    Segment,
    Slot,
    Workspace,
)

_ALIGN = 64


def device_tables(program: Program, code: DeviceCode, tensor: Callable[[Slot], int]) -> str:
    """Return the tables as C++, with ``kDevice`` as the last; ``tensor`` gives the row of a slot."""
    number = number_of(code.arch)
    ptx = ptx_version(number)
    launches: list[str] = []
    args: list[str] = []
    kernels: list[str] = []
    grids: list[str] = []
    steps: list[str] = []
    for symbol, of_kernel in zip((k.symbol for k in program.kernels), code.launches):
        kernels.append(f"{{{len(launches)}, {len(of_kernel)}}},  // {symbol}")
        for launch in of_kernel:
            row = (
                f"{{{string(launch.function)}, {_triple(launch.grid)}, {_triple(launch.block)}, {launch.shared_bytes}, "
                f"{len(args)}, {len(launch.args)}, {len(grids)}, {len(launch.sizes)}, "
                f"{f'::{launch.function}' if launch.library else 'nullptr'}}},"
            )
            for of_axis in launch.sizes:
                grids.append(f"{{{of_axis.axis}, {of_axis.size}, {len(steps)}, {len(of_axis.steps)}}},")
                steps += [f"{{{multiply}, {add}, {divide}}}," for multiply, add, divide in of_axis.steps]
            launches.append(row)
            args += [f"{{kNone, {a.offset}}}," if isinstance(a, Workspace) else f"{{{a}, 0}}," for a in launch.args]
    segments = _Segments(code.segments, tensor)
    parts = [
        table("LaunchDesc", "kLaunches", launches),
        table("LaunchArg", "kLaunchArgs", args),
        table("GridSize", "kGridSizes", grids),
        table("GridStep", "kGridSteps", steps),
        table("KernelLaunches", "kKernelLaunches", kernels),
        *(table(type_, name, rows) for name, (type_, rows) in segments.tables.items()),
        "const DeviceDesc kDevice = {\n"
        f"    {string(code.kind)}, {string(code.arch)}, {number}, {string(f'{ptx[0]}.{ptx[1]}')},\n"
        f"    {code.workspace_bytes},  // bytes of the workspace\n"
        f"    {_output_bytes(program)},  // most bytes of the outputs of a return site\n"
        f"    {table_ref('kLaunches', len(launches))},\n    {table_ref('kLaunchArgs', len(args))},\n"
        f"    {table_ref('kGridSizes', len(grids))},\n    {table_ref('kGridSteps', len(steps))},\n"
        f"    {table_ref('kKernelLaunches', len(kernels))},\n"
        + "".join(f"    {table_ref(name, len(rows))},\n" for name, (_, rows) in segments.tables.items())
        + "    DyclCubin,\n    DyclPtx,\n    OpenCuda,\n};\n",
    ]
    return "\n".join(part for part in parts if part)


class _Segments:
    """The tables of the stretches whose branches the device takes."""

    def __init__(self, segments: Sequence[Segment], tensor: Callable[[Slot], int]) -> None:
        self._tensor = tensor
        self._steps: list[str] = []
        self._sides: list[str] = []
        self._branches: list[str] = []
        # What the sides do comes first: the steps of a segment must follow each other.
        numbers = {id(s): self._branch(s) for segment in segments for s in segment.steps if isinstance(s, DeviceBranch)}
        self.tables = {
            "kSteps": ("StepDesc", self._steps),
            "kSides": ("StepRange", self._sides),
            "kBranches": ("DeviceBranchDesc", self._branches),
            "kSegments": ("StepRange", [f"{self._range(segment.steps, numbers)},  // {k}" for k, segment in enumerate(segments)]),
        }

    def _branch(self, branch: DeviceBranch) -> int:
        ranges = [self._range(side, {}) for side in branch.sides]
        row = f"{{{branch.decision}, {self._tensor(branch.item)}, {len(self._sides)}, {len(ranges)}, {int(branch.negated)}}},"
        self._sides += [f"{text},  // decision {branch.decision}, {k}" for k, text in enumerate(ranges)]
        self._branches.append(row)
        return len(self._branches) - 1

    def _range(self, steps: Sequence[DeviceStep | DeviceBranch], numbers: dict[int, int]) -> str:
        """Append the steps; calls that follow each other are one."""
        first = len(self._steps)
        at = 0
        while at < len(steps):
            step, end = steps[at], at + 1
            if isinstance(step, DeviceBranch):
                self._steps.append(f"{{StepKind::kBranch, {numbers[id(step)]}, 0, 0}},")
            elif isinstance(step, CopyTensor):
                row = f"{self._tensor(step.dst)}, {self._tensor(step.src)}, {step.src.type.nbytes}"
                self._steps.append(f"{{StepKind::kCopy, {row}}},")
            else:
                while end < len(steps) and isinstance(later := steps[end], KernelCall) and later.number == step.number + end - at:
                    end += 1
                self._steps.append(f"{{StepKind::kCalls, {step.number}, {end - at}, 0}},")
            at = end
        return f"{{{first}, {len(self._steps) - first}}}"


def library_declarations(code: DeviceCode) -> str:
    """Return the declarations of the functions that let libraries do their work."""
    names = dict.fromkeys(launch.function for launches in code.launches for launch in launches if launch.library)
    return "".join(f"int32_t {name}(const dycl::LibraryCall& call);\n" for name in names)


#: Declared outside of the namespace: the images are symbols of an assembly file.
IMAGE_DECLARATIONS = 'extern "C" __attribute__((visibility("hidden"))) const unsigned char DyclCubin[], DyclPtx[];\n'


def _triple(values: tuple[int, int, int]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _output_bytes(program: Program) -> int:
    """Return the bytes of the tensors of the largest return site, each aligned."""
    ends = [b.end for b in program.blocks if isinstance(b.end, Leave)]
    return max((sum(-(-v.type.nbytes // _ALIGN) * _ALIGN for v in end.values if isinstance(v, Slot)) for end in ends), default=0)
