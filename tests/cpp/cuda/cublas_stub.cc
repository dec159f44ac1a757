// Licensed under the Apache License, Version 2.0; see LICENSE.
// The part of libcublas.so.12 that artefacts call, on memory of the emulated GPU. As the library,
// it takes matrices by columns, puts its work on the handle's stream, and checks its arguments.
#include <cstdint>
#include <cstring>

#include "half_on_cpu.h"

extern "C" {
int emulated_cuda_enqueue(void* stream, void (*work)(void*), void* data);

static int g_handles = 0;
static int g_version = 120000;

int emulated_cublas_handles() { return g_handles; }
void emulated_cublas_version(int version) { g_version = version; }

struct Stub {
  void* stream;
};

int cublasCreate_v2(Stub** out) {
  *out = new Stub{nullptr};
  ++g_handles;
  return 0;
}
int cublasDestroy_v2(Stub* handle) {
  delete handle;
  --g_handles;
  return 0;
}
int cublasSetStream_v2(Stub* handle, void* stream) {
  handle->stream = stream;
  return 0;
}
int cublasGetVersion_v2(Stub*, int* version) {
  *version = g_version;
  return 0;
}

struct Gemm {
  bool ta, tb;
  int m, n, k;
  float alpha, beta;
  const char *a, *b;
  char* c;
  int lda, ldb, ldc, batch, bytes;
  long long sa, sb, sc;
};

static float Get(const char* at, int bytes) {
  if (bytes == 4) {
    float value;
    memcpy(&value, at, 4);
    return value;
  }
  unsigned short bits;
  memcpy(&bits, at, 2);
  return dycl_half_value(bits);
}

static void Run(void* data) {
  auto* g = static_cast<Gemm*>(data);
  for (int q = 0; q < g->batch; ++q) {
    for (int j = 0; j < g->n; ++j) {
      for (int i = 0; i < g->m; ++i) {
        float sum = 0;
        for (int p = 0; p < g->k; ++p) {
          long long x = g->ta ? p + 1LL * i * g->lda : i + 1LL * p * g->lda;
          long long y = g->tb ? j + 1LL * p * g->ldb : p + 1LL * j * g->ldb;
          sum += Get(g->a + (q * g->sa + x) * g->bytes, g->bytes) *
                 Get(g->b + (q * g->sb + y) * g->bytes, g->bytes);
        }
        char* to = g->c + (q * g->sc + i + 1LL * j * g->ldc) * g->bytes;
        sum = g->alpha * sum + (g->beta != 0 ? g->beta * Get(to, g->bytes) : 0);
        unsigned short bits = dycl_half_bits(sum);
        memcpy(to, g->bytes == 4 ? static_cast<void*>(&sum) : &bits, g->bytes);
      }
    }
  }
  delete g;
}

int cublasGemmStridedBatchedEx(Stub* handle, int ta, int tb, int m, int n, int k, const void* alpha,
                               const void* a, int a_type, int lda, long long sa, const void* b,
                               int b_type, int ldb, long long sb, const void* beta, void* c,
                               int c_type, int ldc, long long sc, int batch, int compute, int) {
  constexpr int kInvalidValue = 7, kNotSupported = 15;
  if (compute != (g_version >= 11000 ? 68 : 0)) return kNotSupported;
  if (a_type != b_type || b_type != c_type || (a_type != 0 && a_type != 2)) return kNotSupported;
  if (m < 0 || n < 0 || k < 0 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) {
    return kInvalidValue;
  }
  auto* g = new Gemm{ta != 0,
                     tb != 0,
                     m,
                     n,
                     k,
                     *static_cast<const float*>(alpha),
                     *static_cast<const float*>(beta),
                     static_cast<const char*>(a),
                     static_cast<const char*>(b),
                     static_cast<char*>(c),
                     lda,
                     ldb,
                     ldc,
                     batch,
                     a_type == 0 ? 4 : 2,
                     sa,
                     sb,
                     sc};
  return emulated_cuda_enqueue(handle->stream, Run, g) == 0 ? 0 : 13;
}
}
