# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Kernels of a GPU: PrimFuncs become device functions (as CUDA C++ for the builder) and constant launches of them.

All shapes are static, so nothing of a kernel's host part is code: what remains of it is a list of launches whose grids are numbers,
or follow from sizes of the call, and whose arguments are tensors of the call or places in a workspace.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import split_host_device_mods

from dycl_tvm.backends import tir_cuda
from dycl_tvm.backends.front import FRONT, SIZES, has_front, same_front
from dycl_tvm.backends.lowering_passes import lowering
from dycl_tvm.backends.tir_cuda.grid import AXES, grids_of
from dycl_tvm.compile.program import DeviceCode, GridSize, Kernel, Launch, Workspace
from dycl_tvm.compile.reducers import register_reducers
from dycl_tvm.errors import CompileError

Progress = Callable[[str, int, int], None]

#: What every GPU from sm_50 on has, without asking the driver for more.
MAX_THREADS = 1024
MAX_SHARED_BYTES = 48 * 1024
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_ALIGN = 256


class _Unfit(Exception):
    """A schedule that cannot be launched."""


@dataclass(frozen=True)
class DeviceKernel:
    """A kernel: its launches in order, the bytes that they need beside their tensors, the functions, and the rule of its schedule."""

    launches: tuple[Launch, ...]
    workspace_bytes: int
    functions: dict[Any, Any]
    rule: str


def is_device(target: tvm.target.Target) -> bool:
    """Whether kernels for this target run on a device."""
    return str(target.kind.name) == "cuda"


def build_device_code(
    kernels: list[Kernel],
    functions: dict[str, Any],
    target: tvm.target.Target,
    progress: Progress | None = None,
    half: bool = False,
    libraries: Mapping[str, int] | None = None,
) -> tuple[DeviceCode, dict[str, str]]:
    """Schedule the kernels of a program for a GPU.

    Parameters
    ----------
    kernels : list of Kernel
        Of the program, in its order.
    functions : dict
        Symbol to unscheduled PrimFunc.
    target : tvm.target.Target
        Of kind ``cuda``.
    half : bool
        Whether factors of products may be rounded to float16.
    libraries : mapping, optional
        Symbols of kernels that backends compute on the device, to the number of their tensors.

    Returns
    -------
    DeviceCode
    dict
        Symbol to the name of the rule that scheduled it.

    Raises
    ------
    CompileError
        If no schedule of a kernel compiles.
    """
    register_reducers()
    launches: list[tuple[Launch, ...]] = []
    rules: dict[str, str] = {}
    workspace = 0
    device_functions: dict[Any, Any] = {}
    for done, kernel in enumerate(kernels):
        if progress is not None:
            progress("kernels", done, len(kernels))
        if libraries and kernel.symbol in libraries:
            call = Launch(f"dycl_device_{kernel.symbol}", (1, 1, 1), (1, 1, 1), 0, tuple(range(libraries[kernel.symbol])), library=True)
            launches.append((call,))
            rules[kernel.symbol] = kernel.backend
            continue
        if kernel.backend != "tvm":
            raise CompileError(f"the backend {kernel.backend} makes code for CPUs; it cannot compute {kernel.symbol} on {target.kind.name}")
        built = _build(kernel.symbol, functions[kernel.symbol], target, half)
        launches.append(built.launches)
        rules[kernel.symbol] = built.rule
        workspace = max(workspace, built.workspace_bytes)
        device_functions.update(built.functions)
    source = _source(device_functions, target) if device_functions else ""
    return DeviceCode(str(target.kind.name), str(target.attrs["arch"]), tuple(launches), workspace, source), rules


def _build(symbol: str, fn: Any, target: tvm.target.Target, half: bool) -> DeviceKernel:
    """Take the first schedule that TVM lowers and every GPU can launch."""
    reasons = []
    fn, whole = _without_front(fn), fn
    for candidate in tir_cuda.candidates(fn, target, half):
        try:
            return _lower(symbol, candidate.rule, same_front(candidate.function, whole), target)
        except Exception as error:  # TVM raises what it likes
            reasons.append(f"{candidate.rule}: {str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__}")
    raise CompileError(f"the kernel {symbol} has no schedule for {target.attrs['arch']}: {'; '.join(reasons) or 'no rule takes it'}")


