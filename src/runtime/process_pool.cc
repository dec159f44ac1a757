// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "process_pool.h"

#include <dlfcn.h>

#include <atomic>

#include "dycl/dycl.h"

// The same variable in all libraries of a process, whoever loaded them and how: null at first. In
// assembly, because only there all compilers let one say that it is unique.
extern "C" {
extern DYCL_API std::atomic<const dycl::ProcessPool*> dycl_process_pool_v1;
}
asm(R"(
  .pushsection .data
  .balign 8
  .type dycl_process_pool_v1, %gnu_unique_object
  .size dycl_process_pool_v1, 8
dycl_process_pool_v1:
  .quad 0
  .popsection
)");
static_assert(sizeof(std::atomic<const dycl::ProcessPool*>) == 8, "as in the assembly");

namespace dycl {
namespace {

int32_t NumThreads() {
  ThreadPool* pool = ThreadPool::Shared();
  return pool != nullptr ? pool->num_threads() : 1;
}

int32_t Launch(ParallelLambda lambda, void* closure, int32_t num_task) {
  ThreadPool* pool = ThreadPool::Shared();
  return pool != nullptr ? pool->Launch(lambda, closure, num_task)
                         : RunAlone(lambda, closure, num_task);
}

const ProcessPool kOurs = {sizeof(ProcessPool), NumThreads, Launch};

const ProcessPool* Find() {
  // Not the variable as such: within a library the linker binds it to the library's own.
  void* symbol = dlsym(RTLD_DEFAULT, "dycl_process_pool_v1");
  auto* slot = symbol != nullptr ? static_cast<std::atomic<const ProcessPool*>*>(symbol)
                                 : &dycl_process_pool_v1;
  const ProcessPool* found = nullptr;
  return slot->compare_exchange_strong(found, &kOurs) ? &kOurs : found;
}

}  // namespace

const ProcessPool& GetProcessPool() {
  static const ProcessPool* pool = Find();
  return *pool;
}

}  // namespace dycl
