// Licensed under the Apache License, Version 2.0; see LICENSE.
// The threads behind parallel loops. A pool runs one job at a time; a job that finds its pool busy,
// or that starts inside another job, runs on the calling thread alone, so that nothing ever waits
// in a circle. Workers spin for a moment after a job and then sleep.
#ifndef DYCL_RUNTIME_THREAD_POOL_H_
#define DYCL_RUNTIME_THREAD_POOL_H_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "thread_settings.h"

namespace dycl {

// The layout that compiled kernels expect.
struct ParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using ParallelLambda = int (*)(int task_id, ParallelGroupEnv* env, void* closure);

// What sync_handle points to.
struct Barrier {
  std::atomic<int32_t> arrived{0};
  std::atomic<uint32_t> round{0};
};

// While it lives, parallel loops of this thread run on it alone.
class ScopedTask {
 public:
  ScopedTask();
  ~ScopedTask();
  ScopedTask(const ScopedTask&) = delete;
  ScopedTask& operator=(const ScopedTask&) = delete;
  // Whether one lives on this thread.
  static bool Any();

 private:
  bool outer_;
};

// Runs all tasks on the calling thread.
int RunAlone(ParallelLambda lambda, void* closure, int num_task);

class ThreadPool {
 public:
  // `num_threads` counts the calling thread. Fewer are made where the system refuses.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_workers_ + 1; }
  // False in a child of fork(): its workers exist in the parent only.
  bool alive() const;
  // Runs `num_task` tasks (0: one for each thread). Returns 0, or -1 when a task failed.
  int Launch(ParallelLambda lambda, void* closure, int num_task);

  // The pool of this library, for those that have found it as that of the process; made on first
  // use. Null where there is no memory for it.
  static ThreadPool* Shared();
  // Ends the threads of that pool, in which nobody may be.
  static void EndShared();
  // How the threads of this library run: those of its shared pool, and those that it makes later.
  static void Configure(const ThreadSettings& settings);
  // What DYCL_NUM_THREADS says, or the CPUs that its threads may use.
  static int DefaultThreads();
  // Threads of the session that runs on this thread.
  static int CurrentThreads();

 private:
  struct Worker {
    ThreadPool* pool;
    int index;
    pthread_t thread;
    std::atomic<pid_t> number;  // Linux's; 0: it has not begun yet
  };
  static void* WorkerMain(void* worker);
  void Apply(const ThreadSettings& settings);
  void Loop(int index);
  void RunTasks(int preferred, uint32_t generation);

  std::unique_ptr<Worker[]> workers_;
  int num_workers_ = 0;
  uint32_t fork_epoch_;

  // The job; written while no worker looks, published by generation_.
  ParallelLambda lambda_ = nullptr;
  void* closure_ = nullptr;
  ParallelGroupEnv env_{};
  std::atomic<int> result_{0};
  std::atomic<bool> stop_{false};

  std::atomic<bool> busy_{false};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> sleepers_{0};
  // The job's generation, and a bit for each task that no thread has taken yet.
  static constexpr int kMaxTasks = 32;
  alignas(64) std::atomic<uint64_t> open_tasks_{0};
  // Tasks that are not done yet.
  alignas(64) std::atomic<uint32_t> pending_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
};

// In a child of fork(), called by library.cc.
void ForkedThreadPools();

// The pool of the session that runs on this thread; null means the shared one.
class ScopedPool {
 public:
  explicit ScopedPool(ThreadPool* pool);
  ~ScopedPool();
  ScopedPool(const ScopedPool&) = delete;
  ScopedPool& operator=(const ScopedPool&) = delete;

 private:
  ThreadPool* previous_;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_THREAD_POOL_H_
