// Licensed under the Apache License, Version 2.0; see LICENSE.
// What is asked of a run from outside: that it ends, by a thread or a signal handler that cancels
// it or by its deadline, and that it is recorded (recorder.h). A run looks at one word before each
// kernel and after each decision; it reads the clock only where something is asked.
#ifndef DYCL_RUNTIME_CONTROL_H_
#define DYCL_RUNTIME_CONTROL_H_

#include <atomic>
#include <csignal>

#include "dycl/dycl.h"
#include "program.h"

namespace dycl {

enum Asked : uint32_t { kCancel = 1, kDeadline = 2, kRecord = 4, kBudget = 8 };

// Before a run: forgets what was asked of the run before.
void BeginControl(Frame& f, const DyclRunOptions& options);
// Whether a run with a budget has to leave at a decision whose other side it was about to take.
// Takes that side out of the path again.
bool MustLeave(Frame& f, uint32_t decision);
// Ends the run that goes on, if one does. Nothing but an atomic operation: for signal handlers too.
void Cancel(Frame& f);
// Whether a run of which something is asked may go on; if not, its error is set.
bool MayGoOn(const Frame& f);

// While it lives, a signal cancels the run of a frame; the handler that was there before is called
// too. One at a time in a library, others are without effect; and so is a signal that is ignored.
class CancelOnSignal {
 public:
  CancelOnSignal(Frame* frame, int signal);
  ~CancelOnSignal();
  CancelOnSignal(const CancelOnSignal&) = delete;
  CancelOnSignal& operator=(const CancelOnSignal&) = delete;

 private:
  int signal_ = 0;  // 0: nothing was changed
};

// Marks a session as in use for as long as it lives, however it ends.
class InUse {
 public:
  explicit InUse(std::atomic<bool>* flag)
      : flag_(flag), taken_(!flag->exchange(true, std::memory_order_acquire)) {}
  ~InUse() {
    if (taken_) flag_->store(false, std::memory_order_release);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  // False where it was in use already.
  bool taken() const { return taken_; }
  // Leaves it in use; who goes on with it clears the flag.
  void Keep() { taken_ = false; }

 private:
  std::atomic<bool>* flag_;
  bool taken_;
};

// Whether anything is asked of the run.
inline bool IsWatched(const Frame& f) {
  return __builtin_expect(__atomic_load_n(&f.asked, __ATOMIC_RELAXED) != 0, 0);
}

inline bool GoesOn(const Frame& f) { return !IsWatched(f) || MayGoOn(f); }

}  // namespace dycl

#endif  // DYCL_RUNTIME_CONTROL_H_
