// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "recorder.h"

#include "dispatch.h"

namespace dycl {

size_t Recorder::Take(DyclEvent* to, size_t most) {
  size_t taken = count_ < most ? count_ : most;
  size_t at = next_ >= count_ ? next_ - count_ : next_ + capacity_ - count_;
  for (size_t k = 0; k < taken; ++k) {
    to[k] = events_[at];
    at = at + 1 == capacity_ ? 0 : at + 1;
  }
  count_ -= taken;
  return taken;
}

// Calls that follow each other share the moment between them: one look at the clock a kernel.
bool RunCallsWatched(Frame& f, uint32_t first, uint32_t count) {
  Recorder* recorder = f.recorder;
  uint64_t begin = recorder != nullptr ? MonotonicNs() : 0;
  for (uint32_t k = first; k < first + count; ++k) {
    if (!MayGoOn(f) || !RunCall(f.calls[k], f.call_runs + k, k)) return false;
    if (recorder == nullptr) continue;
    uint64_t end = MonotonicNs();
    recorder->Write(DYCL_EVENT_CALL, k, 0, begin, end);
    begin = end;
  }
  return true;
}

bool DecidedWatched(const Frame& f, uint32_t decision, uint32_t choice) {
  if (f.recorder != nullptr) {
    uint64_t now = MonotonicNs();
    f.recorder->Write(DYCL_EVENT_DECISION, decision, choice, now, now);
  }
  return MayGoOn(f);
}

}  // namespace dycl
