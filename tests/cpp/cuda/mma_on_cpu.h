// Licensed under the Apache License, Version 2.0; see LICENSE.
// Tensor cores as C++: each thread of a warp has 8 neighbours of one row of a tile of 16 x 16
// results (which ones a GPU does not say). Shared memory is aligned as the instructions want it.
#ifndef DYCL_TESTS_MMA_ON_CPU_H_
#define DYCL_TESTS_MMA_ON_CPU_H_

#include <cstdio>
#include <cstdlib>

static inline void EmulatedAligned(const void* at, int stride, int unit) {
  if (reinterpret_cast<uintptr_t>(at) % 32 == 0 && stride % unit == 0) return;
  fprintf(stderr, "emulated tensor core: an address or a stride of %d is not aligned\n", stride);
  abort();
}

template <int ROWS, int COLUMNS, int TERMS, bool LEFT_LAST, bool RIGHT_LAST>
static void dycl_mma(float* sums, const half* left, int left_stride, const half* right,
                     int right_stride) {
  int row = static_cast<int>(emulated_lane()) / 2,
      first = static_cast<int>(emulated_lane()) % 2 * 8;
  EmulatedAligned(left, left_stride, 8);
  EmulatedAligned(right, right_stride, 8);
  for (int k = 0; k < ROWS * COLUMNS * 8; ++k) {
    int r = k / 8 / COLUMNS * 16 + row, c = k / 8 % COLUMNS * 16 + first + k % 8;
    for (int t = 0; t < TERMS; ++t) {
      half a = LEFT_LAST ? left[r * left_stride + t] : left[t * left_stride + r];
      half b = RIGHT_LAST ? right[c * right_stride + t] : right[t * right_stride + c];
      sums[k] += static_cast<float>(a) * static_cast<float>(b);
    }
  }
}

template <int ROWS, int COLUMNS>
static void dycl_mma_store(float* to, int stride, const float* sums) {
  int row = static_cast<int>(emulated_lane()) / 2,
      first = static_cast<int>(emulated_lane()) % 2 * 8;
  EmulatedAligned(to, stride, 4);
  for (int k = 0; k < ROWS * COLUMNS * 8; ++k) {
    to[(k / 8 / COLUMNS * 16 + row) * stride + k / 8 % COLUMNS * 16 + first + k % 8] = sums[k];
  }
}

#endif  // DYCL_TESTS_MMA_ON_CPU_H_
