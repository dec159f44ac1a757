// Licensed under the Apache License, Version 2.0; see LICENSE.
// Kernels with the ABI of compiled ones, for the tests of the dispatcher and the runtime.
#include <tvm/ffi/c_api.h>

#include <chrono>
#include <cstring>

extern "C" {
extern void* __TVMBackendParallelLaunch;
extern void* __TVMBackendParallelBarrier;
extern void* __TVMBackendAllocWorkspace;
extern void* __TVMBackendFreeWorkspace;
}

namespace {

struct Env {
  void* sync;
  int32_t num_task;
};
using Lambda = int (*)(int, Env*, void*);
using Launch = int (*)(Lambda, void*, int);
using Barrier = int (*)(int, Env*);
using Alloc = void* (*)(int, int, uint64_t, int, int);
using Free = int (*)(int, int, void*);

const DLTensor& T(const TVMFFIAny* args, int k) { return *static_cast<DLTensor*>(args[k].v_ptr); }

int64_t Count(const DLTensor& t) {
  int64_t n = 1;
  for (int d = 0; d < t.ndim; ++d) n *= t.shape[d];
  return n;
}

float* F(const TVMFFIAny* args, int k) { return static_cast<float*>(T(args, k).data); }

struct Halves {
  const float* in;
  float* out;
  int64_t n;
};

// Two phases with a barrier between: the second reads what other tasks wrote in the first.
int ReverseTask(int task, Env* env, void* closure) {
  Halves* h = static_cast<Halves*>(closure);
  for (int64_t i = task; i < h->n; i += env->num_task) h->out[i] = h->in[i] * 2;
  return reinterpret_cast<Barrier>(__TVMBackendParallelBarrier)(task, env);
}

int ScaleTask(int task, Env* env, void* closure) {
  Halves* h = static_cast<Halves*>(closure);
  for (int64_t i = task; i < h->n; i += env->num_task) h->out[i] = h->in[i] * 2;
  return 0;
}

int FailTask(int task, Env*, void*) { return task == 0 ? -1 : 0; }

}  // namespace

#define KERNEL(name) \
  extern "C" int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*)

KERNEL(k_inc) {
  for (int64_t i = 0; i < Count(T(args, 0)); ++i) F(args, 1)[i] = F(args, 0)[i] + 1;
  return 0;
}

KERNEL(k_add) {
  for (int64_t i = 0; i < Count(T(args, 0)); ++i) F(args, 2)[i] = F(args, 0)[i] + F(args, 1)[i];
  return 0;
}

KERNEL(k_twice) {  // through the thread pool
  Halves h = {F(args, 0), F(args, 1), Count(T(args, 0))};
  return reinterpret_cast<Launch>(__TVMBackendParallelLaunch)(ScaleTask, &h, 0);
}

KERNEL(k_barrier) {
  Halves h = {F(args, 0), F(args, 1), Count(T(args, 0))};
  return reinterpret_cast<Launch>(__TVMBackendParallelLaunch)(ReverseTask, &h, 0);
}

KERNEL(k_scratch) {  // through two blocks of workspace
  uint64_t bytes = static_cast<uint64_t>(Count(T(args, 0))) * 4;
  Alloc alloc = reinterpret_cast<Alloc>(__TVMBackendAllocWorkspace);
  Free free = reinterpret_cast<Free>(__TVMBackendFreeWorkspace);
  void* a = alloc(1, 0, bytes, 2, 32);
  void* b = alloc(1, 0, bytes, 2, 32);
  if (a == nullptr || b == nullptr)
    return free(1, 0, a) + free(1, 0, b) - 1;  // as TVM's kernels do
  memcpy(a, T(args, 0).data, bytes);
  memcpy(b, a, bytes);
  memcpy(T(args, 1).data, b, bytes);
  free(1, 0, b);
  return free(1, 0, a);
}

KERNEL(k_wait) {  // as many microseconds as the first element says
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<float, std::micro> wanted(F(args, 0)[0]);
  for (Clock::time_point begin = Clock::now(); Clock::now() - begin < wanted;) {
  }
  memcpy(F(args, 1), F(args, 0), static_cast<size_t>(Count(T(args, 0))) * 4);
  return 0;
}

KERNEL(k_fail) {
  (void)args;
  const char* parts[] = {"this kernel ", "always fails"};
  TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 2);
  return -1;
}

KERNEL(k_fail_task) {
  (void)args;
  return reinterpret_cast<Launch>(__TVMBackendParallelLaunch)(FailTask, nullptr, 0);
}
