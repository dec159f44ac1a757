// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "priorities.h"

#include <new>

#include "error.h"
#include "process_pool.h"

namespace dycl {
namespace {

thread_local const ScopedPriority* t_run = nullptr;

}  // namespace

RunsByPriority* NewRunsByPriority() {
  auto* runs = new (std::nothrow) RunsByPriority();
  if (runs != nullptr) runs->references.store(1);
  return runs;
}

void Release(RunsByPriority* runs) {
  if (runs != nullptr && runs->references.fetch_sub(1) == 1) delete runs;
}

void Forked(RunsByPriority* runs) {
  if (runs == nullptr) return;
  runs->forks.fetch_add(1);
  runs->normal.store(0);
  runs->high.store(0);
}

SessionPriority::~SessionPriority() {
  if (value_ != DYCL_PRIORITY_NORMAL) ProcessRuns()->sessions.fetch_sub(1);
}

int32_t SessionPriority::Set(int32_t priority) {
  if (priority < DYCL_PRIORITY_LOW || priority > DYCL_PRIORITY_HIGH) {
    return UsageError("a priority is DYCL_PRIORITY_LOW, _NORMAL or _HIGH, not %d",
                      static_cast<int>(priority));
  }
  RunsByPriority* runs = ProcessRuns();
  const int change = (priority != DYCL_PRIORITY_NORMAL) - (value_ != DYCL_PRIORITY_NORMAL);
  runs->sessions.fetch_add(static_cast<uint32_t>(change));
  value_ = priority;
  return DYCL_OK;
}

ScopedPriority::ScopedPriority(const SessionPriority& priority)
    : outer_(t_run), runs_(ProcessRuns()), value_(priority.value_) {
  t_run = this;
  if (runs_ == nullptr || runs_->sessions.load(std::memory_order_relaxed) == 0) return;
  if (value_ == DYCL_PRIORITY_NORMAL) counted_ = &runs_->normal;
  if (value_ == DYCL_PRIORITY_HIGH) counted_ = &runs_->high;
  if (counted_ == nullptr) return;
  forks_ = runs_->forks.load();
  counted_->fetch_add(1);
}

ScopedPriority::~ScopedPriority() {
  t_run = outer_;
  // Of a run in the middle of which the process was forked the child has counted nothing.
  if (counted_ != nullptr && runs_->forks.load() == forks_) counted_->fetch_sub(1);
}

bool ScopedPriority::Outranked() {
  const ScopedPriority* run = t_run;
  if (run == nullptr || run->value_ == DYCL_PRIORITY_HIGH || run->runs_ == nullptr) return false;
  if (run->runs_->high.load(std::memory_order_relaxed) != 0) return true;
  return run->value_ == DYCL_PRIORITY_LOW &&
         run->runs_->normal.load(std::memory_order_relaxed) != 0;
}

}  // namespace dycl
