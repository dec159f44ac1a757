// Licensed under the Apache License, Version 2.0; see LICENSE.
// The vocabulary of a dispatcher whose tensors are on a device: that of dispatch.h with the
// device's words for kernels, copies and items. Generated code reads items in groups: FETCH each,
// WAIT once.
#ifndef DYCL_RUNTIME_DEVICE_DISPATCH_H_
#define DYCL_RUNTIME_DEVICE_DISPATCH_H_

#include "device.h"
#include "dispatch.h"

#define DEVICE(operation)                                               \
  do {                                                                  \
    if (DYCL_UNLIKELY(!f.device->operation)) return ::dycl::kRunFailed; \
  } while (0)

#undef CALLS
#define CALLS(first, count)                                           \
  do {                                                                \
    if (DYCL_UNLIKELY(!::dycl::GoesOn(f))) return ::dycl::kRunFailed; \
    ::dycl::CountCalls(f, first, count);                              \
    DEVICE(Launch(first, count));                                     \
  } while (0)

#define COPY(dst, src, bytes) DEVICE(Copy(f.tensors[dst].data, f.tensors[src].data, bytes))
#define FETCH(slot, tensor, dtype) \
  DEVICE(Fetch(slot, f.tensors[tensor].data, static_cast<uint32_t>(::dycl::ItemBytes(dtype))))
#define WAIT() DEVICE(Wait())
#define SETTLE() DEVICE(Settle())
#define STORE(dtype, tensor, value)                                                                \
  do {                                                                                             \
    alignas(8) char item_[8] = {};                                                                 \
    TRY(::dycl::PackItem<dtype>(item_, value), kNone);                                             \
    DEVICE(Store(f.tensors[tensor].data, item_, static_cast<uint32_t>(::dycl::ItemBytes(dtype)))); \
  } while (0)

namespace dycl {

template <DType D>
DYCL_INLINE auto Fetched(const Frame& f, uint32_t slot) {
  return Item<D>::Read(f.device->Fetched(slot));
}
template <DType D>
DYCL_INLINE HostStatus PackItem(char* item, int64_t value) {
  return Item<D>::Write(item, value);
}
template <DType D>
DYCL_INLINE HostStatus PackItem(char* item, double value) {
  return Item<D>::Write(item, value);
}
template <DType D>
DYCL_INLINE HostStatus PackItem(char* item, bool value) {
  return Item<D>::Write(item, static_cast<int64_t>(value));
}

}  // namespace dycl

#endif  // DYCL_RUNTIME_DEVICE_DISPATCH_H_
