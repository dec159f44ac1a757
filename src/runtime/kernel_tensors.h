// Licensed under the Apache License, Version 2.0; see LICENSE.
// What kernels in C++ are given: tensors, and their elements of every dtype.
#ifndef DYCL_RUNTIME_KERNEL_TENSORS_H_
#define DYCL_RUNTIME_KERNEL_TENSORS_H_

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstring>

namespace dycl {

// ---- elements -----------------------------------------------------------------------------------
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

template <class T>
struct Element {
  using Wide = T;  // in which numbers of the type are computed
  template <class V>
  static T From(V x) {
    return static_cast<T>(x);
  }
  static T Widened(T x) { return x; }
};

template <>
struct Element<Half> {
  using Wide = float;
  template <class V>
  static Half From(V number) {
    uint32_t bits = BitsOf(static_cast<float>(number));
    uint32_t sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;
    uint32_t result;
    if (magnitude > 0x7f800000U) {
      result = 0x7e00U;
    } else if (magnitude >= 0x47800000U) {
      result = 0x7c00U;
    } else if (magnitude < 0x38800000U) {
      result = BitsOf(FloatOf(magnitude) + 0.5F) - 0x3f000000U;  // the sum rounds to 2**-24
    } else {
      result = (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1U)) >> 13;
    }
    return Half{static_cast<uint16_t>(sign | result)};
  }
  static float Widened(Half x) {
    uint32_t sign = (x.bits & 0x8000U) << 16, rest = x.bits & 0x7fffU;
    if (rest < 0x400U) return FloatOf(sign | BitsOf(static_cast<float>(rest) * 0x1p-24F));
    if (rest >= 0x7c00U) return FloatOf(sign | 0x7f800000U | (rest & 0x3ffU) << 13);
    return FloatOf(sign | ((rest << 13) + 0x38000000U));
  }
};

template <>
struct Element<BFloat16> {
  using Wide = float;
  template <class V>
  static BFloat16 From(V number) {
    float x = static_cast<float>(number);
    uint32_t bits = BitsOf(x);
    if (x != x) return BFloat16{0x7fc0U};
    return BFloat16{static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
  }
  static float Widened(BFloat16 x) { return FloatOf(static_cast<uint32_t>(x.bits) << 16); }
};

template <class T>
using Wide = typename Element<T>::Wide;

// ---- a kernel's arguments -----------------------------------------------------------------------
class Arguments {
 public:
  explicit Arguments(const TVMFFIAny* args) : args_(args) {}
  template <class T = char>
  T* data(int k) const {
    return reinterpret_cast<T*>(static_cast<char*>(tensor(k)->data) + tensor(k)->byte_offset);
  }
  int64_t size(int k) const {
    int64_t n = 1;
    for (int d = 0; d < tensor(k)->ndim; ++d) n *= tensor(k)->shape[d];
    return n;
  }
  int rank(int k) const { return tensor(k)->ndim; }
  int64_t item_bytes(int k) const {
    return (tensor(k)->dtype.bits * tensor(k)->dtype.lanes + 7) / 8;
  }
  int64_t bytes(int k) const { return size(k) * item_bytes(k); }
  int64_t extent(int k, int from_last) const {
    int d = tensor(k)->ndim - 1 - from_last;
    return d < 0 ? 1 : tensor(k)->shape[d];
  }

 private:
  DLTensor* tensor(int k) const { return static_cast<DLTensor*>(args_[k].v_ptr); }
  const TVMFFIAny* args_;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_KERNEL_TENSORS_H_
