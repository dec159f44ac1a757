// Licensed under the Apache License, Version 2.0; see LICENSE.
// Functions of the TVM process that loaded this library, if one did. Nothing of TVM is linked: the
// same library also runs where there is no TVM at all.
#ifndef DYCL_RUNTIME_HOST_PROCESS_H_
#define DYCL_RUNTIME_HOST_PROCESS_H_

#include <tvm/ffi/c_api.h>

namespace dycl {

struct HostProcess {
  void (*error_set_raised)(const char* kind, const char** parts, int32_t count);
  int (*string_from_byte_array)(const TVMFFIByteArray* input, TVMFFIAny* out);
  int (*tensor_from_dlpack)(DLManagedTensor* from, int32_t alignment, int32_t contiguous,
                            TVMFFIObjectHandle* out);
};

// Members are null where the process has no libtvm_ffi.
const HostProcess& Host();

}  // namespace dycl

#endif  // DYCL_RUNTIME_HOST_PROCESS_H_
