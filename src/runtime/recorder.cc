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
constexpr double kDecisionsALook = 5;

// The kind of a slot that holds `index` decisions of one run, in the words of its times and in its
// `choice`.
constexpr uint32_t kPacked = UINT32_MAX;
constexpr uint32_t kMostPacked = 5;
constexpr int kChoiceBits = 8;

bool Fits(uint64_t decision, uint64_t choice) {
  return decision >> (32 - kChoiceBits) == 0 && choice >> kChoiceBits == 0;
}

uint32_t Unpacked(const DyclEvent& slot, uint32_t k) {
  if (k == kMostPacked - 1) return slot.choice;
  return static_cast<uint32_t>((k < 2 ? slot.begin_ns : slot.end_ns) >> (k % 2 * 32));
}

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
  slots_ = written_ = kernel_end_ = 0;
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

void Recorder::WritePath(const uint64_t* path, uint64_t count, uint64_t end) {
  for (uint64_t k = 0; k < count;) {
    uint32_t packed[kMostPacked] = {};
    uint32_t many = 0;
    for (; many < kMostPacked && k < count; ++many, ++k) {
      const uint64_t decision = path[k] >> 32;
      const uint64_t choice = path[k] & UINT32_MAX;
      if (!Fits(decision, choice)) break;
      packed[many] = static_cast<uint32_t>(decision << kChoiceBits | choice);
    }
    if (many == 0) {
      Write(DYCL_EVENT_DECISION, static_cast<uint32_t>(path[k] >> 32),
            static_cast<uint32_t>(path[k]), end, end);
      ++k;
      continue;
    }
    Put(DyclEvent{packed[0] | static_cast<uint64_t>(packed[1]) << 32,
                  packed[2] | static_cast<uint64_t>(packed[3]) << 32, kPacked, many, packed[4], 0},
        many);
  }
}

uint64_t Recorder::EndOfRun(uint64_t slot) const {
  while (Slot(slot).kind != DYCL_EVENT_RUN) ++slot;
  return Slot(slot).end_ns;
}

size_t Recorder::Take(DyclEvent* to, size_t most) {
  if (read_ != Oldest()) {
    read_ = Oldest();
    within_ = 0;
    path_end_ = 0;
    ns_per_tick_ = 0;
  }
  double known_now = 0;
  size_t taken = 0;
  while (taken < most && read_ < slots_) {
    DyclEvent event = Slot(read_);
    uint32_t events = 1;
    if (event.kind == kPacked) {
      if (path_end_ == 0) path_end_ = EndOfRun(read_);
      const uint32_t entry = Unpacked(event, within_);
      events = event.index;
      event = DyclEvent{path_end_,
                        path_end_,
                        DYCL_EVENT_DECISION,
                        entry >> kChoiceBits,
                        entry & ((1u << kChoiceBits) - 1),
                        0};
    }
    if (ns_per_tick_ == 0) {
      if (known_now == 0) known_now = clock_.NsPerTick();
      ns_per_tick_ = known_now;
    }
    event.begin_ns = clock_.Ns(event.begin_ns, ns_per_tick_);
    event.end_ns = clock_.Ns(event.end_ns, ns_per_tick_);
    if (event.kind == DYCL_EVENT_RUN) path_end_ = ns_per_tick_ = 0;
    event.reserved = 0;
    to[taken++] = event;
    if (++within_ < events) continue;
    within_ = 0;
    ++read_;
  }
  taken_ += taken;
  return taken;
}

uint64_t Recorder::lost() const {
  const uint64_t oldest = Oldest();
  if (oldest == slots_) return written_ - taken_;
  // Of fewer events than 2^32 in the ring the lower half of a number tells how many there are.
  const uint32_t there =
      static_cast<uint32_t>(written_) - Slot(oldest).reserved - (oldest == read_ ? within_ : 0);
  return written_ - taken_ - there;
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
