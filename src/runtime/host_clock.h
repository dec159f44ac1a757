// Licensed under the Apache License, Version 2.0; see LICENSE.
// The clocks of Python's module time.
#ifndef DYCL_RUNTIME_HOST_CLOCK_H_
#define DYCL_RUNTIME_HOST_CLOCK_H_

#include <time.h>

#include <cstdint>

// Checks of a build tell the time themselves: only there is it defined.
extern "C" __attribute__((weak)) int64_t dycl_verify_clock(void);

namespace dycl {
namespace ops {

inline int64_t ClockNs(clockid_t clock) {
  if (dycl_verify_clock) return dycl_verify_clock();
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// As Python does it: the nanoseconds, rounded once.
inline double Clock(clockid_t clock) { return static_cast<double>(ClockNs(clock)) / 1e9; }

}  // namespace ops
}  // namespace dycl

#endif  // DYCL_RUNTIME_HOST_CLOCK_H_
