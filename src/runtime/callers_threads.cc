// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "callers_threads.h"

#include <sched.h>

#include <atomic>

#include "error.h"

namespace dycl {
namespace {

constexpr int32_t kBits = 64;

struct Job {
  ParallelLambda lambda;
  void* closure;
  ParallelGroupEnv env;
  std::atomic<bool> failed{false};
  std::atomic<bool> unknown{false};  // a task was run twice, or one that there is not
  std::atomic<int32_t> begun{0};
  std::atomic<int32_t> done{0};
  std::atomic<uint64_t> taken[CallersThreads::kMost / kBits] = {};
};

// What the program calls for each task. A task that was begun is not begun again, so that no two
// threads write to the same memory.
void RunTask(void* data, int32_t k) {
  Job& job = *static_cast<Job*>(data);
  if (k < 0 || k >= job.env.num_task ||
      (job.taken[k / kBits].fetch_or(uint64_t{1} << k % kBits) >> k % kBits & 1) != 0) {
    job.unknown.store(true);
    return;
  }
  job.begun.fetch_add(1);
  {
    ScopedTask task;
    if (job.lambda(k, &job.env, job.closure) != 0) job.failed.store(true);
  }
  job.done.fetch_add(1);
}

}  // namespace

int LaunchOnCallers(const CallersThreads& threads, ParallelLambda lambda, void* closure,
                    int num_task) {
  const int tasks = num_task != 0 ? num_task : threads.num_threads;
  if (tasks == 1 || tasks > CallersThreads::kMost) return RunAlone(lambda, closure, num_task);
  Job job;
  job.lambda = lambda;
  job.closure = closure;
  // Nothing is known of how many tasks run at once: a barrier between them may never fill. No
  // handle makes it an error.
  job.env = ParallelGroupEnv{nullptr, tasks};
  int32_t refused;
  {
    ScopedTask task;  // what the function itself runs has no part in another parallel loop
    refused = threads.function(threads.user, RunTask, &job, tasks);
  }
  const int32_t done = job.done.load();
  // The job and the tensors of the kernel go: those that are on their way must not write to them.
  while (job.begun.load() != job.done.load()) sched_yield();
  if (refused != 0) {
    SetError("RuntimeError", "the function of dycl_set_parallel() returned %d", refused);
    return -1;
  }
  if (job.unknown.load()) {
    SetError("RuntimeError",
             "the function of dycl_set_parallel() ran a task twice, or one that is none of 0 to %d",
             tasks - 1);
    return -1;
  }
  if (done != tasks) {
    SetError("RuntimeError",
             "the function of dycl_set_parallel() returned when %d of %d tasks were done", done,
             tasks);
    return -1;
  }
  return job.failed.load() ? -1 : 0;
}

}  // namespace dycl
