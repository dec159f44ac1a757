// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dispatch.h"

namespace dycl {
namespace {

// The part of the time of runs that a profile may take where it chooses: 3 % is what is promised.
constexpr double kMostCost = 0.025;
// At least one of so many runs is timed inside.
constexpr uint32_t kMostEvery = 128;
// Looks at the clock in each run; the others are inside.
constexpr uint64_t kLooksOutside = 3;
// To copy so many decisions of a path takes as long as a look at the clock.
constexpr double kDecisionsALook = 8;

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

void Recorder::Begin(DyclEvent* events, size_t capacity, uint32_t every) {
  *this = Recorder();
  events_ = events;
  capacity_ = capacity;
  chooses_ = every == 0;
  every_ = chooses_ ? 1 : every;
  clock_.Begin();
  if (chooses_) look_ = MeasureLook();
}

// The least of several times: what else the machine does only adds to one.
double Recorder::MeasureLook() {
  constexpr int kLooks = 16;
  uint64_t least = UINT64_MAX;
  for (int k = 0; k < 48; ++k) {
    const uint64_t before = Ticks();
    uint64_t now = before;
    for (int look = 0; look < kLooks; ++look) {
      now = Ticks();
      Write(DYCL_EVENT_CALL, 0, 0, before, now);
    }
    if (now - before < least) least = now - before;
  }
  next_ = 0;
  written_ = kernel_end_ = 0;
  return static_cast<double>(least) / kLooks;
}

// The first run is timed inside.
void Recorder::BeginGroup() {
  if (chooses_) every_ = Affordable();
  chosen_ = static_cast<uint32_t>(random_ >> 32) % every_;
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
}

// Does not look at the runs of the group that begins: each has the chance 1 / `every_`.
uint32_t Recorder::Affordable() {
  const double left = kMostCost * ticks_ - outside_;
  const double every = left * kMostEvery > inside_ ? inside_ / left : kMostEvery;
  ticks_ /= 2;
  outside_ /= 2;
  inside_ /= 2;
  return all_ || inside_ == 0 ? 1 : static_cast<uint32_t>(std::ceil(every));
}

void Recorder::EndRun(uint64_t ticks, uint64_t decisions) {
  if (!chooses_) return;
  if (decisions > kPathCapacity) {
    all_ = true;
    place_ = 0;
  }
  const double outside = look_ * (kLooksOutside + static_cast<double>(decisions) / kDecisionsALook);
  const double inside = timed_ ? look_ * static_cast<double>(looks_ - kLooksOutside) : 0;
  ticks_ += std::max(0.0, static_cast<double>(ticks) - inside);
  outside_ += outside;
  inside_ += every_ * inside;
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
