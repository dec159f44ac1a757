// Licensed under the Apache License, Version 2.0; see LICENSE.
// A profile: what a run does, and when, written into a ring of events that the caller gives. A run
// that is recorded is one of which something is asked (control.h): one that is not looks at the
// same word before each kernel and does nothing more than without this file.
#ifndef DYCL_RUNTIME_RECORDER_H_
#define DYCL_RUNTIME_RECORDER_H_

#include <time.h>

#include "dycl/dycl.h"
#include "program.h"

namespace dycl {

// Not the clock of host_clock.h: checks of a build tell that one the time.
inline uint64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// The clock of a recorder: it is read for each kernel, so it must be cheap. Where Linux makes its
// own clock of the cycle counter, that counter is steady and the same on all cores, and is read
// itself; its ticks become nanoseconds afterwards.
class RecorderClock {
 public:
  void Begin();
  uint64_t Ticks() const {
#if defined(__x86_64__)
    if (counter_) return __builtin_ia32_rdtsc();
#endif
    return MonotonicNs();
  }
  // The length of a tick, as far as it is known now.
  double NsPerTick() const;
  uint64_t Ns(uint64_t ticks, double ns_per_tick) const {
    return first_.ns +
           static_cast<uint64_t>(static_cast<double>(ticks - first_.ticks) * ns_per_tick);
  }

 private:
  struct Moment {
    uint64_t ticks;
    uint64_t ns;
  };
  Moment Now() const;

  bool counter_ = false;
  Moment first_ = {0, 0};
};

// Where the ring is full the oldest event makes room, and is counted as lost. Its times are ticks
// until it is taken out. The decisions of a run that is not timed inside have one time, that of its
// end, so several of them share a slot of the ring: in a long profile each slot is a write to
// memory that no cache holds.
class Recorder {
 public:
  // Begins anew with an empty ring. `every` 0: it is chosen for each group of runs.
  void Begin(DyclEvent* events, size_t capacity, uint32_t every);
  // Says of the run that begins whether it is timed inside: one of each group of `every` runs.
  // Which of them is a matter of chance, so that inputs that come in turns are all met.
  bool BeginRun() {
    if (place_ == 0) BeginGroup();
    timed_ = place_ == chosen_;
    place_ = place_ + 1 == every_ ? 0 : place_ + 1;
    looks_ = 0;
    return timed_;
  }
  // How long the run took, and how many decisions; by this `every` is chosen.
  void EndRun(uint64_t ticks, uint64_t decisions);
  // Whether the run is timed inside.
  bool timed() const { return timed_; }
  // How many runs are in this group.
  uint32_t every() const { return every_; }
  uint64_t Ticks() {
    ++looks_;
    return clock_.Ticks();
  }
  void Write(DyclEventKind kind, uint32_t index, uint32_t choice, uint64_t begin, uint64_t end) {
    Put(DyclEvent{begin, end, static_cast<uint32_t>(kind), index, choice, 0}, 1);
    kernel_end_ = kind == DYCL_EVENT_CALL ? end : 0;
  }
  // The decisions of a run that ends at `end` and was not timed inside; its end is written next.
  void WritePath(const uint64_t* path, uint64_t count, uint64_t end);
  // When a decision is taken. To look at the clock takes longer than all else that is recorded, so
  // one behind a kernel is taken when the kernel ends: what lies between is a read and a
  // comparison, which count for what follows.
  uint64_t DecisionTicks() { return kernel_end_ != 0 ? kernel_end_ : Ticks(); }
  // Takes the oldest events out of the ring; returns their number.
  size_t Take(DyclEvent* to, size_t most);
  // Those that have made room, unread.
  uint64_t lost() const;

 private:
  // A slot holds one event or several; `reserved` is the number of the first, as far as it fits.
  void Put(DyclEvent slot, uint32_t events) {
    slot.reserved = static_cast<uint32_t>(written_);
    events_[next_] = slot;
    next_ = next_ + 1 == capacity_ ? 0 : next_ + 1;
    ++slots_;
    written_ += events;
  }
  const DyclEvent& Slot(uint64_t number) const { return events_[number % capacity_]; }
  // The oldest slot that is not read and has not made room.
  uint64_t Oldest() const {
    const uint64_t there = slots_ > capacity_ ? slots_ - capacity_ : 0;
    return read_ < there ? there : read_;
  }
  // When the run ended whose decisions are in a slot.
  uint64_t EndOfRun(uint64_t slot) const;
  void BeginGroup();
  uint32_t Affordable();
  double MeasureLook();

  RecorderClock clock_;
  DyclEvent* events_ = nullptr;
  size_t capacity_ = 0;
  size_t next_ = 0;        // the place of the next slot
  uint64_t slots_ = 0;     // all that ever were filled
  uint64_t read_ = 0;      // the slot that is read next
  uint32_t within_ = 0;    // how many events of it are read
  uint64_t path_end_ = 0;  // when the run ended that this slot is part of; 0: not looked up
  // Of the run that is being read: its times are by one clock, also where it is read in pieces.
  double ns_per_tick_ = 0;   // 0: the next event is the first that is read of a run
  uint64_t written_ = 0;     // events, all that ever were
  uint64_t taken_ = 0;       // events that were read
  uint64_t kernel_end_ = 0;  // 0: the last event is no kernel's
  bool chooses_ = false;     // `every_`, by what follows
  bool all_ = false;         // a run took too many decisions to be told of afterwards
  double look_ = 0;          // ticks that a look at the clock and its event take
  uint64_t looks_ = 0;       // of this run
  double ticks_ = 0;         // of runs, without what was done inside; the last groups count most
  double outside_ = 0;       // what these spent on the profile, timed inside or not
  double inside_ = 0;        // what they would have spent besides, had all been timed inside
  uint32_t every_ = 1;
  uint32_t place_ = 0;   // of the next run in its group
  uint32_t chosen_ = 0;  // the place of the one that is timed
  bool timed_ = true;
  uint64_t random_ = 0;
};

// The events of one run as a whole, if there is a recorder.
class RecordedRun {
 public:
  explicit RecordedRun(const Frame& frame)
      : frame_(frame), begin_(frame.recorder != nullptr ? frame.recorder->Ticks() : 0) {}
  // The inputs are bound: the dispatcher begins.
  void Started() {
    Recorder* recorder = frame_.recorder;
    if (recorder == nullptr) return;
    started_ = recorder->Ticks();
    if (recorder->timed()) WriteStart(0);
  }
  void Ended(int32_t site) {
    Recorder* recorder = frame_.recorder;
    if (recorder == nullptr) return;
    const uint64_t end = recorder->Ticks();
    if (!recorder->timed() && frame_.path_count <= kPathCapacity) WritePath(end);
    uint32_t index = site == kRunFailed ? kNone : static_cast<uint32_t>(site);
    recorder->Write(DYCL_EVENT_RUN, index, 0, begin_, end);
    recorder->EndRun(end - begin_, frame_.path_count);
  }

 private:
  void WriteStart(uint32_t choice) {
    frame_.recorder->Write(DYCL_EVENT_START, frame_.recorder->every(), choice, begin_, started_);
  }
  // What is known of a run that was not timed inside.
  void WritePath(uint64_t end) {
    WriteStart(1);
    frame_.recorder->WritePath(frame_.path, frame_.path_count, end);
  }

  const Frame& frame_;
  uint64_t begin_;
  uint64_t started_ = 0;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_RECORDER_H_
