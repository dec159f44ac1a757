// Licensed under the Apache License, Version 2.0; see LICENSE.
// Where the threads of parallel loops run, and with which priority.
#ifndef DYCL_RUNTIME_THREAD_SETTINGS_H_
#define DYCL_RUNTIME_THREAD_SETTINGS_H_

#include <sys/types.h>

#include <cstdint>

namespace dycl {

// A part of the interface between builds (process_pool.h).
struct ThreadSettings {
  static constexpr uint32_t kMostCpus = 1024;
  uint64_t cpus[kMostCpus / 64];  // a bit for each CPU that they may use; none: all of the process
  int32_t nice;                   // as Linux's; 0: that of the thread that makes them
  int32_t said;                   // 0: nothing was said, and the environment holds

  bool HasCpu(uint32_t cpu) const { return (cpus[cpu / 64] >> cpu % 64 & 1) != 0; }
  void AddCpu(uint32_t cpu) { cpus[cpu / 64] |= uint64_t{1} << cpu % 64; }
  // How many CPUs there are; 0: nothing was said of them.
  int NumCpus() const {
    int n = 0;
    for (uint64_t some : cpus) n += __builtin_popcountll(some);
    return n;
  }
};

// What holds now: what was said last, or what DYCL_AFFINITY and DYCL_NICE say.
ThreadSettings CurrentThreadSettings();
// What was said; `said` is 0 where nothing was.
ThreadSettings SaidThreadSettings();
void SaveThreadSettings(const ThreadSettings& settings);
// Lets a thread run so; false where the system refuses any of it.
bool ApplyThreadSettings(const ThreadSettings& settings, pid_t thread);
// Leaves only those CPUs on which the system lets a thread of this one run. False, and nothing is
// changed, where that is none of them.
bool KeepUsableCpus(ThreadSettings* settings);
// In a child of fork(), called by library.cc.
void ForkedThreadSettings();

}  // namespace dycl

#endif  // DYCL_RUNTIME_THREAD_SETTINGS_H_
