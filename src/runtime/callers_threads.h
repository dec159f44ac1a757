// Licensed under the Apache License, Version 2.0; see LICENSE.
// Parallel loops on threads of the program: a function of its own runs the tasks of a kernel.
#ifndef DYCL_RUNTIME_CALLERS_THREADS_H_
#define DYCL_RUNTIME_CALLERS_THREADS_H_

#include <cstdint>

#include "dycl/dycl.h"
#include "thread_pool.h"

namespace dycl {

// What dycl_set_parallel() was told. A part of the interface between builds (process_pool.h).
struct CallersThreads {
  static constexpr int32_t kMost = 256;
  DyclParallelFor function;  // null: the program runs no tasks
  void* user;
  int32_t num_threads;
};

// Has the program run `num_task` tasks (0: one for each of its threads). Returns 0, or -1 when a
// task failed, or with an error when the program has not run each of them once.
int LaunchOnCallers(const CallersThreads& threads, ParallelLambda lambda, void* closure,
                    int num_task);

}  // namespace dycl

#endif  // DYCL_RUNTIME_CALLERS_THREADS_H_
