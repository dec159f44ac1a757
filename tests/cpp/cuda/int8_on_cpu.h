// Licensed under the Apache License, Version 2.0; see LICENSE.
// Products of integers of 8 bits as C++: what one thread gets of dp4a, and of a warp's
// mma.m16n8k32.
#ifndef DYCL_TESTS_INT8_ON_CPU_H_
#define DYCL_TESTS_INT8_ON_CPU_H_

#include "cuda_on_cpu.h"

// One of the four integers of a word.
template <bool SIGNED>
static int EmulatedByte(int word, int k) {
  auto byte = static_cast<uint8_t>(static_cast<unsigned>(word) >> 8 * k);
  return SIGNED ? static_cast<int8_t>(byte) : byte;
}

template <bool LEFT_SIGNED, bool RIGHT_SIGNED>
static int dycl_dot4_add(int a, int b, int sum) {
  auto total = static_cast<unsigned>(sum);
  for (int k = 0; k < 4; ++k) {
    total +=
        static_cast<unsigned>(EmulatedByte<LEFT_SIGNED>(a, k) * EmulatedByte<RIGHT_SIGNED>(b, k));
  }
  return static_cast<int>(total);
}

// As PTX lays matrices over the registers of a warp: row g of the left factor is in the lanes 4 g
// to 4 g + 3, four terms in each register, row g + 8 in the second and fourth; so are the columns
// of the right one, and a lane has two columns of these two rows of the result.
template <bool LEFT_SIGNED, bool RIGHT_SIGNED>
static void dycl_bytes_mma_add(int* c, const int (&a)[4], const int (&b)[2]) {
  int group = static_cast<int>(emulated_lane()) / 4, member = static_cast<int>(emulated_lane()) % 4;
  for (int from = 0; from < 4; ++from) {
    for (int half = 0; half < 2; ++half) {
      for (int row = 0; row < 2; ++row) {
        int left = __shfl_sync(0xffffffffu, a[2 * half + row], 4 * group + from);
        for (int column = 0; column < 2; ++column) {
          int right = __shfl_sync(0xffffffffu, b[half], 4 * (2 * member + column) + from);
          int& sum = c[2 * row + column];
          sum = dycl_dot4_add<LEFT_SIGNED, RIGHT_SIGNED>(left, right, sum);
        }
      }
    }
  }
}

#endif  // DYCL_TESTS_INT8_ON_CPU_H_
