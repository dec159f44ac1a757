# Licensed under the Apache License, Version 2.0; see LICENSE.
"""CUDA C++ of what draws of random numbers ask the GPU for: how many threads it runs at once, and to stop at what is no probability.

A kernel that stops makes the process's context unusable, as a failed assertion of PyTorch's kernels does.
"""

from __future__ import annotations

#: The runtime writes the number after it has loaded the code.
_THREADS = """\
extern "C" { __device__ long dycl_resident_threads; }
static __device__ __forceinline__ long dycl_stride(long blocks) {
  return dycl_resident_threads / 256 < blocks ? dycl_resident_threads : blocks * 256;
}
"""
_CHECKS = """\
template <class T> static __device__ __forceinline__ T dycl_chance(T p) {
  if (!(p >= 0 && p <= 1)) __trap();
  return p;
}
template <class T> static __device__ __forceinline__ T dycl_weight(T w) {
  if (!(w >= 0 && w - w == 0)) __trap();
  return w;
}
template <class T> static __device__ __forceinline__ long dycl_winner(long index, T race) {
  if (!(race > 0)) __trap();
  return index;
}
"""


def functions_of(kernels: str) -> str:
    """Return the functions that kernels use of these."""
    threads = _THREADS if "dycl_stride" in kernels else ""
    return threads + (_CHECKS if any(f"dycl_{name}" in kernels for name in ("chance", "weight", "winner")) else "")
