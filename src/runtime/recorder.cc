// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "dispatch.h"

namespace dycl {
namespace {

bool LinuxCountsCycles() {
  char name[4] = {};
  int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                  O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  bool does = read(file, name, sizeof(name)) == sizeof(name) && memcmp(name, "tsc\n", 4) == 0;
  close(file);
  return does;
}

}  // namespace

void RecorderClock::Begin() {
  counter_ = LinuxCountsCycles();
  first_ = Now();
}

// Both clocks at once. The thread may lose its core between two looks, for longer than a run takes:
// of several the closest two are taken.
RecorderClock::Moment RecorderClock::Now() const {
  Moment closest = {0, 0};
  uint64_t between = UINT64_MAX;
  for (int k = 0; k < 8; ++k) {
    uint64_t before = Ticks();
    uint64_t ns = MonotonicNs();
    uint64_t passed = Ticks() - before;
    if (passed >= between) continue;
    between = passed;
    closest = {before + passed / 2, ns};
  }
  return closest;
}

double RecorderClock::NsPerTick() const {
  Moment now = Now();
  bool passed = now.ticks > first_.ticks && now.ns > first_.ns;
  return counter_ && passed ? static_cast<double>(now.ns - first_.ns) /
                                  static_cast<double>(now.ticks - first_.ticks)
                            : 1.0;
}

size_t Recorder::Take(DyclEvent* to, size_t most) {
  lost_ = lost();
  const auto there = static_cast<size_t>(count());
  const size_t taken = there < most ? there : most;
  size_t at = next_ >= there ? next_ - there : next_ + capacity_ - there;
  const double ns_per_tick = clock_.NsPerTick();
  for (size_t k = 0; k < taken; ++k) {
    to[k] = events_[at];
    to[k].begin_ns = clock_.Ns(to[k].begin_ns, ns_per_tick);
    to[k].end_ns = clock_.Ns(to[k].end_ns, ns_per_tick);
    at = at + 1 == capacity_ ? 0 : at + 1;
  }
  taken_ = written_ - (there - taken);
  return taken;
}

// Whether a run is recorded, and nothing else is asked of it.
static bool OnlyRecorded(const Frame& f) {
  return __atomic_load_n(&f.asked, __ATOMIC_RELAXED) == kRecord;
}

// Null where the run is not timed inside.
static Recorder* RecorderOf(const Frame& f) {
  return f.recorder != nullptr && f.recorder->timed() ? f.recorder : nullptr;
}

// Calls that follow each other share the moment between them: one look at the clock a kernel.
bool RunCallsWatched(Frame& f, uint32_t first, uint32_t count) {
  Recorder* recorder = RecorderOf(f);
  uint64_t begin = recorder != nullptr ? recorder->Ticks() : 0;
  for (uint32_t k = first; k < first + count; ++k) {
    if (!OnlyRecorded(f) && !MayGoOn(f)) return false;
    if (!RunCall(f.calls[k], f.call_runs + k, k)) return false;
    if (recorder == nullptr) continue;
    uint64_t end = recorder->Ticks();
    recorder->Write(DYCL_EVENT_CALL, k, 0, begin, end);
    begin = end;
  }
  return true;
}

bool DecidedWatched(const Frame& f, uint32_t decision, uint32_t choice) {
  if (Recorder* recorder = RecorderOf(f)) {
    uint64_t now = recorder->DecisionTicks();
    recorder->Write(DYCL_EVENT_DECISION, decision, choice, now, now);
  }
  return OnlyRecorded(f) || MayGoOn(f);
}

}  // namespace dycl