def _without_front(fn: Any) -> Any:
    """Return a function as rules of schedules look at it: what is wanted of its output changes none."""
    return fn.without_attr(FRONT).without_attr(SIZES) if has_front(fn) else fn


def _lower(symbol: str, rule: str, fn: Any, target: tvm.target.Target) -> DeviceKernel:
    module = tvm.IRModule({symbol: fn.with_attr("global_symbol", symbol)})
    pipeline, finalize = lowering()
    with target, tvm.transform.PassContext(opt_level=3):
        module = pipeline(tirx.transform.BindTarget(target)(module))
        host, devices = split_host_device_mods(module)
        functions = {gv: fn for device in devices.values() for gv, fn in finalize()(device).functions_items()}
    hosts = [fn for _, fn in host.functions_items()]
    if len(hosts) != 1 or not functions:
        raise _Unfit("it does not launch anything")
    reader = _HostReader(hosts[0])
    shared = {str(fn.attrs["global_symbol"]): _shared_bytes(fn) for fn in functions.values()}
    for launch in reader.launches:
        _check_launch(launch, shared[launch.function])
    launches = [replace(launch, sizes=sizes) for launch, sizes in zip(reader.launches, _sizes_of_grids(hosts[0], reader.launches))]
    return DeviceKernel(tuple(launches), reader.workspace_bytes, functions, rule)


def _sizes_of_grids(host: Any, launches: Sequence[Launch]) -> list[tuple[GridSize, ...]]:
    """Return for each launch what decides its grid; nothing where the launches are not those that were looked at."""
    found = grids_of(host)
    same = len(found) == len(launches) and all(launch.grid[a] == most for of, launch in zip(found, launches) for a, most, *_ in of)
    if not same:
        return [()] * len(launches)
    return [tuple(GridSize(axis, size, steps) for axis, _, size, steps in of) for of in found]


