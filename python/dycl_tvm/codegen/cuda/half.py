# Licensed under the Apache License, Version 2.0; see LICENSE.
"""CUDA C++ of float16 and of tensor cores, without NVIDIA's headers: what kernels use of ``cuda_fp16.h`` and ``mma.h``.

A ``half`` is computed with in float32 and rounded after each operation: for sums, products, quotients and roots that is the correctly
rounded result, as float32 has more than twice the digits and two. The primitives are PTX here; the emulated driver has its own.
"""

from __future__ import annotations

#: Conversions, and tiles of products on tensor cores: the part that depends on the machine.
PRIMITIVES = """\
static __device__ __forceinline__ float dycl_half_value(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
static __device__ __forceinline__ unsigned short dycl_half_bits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
"""

#: The type and its functions, as TVM's text names them.
TYPE = """\
struct half {
  unsigned short bits;
  half() = default;
  template <class T> explicit __device__ __forceinline__ half(T value) : bits(dycl_half_bits(static_cast<float>(value))) {}
  template <class T> explicit __device__ __forceinline__ operator T() const { return static_cast<T>(dycl_half_value(bits)); }
};
#define DYCL_HALF_OPERATOR(op) \\
  static __device__ __forceinline__ half operator op(half a, half b) { return half(static_cast<float>(a) op static_cast<float>(b)); }
#define DYCL_HALF_COMPARISON(op) \\
  static __device__ __forceinline__ bool operator op(half a, half b) { return static_cast<float>(a) op static_cast<float>(b); }
#define DYCL_HALF_FUNCTION(name, function) \\
  static __device__ __forceinline__ half name(half a) { return half(function(static_cast<float>(a))); }
#define DYCL_HALF_FUNCTION2(name, function) \\
  static __device__ __forceinline__ half name(half a, half b) { return half(function(static_cast<float>(a), static_cast<float>(b))); }
DYCL_HALF_OPERATOR(+) DYCL_HALF_OPERATOR(-) DYCL_HALF_OPERATOR(*) DYCL_HALF_OPERATOR(/)
DYCL_HALF_COMPARISON(==) DYCL_HALF_COMPARISON(!=) DYCL_HALF_COMPARISON(<) DYCL_HALF_COMPARISON(>)
DYCL_HALF_COMPARISON(<=) DYCL_HALF_COMPARISON(>=)
static __device__ __forceinline__ half operator-(half a) { return half(-static_cast<float>(a)); }
static __device__ __forceinline__ half __float2half_rn(float value) { return half(value); }
DYCL_HALF_FUNCTION(__habs, fabsf) DYCL_HALF_FUNCTION(hsqrt, sqrtf) DYCL_HALF_FUNCTION(hrsqrt, rsqrtf)
DYCL_HALF_FUNCTION(hexp, expf) DYCL_HALF_FUNCTION(hexp2, exp2f) DYCL_HALF_FUNCTION(hexp10, exp10f)
DYCL_HALF_FUNCTION(hlog, logf) DYCL_HALF_FUNCTION(hlog2, log2f) DYCL_HALF_FUNCTION(hlog10, log10f)
DYCL_HALF_FUNCTION(hsin, sinf) DYCL_HALF_FUNCTION(hcos, cosf) DYCL_HALF_FUNCTION(htan, tanf)
DYCL_HALF_FUNCTION(htanh, tanhf) DYCL_HALF_FUNCTION(hatan, atanf) DYCL_HALF_FUNCTION(herf, erff)
DYCL_HALF_FUNCTION(hfloor, floorf) DYCL_HALF_FUNCTION(hceil, ceilf) DYCL_HALF_FUNCTION(htrunc, truncf)
DYCL_HALF_FUNCTION(hrint, rintf) DYCL_HALF_FUNCTION(hround, roundf)
DYCL_HALF_FUNCTION2(hpow, powf) DYCL_HALF_FUNCTION2(max, fmaxf) DYCL_HALF_FUNCTION2(min, fminf)
"""

