// Licensed under the Apache License, Version 2.0; see LICENSE.
// Priorities of sessions: while a run of a higher one goes on in the process, kernels of the others
// run on the thread that calls, from the next one on, and leave all other threads to it. Nobody
// waits.
#ifndef DYCL_RUNTIME_PRIORITIES_H_
#define DYCL_RUNTIME_PRIORITIES_H_

#include <atomic>
#include <cstdint>

#include "dycl/dycl.h"

namespace dycl {

// The runs that go on in a process, of all its libraries. A part of the interface between builds
// (process_pool.h). Each library that knows of it holds a reference; the last one frees it.
struct RunsByPriority {
  std::atomic<uint32_t> references;
  // How often the process was forked: what was counted before that goes on in the parent.
  std::atomic<uint32_t> forks;
  // Sessions that have another priority than the normal one. Where there are none, runs of normal
  // ones are not counted, so that they cost nothing.
  std::atomic<uint32_t> sessions;
  std::atomic<uint32_t> normal;
  std::atomic<uint32_t> high;
};

// Makes one with a reference; null where there is no memory.
RunsByPriority* NewRunsByPriority();
void Release(RunsByPriority* runs);
// In a child of fork().
void Forked(RunsByPriority* runs);

// The priority of a session.
class SessionPriority {
 public:
  ~SessionPriority();
  SessionPriority() = default;
  SessionPriority(const SessionPriority&) = delete;
  SessionPriority& operator=(const SessionPriority&) = delete;
  [[nodiscard]] int32_t Set(int32_t priority);

 private:
  friend class ScopedPriority;
  int32_t value_ = DYCL_PRIORITY_NORMAL;
};

// While it lives, a run of a session goes on on this thread.
class ScopedPriority {
 public:
  explicit ScopedPriority(const SessionPriority& priority);
  ~ScopedPriority();
  ScopedPriority(const ScopedPriority&) = delete;
  ScopedPriority& operator=(const ScopedPriority&) = delete;
  // Whether a run of a higher priority goes on than that on this thread.
  static bool Outranked();

 private:
  const ScopedPriority* outer_;
  RunsByPriority* runs_;
  std::atomic<uint32_t>* counted_ = nullptr;
  uint32_t forks_ = 0;
  int32_t value_;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_PRIORITIES_H_
