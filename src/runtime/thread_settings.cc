// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "thread_settings.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

#include "log.h"

namespace dycl {
namespace {

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
ThreadSettings g_settings{};
ThreadSettings g_environment{};
bool g_environment_known = false;

// A list such as 0-3,8.
bool ReadCpus(const char* text, ThreadSettings* out) {
  while (true) {
    char* end = nullptr;
    const long first = strtol(text, &end, 10);
    if (end == text || first < 0) return false;
    long last = first;
    if (*end == '-') {
      text = end + 1;
      last = strtol(text, &end, 10);
      if (end == text) return false;
    }
    if (last < first || last >= static_cast<long>(ThreadSettings::kMostCpus)) return false;
    for (long cpu = first; cpu <= last; ++cpu) out->AddCpu(static_cast<uint32_t>(cpu));
    if (*end == '\0') return true;
    if (*end != ',') return false;
    text = end + 1;
  }
}

ThreadSettings OfEnvironment() {
  ThreadSettings settings{};
  if (const char* text = getenv("DYCL_AFFINITY")) {
    if (!ReadCpus(text, &settings)) {
      settings = ThreadSettings{};
      Warn("DYCL_AFFINITY is no list of CPUs such as 0-3,8: %s", text);
    } else if (!KeepUsableCpus(&settings)) {
      settings = ThreadSettings{};
      Warn("DYCL_AFFINITY has none of the process's CPUs: %s", text);
    }
  }
  if (const char* text = getenv("DYCL_NICE")) {
    char* end = nullptr;
    const long nice = strtol(text, &end, 10);
    if (end != text && *end == '\0' && nice >= -20 && nice <= 19) {
      settings.nice = static_cast<int32_t>(nice);
    } else {
      Warn("DYCL_NICE is no number from -20 to 19: %s", text);
    }
  }
  return settings;
}

bool MaskOf(const ThreadSettings& settings, cpu_set_t* mask) {
  CPU_ZERO(mask);
  for (uint32_t cpu = 0; cpu < ThreadSettings::kMostCpus && cpu < CPU_SETSIZE; ++cpu) {
    if (settings.HasCpu(cpu)) CPU_SET(cpu, mask);
  }
  return settings.NumCpus() != 0;
}

}  // namespace

void ForkedThreadSettings() { g_mutex = PTHREAD_MUTEX_INITIALIZER; }

ThreadSettings SaidThreadSettings() {
  pthread_mutex_lock(&g_mutex);
  ThreadSettings settings = g_settings;
  pthread_mutex_unlock(&g_mutex);
  return settings;
}

// Read once, but not behind a lock: a warning goes to the program, which may fork.
ThreadSettings CurrentThreadSettings() {
  pthread_mutex_lock(&g_mutex);
  const bool known = g_environment_known;
  pthread_mutex_unlock(&g_mutex);
  const ThreadSettings read = known ? ThreadSettings{} : OfEnvironment();
  pthread_mutex_lock(&g_mutex);
  if (!known) g_environment = read;
  g_environment_known = true;
  const ThreadSettings settings = g_settings.said != 0 ? g_settings : g_environment;
  pthread_mutex_unlock(&g_mutex);
  return settings;
}

void SaveThreadSettings(const ThreadSettings& settings) {
  pthread_mutex_lock(&g_mutex);
  g_settings = settings;
  pthread_mutex_unlock(&g_mutex);
}

bool ApplyThreadSettings(const ThreadSettings& settings, pid_t thread) {
  cpu_set_t mask;
  bool known = MaskOf(settings, &mask);
  int nice = settings.nice;
  // What a program leaves open is as in its first thread, whatever was said before.
  if (settings.said != 0 && !known) {
    known = sched_getaffinity(getpid(), sizeof(mask), &mask) == 0;
  }
  if (settings.said != 0 && nice == 0) {
    nice = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
  }
  bool good = !known || sched_setaffinity(thread, sizeof(mask), &mask) == 0;
  if (nice != 0 || settings.said != 0) {
    good = setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice) == 0 && good;
  }
  return good;
}

bool KeepUsableCpus(ThreadSettings* settings) {
  cpu_set_t before, mask;
  if (!MaskOf(*settings, &mask)) return true;
  if (sched_getaffinity(0, sizeof(before), &before) != 0) return false;
  if (sched_setaffinity(0, sizeof(mask), &mask) != 0) return false;
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
  sched_setaffinity(0, sizeof(before), &before);
  for (uint32_t cpu = 0; known && cpu < ThreadSettings::kMostCpus; ++cpu) {
    if (!settings->HasCpu(cpu) || (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &mask))) continue;
    settings->cpus[cpu / 64] &= ~(uint64_t{1} << cpu % 64);
  }
  return known;
}

}  // namespace dycl