#: Exchanges between the threads of a warp; the names are macros before sm_70.
SHUFFLES = """\
#define DYCL_HALF_SHUFFLE(name) \\
  static __device__ __forceinline__ half name(unsigned mask, half value, unsigned lane, int width) { \\
    value.bits = static_cast<unsigned short>(name(mask, static_cast<int>(value.bits), lane, width)); \\
    return value; \\
  }
#define DYCL_HALF_SHUFFLE_OLD(name) \\
  static __device__ __forceinline__ half name(half value, unsigned lane, int width) { \\
    value.bits = static_cast<unsigned short>(name(static_cast<int>(value.bits), lane, width)); \\
    return value; \\
  }
#if __CUDA_ARCH__ >= 700
DYCL_HALF_SHUFFLE(__shfl_sync) DYCL_HALF_SHUFFLE(__shfl_down_sync) DYCL_HALF_SHUFFLE(__shfl_up_sync)
#else
DYCL_HALF_SHUFFLE_OLD(__shfl) DYCL_HALF_SHUFFLE_OLD(__shfl_down) DYCL_HALF_SHUFFLE_OLD(__shfl_up)
#endif
"""

#: A warp multiplies: ``ROWS x COLUMNS`` tiles of 16 x 16 results, 8 of each tile in a thread, over ``TERMS`` terms in shared memory. Where
#: the terms of a factor are neighbours, ``stride`` is from one row to the next, else from one term to the next.
MMA = """\
#if __CUDA_ARCH__ >= 700
template <bool TERMS_LAST, bool LEFT>
static __device__ __forceinline__ void dycl_mma_load(unsigned (&f)[8], const half* from, int stride) {
  unsigned long long at;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(from));
#define DYCL_MMA_LOAD(factor, order) \\
  asm volatile("wmma.load." factor ".sync.aligned." order ".m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;" \\
      : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]), "=r"(f[4]), "=r"(f[5]), "=r"(f[6]), "=r"(f[7]) : "l"(at), "r"(stride) : "memory")
  if constexpr (LEFT && TERMS_LAST) DYCL_MMA_LOAD("a", "row");
  if constexpr (LEFT && !TERMS_LAST) DYCL_MMA_LOAD("a", "col");
  if constexpr (!LEFT && TERMS_LAST) DYCL_MMA_LOAD("b", "col");
  if constexpr (!LEFT && !TERMS_LAST) DYCL_MMA_LOAD("b", "row");
#undef DYCL_MMA_LOAD
}
#define DYCL_MMA_ADD(orders) \\
  asm volatile("wmma.mma.sync.aligned." orders ".m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, " \\
      "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};" \\
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]) \\
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), \\
        "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]))
template <bool LEFT_LAST, bool RIGHT_LAST>
static __device__ __forceinline__ void dycl_mma_add(float* c, const unsigned (&a)[8], const unsigned (&b)[8]) {
  if constexpr (LEFT_LAST && RIGHT_LAST) DYCL_MMA_ADD("row.col");
  if constexpr (LEFT_LAST && !RIGHT_LAST) DYCL_MMA_ADD("row.row");
  if constexpr (!LEFT_LAST && RIGHT_LAST) DYCL_MMA_ADD("col.col");
  if constexpr (!LEFT_LAST && !RIGHT_LAST) DYCL_MMA_ADD("col.row");
}
template <int ROWS, int COLUMNS, int TERMS, bool LEFT_LAST, bool RIGHT_LAST>
static __device__ __forceinline__ void dycl_mma(float* sums, const half* left, int left_stride, const half* right, int right_stride) {
#pragma unroll
  for (int t = 0; t < TERMS; t += 16) {
    unsigned a[ROWS][8], b[COLUMNS][8];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      dycl_mma_load<LEFT_LAST, true>(a[i], left + (LEFT_LAST ? 16 * i * left_stride + t : t * left_stride + 16 * i), left_stride);
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) {
      dycl_mma_load<RIGHT_LAST, false>(b[j], right + (RIGHT_LAST ? 16 * j * right_stride + t : t * right_stride + 16 * j), right_stride);
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) dycl_mma_add<LEFT_LAST, RIGHT_LAST>(sums + 8 * (i * COLUMNS + j), a[i], b[j]);
    }
  }
}
template <int ROWS, int COLUMNS>
static __device__ __forceinline__ void dycl_mma_store(float* to, int stride, const float* sums) {
#pragma unroll
  for (int k = 0; k < ROWS * COLUMNS; ++k) {
    unsigned long long at;
    const float* d = sums + 8 * k;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(at) : "l"(to + 16 * (k / COLUMNS * stride + k % COLUMNS)));
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
        : : "l"(at), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]), "r"(stride) : "memory");
  }
}
#endif
"""
