// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "thread_pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <new>

#include "log.h"
#include "priorities.h"
#include "process_pool.h"
#include "worker.h"

namespace dycl {
namespace {

// About 20 microseconds: longer than the gap between two kernels, shorter than a time slice.
constexpr int kSpins = 2000;
constexpr int kMaxThreads = 256;

thread_local ThreadPool* t_pool = nullptr;
thread_local bool t_in_task = false;
thread_local bool t_next_alone = false;

std::atomic<uint32_t> g_fork_epoch{0};
std::atomic<ThreadPool*> g_shared{nullptr};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

}  // namespace

// The workers of the parent do not exist: forget the pool, make another on demand.
void ForkedThreadPools() {
  g_fork_epoch.fetch_add(1);
  g_shared.store(nullptr);
}

ThreadPool::ThreadPool(int num_threads) {
  fork_epoch_ = g_fork_epoch.load();
  if (num_threads > kMaxThreads) num_threads = kMaxThreads;
  if (num_threads < 2) return;
  // What is wrong with the environment is told here, and not by a thread that begins some time.
  static_cast<void>(CurrentThreadSettings());
  // Not an exception: kernels call, through whose frames none may go.
  workers_.reset(new (std::nothrow) Worker[num_threads - 1]);
  if (workers_ == nullptr) {
    Warn("there is no memory for threads; kernels run on the one that calls");
    return;
  }
  for (int i = 0; i + 1 < num_threads; ++i) {
    workers_[i].pool = this;
    workers_[i].index = i;
    workers_[i].number.store(0);
    if (!StartThread(&workers_[i].thread, WorkerMain, &workers_[i])) {
      Warn("the system refuses more than %d threads; kernels run on fewer than %d", i + 1,
           num_threads);
      break;
    }
    ++num_workers_;
  }
}

ThreadPool::~ThreadPool() {
  if (num_workers_ == 0 || !alive()) return;
  stop_ = true;
  generation_.fetch_add(1);
  FutexWake(&generation_);
  for (int i = 0; i < num_workers_; ++i) pthread_join(workers_[i].thread, nullptr);
}

bool ThreadPool::alive() const {
  return fork_epoch_ == g_fork_epoch.load(std::memory_order_relaxed);
}

int ThreadPool::DefaultThreads() {
  if (const char* text = getenv("DYCL_NUM_THREADS")) {
    int n = atoi(text);
    if (n > 0) return n < kMaxThreads ? n : kMaxThreads;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  int n = CurrentThreadSettings().NumCpus();
  if (n == 0) n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return n < 1 ? 1 : n < kMaxThreads ? n : kMaxThreads;
}

ThreadPool* ThreadPool::Shared() {
  ThreadPool* pool = g_shared.load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  pool = new (std::nothrow) ThreadPool(DefaultThreads());
  ThreadPool* other = nullptr;
  if (!g_shared.compare_exchange_strong(other, pool)) {
    delete pool;
    return other;
  }
  return pool;  // lives until the library is unloaded: threads may run kernels until the very end
}

void ThreadPool::EndShared() { delete g_shared.exchange(nullptr); }

void ThreadPool::Configure(const ThreadSettings& settings) {
  SaveThreadSettings(settings);
  if (ThreadPool* pool = g_shared.load(std::memory_order_acquire)) pool->Apply(settings);
}

void ThreadPool::Apply(const ThreadSettings& settings) {
  bool good = true;
  for (int i = 0; i < num_workers_; ++i) {
    // One that has not begun finds for itself what was saved.
    const pid_t number = workers_[i].number.load();
    if (number != 0) good = ApplyThreadSettings(settings, number) && good;
  }
  if (!good) Warn("the system refuses the CPUs or the priority that the threads were to have");
}

void* ThreadPool::WorkerMain(void* worker) {
  Worker* self = static_cast<Worker*>(worker);
  const auto number = static_cast<pid_t>(syscall(SYS_gettid));
  self->number.store(number);
  if (!ApplyThreadSettings(CurrentThreadSettings(), number)) {
    Warn("the system refuses the CPUs or the priority that a thread was to have");
  }
  self->pool->Loop(self->index);
  return nullptr;
}

void ThreadPool::Loop(int index) {
  t_in_task = true;
  uint32_t seen = 0;
  while (true) {
    uint32_t now = generation_.load(std::memory_order_acquire);
    for (int spin = 0; now == seen && spin < kSpins; ++spin) {
      Pause();
      now = generation_.load(std::memory_order_acquire);
    }
    while (now == seen) {
      sleepers_.fetch_add(1);
      FutexWait(&generation_, seen);
      sleepers_.fetch_sub(1);
      now = generation_.load();
    }
    seen = now;
    if (stop_) return;
    RunTasks(index + 1, seen);
  }
}

// Task k runs on thread k if that thread comes in time, so that its caches serve the next run too;
// a task whose thread is late runs on another one, so that nobody waits for a thread to wake up.
void ThreadPool::RunTasks(int preferred, uint32_t generation) {
  uint64_t open = open_tasks_.load(std::memory_order_acquire);
  while (true) {
    uint32_t mask = static_cast<uint32_t>(open);
    if (static_cast<uint32_t>(open >> 32) != generation || mask == 0) return;
    int task =
        preferred < kMaxTasks && (mask >> preferred & 1) != 0 ? preferred : __builtin_ctz(mask);
    if (!open_tasks_.compare_exchange_weak(open, open & ~(uint64_t{1} << task),
                                           std::memory_order_acq_rel)) {
      continue;
    }
    // The job lasts until this task is done.
    if (lambda_(task, &env_, closure_) != 0) result_.store(-1, std::memory_order_relaxed);
    if (pending_.fetch_sub(1) == 1 && caller_sleeps_.load() != 0) FutexWake(&pending_);
    open = open_tasks_.load(std::memory_order_acquire);
  }
}

ScopedTask::ScopedTask() : outer_(t_in_task) { t_in_task = true; }
ScopedTask::~ScopedTask() { t_in_task = outer_; }
bool ScopedTask::Any() { return t_in_task; }

int RunAlone(ParallelLambda lambda, void* closure, int num_task) {
  ParallelGroupEnv env{nullptr, num_task == 0 ? 1 : num_task};
  ScopedTask scope;
  int result = 0;
  for (int task = 0; task < env.num_task; ++task) {
    if (lambda(task, &env, closure) != 0) result = -1;
  }
  return result;
}

int ThreadPool::Launch(ParallelLambda lambda, void* closure, int num_task) {
  int wanted = num_task;
  if (num_task == 0) num_task = num_threads() < kMaxTasks ? num_threads() : kMaxTasks;
  if (num_workers_ == 0 || t_in_task || num_task == 1 || num_task > kMaxTasks ||
      busy_.exchange(true)) {
    // One task, where the kernel leaves it open: several on one thread would not meet at a barrier.
    return RunAlone(lambda, closure, wanted);
  }
  Barrier barrier;
  lambda_ = lambda;
  closure_ = closure;
  env_.num_task = num_task;
  // With more tasks than threads a barrier would never fill: no handle makes it an error.
  env_.sync_handle = env_.num_task <= num_threads() ? &barrier : nullptr;
  result_.store(0, std::memory_order_relaxed);
  pending_.store(static_cast<uint32_t>(num_task));
  uint32_t generation = generation_.load() + 1;
  uint32_t tasks = num_task == kMaxTasks ? ~uint32_t{0} : (uint32_t{1} << num_task) - 1;
  open_tasks_.store(uint64_t{generation} << 32 | tasks, std::memory_order_release);
  generation_.store(generation);
  if (sleepers_.load() != 0) FutexWake(&generation_);
  {
    ScopedTask task;
    RunTasks(0, generation);
  }
  for (int spin = 0; pending_.load(std::memory_order_acquire) != 0 && spin < kSpins; ++spin)
    Pause();
  if (pending_.load() != 0) {
    caller_sleeps_.store(1);
    for (uint32_t left = pending_.load(); left != 0; left = pending_.load()) {
      FutexWait(&pending_, left);
    }
    caller_sleeps_.store(0);
  }
  int result = result_.load(std::memory_order_relaxed);
  busy_.store(false);
  return result;
}

ScopedPool::ScopedPool(ThreadPool* pool) : previous_(t_pool) { t_pool = pool; }
ScopedPool::~ScopedPool() { t_pool = previous_; }

int ThreadPool::CurrentThreads() {
  if (ScopedPriority::Outranked()) return 1;
  return t_pool != nullptr ? t_pool->num_threads() : ProcessPoolThreads();
}

static int ParallelLaunch(ParallelLambda lambda, void* closure, int num_task) {
  bool alone = t_next_alone || t_in_task || ScopedPriority::Outranked();
  t_next_alone = false;
  if (alone) return RunAlone(lambda, closure, num_task);
  return t_pool != nullptr ? t_pool->Launch(lambda, closure, num_task)
                           : LaunchInProcessPool(lambda, closure, num_task);
}

static int ParallelBarrier(int /*task_id*/, ParallelGroupEnv* env) {
  if (env->num_task == 1) return 0;
  Barrier* barrier = static_cast<Barrier*>(env->sync_handle);
  if (barrier == nullptr) return -1;
  uint32_t round = barrier->round.load();
  if (barrier->arrived.fetch_add(1) + 1 == env->num_task) {
    barrier->arrived.store(0);
    barrier->round.fetch_add(1);
    return 0;
  }
  for (int spin = 0; barrier->round.load() == round; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else {
      sched_yield();
    }
  }
  return 0;
}

}  // namespace dycl

// Compiled kernels call through these weak slots; strong definitions win.
extern "C" {
void* __TVMBackendParallelLaunch = reinterpret_cast<void*>(dycl::ParallelLaunch);
void* __TVMBackendParallelBarrier = reinterpret_cast<void*>(dycl::ParallelBarrier);

// A kernel whose next parallel loop has too little work for other threads says so first: how much
// there is depends on a size of the call.
int __dycl_next_launch_alone(int alone) {
  dycl::t_next_alone = alone != 0;
  return 0;
}
}
