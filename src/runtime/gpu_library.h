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
  return DeviceError("%s", what);
}

// A session's handle of a library, on the stream of the call. A `Library` is a SharedLibrary with
//   - a constructor of the driver's CUDA version, that opens it,
//   - kName and kBackend for errors, kState for the place of its handle among the session's,
//   - the functions Create, Destroy and SetStream, and Version(handle, &version).
template <class Library>
struct LibraryHandle {
  const Library* library;
  void* handle;
  int version;
  void* stream;

  static void Release(void* data) {
    auto* made = static_cast<LibraryHandle*>(data);
    if (made->handle != nullptr) made->library->Destroy(made->handle);
    delete made;
  }
};

// The library, opened once a process.
template <class Library>
int32_t FindLibrary(const LibraryCall& call, const Library** out) {
  static const Library library(call.cuda_version);
  *out = &library;
  if (library.reason[0] == '\0') return DYCL_OK;
  return LibraryError("'%s' was built with the backend %s, but %s", kProgram.name,
                      Library::kBackend, library.reason);
}

template <class Library>
int32_t CheckLibrary(int status, const char* what) {
  if (status == 0) return DYCL_OK;
  return LibraryError("%s: %s failed with status %d in '%s'", Library::kName, what, status,
                      kProgram.name);
}

// The session's handle, made when it is wanted first, on the stream of the call.
template <class Library>
int32_t GetHandle(const LibraryCall& call, const LibraryHandle<Library>** out) {
  KernelState& state = call.libraries[Library::kState];
  if (state.data == nullptr) {
    const Library* library = nullptr;
    if (int32_t status = FindLibrary(call, &library)) return status;
    auto* made = new LibraryHandle<Library>{library, nullptr, 0, call.stream};
    state = KernelState{made, LibraryHandle<Library>::Release};
    int32_t status = CheckLibrary<Library>(library->Create(&made->handle), "making a handle");
    if (status == 0) {
      status = CheckLibrary<Library>(library->Version(made->handle, &made->version), "GetVersion");
    }
    if (status == 0) {
      status = CheckLibrary<Library>(library->SetStream(made->handle, call.stream), "SetStream");
    }
    if (status != 0) {
      state.Release();
      return status;
    }
  }
  auto* handle = static_cast<LibraryHandle<Library>*>(state.data);
  if (handle->stream != call.stream) {
    if (int32_t status = CheckLibrary<Library>(
            handle->library->SetStream(handle->handle, call.stream), "SetStream")) {
      return status;
    }
    handle->stream = call.stream;
  }
  *out = handle;
  return DYCL_OK;
}

// The address of a tensor of a call.
inline void* Address(const LibraryCall& call, int arg) {
  return *static_cast<void* const*>(call.args[arg]);
}

}  // namespace cuda
}  // namespace dycl

#endif  // DYCL_RUNTIME_GPU_LIBRARY_H_
