// Licensed under the Apache License, Version 2.0; see LICENSE.
// Times dycl_run() in a loop, so that neither Python nor ctypes is part of it.
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int32_t (*Run)(void*, const void*, size_t, int32_t*);

// Returns the nanoseconds of one call, or -1 if a call failed.
double time_calls(Run run, void* session, const void* inputs, size_t num_inputs, long calls) {
  struct timespec begin, end;
  int32_t site = 0;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long n = 0; n < calls; ++n) {
    if (run(session, inputs, num_inputs, &site) != 0) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  double ns = 1e9 * (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec);
  return ns / (double)calls;
}
