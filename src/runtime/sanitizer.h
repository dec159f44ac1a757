// Licensed under the Apache License, Version 2.0; see LICENSE.
// Kernels are machine code that no sanitizer knows. In a library that is compiled for one, the
// runtime says for them which memory they use, so that a program that frees or writes a tensor too
// early gets the sanitizer's report. Everywhere else nothing of this file is left.
#ifndef DYCL_RUNTIME_SANITIZER_H_
#define DYCL_RUNTIME_SANITIZER_H_

#include <cstddef>

#include "program.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DYCL_ADDRESS_SANITIZER
#elif __has_feature(thread_sanitizer)
#define DYCL_THREAD_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define DYCL_ADDRESS_SANITIZER
#elif defined(__SANITIZE_THREAD__)
#define DYCL_THREAD_SANITIZER
#endif

#if defined(DYCL_ADDRESS_SANITIZER)
extern "C" void* __asan_region_is_poisoned(void* begin, size_t bytes);
#elif defined(DYCL_THREAD_SANITIZER)
extern "C" void __tsan_read_range(void* begin, size_t bytes);
#endif

namespace dycl {

#if defined(DYCL_ADDRESS_SANITIZER) || defined(DYCL_THREAD_SANITIZER)

inline void TellUse(const DLTensor& tensor) {
  if (tensor.device.device_type != kDLCPU || tensor.data == nullptr) return;
  size_t bytes = (static_cast<size_t>(tensor.dtype.bits) * tensor.dtype.lanes + 7) / 8;
  for (int32_t d = 0; d < tensor.ndim; ++d) bytes *= static_cast<size_t>(tensor.shape[d]);
  char* begin = static_cast<char*>(tensor.data) + tensor.byte_offset;
#if defined(DYCL_ADDRESS_SANITIZER)
  // A look at the byte is what makes the report.
  auto* bad = static_cast<volatile char*>(__asan_region_is_poisoned(begin, bytes));
  if (bytes != 0 && bad != nullptr) static_cast<void>(*bad);
#else
  if (bytes != 0) __tsan_read_range(begin, bytes);
#endif
}

// The arguments of a kernel are tensors.
__attribute__((noinline)) inline void TellUseByKernel(const Call& call) {
  for (int32_t k = 0; k < call.num_args; ++k) {
    TellUse(*static_cast<const DLTensor*>(call.args[k].v_ptr));
  }
}

#else

inline void TellUseByKernel(const Call&) {}

#endif

}  // namespace dycl

#endif  // DYCL_RUNTIME_SANITIZER_H_
