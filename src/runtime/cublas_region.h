// Licensed under the Apache License, Version 2.0; see LICENSE.
// Products of matrices by cuBLAS, for regions of the backend `cublas`. A session has one handle.
#ifndef DYCL_RUNTIME_CUBLAS_REGION_H_
#define DYCL_RUNTIME_CUBLAS_REGION_H_

#include "gpu_library.h"

namespace dycl {
namespace cublas {

using Handle = struct HandleTag*;
using Status = int;

// cublasOperation_t, cudaDataType_t, cublasGemmAlgo_t, and how float32 is added up: as a type
// before CUDA 11, as a cublasComputeType_t since.
constexpr int kNotTransposed = 0;
constexpr int kFloat32 = 0, kFloat16 = 2;
constexpr int kDefaultAlgorithm = -1;
constexpr int kCompute32Before11 = 0, kCompute32 = 68;

struct Library : cuda::SharedLibrary {
  Status (*create)(Handle*) = nullptr;
  Status (*destroy)(Handle) = nullptr;
  Status (*set_stream)(Handle, void*) = nullptr;
  Status (*get_version)(Handle, int*) = nullptr;
  Status (*product)(Handle, int, int, int, int, int, const void*, const void*, int, int, long long,
                    const void*, int, int, long long, const void*, void*, int, int, long long, int,
                    int, int) = nullptr;

  explicit Library(int cuda_version) {
    Open("libcublas", cuda_version / 1000, 10);
    Find("cublasCreate_v2", &create);
    Find("cublasDestroy_v2", &destroy);
    Find("cublasSetStream_v2", &set_stream);
    Find("cublasGetVersion_v2", &get_version);
    Find("cublasGemmStridedBatchedEx", &product);
  }
};

// A handle with its stream, and what depends on the library's version.
struct Context {
  const Library* library;
  Handle handle;
  int compute;

  static void Release(void* data) {
    auto* context = static_cast<Context*>(data);
    if (context->handle != nullptr) context->library->destroy(context->handle);
    delete context;
  }
};

// Row-major c[batch] = a[batch] b[batch], each compact: (m, k), (k, n), (m, n).
struct Shape {
  int batch, m, n, k;
  bool half;
};

inline int32_t Open(const LibraryCall& call, const Library** out) {
  static const Library library(call.cuda_version);
  *out = &library;
  if (library.reason[0] == '\0') return DYCL_OK;
  return cuda::LibraryError("'%s' was built with the backend cublas, but %s", kProgram.name,
                            library.reason);
}

inline int32_t Check(Status status, const char* what) {
  if (status == 0) return DYCL_OK;
  return cuda::LibraryError("cuBLAS: %s failed with status %d in a run of '%s'", what, status,
                            kProgram.name);
}

inline int32_t GetContext(const LibraryCall& call, Context** out) {
  KernelState& state = call.states[kCublasState];
  if (state.data == nullptr) {
    const Library* library = nullptr;
    if (int32_t status = Open(call, &library)) return status;
    state = KernelState{new Context{library, nullptr, kCompute32}, Context::Release};
    auto* made = static_cast<Context*>(state.data);
    int version = 0;
    int32_t status = Check(library->create(&made->handle), "cublasCreate");
    if (status == 0) status = Check(library->get_version(made->handle, &version), "GetVersion");
    if (status == 0) status = Check(library->set_stream(made->handle, call.stream), "SetStream");
    if (status != 0) {
      state.Release();
      return status;
    }
    if (version < 11000) made->compute = kCompute32Before11;
  }
  *out = static_cast<Context*>(state.data);
  return DYCL_OK;
}

// `call.args` point to the addresses of a, b and c. Without them it only looks for the library.
inline int32_t Product(const LibraryCall& call, const Shape& s) {
  if (call.args == nullptr) {
    const Library* library = nullptr;
    return Open(call, &library);
  }
  Context* context = nullptr;
  if (int32_t status = GetContext(call, &context)) return status;
  const float one = 1, zero = 0;
  int type = s.half ? kFloat16 : kFloat32;
  void* const* address[3];
  for (int k = 0; k < 3; ++k) address[k] = static_cast<void* const*>(call.args[k]);
  long long mk = static_cast<long long>(s.m) * s.k, kn = static_cast<long long>(s.k) * s.n;
  // cuBLAS counts along columns: what it takes for b, a and c are their transposes, and the
  // transposed product is b' a'.
  Status status = context->library->product(
      context->handle, kNotTransposed, kNotTransposed, s.n, s.m, s.k, &one, *address[1], type, s.n,
      kn, *address[0], type, s.k, mk, &zero, *address[2], type, s.n,
      static_cast<long long>(s.m) * s.n, s.batch, context->compute, kDefaultAlgorithm);
  return Check(status, "cublasGemmStridedBatchedEx");
}

}  // namespace cublas
}  // namespace dycl

#endif  // DYCL_RUNTIME_CUBLAS_REGION_H_
