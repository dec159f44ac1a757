// Licensed under the Apache License, Version 2.0; see LICENSE.
// Calls of NVIDIA's libraries in place of launches, found at run time: an artefact links none of
// them and needs none of their headers.
#ifndef DYCL_RUNTIME_GPU_LIBRARY_H_
#define DYCL_RUNTIME_GPU_LIBRARY_H_

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "dycl/dycl.h"
#include "error.h"
#include "program.h"

namespace dycl {
namespace cuda {

// The functions of a library, by name; `reason` says why it cannot be used.
struct SharedLibrary {
  void* handle = nullptr;
  char name[64] = "";
  char reason[400] = "";

  // Opens the newest version that the driver's CUDA runs: <stem>.so.<major>.
  void Open(const char* stem, int newest, int oldest) {
    char first[300] = "";
    for (int major = newest; major >= oldest && handle == nullptr; --major) {
      snprintf(name, sizeof(name), "%s.so.%d", stem, major);
      handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr && first[0] == '\0') snprintf(first, sizeof(first), "%s", dlerror());
    }
    if (handle == nullptr) {
      snprintf(reason, sizeof(reason), "%s.so of version %d to %d is not on this machine (%s)",
               stem, oldest, newest, first);
    }
  }

  template <class F>
  void Find(const char* symbol, F* out) {
    if (handle == nullptr) return;
    *out = reinterpret_cast<F>(dlsym(handle, symbol));
    if (*out == nullptr && reason[0] == '\0') {
      snprintf(reason, sizeof(reason), "%s has no function %s", name, symbol);
    }
  }
};

__attribute__((format(printf, 1, 2))) inline int32_t LibraryError(const char* format, ...) {
  char what[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof(what), format, args);
  va_end(args);
  SetError("DeviceError", "%s", what);
  return DYCL_ERROR_DEVICE;
}

}  // namespace cuda
}  // namespace dycl

#endif  // DYCL_RUNTIME_GPU_LIBRARY_H_
