// Licensed under the Apache License, Version 2.0; see LICENSE.
// What a library with code for several CPUs of x86-64 does when it is loaded: it takes the last
// that its CPU runs, or the one that DYCL_CPU names. Only the generated file that has the list
// includes this; a library for one CPU has none of it.
#ifndef DYCL_RUNTIME_CPU_LEVELS_H_
#define DYCL_RUNTIME_CPU_LEVELS_H_

#include <cpuid.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "amx.h"
#include "artifact_info.h"
#include "dycl/dycl.h"
#include "error.h"
#include "program.h"

namespace dycl {

// The code for one kind of CPU: its name, and what it needs by Linux's names, a blank after each.
struct CpuLevel {
  const char* cpu;
  const char* needs;
  const ProgramDesc* program;
  const ArtifactInfo* info;
};

// The CPU is asked itself, not by what a compiler has for that, of which each knows other names.
struct CpuFeature {
  const char* name;
  uint32_t leaf;
  uint32_t subleaf;
  uint8_t output;  // 0 to 3: eax, ebx, ecx, edx
  uint8_t bit;
  uint64_t state;  // of XCR0: registers that the system must keep for it
};

constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kAmxState = 0x60000, kApxState = 0x80000;

constexpr CpuFeature kCpuFeatures[] = {
    {"pni", 1, 0, 2, 0, 0},
    {"ssse3", 1, 0, 2, 9, 0},
    {"fma", 1, 0, 2, 12, kAvxState},
    {"cx16", 1, 0, 2, 13, 0},
    {"sse4_1", 1, 0, 2, 19, 0},
    {"sse4_2", 1, 0, 2, 20, 0},
    {"movbe", 1, 0, 2, 22, 0},
    {"popcnt", 1, 0, 2, 23, 0},
    {"avx", 1, 0, 2, 28, kAvxState},
    {"f16c", 1, 0, 2, 29, kAvxState},
    {"bmi1", 7, 0, 1, 3, 0},
    {"avx2", 7, 0, 1, 5, kAvxState},
    {"bmi2", 7, 0, 1, 8, 0},
    {"avx512f", 7, 0, 1, 16, kAvx512State},
    {"avx512dq", 7, 0, 1, 17, kAvx512State},
    {"avx512ifma", 7, 0, 1, 21, kAvx512State},
    {"avx512cd", 7, 0, 1, 28, kAvx512State},
    {"avx512bw", 7, 0, 1, 30, kAvx512State},
    {"avx512vl", 7, 0, 1, 31, kAvx512State},
    {"avx512vbmi", 7, 0, 2, 1, kAvx512State},
    {"avx512_vbmi2", 7, 0, 2, 6, kAvx512State},
    {"gfni", 7, 0, 2, 8, 0},
    {"avx512_vnni", 7, 0, 2, 11, kAvx512State},
    {"avx512_bitalg", 7, 0, 2, 12, kAvx512State},
    {"avx512_vpopcntdq", 7, 0, 2, 14, kAvx512State},
    {"amx_bf16", 7, 0, 3, 22, kAmxState},
    {"avx512_fp16", 7, 0, 3, 23, kAvx512State},
    {"amx_tile", 7, 0, 3, 24, kAmxState},
    {"amx_int8", 7, 0, 3, 25, kAmxState},
    {"avx_vnni", 7, 1, 0, 4, kAvxState},
    {"avx512_bf16", 7, 1, 0, 5, kAvx512State},
    {"apx", 7, 1, 3, 21, kApxState},
    {"abm", 0x80000001, 0, 2, 5, 0},
    {"sse4a", 0x80000001, 0, 2, 6, 0},
    {"xop", 0x80000001, 0, 2, 11, kAvxState},
    {"fma4", 0x80000001, 0, 2, 16, kAvxState},
    {"tbm", 0x80000001, 0, 2, 21, 0},
};

// The registers that the system keeps when it goes from one thread to another.
inline uint64_t KeptState() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx >> 27 & 1) == 0) return 0;
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

inline bool CpuHas(const char* name, size_t size) {
  for (const CpuFeature& feature : kCpuFeatures) {
    if (strlen(feature.name) != size || memcmp(feature.name, name, size) != 0) continue;
    unsigned out[4] = {0, 0, 0, 0};
    if (__get_cpuid_count(feature.leaf, feature.subleaf, &out[0], &out[1], &out[2], &out[3]) == 0) {
      return false;
    }
    if ((out[feature.output] >> feature.bit & 1) == 0) return false;
    if ((KeptState() & feature.state) != feature.state) return false;
    return feature.state != kAmxState || AmxIsGranted();
  }
  return false;
}

// What this CPU lacks of what the code needs: the first, which a blank ends. Null if nothing.
inline const char* Lacking(const CpuLevel& level) {
  for (const char* name = level.needs; *name != '\0';) {
    const size_t size = static_cast<size_t>(strchr(name, ' ') - name);
    if (!CpuHas(name, size)) return name;
    name += size + 1;
  }
  return nullptr;
}

// What DYCL_CPU says; null if nothing.
inline const char* AskedCpu() {
  const char* asked = getenv("DYCL_CPU");
  return asked != nullptr && *asked != '\0' ? asked : nullptr;
}

// The least where none runs: CheckCpu tells, before any code of it is called.
template <size_t count>
const CpuLevel& ChooseLevel(const CpuLevel (&levels)[count]) {
  const char* asked = AskedCpu();
  const CpuLevel* best = levels;
  for (const CpuLevel& level : levels) {
    if (Lacking(level) != nullptr) continue;
    best = &level;
    if (asked != nullptr && strcmp(asked, level.cpu) == 0) break;
  }
  return *best;
}

// Whether this CPU runs what was chosen, and that is what DYCL_CPU says now: nobody is to take
// results of one CPU's code for those of another's. Returns a DyclStatus.
template <size_t count>
int32_t CheckCpu(const CpuLevel (&levels)[count], const CpuLevel& chosen) {
  if (const char* lacks = Lacking(chosen)) {
    return ArtifactError(
        "'%s' was built for CPUs with %.*s, which this CPU lacks or Linux keeps from this process",
        kProgram.name, static_cast<int>(strchr(lacks, ' ') - lacks), lacks);
  }
  const char* asked = AskedCpu();
  if (asked == nullptr || strcmp(asked, chosen.cpu) == 0) return DYCL_OK;
  for (const CpuLevel& level : levels) {
    if (strcmp(asked, level.cpu) != 0) continue;
    if (const char* lacks = Lacking(level)) {
      return UsageError(
          "DYCL_CPU is '%s', and code for that needs %.*s, which this CPU lacks or Linux keeps "
          "from "
          "this process",
          asked, static_cast<int>(strchr(lacks, ' ') - lacks), lacks);
    }
    return UsageError(
        "DYCL_CPU is '%s', and '%s' has been loaded with its code for %s; unload it, or set "
        "DYCL_CPU before it is loaded",
        asked, kProgram.name, chosen.cpu);
  }
  UsageError("DYCL_CPU is '%s', and '%s' has code for", asked, kProgram.name);
  for (const CpuLevel& level : levels) {
    AppendError("%s %s", &level == levels ? "" : ",", level.cpu);
  }
  return DYCL_ERROR_USAGE;
}

}  // namespace dycl

#endif  // DYCL_RUNTIME_CPU_LEVELS_H_