class _HostReader:
    """Reads the launches out of the host part of a lowered kernel."""

    def __init__(self, fn: Any) -> None:
        self.launches: list[Launch] = []
        self.workspace_bytes = 0
        self._handles: dict[Any, int] = {}  # variable that holds the k-th argument, to k
        self._buffers: dict[Any, int | Workspace] = {}  # buffer to the place of its data
        nodes = [
            (tirx.Bind, self._bind), (tirx.DeclBuffer, self._decl), (tirx.AllocBuffer, self._alloc), (tvm.ir.Call, self._call),
            (tirx.For, self._loop), (tirx.While, self._loop),
        ]  # fmt: skip
        tvm_ffi.structural_walk(fn.body, nodes, order="pre")

    def _loop(self, _: Any) -> None:
        raise _Unfit("its host part has a loop")

    def _bind(self, stmt: Any) -> None:
        number = _argument(stmt.value)
        if number is not None:
            self._handles[stmt.var] = number

    def _decl(self, stmt: Any) -> None:
        source = _data_of(stmt.data)
        if source is not None and source in self._buffers:
            self._buffers[stmt.buffer] = self._buffers[source]
            return
        handle = _handle_of(stmt.data)
        if handle in self._handles:
            self._buffers[stmt.buffer] = self._handles[handle]

    def _alloc(self, stmt: Any) -> None:
        buffer = stmt.buffer
        elements = 1
        for extent in buffer.shape:
            elements *= int(extent)
        self._buffers[buffer] = Workspace(self.workspace_bytes)
        nbytes = elements * tvm_ffi.dtype(str(buffer.dtype)).itemsize
        self.workspace_bytes += -(-nbytes // _ALIGN) * _ALIGN

    def _call(self, call: Any) -> None:
        if getattr(call.op, "name", "") != "tirx.call_ffi_kernel":
            return
        name, *rest = call.args
        tags = [str(t) for t in call.attrs.launch_params]
        arguments, extents = rest[: len(rest) - len(tags)], rest[len(rest) - len(tags) :]
        grid, block, dynamic = [1, 1, 1], [1, 1, 1], 0
        for tag, extent in zip(tags, extents):
            if not isinstance(extent, tirx.IntImm):
                raise _Unfit(f"the extent of {tag} is not a number")
            if tag == "tirx.use_dyn_shared_memory":
                dynamic = int(extent)
                continue
            kind, _, axis = tag.partition(".")
            if kind not in ("blockIdx", "threadIdx") or axis not in AXES:
                raise _Unfit(f"it needs the launch parameter {tag}")
            (grid if kind == "blockIdx" else block)[AXES[axis]] = int(extent)
        places: list[int | Workspace] = []
        for argument in arguments:
            buffer = _data_of(argument)
            if buffer is None or buffer not in self._buffers:
                raise _Unfit("it has an argument that is not a tensor")
            places.append(self._buffers[buffer])
        self.launches.append(Launch(str(name.value), (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), dynamic, tuple(places)))


def _argument(value: Any) -> int | None:
    """Return k where an expression reads the k-th argument of the packed function as a handle."""
    found: list[int] = []

    def visit(call: Any) -> None:
        # field 15 is the pointer of an argument (kTVMFFIAny's v_ptr)
        if getattr(call.op, "name", "") == "tirx.tvm_struct_get" and int(call.args[2]) == 15:
            found.append(int(call.args[1]))

    tvm_ffi.structural_walk(value, [(tvm.ir.Call, visit)], order="pre")
    return found[0] if found and len(set(found)) == 1 else None


def _data_of(expr: Any) -> Any:
    """Return the buffer of ``buffer.data``."""
    if isinstance(expr, tvm.ir.Call) and len(expr.args) == 1 and isinstance(expr.args[0], tirx.Buffer):
        return expr.args[0]
    return None


def _handle_of(expr: Any) -> Any:
    """Return the variable of ``reinterpret(tvm_struct_get(variable, 0, kArrData))``."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.tvm_struct_get" and int(call.args[2]) == 1:
            found.append(call.args[0])

    tvm_ffi.structural_walk(expr, [(tvm.ir.Call, visit)], order="pre")
    return found[0] if len(found) == 1 else None


def _shared_bytes(fn: Any) -> int:
    """Return the bytes of static shared memory of a device function."""
    total = 0

    def visit(stmt: Any) -> None:
        nonlocal total
        if str(stmt.buffer.scope()) == "shared":
            elements = 1
            for extent in stmt.buffer.shape:
                elements *= int(extent)
            total += elements * tvm_ffi.dtype(str(stmt.buffer.dtype)).itemsize

    tvm_ffi.structural_walk(fn.body, [(tirx.AllocBuffer, visit)], order="pre")
    return total


def _check_launch(launch: Launch, static_shared: int) -> None:
    if any(n > most for n, most in zip(launch.grid, _MAX_GRID)):
        raise _Unfit(f"a grid of {launch.grid} is too large")
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if threads > MAX_THREADS or any(n > most for n, most in zip(launch.block, _MAX_BLOCK)):
        raise _Unfit(f"a block of {launch.block} threads is too large")
    if launch.shared_bytes + static_shared > MAX_SHARED_BYTES:
        raise _Unfit(f"{launch.shared_bytes + static_shared} bytes of shared memory are too many")


def _source(functions: dict[Any, Any], target: tvm.target.Target) -> str:
    """Return the CUDA C++ of device functions, as TVM prints it."""
    functions = {gv: fn.with_body(tvm_ffi.structural_map(fn.body, (tirx.FloatImm, _in_full))) for gv, fn in functions.items()}
    generate = tvm.get_global_func("target.build.cuda")
    with target, tvm.transform.PassContext(opt_level=3):
        return str(generate(tvm.IRModule(functions), target).inspect_source())


def _in_full(number: Any) -> Any:
    """Return a constant as TVM prints it in full: of a double it prints 15 digits after the point."""
    value, dtype = float(number.value), str(number.ty.dtype)
    if dtype != "float64" or not math.isfinite(value) or float(f"{value:.15f}") == value:
        return number
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return tirx.call_pure_extern("float64", "__longlong_as_double", tirx.const(bits, "int64"))
