// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "cuda_driver.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "dycl/dycl.h"
#include "error.h"

namespace dycl {
namespace cuda {
namespace {

// JetPack 4, the oldest system that is supported.
constexpr int kLeastVersion = 10020;

struct Found {
  Driver driver;
  const Driver* usable = nullptr;
  char reason[512] = "";
};

template <class F>
bool Resolve(void* library, const char* symbol, F* out) {
  *out = reinterpret_cast<F>(dlsym(library, symbol));
  return *out != nullptr;
}

void Find(Found* f) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    snprintf(f->reason, sizeof(f->reason),
             "there is no NVIDIA driver on this machine (libcuda.so.1: %s)", dlerror());
    return;
  }
  Driver& d = f->driver;
  const char* missing = nullptr;
#define DYCL_CUDA_RESOLVE(name, symbol, parameters) \
  if (!Resolve(library, symbol, &d.name)) missing = symbol;
  DYCL_CUDA_GRAPH_FUNCTIONS(DYCL_CUDA_RESOLVE)
  bool graphs = missing == nullptr;
  DYCL_CUDA_INSTANTIATE_FUNCTIONS(DYCL_CUDA_RESOLVE)
  d.has_graphs = graphs && (d.GraphInstantiateWithFlags != nullptr ||
                            d.GraphInstantiateLog != nullptr || d.GraphInstantiateLog10 != nullptr);
  missing = nullptr;
  DYCL_CUDA_CONDITIONAL_FUNCTIONS(DYCL_CUDA_RESOLVE)
  d.has_conditionals = d.has_graphs && missing == nullptr;
  missing = nullptr;
  DYCL_CUDA_FUNCTIONS(DYCL_CUDA_RESOLVE)
#undef DYCL_CUDA_RESOLVE
  if (d.DriverGetVersion != nullptr) d.DriverGetVersion(&d.version);
  d.has_conditionals = d.has_conditionals && d.version >= kConditionalVersion;
  if (missing != nullptr || d.version < kLeastVersion) {
    snprintf(f->reason, sizeof(f->reason),
             "the NVIDIA driver of this machine is too old: it is of CUDA %d.%d%s%s, at least "
             "CUDA %d.%d is needed",
             d.version / 1000, d.version % 1000 / 10, missing != nullptr ? " and lacks " : "",
             missing != nullptr ? missing : "", kLeastVersion / 1000, kLeastVersion % 1000 / 10);
    return;
  }
  Result result = d.Init(0);
  int count = 0;
  if (result == kSuccess) result = d.DeviceGetCount(&count);
  if (result == kNoDevice || (result == kSuccess && count == 0)) {
    snprintf(f->reason, sizeof(f->reason), "the NVIDIA driver finds no GPU on this machine");
  } else if (result != kSuccess) {
    const char* name = nullptr;
    d.GetErrorName(result, &name);
    snprintf(f->reason, sizeof(f->reason), "the NVIDIA driver does not start: %s (%d)",
             name != nullptr ? name : "unknown error", result);
  } else {
    f->usable = &d;
  }
}

Found* Search() {
  static Found found;
  static std::once_flag once;
  std::call_once(once, Find, &found);
  return &found;
}

}  // namespace

const Driver* GetDriver() {
  Found* found = Search();
  if (found->usable == nullptr) DeviceError("%s", found->reason);
  return found->usable;
}

int32_t Fail(Result result, const char* format, ...) {
  char what[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof(what), format, args);
  va_end(args);
  const char* name = nullptr;
  const char* text = nullptr;
  const Driver& d = Search()->driver;
  if (d.GetErrorName != nullptr) d.GetErrorName(result, &name);
  if (d.GetErrorString != nullptr) d.GetErrorString(result, &text);
  bool memory = result == kOutOfMemory;
  return (memory ? NoMemory : DeviceError)(
      "%s: %s (%d%s%s)", what, name != nullptr ? name : "unknown error", result,
      text != nullptr ? ", " : "", text != nullptr ? text : "");
}

}  // namespace cuda
}  // namespace dycl
