// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "host_process.h"

#include <dlfcn.h>

#include <string>

#include "error.h"
#include "forks.h"

namespace dycl {
namespace {

template <class F>
void Look(void* library, const char* name, F* out) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  // A process may have loaded libtvm_ffi for itself only.
  if (symbol == nullptr && library != nullptr) symbol = dlsym(library, name);
  *out = reinterpret_cast<F>(symbol);
}

HostProcess Find() {
  void* library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
  HostProcess host;
  Look(library, "TVMFFIErrorSetRaisedFromCStrParts", &host.error_set_raised);
  Look(library, "TVMFFIStringFromByteArray", &host.string_from_byte_array);
  Look(library, "TVMFFITensorFromDLPack", &host.tensor_from_dlpack);
  return host;
}

}  // namespace

const HostProcess& Host() {
  NoForks none;  // the loader has locks
  static const HostProcess host = Find();
  return host;
}

}  // namespace dycl

// Kernels report their errors through this symbol. The version script hides it, so each library
// keeps its own errors; packed functions hand them on to the host.
extern "C" void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts,
                                                  int32_t count) {
  dycl::SetError(kind, "%s", "");
  for (int32_t i = 0; i < count; ++i) {
    if (parts[i] != nullptr) dycl::AppendError("%s", parts[i]);
  }
}
