# Licensed under the Apache License, Version 2.0; see LICENSE.
"""CUDA C++ of products of integers of 8 bits: words of four, sums of their products by ``dp4a`` and on tensor cores.

Sums wrap around where they leave int32, whatever the order of their terms. The primitives are PTX here; the emulated driver has its own.
"""

from __future__ import annotations

#: Words of four integers, of which some are neighbours in memory at a multiple of 4 bytes and others are not.
WORDS = """\
static __device__ __forceinline__ int dycl_word(const void* at) { return *static_cast<const int*>(at); }
static __device__ __forceinline__ int dycl_pack(int a, int b, int c, int d) {
  return static_cast<int>(static_cast<unsigned>(a) | static_cast<unsigned>(b) << 8 | static_cast<unsigned>(c) << 16 |
                          static_cast<unsigned>(d) << 24);
}
"""

#: The part that depends on the machine: four products and their sum; and of a warp 16 x 8 results of 32 terms, in its registers as PTX has
#: them in ``mma.m16n8k32``.
PRIMITIVES = """\
template <bool LEFT_SIGNED, bool RIGHT_SIGNED>
static __device__ __forceinline__ int dycl_dot4_add(int a, int b, int sum) {
#define DYCL_DOT4(types) asm("dp4a." types " %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b))
  if constexpr (LEFT_SIGNED && RIGHT_SIGNED) DYCL_DOT4("s32.s32");
  if constexpr (LEFT_SIGNED && !RIGHT_SIGNED) DYCL_DOT4("s32.u32");
  if constexpr (!LEFT_SIGNED && RIGHT_SIGNED) DYCL_DOT4("u32.s32");
  if constexpr (!LEFT_SIGNED && !RIGHT_SIGNED) DYCL_DOT4("u32.u32");
#undef DYCL_DOT4
  return sum;
}
template <bool LEFT_SIGNED, bool RIGHT_SIGNED>
static __device__ __forceinline__ void dycl_bytes_mma_add(int* c, const int (&a)[4], const int (&b)[2]) {
#define DYCL_MMA_BYTES(types) \\
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \\
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (LEFT_SIGNED && RIGHT_SIGNED) DYCL_MMA_BYTES("s8.s8");
  if constexpr (LEFT_SIGNED && !RIGHT_SIGNED) DYCL_MMA_BYTES("s8.u8");
  if constexpr (!LEFT_SIGNED && RIGHT_SIGNED) DYCL_MMA_BYTES("u8.s8");
  if constexpr (!LEFT_SIGNED && !RIGHT_SIGNED) DYCL_MMA_BYTES("u8.u8");
#undef DYCL_MMA_BYTES
}
"""

#: A thread adds up ``ROWS x COLUMNS`` results of ``WORDS`` words: of a word all rows or columns are neighbours in shared memory, and
#: those of a thread lie ``step`` apart.
DOT4 = """\
template <int ROWS, int COLUMNS, int WORDS, bool LEFT_SIGNED, bool RIGHT_SIGNED>
static __device__ __forceinline__ void dycl_dot4(int* sums, const int* left, int left_stride, int left_step, const int* right,
                                                 int right_stride, int right_step) {
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    int a[ROWS], b[COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) a[i] = left[w * left_stride + i * left_step];
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) b[j] = right[w * right_stride + j * right_step];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int j = 0; j < COLUMNS; ++j) {
        sums[i * COLUMNS + j] = dycl_dot4_add<LEFT_SIGNED, RIGHT_SIGNED>(a[i], b[j], sums[i * COLUMNS + j]);
      }
    }
  }
}
"""

#: A warp adds up ``16 ROWS x 8 COLUMNS`` results of 8 words: lines of shared memory are rows and columns.
MMA = """\
template <int ROWS, int COLUMNS, int WORDS, bool LEFT_SIGNED, bool RIGHT_SIGNED>
static __device__ __forceinline__ void dycl_bytes_mma(int* sums, const int* left, int left_stride, const int* right, int right_stride) {
  static_assert(WORDS == 8, "the instruction takes 32 terms");
  int group = (threadIdx.x & 31) >> 2, member = threadIdx.x & 3;
  int a[ROWS][4], b[COLUMNS][2];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) a[i][k] = left[(16 * i + 8 * (k & 1) + group) * left_stride + 4 * (k >> 1) + member];
  }
#pragma unroll
  for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) b[j][k] = right[(8 * j + group) * right_stride + 4 * k + member];
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int j = 0; j < COLUMNS; ++j) dycl_bytes_mma_add<LEFT_SIGNED, RIGHT_SIGNED>(sums + 4 * (i * COLUMNS + j), a[i], b[j]);
  }
}
"""


def functions_of(kernels: str, primitives: str = PRIMITIVES) -> str:
    """Return what device functions need of these; ``primitives`` is what depends on the machine."""
    return f"{WORDS}{primitives}{DOT4}{MMA}" if "dycl_word" in kernels or "dycl_pack" in kernels else ""
