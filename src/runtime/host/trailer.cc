// Licensed under the Apache License, Version 2.0; see LICENSE.
// Reads the trailer of a library: JSON, 8 bytes size, 32 bytes SHA-256 of all before, 8 bytes
// magic.
#include <dlfcn.h>
#include <dycl/module.h>
#include <sys/auxv.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "../json.h"
#include "../sha256.h"
#include "files.h"

namespace dycl {
namespace {

const char kMagic[] = "DYCLTRL1";
const size_t kMagicSize = 8;
const size_t kDigestSize = 32;
const size_t kTail = 8 + kDigestSize + kMagicSize;

Status Bad(const std::string& library, const std::string& why) {
  return Status("ArtifactError", "'" + library + "' " + why);
}

#if defined(__aarch64__)

// The kernel's own answer, by the names of /proc/cpuinfo: an emulator or a container may show the
// cpuinfo of another machine. Bits: arch/arm64/include/uapi/asm/hwcap.h of Linux.
std::set<std::string> CpuFlags() {
  struct Bit {
    const char* name;
    int type;
    int bit;
  };
  static const Bit kBits[] = {
      {"atomics", AT_HWCAP, 8},  {"asimdhp", AT_HWCAP, 10}, {"asimdrdm", AT_HWCAP, 12},
      {"asimddp", AT_HWCAP, 20}, {"sve", AT_HWCAP, 22},     {"asimdfhm", AT_HWCAP, 23},
      {"sve2", AT_HWCAP2, 1},    {"i8mm", AT_HWCAP2, 13},   {"bf16", AT_HWCAP2, 14},
  };
  std::set<std::string> flags;
  for (const Bit& b : kBits) {
    if ((getauxval(static_cast<unsigned long>(b.type)) >> b.bit & 1) != 0) flags.insert(b.name);
  }
  return flags;
}

#else

std::set<std::string> CpuFlags() {
  std::set<std::string> flags;
  std::string text;
  ReadFile("/proc/cpuinfo", &text);
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, 5, "flags") != 0) continue;
    for (size_t word = colon + 1; word < line.size();) {
      size_t after = std::min(line.find(' ', word), line.size());
      if (after != word) flags.insert(line.substr(word, after - word));
      word = after + 1;
    }
    break;
  }
  return flags;
}

#endif

Status CheckMachine(const std::string& library, const Json& metadata) {
  const Json* target = metadata.Find("target");
  if (target == nullptr) return Bad(library, "has a trailer without a target");
  utsname machine;
  if (uname(&machine) != 0) return Bad(library, "cannot be checked: uname failed");
  if (target->Text("arch") != machine.machine) {
    return Bad(library,
               "was built for " + target->Text("arch") + "; this machine is " + machine.machine);
  }
  std::set<std::string> have = CpuFlags();
  std::string missing;
  if (const Json* flags = target->Find("cpu_flags")) {
    for (const Json& flag : flags->items) {
      if (have.count(flag.string) == 0) missing += " " + flag.string;
    }
  }
  if (!missing.empty()) return Bad(library, "uses instructions that this CPU lacks:" + missing);
  return Status();
}

// The runtime of a sanitizer must be in the process from the beginning, or it ends the process.
Status CheckSanitizer(const std::string& library, const Json& metadata) {
  const std::string sanitize = metadata.Text("sanitize");
  const char* begins = sanitize == "address" ? "__asan_init" : "__tsan_init";
  if ((sanitize != "address" && sanitize != "thread") || dlsym(RTLD_DEFAULT, begins) != nullptr) {
    return Status();
  }
  return Bad(library, "was built for programs that are compiled with -fsanitize=" + sanitize +
                          "; this one is not");
}

}  // namespace

namespace {

Result<std::string> Checked(const std::string& library) {
  std::string data;
  std::string why = ReadFile(library, &data);
  if (!why.empty()) return Bad(library, "cannot be opened: " + why);
  if (data.compare(0, 4,
                   "\x7f"
                   "ELF") != 0)
    return Bad(library, "is not a shared library");
  if (data.size() < kTail || data.compare(data.size() - kMagicSize, kMagicSize, kMagic) != 0) {
    return Bad(library, "is not a library of dycl_tvm, or it was cut short or stripped");
  }
  size_t body = data.size() - kDigestSize - kMagicSize;
  uint8_t digest[kDigestSize];
  Sha256(data.data(), body, digest);
  if (memcmp(digest, data.data() + body, kDigestSize) != 0) {
    return Bad(library, "is damaged: its checksum does not match its contents");
  }
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) {
    size = size << 8 | static_cast<unsigned char>(data[body - 8 + static_cast<size_t>(i)]);
  }
  Json metadata;
  if (size > body - 8 || !ParseJson(data.data() + body - 8 - size, size, &metadata) ||
      metadata.Text("format") != "dycl-library") {
    return Bad(library, "has a trailer that is not of dycl_tvm");
  }
  const Json* version = metadata.Find("abi_version");
  if (version == nullptr || version->integer != DYCL_ABI_VERSION) {
    return Bad(library, "has another interface version than this program; build one of them again");
  }
  Status status = CheckMachine(library, metadata);
  if (status.ok()) status = CheckSanitizer(library, metadata);
  if (!status.ok()) return status;
  return data.substr(body - 8 - size, size);
}

}  // namespace

Result<std::string> CheckLibrary(const std::string& library) {
  try {
    return Checked(library);
  } catch (const std::bad_alloc&) {
    return Status("MemoryError", "out of memory");
  }
}

}  // namespace dycl
