# Licensed under the Apache License, Version 2.0; see LICENSE.
"""CUDA C++ as TVM prints it, made fit for a compiler without any header."""

from __future__ import annotations

import re

from dycl_tvm.codegen.cuda import draws, half, int8
from dycl_tvm.errors import CompileError

#: What TVM's text takes from <cstdint>, <type_traits> and <math_constants.h>.
_PROLOGUE = """\
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000ll)
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short
"""
_SHUFFLES = """\
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 700)
#define __shfl_sync(mask, var, lane, width) __shfl((var), (lane), (width))
#define __shfl_down_sync(mask, var, offset, width) __shfl_down((var), (offset), (width))
#define __shfl_up_sync(mask, var, offset, width) __shfl_up((var), (offset), (width))
#endif
"""


_REPLACED = ("cuda/std/cstdint", "cuda/std/type_traits", "cstdint", "type_traits", "cuda.h", "math_constants.h", "cuda_fp16.h")


def kernels_of(source: str) -> str:
    """Return the device functions of TVM's text, without what TVM puts before them.

    Raises
    ------
    CompileError
        If the kernels need a header that only a toolkit has.
    """
    if not source:  # a network without tensor operations
        return ""
    first = source.find('extern "C" __global__')
    if first < 0:
        raise CompileError("internal: TVM printed no device function")
    for header in re.findall(r'#include\s*[<"]([^>"]+)[>"]', source[:first]):
        if header not in _REPLACED:
            raise CompileError(f"the kernels need the header {header} of a CUDA toolkit; this data type is not supported on GPUs yet")
    return source[first:]


def compiler_source(source: str) -> str:
    """Return the whole unit that NVRTC or nvcc compiles."""
    kernels = kernels_of(source)
    halves = f"{half.PRIMITIVES}{half.TYPE}{half.SHUFFLES}" if uses_half(kernels) else ""
    mma = half.MMA if "dycl_mma" in kernels else ""
    return f"{_PROLOGUE}{_SHUFFLES}{halves}{mma}{int8.functions_of(kernels)}{draws.functions_of(kernels)}{kernels}"


def uses_half(kernels: str) -> bool:
    """Whether device functions compute with float16."""
    return re.search(r"\bhalf\b", kernels) is not None
