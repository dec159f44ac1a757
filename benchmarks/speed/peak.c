// Licensed under the Apache License, Version 2.0; see LICENSE.
// Prints the measured float32 FMA peak in GFLOP/s with one thread and with all, then the bandwidth
// of reading memory in GB/s the same way: "peak 1 all read 1 all".   cc -O3 -march=native
// -ffp-contract=fast -pthread peak.c && ./a.out THREADS
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__AVX512F__)
enum {
  kWidth = 16,
  kChains = 24
};  // chains: latency of an FMA times FMAs a cycle, within the registers
#elif defined(__AVX__)
enum { kWidth = 8, kChains = 12 };
#else
enum { kWidth = 4, kChains = 16 };
#endif
typedef float Vector __attribute__((vector_size(4 * kWidth)));

enum { kTurns = 4000000, kRepeats = 20, kMaxThreads = 256 };
static const size_t kFloats = (size_t)64 << 20;  // 256 MiB a thread: larger than caches

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void* Multiply(void* out) {
  Vector sum[kChains], a, b;
  for (int i = 0; i < kWidth; ++i) a[i] = 0.999f, b[i] = 0.001f;
  for (int c = 0; c < kChains; ++c) sum[c] = a;
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 24
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * a + b;
  }
  float total = 0;
  for (int c = 0; c < kChains; ++c) total += sum[c][0];
  *(float*)out = total;
  return NULL;
}

static void* Read(void* data) {
  const Vector* v = data;
  Vector sum[8];
  memset(sum, 0, sizeof(sum));
  for (size_t i = 0; i < kFloats / kWidth; i += 8) {
    for (int c = 0; c < 8; ++c) sum[c] += v[i + (size_t)c];
  }
  float total = 0;
  for (int c = 0; c < 8; ++c) total += sum[c][0];
  *(float*)data = total != total ? 1.0f : 0.0f;
  return NULL;
}

// The best time of some repeats, all threads running side by side.
static double Best(void* (*work)(void*), void** args, int threads) {
  double best = 1e30;
  for (int r = 0; r < kRepeats; ++r) {
    pthread_t ids[kMaxThreads];
    double begin = Now();
    for (int t = 0; t < threads; ++t) pthread_create(&ids[t], NULL, work, args[t]);
    for (int t = 0; t < threads; ++t) pthread_join(ids[t], NULL);
    double took = Now() - begin;
    if (took < best) best = took;
  }
  return best;
}

int main(int argc, char** argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  if (threads < 1 || threads > kMaxThreads) return 2;
  void* data[kMaxThreads];
  for (int t = 0; t < threads; ++t) {
    data[t] = aligned_alloc(64, kFloats * 4);
    if (data[t] == NULL) return 1;
    memset(data[t], 0, kFloats * 4);
  }
  double flops = 2.0 * kTurns * kChains * kWidth * 1e-9, bytes = 4e-9 * (double)kFloats;
  printf("%.1f %.1f ", flops / Best(Multiply, data, 1),
         threads * flops / Best(Multiply, data, threads));
  printf("%.1f %.1f\n", bytes / Best(Read, data, 1), threads * bytes / Best(Read, data, threads));
  return 0;
}
