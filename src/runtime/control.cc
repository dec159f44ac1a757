// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "control.h"

#include <cerrno>

#include "error.h"
#include "recorder.h"

namespace dycl {
namespace {

// What the handler of signals needs. It may run on any thread, also while the run ends.
std::atomic<Frame*> g_frame{nullptr};
std::atomic<uint32_t> g_handlers{0};
struct sigaction g_before;

void OnSignal(int number, siginfo_t* info, void* context) {
  int code = errno;
  g_handlers.fetch_add(1);
  // First the program's handler: once the run has ended, its caller may ask what it was told.
  if ((g_before.sa_flags & SA_SIGINFO) != 0) {
    g_before.sa_sigaction(number, info, context);
  } else if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) {
    g_before.sa_handler(number);
  }
  if (Frame* frame = g_frame.load()) Cancel(*frame);
  g_handlers.fetch_sub(1);
  errno = code;
}

int64_t NowNs() { return static_cast<int64_t>(MonotonicNs()); }

// Longer than any program runs, and small enough to be added to the time.
constexpr double kLongestMs = 1e12;

// When a time from now on ends; one of less than 0 is over.
int64_t EndOf(double ms) {
  if (ms < 0) return 0;
  return NowNs() + static_cast<int64_t>((ms < kLongestMs ? ms : kLongestMs) * 1e6);
}

}  // namespace

void BeginControl(Frame& f, const DyclRunOptions& options) {
  uint32_t asked = f.recorder != nullptr && f.recorder->BeginRun() ? kRecord : 0u;
  if (options.deadline_ms != 0) {
    f.deadline_ns = EndOf(options.deadline_ms);
    asked |= kDeadline;
  }
  if (options.budget_ms != 0) {
    f.budget_end_ns = EndOf(options.budget_ms);
    f.needed_ns = options.needed_ns;
    asked |= kBudget;
  }
  if (options.cancelled == nullptr) {
    __atomic_store_n(&f.asked, asked, __ATOMIC_RELAXED);
    return;
  }
  // First this, then the number: who sets the number and then cancels is seen here or there.
  __atomic_exchange_n(&f.asked, asked, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(options.cancelled, __ATOMIC_SEQ_CST) != 0) Cancel(f);
}

bool MustLeave(Frame& f, uint32_t decision) {
  if ((__atomic_load_n(&f.asked, __ATOMIC_RELAXED) & kBudget) == 0) return false;
  int64_t left = f.budget_end_ns - NowNs();
  if (left >= 0 && static_cast<uint64_t>(left) >= f.needed_ns[decision]) return false;
  f.cut_at = --f.path_count;  // no decision follows
  return true;
}

CancelOnSignal::CancelOnSignal(Frame* frame, int signal) {
  Frame* none = nullptr;
  if (signal == 0 || !g_frame.compare_exchange_strong(none, frame)) return;
  struct sigaction ours{};
  ours.sa_sigaction = OnSignal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  bool set = sigaction(signal, &ours, &g_before) == 0;
  bool ignored = (g_before.sa_flags & SA_SIGINFO) == 0 && g_before.sa_handler == SIG_IGN;
  if (set && ignored) sigaction(signal, &g_before, nullptr);
  if (set && !ignored) {
    signal_ = signal;
  } else {
    g_frame.store(nullptr);
  }
}

CancelOnSignal::~CancelOnSignal() {
  if (signal_ == 0) return;
  struct sigaction now{};
  sigaction(signal_, &g_before, &now);
  // What the program has set meanwhile stays.
  if ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != OnSignal) {
    sigaction(signal_, &now, nullptr);
  }
  g_frame.store(nullptr);
  while (g_handlers.load() != 0) {
  }
}

void Cancel(Frame& f) { __atomic_fetch_or(&f.asked, kCancel, __ATOMIC_SEQ_CST); }

bool MayGoOn(const Frame& f) {
  uint32_t asked = __atomic_load_n(&f.asked, __ATOMIC_RELAXED);
  if ((asked & kCancel) != 0) return CancelledError("the run was cancelled") == 0;
  if ((asked & kDeadline) == 0 || NowNs() < f.deadline_ns) return true;
  return DeadlineError("the run had not ended at its deadline") == 0;
}

}  // namespace dycl
