// Licensed under the Apache License, Version 2.0; see LICENSE.
// Lets one allocation of a process fail, in whichever of its threads. To be included once in a
// program that is linked with -rdynamic, as count_allocations.h.
#ifndef DYCL_TESTS_FAIL_ALLOCATIONS_H_
#define DYCL_TESTS_FAIL_ALLOCATIONS_H_

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>

// How many allocations succeed before one fails.
static std::atomic<long> g_left{LONG_MAX};
static std::atomic<bool> g_failed{false};

static bool Fails() {
  if (g_left.fetch_sub(1) != 0) return false;
  g_failed.store(true);
  errno = ENOMEM;  // the system's threads rely on it
  return true;
}

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) { return Fails() ? nullptr : __libc_malloc(n); }
void* calloc(size_t n, size_t size) { return Fails() ? nullptr : __libc_calloc(n, size); }
void* realloc(void* p, size_t n) { return Fails() ? nullptr : __libc_realloc(p, n); }
int posix_memalign(void** out, size_t alignment, size_t n) {
  *out = Fails() ? nullptr : __libc_memalign(alignment, n);
  return *out == nullptr ? ENOMEM : 0;
}
}

#endif  // DYCL_TESTS_FAIL_ALLOCATIONS_H_
