// Licensed under the Apache License, Version 2.0; see LICENSE.
// One pool of threads for all libraries of a process, also for those that were built by other
// versions: that of the library which was loaded first. When it is unloaded the next one's takes
// its place. A library says where its PoolHost is in a note of its ELF file (type kPoolNote of
// "DYCL"), which the others read in the program headers of all that the process has loaded.
//
// PoolHost, ThreadSettings, CallersThreads, RunsByPriority, ParallelGroupEnv and Barrier
// (thread_pool.h) are the interface between builds. Members are added at the end of PoolHost; what
// cannot be told so needs another type of note.
#ifndef DYCL_RUNTIME_PROCESS_POOL_H_
#define DYCL_RUNTIME_PROCESS_POOL_H_

#include <atomic>
#include <cstdint>

#include "callers_threads.h"
#include "priorities.h"
#include "thread_pool.h"

namespace dycl {

struct PoolHost {
  uint32_t struct_size;
  int32_t (*num_threads)();
  // ThreadPool::Launch of the library's pool.
  int32_t (*launch)(ParallelLambda lambda, void* closure, int32_t num_task);
  // What was said of its threads, and says it.
  void (*settings)(ThreadSettings* out);
  void (*configure)(const ThreadSettings* settings);
  // kOpen, and how many libraries look at it right now: so long it stays in memory.
  std::atomic<uint32_t> pins;
  // Not 0: the library launches nothing in the pool of the process for the moment.
  std::atomic<uint32_t> paused;
  // Threads of this library that are in the pool of the process.
  std::atomic<uint32_t> users;
  // Whose pool this library uses; null: it has not looked yet.
  std::atomic<PoolHost*> of;
  // Threads of the program that are used instead of the pool; `function` is null where there are
  // none.
  void (*callers)(CallersThreads* out);
  // Uses others. When it returns, nobody is in the function that was there before; false where
  // there is no memory.
  bool (*use_callers)(const CallersThreads* threads);
  // The runs that go on, the same for all libraries; null in one that does not take part.
  std::atomic<RunsByPriority*> runs;
};

// Takes part: offers the pool of this library, unless an older one is there. False where there is
// no memory.
bool JoinProcessPool();
// Leaves. When it returns no other library looks at this one, and its threads have ended.
void LeaveProcessPool();

// In a child of fork(), called by library.cc.
void ForkedProcessPool();

// As the functions of ThreadPool do, in the pool of the process.
int LaunchInProcessPool(ParallelLambda lambda, void* closure, int num_task);
int ProcessPoolThreads();
// The runs that go on in the process; null in a library that does not take part: one with a session
// does.
RunsByPriority* ProcessRuns();
// How the threads of all libraries run, those of sessions too.
void ConfigureThreads(const ThreadSettings& settings);
// Has all libraries use threads of the program, or the pool again. Not from inside a task. False
// where there is no memory.
bool UseCallersThreads(const CallersThreads& threads);

}  // namespace dycl

#endif  // DYCL_RUNTIME_PROCESS_POOL_H_
