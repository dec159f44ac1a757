// Licensed under the Apache License, Version 2.0; see LICENSE.
// Counts the heap allocations of a program in all its threads. To be included once in a program
// that is linked with -rdynamic: definitions in the program take the place of glibc's for every
// library in the process.
#ifndef DYCL_TESTS_COUNT_ALLOCATIONS_H_
#define DYCL_TESTS_COUNT_ALLOCATIONS_H_

#include <atomic>
#include <cerrno>
#include <cstddef>

static std::atomic<long> g_allocations{0};

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  ++g_allocations;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  ++g_allocations;
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  ++g_allocations;
  return __libc_realloc(p, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  ++g_allocations;
  *out = __libc_memalign(alignment, n);
  return *out == nullptr ? ENOMEM : 0;
}
}

#endif  // DYCL_TESTS_COUNT_ALLOCATIONS_H_
