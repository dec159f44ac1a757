// Licensed under the Apache License, Version 2.0; see LICENSE.
// One pool of threads for all libraries of a process, also for those that were built by other
// versions: the first library that needs it offers its own, the others find it by a symbol that the
// system's loader keeps once in a process (GNU's unique symbols). Libraries never leave memory, so
// that what was found stays good.
//
// The structure and ParallelGroupEnv with Barrier (thread_pool.h) are the interface between builds.
// Members are added at its end; what cannot be told so needs another name than
// dycl_process_pool_v1.
#ifndef DYCL_RUNTIME_PROCESS_POOL_H_
#define DYCL_RUNTIME_PROCESS_POOL_H_

#include <cstdint>

#include "thread_pool.h"

namespace dycl {

struct ProcessPool {
  uint32_t struct_size;
  int32_t (*num_threads)();
  // ThreadPool::Launch of the pool of the process.
  int32_t (*launch)(ParallelLambda lambda, void* closure, int32_t num_task);
};

// Finds the pool of the process, or offers that of this library.
const ProcessPool& GetProcessPool();

}  // namespace dycl

#endif  // DYCL_RUNTIME_PROCESS_POOL_H_
