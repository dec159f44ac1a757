// Licensed under the Apache License, Version 2.0; see LICENSE.
// What a GPU has instructions for: float16 to float32 and back, rounded to nearest, ties to even.
#ifndef DYCL_TESTS_HALF_ON_CPU_H_
#define DYCL_TESTS_HALF_ON_CPU_H_

#include "cuda_on_cpu.h"

static inline float dycl_half_value(unsigned short bits) {
  unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, digits = bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | digits << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | digits << 13);
  float value = static_cast<float>(digits) * 0x1p-24f;
  return sign != 0 ? -value : value;
}

static inline unsigned short dycl_half_bits(float value) {
  unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
  float magnitude = std::fabs(value);
  if (magnitude != magnitude) return 0x7fff;
  if (magnitude >= 65520.0f) return static_cast<unsigned short>(sign | 0x7c00u);
  // Whole numbers of the last place's unit: the CPU rounds them as it must.
  int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
  auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<unsigned short>(sign | ((static_cast<unsigned>(exponent + 14) << 10) + units));
}

#endif  // DYCL_TESTS_HALF_ON_CPU_H_
