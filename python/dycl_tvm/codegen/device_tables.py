# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The static tables of a program's device code: launches, their arguments, and where the images are."""

from __future__ import annotations

from dycl_tvm.codegen.cuda.architectures import number_of, ptx_version
from dycl_tvm.codegen.text import string, table, table_ref
from dycl_tvm.compile.program import DeviceCode, Leave, Program, Slot, Workspace

_ALIGN = 64


def device_tables(program: Program, code: DeviceCode) -> str:
    """Return the tables as C++, with ``kDevice`` as the last."""
    number = number_of(code.arch)
    ptx = ptx_version(number)
    launches: list[str] = []
    args: list[str] = []
    kernels: list[str] = []
    for symbol, of_kernel in zip((k.symbol for k in program.kernels), code.launches):
        kernels.append(f"{{{len(launches)}, {len(of_kernel)}}},  // {symbol}")
        for launch in of_kernel:
            row = (
                f"{{{string(launch.function)}, {_triple(launch.grid)}, {_triple(launch.block)}, {launch.shared_bytes}, "
                f"{len(args)}, {len(launch.args)}}},"
            )
            launches.append(row)
            args += [f"{{kNone, {a.offset}}}," if isinstance(a, Workspace) else f"{{{a}, 0}}," for a in launch.args]
    parts = [
        table("LaunchDesc", "kLaunches", launches),
        table("LaunchArg", "kLaunchArgs", args),
        table("KernelLaunches", "kKernelLaunches", kernels),
        "const DeviceDesc kDevice = {\n"
        f"    {string(code.kind)}, {string(code.arch)}, {number}, {string(f'{ptx[0]}.{ptx[1]}')},\n"
        f"    {code.workspace_bytes},  // bytes of the workspace\n"
        f"    {_output_bytes(program)},  // most bytes of the outputs of a return site\n"
        f"    {table_ref('kLaunches', len(launches))},\n    {table_ref('kLaunchArgs', len(args))},\n"
        f"    {table_ref('kKernelLaunches', len(kernels))},\n"
        "    DyclCubin,\n    DyclPtx,\n    OpenCuda,\n};\n",
    ]
    return "\n".join(part for part in parts if part)


#: Declared outside of the namespace: the images are symbols of an assembly file.
IMAGE_DECLARATIONS = 'extern "C" __attribute__((visibility("hidden"))) const unsigned char DyclCubin[], DyclPtx[];\n'


def _triple(values: tuple[int, int, int]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"


def _output_bytes(program: Program) -> int:
    """Return the bytes of the tensors of the largest return site, each aligned."""
    ends = [b.end for b in program.blocks if isinstance(b.end, Leave)]
    return max((sum(-(-v.type.nbytes // _ALIGN) * _ALIGN for v in end.values if isinstance(v, Slot)) for end in ends), default=0)
