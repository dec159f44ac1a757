# Licensed under the Apache License, Version 2.0; see LICENSE.
"""The GPU code that a finished library really holds: read from its bytes, whatever was meant to be linked."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from dycl_tvm.codegen.cuda.architectures import number_of, ptx_version
from dycl_tvm.codegen.cuda.images import EM_CUDA, cubin_architecture
from dycl_tvm.compile.program import DeviceCode

_PTX = re.compile(rb"\.version\s+(\d+)\.(\d+)\s+\.target\s+sm_(\d+)([af]?)")
#: Words of CUDA C++ that neither machine code nor PTX has.
_SOURCE = (b"__global__", b"threadIdx", b"__launch_bounds__")


@dataclass(frozen=True)
class Cubin:
    """Machine code: 72 for sm_72, and the kernels that it has."""

    architecture: int
    kernels: frozenset[str]


@dataclass(frozen=True)
class Ptx:
    """PTX: its version, the least architecture, and the kernels that it has. ``specific`` where it runs on no later GPU (``sm_90a``)."""

    version: tuple[int, int]
    architecture: int
    specific: bool
    kernels: frozenset[str]


def embedded_cubins(data: bytes) -> list[Cubin]:
    """Return the cubins in a file, in order. One that is cut short has no kernels."""
    found = []
    at = data.find(b"\x7fELF\x02\x01")
    while at >= 0:
        if data[at + 18 : at + 20] == struct.pack("<H", EM_CUDA):
            image = data[at:]
            found.append(Cubin(cubin_architecture(image), _kernels_of(image)))
        at = data.find(b"\x7fELF\x02\x01", at + 1)
    return found


def embedded_ptx(data: bytes) -> list[Ptx]:
    """Return the PTX modules in a file, in order; a zero byte ends each."""
    found = []
    for match in _PTX.finditer(data):
        text = data[match.start() : data.find(b"\0", match.end()) % (len(data) + 1)]
        kernels = frozenset(name.decode() for name in re.findall(rb"\.entry\s+([\w$]+)", text))
        found.append(Ptx((int(match[1]), int(match[2])), int(match[3]), bool(match[4]), kernels))
    return found


def image_faults(data: bytes, device: DeviceCode) -> list[str]:
    """Return what is wrong with the GPU code in a finished library.

    Parameters
    ----------
    data : bytes
        The library.
    device : DeviceCode
        What it was made of: the architecture, and the kernels that are launched.
    """
    number, bound = number_of(device.arch), ptx_version(number_of(device.arch))
    launched = {launch.function for of_kernel in device.launches for launch in of_kernel if not launch.library}
    cubins, modules, wrong = embedded_cubins(data), embedded_ptx(data), []
    for cubin in cubins:
        if cubin.architecture != number:
            wrong.append(f"it holds machine code for sm_{cubin.architecture}, the target is {device.arch}")
    for ptx in modules:
        if ptx.architecture > number or ptx.specific:
            wrong.append(f"it holds PTX for sm_{ptx.architecture}{' alone' if ptx.specific else ''}, the target is {device.arch}")
        if ptx.version > bound:
            wrong.append(f"it holds PTX {_dotted(ptx.version)}, but drivers of {device.arch} may take no more than {_dotted(bound)}")
    if not cubins:
        wrong.append(f"it holds no machine code for {device.arch}")
    for what, images in (("machine code", cubins), ("PTX", modules)):
        missing = sorted(launched.difference(*(image.kernels for image in images)))
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            wrong.append(f"its {what} lacks the kernels {', '.join(missing[:3])}{more}")
    if any(word in data for word in _SOURCE):
        wrong.append("it holds CUDA source, which a board could not compile")
    return wrong


def _kernels_of(image: bytes) -> frozenset[str]:
    """Return the kernels of a cubin: each has a section ``.text.NAME``."""
    try:
        (start,) = struct.unpack_from("<Q", image, 40)
        size, count, names = struct.unpack_from("<HHH", image, 58)
        rows = [struct.unpack_from("<IIQQQQ", image, start + k * size) for k in range(count)]
        table = image[rows[names][4] : rows[names][4] + rows[names][5]]
        texts = [table[row[0] : table.index(b"\0", row[0])].decode() for row in rows]
    except (struct.error, IndexError, ValueError):
        return frozenset()
    return frozenset(text[len(".text.") :] for text in texts if text.startswith(".text."))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
