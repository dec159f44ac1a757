// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "amx.h"

#include "dycl/dycl.h"
#include "error.h"
#include "program.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#endif

namespace dycl {

#if defined(__x86_64__)

namespace {

// Documentation/arch/x86/xstate.rst of Linux.
constexpr long kArchReqXcompPerm = 0x1023;
constexpr long kXfeatureXtiledata = 18;

// AMX-TILE; which products of tiles there are the list of flags says.
bool CpuHasAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx >> 24 & 1) != 0;
}

}  // namespace

bool AmxIsGranted() { return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0; }

int32_t RequestAmx() {
  // Linux grants what the CPU has, so its answer comes first; the CPU's tells why there is none.
  if (AmxIsGranted()) return DYCL_OK;
  int error = errno;
  if (!CpuHasAmx()) {
    return ArtifactError(
        "'%s' uses AMX (amx_tile), which this CPU lacks; build it for this machine's "
        "CPU, or without the family 'amx'",
        kProgram.name);
  }
  if (error == ENOSPC) {
    return ArtifactError(
        "'%s' uses AMX, and Linux does not give its registers to this process: the alternate "
        "signal stack of a thread is too small for them (sigaltstack)",
        kProgram.name);
  }
  return ArtifactError(
      "'%s' uses AMX, and Linux does not give its registers to this process (%s): that takes Linux "
      "5.16 or newer, and AMX not switched off or hidden from a virtual machine",
      kProgram.name, strerror(error));
}

#else

bool AmxIsGranted() { return false; }

int32_t RequestAmx() { return ArtifactError("'%s' uses AMX, which this CPU lacks", kProgram.name); }

#endif

}  // namespace dycl
