// Licensed under the Apache License, Version 2.0; see LICENSE.
// Products of matrices by cuBLAS, for regions of the backend `cublas`. A session has one handle.
#ifndef DYCL_RUNTIME_CUBLAS_REGION_H_
#define DYCL_RUNTIME_CUBLAS_REGION_H_

#include "gpu_library.h"

namespace dycl {
namespace cublas {

using Status = int;

// cublasOperation_t, cudaDataType_t, cublasGemmAlgo_t, and how float32 is added up: as a type
// before CUDA 11, as a cublasComputeType_t since.
constexpr int kNotTransposed = 0;
constexpr int kFloat32 = 0, kFloat16 = 2;
constexpr int kDefaultAlgorithm = -1;
constexpr int kCompute32Before11 = 0, kCompute32 = 68;

struct Library : cuda::SharedLibrary {
  static constexpr const char *kName = "cuBLAS", *kBackend = "cublas";
  static constexpr uint32_t kState = kCublasState;

  Status (*Create)(void**) = nullptr;
  Status (*Destroy)(void*) = nullptr;
  Status (*SetStream)(void*, void*) = nullptr;
  Status (*Version)(void*, int*) = nullptr;
  Status (*Product)(void*, int, int, int, int, int, const void*, const void*, int, int, long long,
                    const void*, int, int, long long, const void*, void*, int, int, long long, int,
                    int, int) = nullptr;

  explicit Library(int cuda_version) {
    Open("libcublas", cuda_version / 1000, 10);
    Find("cublasCreate_v2", &Create);
    Find("cublasDestroy_v2", &Destroy);
    Find("cublasSetStream_v2", &SetStream);
    Find("cublasGetVersion_v2", &Version);
    Find("cublasGemmStridedBatchedEx", &Product);
  }
};

// Row-major c[batch] = a[batch] b[batch], each compact: (m, k), (k, n), (m, n). `a` and `b` are
// numbers of arguments, c is the last one.
struct Shape {
  int batch, m, n, k;
  bool half;
  int a, b, c;
};

inline int32_t Product(const LibraryCall& call, const Shape& s) {
  if (call.step == LibraryStep::kFind) {
    const Library* library = nullptr;
    return cuda::FindLibrary(call, &library);
  }
  const cuda::LibraryHandle<Library>* handle = nullptr;
  if (int32_t status = cuda::GetHandle(call, &handle)) return status;
  if (call.step == LibraryStep::kPrepare) return DYCL_OK;
  const float one = 1, zero = 0;
  int type = s.half ? kFloat16 : kFloat32;
  long long mk = static_cast<long long>(s.m) * s.k, kn = static_cast<long long>(s.k) * s.n;
  // cuBLAS counts along columns: what it takes for b, a and c are their transposes, and the
  // transposed product is b' a'.
  Status status = handle->library->Product(
      handle->handle, kNotTransposed, kNotTransposed, s.n, s.m, s.k, &one, cuda::Address(call, s.b),
      type, s.n, kn, cuda::Address(call, s.a), type, s.k, mk, &zero, cuda::Address(call, s.c), type,
      s.n, static_cast<long long>(s.m) * s.n, s.batch,
      handle->version < 11000 ? kCompute32Before11 : kCompute32, kDefaultAlgorithm);
  return cuda::CheckLibrary<Library>(status, "cublasGemmStridedBatchedEx");
}

}  // namespace cublas
}  // namespace dycl

#endif  // DYCL_RUNTIME_CUBLAS_REGION_H_
