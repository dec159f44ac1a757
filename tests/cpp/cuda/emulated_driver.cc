// Licensed under the Apache License, Version 2.0; see LICENSE.
// libcuda.so.1 for machines without a GPU: the part of NVIDIA's driver interface that an artefact
// uses. It checks what a driver checks (architecture, PTX version, launch limits), runs the kernels
// as C++, and is as lazy as a GPU: work on a stream is done when somebody waits for it, and memory
// of the device cannot be touched by the host.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "blocks.h"
#include "driver.h"
#include "ptx.h"

using namespace emulated;  // NOLINT

namespace {

// In a process that no test speaks to, the environment does.
Settings FromEnvironment() {
  Settings settings;
  auto number = [](const char* name, int otherwise) {
    const char* text = getenv(name);
    return text != nullptr ? atoi(text) : otherwise;
  };
  const char* kernels = getenv("EMULATED_CUDA_KERNELS");
  settings.sm = number("EMULATED_CUDA_SM", settings.sm);
  settings.version = number("EMULATED_CUDA_VERSION", settings.version);
  settings.memory = static_cast<size_t>(number("EMULATED_CUDA_MIB", 4096)) << 20;
  if (kernels != nullptr) settings.kernels = kernels;
  return settings;
}
std::map<uintptr_t, size_t> g_device;   // allocations on the device, by address
std::map<uintptr_t, size_t> g_globals;  // variables of kernels that the host has asked for
std::map<uintptr_t, size_t> g_pinned;
bool g_trapped = false;
size_t g_used = 0;
int g_sticky = kSuccess;
int g_at_work = 0;  // a stream may wait for another one

struct Module {
  std::string image;  // the text or the bytes: names of kernels stand in it
  void* library = nullptr;
  const EmulatedKernel* kernels = nullptr;
  std::map<std::string, std::unique_ptr<struct Function>> functions;
};
struct Function {
  const EmulatedKernel* kernel;  // null: it is of the runtime's own PTX
  PtxFunction ptx;
  int max_dynamic = 48 * 1024;
};
// The host may not touch memory of the device; the device may as long as one of these lives.
class DeviceAtWork {
 public:
  DeviceAtWork() {
    if (g_at_work++ == 0) Protect(PROT_READ | PROT_WRITE);
  }
  ~DeviceAtWork() {
    if (--g_at_work == 0) Protect(PROT_NONE);
  }

 private:
  static void Protect(int mode) {
    for (auto& [address, size] : g_device) mprotect(reinterpret_cast<void*>(address), size, mode);
  }
};

bool Contains(const std::map<uintptr_t, size_t>& ranges, uintptr_t address, size_t bytes) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second;
}
bool OnDevice(unsigned long long address, size_t bytes) {
  return Contains(g_device, address, bytes);
}
bool Touches(unsigned long long address) { return Contains(g_device, address, 1); }

int Enqueue(Stream* stream, const char* what, Work work, bool with_host = false) {
  ++g_counts[what];
  ++g_counts_on[{stream, what}];
  if (g_contexts == 0) return kInvalidContext;
  if (stream->capture == nullptr) {
    stream->queue.push_back(std::move(work));
    return kSuccess;
  }
  // The sides of a branch may hold nothing that needs the host.
  if (stream->capture->is_body && with_host) return kCaptureUnsupported;
  stream->capture->Add(stream->last, std::move(work));
  stream->last = stream->capture->work.size();
  return kSuccess;
}

int Parse(const char* text, const char* word, int* major, int* minor) {
  const char* found = strstr(text, word);
  return found != nullptr ? sscanf(found + strlen(word), "%d.%d", major, minor) : 0;
}

// The newest PTX of a driver: 6.5 for CUDA 10.2, 7.n for 11.n, 8.n for 12.n.
int MaxPtx() {
  int major = g_settings.version / 1000, minor = g_settings.version % 1000 / 10;
  return major <= 10 ? 65 : (major - 4) * 10 + minor;
}

int CheckImage(const void* image, std::string* text) {
  const char* bytes = static_cast<const char*>(image);
  if (memcmp(bytes, "\177ELF", 4) == 0) {
    uint64_t section_table;
    uint16_t entry, count, machine;
    uint32_t flags;
    memcpy(&section_table, bytes + 40, 8);
    memcpy(&flags, bytes + 48, 4);
    memcpy(&entry, bytes + 58, 2);
    memcpy(&count, bytes + 60, 2);
    memcpy(&machine, bytes + 18, 2);
    int sm = static_cast<int>(flags & 0xff);
    if (g_settings.reject_cubin || machine != 190) return kInvalidImage;
    if (sm / 10 != g_settings.sm / 10 || sm > g_settings.sm) return kNoBinaryForGpu;
    text->assign(bytes, section_table + static_cast<uint64_t>(entry) * count);
    ++g_counts["cubin"];
    return kSuccess;
  }
  int major = 0, minor = 0, sm = 0, none = 0;
  if (Parse(bytes, ".version ", &major, &minor) != 2) return kInvalidImage;
  if (Parse(bytes, ".target sm_", &sm, &none) < 1) return kInvalidPtx;
  if (major * 10 + minor > MaxPtx()) return kUnsupportedPtx;
  if (sm > g_settings.sm) return kInvalidPtx;
  *text = bytes;
  bool own = text->find("cudaGraphSetConditional") != std::string::npos;
  if (own && g_settings.version < 12030) return kInvalidPtx;
  ++g_counts[own ? "condition_ptx" : "ptx"];
  return kSuccess;
}

const EmulatedKernel* LoadKernels(void** out) {
  void* library = *out = dlopen(g_settings.kernels.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "emulated driver: %s\n", dlerror());
    return nullptr;
  }
  return static_cast<const EmulatedKernel*>(dlsym(library, "emulated_kernels"));
}

}  // namespace

namespace emulated {

Settings g_settings = FromEnvironment();
std::recursive_mutex g_mutex;
std::map<std::string, long> g_counts;
std::map<std::pair<void*, std::string>, long> g_counts_on;
thread_local int g_contexts = 0;

Stream* StreamOf(void* stream) {
  static Stream* by_default = new Stream;
  return stream != nullptr ? static_cast<Stream*>(stream) : by_default;
}

int Run(Stream* stream, const Moment* until) {
  if (stream->queue.empty()) return g_sticky;
  DeviceAtWork working;
  while (!stream->queue.empty() && (until == nullptr || !until->done)) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (g_sticky == kSuccess) g_sticky = work();
  }
  return g_sticky;
}

}  // namespace emulated

// What device code calls to stop.
extern "C" __attribute__((visibility("default"))) void emulated_trap() { g_trapped = true; }

// ---- what tests say to the emulation ------------------------------------------------------------
API emulated_cuda_configure(int sm, int version, int reject_cubin, int fail_kernels, int devices,
                            size_t memory) {
  Guard lock(g_mutex);
  std::string kernels = g_settings.kernels;
  g_settings =
      Settings{sm, version, reject_cubin != 0, fail_kernels != 0, devices, memory, kernels};
  g_sticky = kSuccess;
  g_counts.clear();
  g_counts_on.clear();
  return kSuccess;
}
API emulated_cuda_kernels(const char* path) {
  Guard lock(g_mutex);
  g_settings.kernels = path;
  return kSuccess;
}
API emulated_cuda_count(const char* what) {
  Guard lock(g_mutex);
  return static_cast<int>(g_counts[what]);
}

API emulated_cuda_count_on(void* stream, const char* what) {
  Guard lock(g_mutex);
  return static_cast<int>(g_counts_on[{StreamOf(stream), what}]);
}

// ---- what emulated libraries say to it ----------------------------------------------------------
// Puts work on a stream that may touch memory of the device.
API emulated_cuda_enqueue(void* stream, void (*work)(void*), void* data) {
  Guard lock(g_mutex);
  auto run = [work, data] { return work(data), int{kSuccess}; };
  return Enqueue(StreamOf(stream), "library calls", run);
}

// Whether all of these bytes are one allocation's.
API emulated_cuda_on_device(const void* address, size_t bytes) {
  Guard lock(g_mutex);
  return OnDevice(reinterpret_cast<uintptr_t>(address), bytes) ? 1 : 0;
}

// ---- the driver ---------------------------------------------------------------------------------
API cuInit(unsigned) { return g_settings.devices == 0 ? kNoDevice : kSuccess; }
API cuDriverGetVersion(int* version) {
  *version = g_settings.version;
  return kSuccess;
}
// NVRTC looks into a driver that it finds in its process, and goes on where there is nothing for
// it.
API cuGetExportTable(const void**, const void*) { return kNotFound; }
API cuDeviceGetCount(int* count) {
  *count = g_settings.devices;
  return kSuccess;
}
API cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < g_settings.devices ? kSuccess : kInvalidDevice;
}
API cuDeviceGetName(char* name, int size, int) {
  snprintf(name, static_cast<size_t>(size), "emulated");
  return kSuccess;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 16:  // multiprocessors, and how many threads one runs at once
      *value = 2;
      return kSuccess;
    case 39:
      *value = 1024;
      return kSuccess;
    case 75:
      *value = g_settings.sm / 10;
      return kSuccess;
    case 76:
      *value = g_settings.sm % 10;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}
API cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &g_settings;
  ++g_counts["contexts"];
  return kSuccess;
}
API cuDevicePrimaryCtxRelease(int) {
  --g_counts["contexts"];
  return kSuccess;
}
API cuCtxPushCurrent_v2(void* context) {
  Guard lock(g_mutex);
  if (context != &g_settings) return kInvalidContext;
  ++g_contexts;
  return kSuccess;
}
API cuCtxPopCurrent_v2(void** context) {
  Guard lock(g_mutex);
  *context = &g_settings;
  return g_contexts-- > 0 ? kSuccess : kInvalidContext;
}
API cuModuleLoadDataEx(void** out, const void* image, unsigned, int*, void**) {
  Guard lock(g_mutex);
  if (g_contexts == 0) return kInvalidContext;
  auto module = std::make_unique<Module>();
  if (int result = CheckImage(image, &module->image)) return result;
  module->kernels = LoadKernels(&module->library);
  if (module->kernels == nullptr) return kInvalidImage;
  *out = module.release();
  return kSuccess;
}
API cuModuleUnload(void* module) {
  delete static_cast<Module*>(module);
  return kSuccess;
}
API cuModuleGetFunction(void** out, void* handle, const char* name) {
  Guard lock(g_mutex);
  Module* module = static_cast<Module*>(handle);
  if (module->image.find(name) == std::string::npos) return kNotFound;
  PtxFunction ptx;
  if (strncmp(name, "dycl_condition", 14) == 0 && ReadPtx(module->image, name, &ptx)) {
    auto& function = module->functions[name];
    if (function == nullptr) function.reset(new Function{nullptr, ptx});
    *out = function.get();
    return kSuccess;
  }
  for (const EmulatedKernel* k = module->kernels; k->name != nullptr; ++k) {
    if (strcmp(k->name, name) != 0) continue;
    auto& function = module->functions[name];
    if (function == nullptr) function.reset(new Function{k, {}});
    *out = function.get();
    return kSuccess;
  }
  return kNotFound;
}
API cuModuleGetGlobal_v2(unsigned long long* out, size_t* bytes, void* handle, const char* name) {
  Guard lock(g_mutex);
  void* found = dlsym(static_cast<Module*>(handle)->library, name);
  if (found == nullptr) return kNotFound;
  *out = reinterpret_cast<uintptr_t>(found);
  *bytes = sizeof(long);
  g_globals[*out] = *bytes;
  return kSuccess;
}
API cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != 8 || value > 96 * 1024) return kInvalidValue;
  static_cast<Function*>(function)->max_dynamic = value;
  return kSuccess;
}
API cuMemAlloc_v2(unsigned long long* out, size_t bytes) {
  Guard lock(g_mutex);
  if (g_contexts == 0) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  if (g_used + bytes > g_settings.memory) return kOutOfMemory;
  size_t size = (bytes + 4095) / 4096 * 4096;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  // What was never written is not a number.
  memset(memory, 0xff, size);
  mprotect(memory, size, PROT_NONE);
  *out = reinterpret_cast<uintptr_t>(memory);
  g_device[*out] = size;
  g_used += size;
  return kSuccess;
}
API cuMemFree_v2(unsigned long long address) {
  Guard lock(g_mutex);
  auto found = g_device.find(address);
  if (found == g_device.end()) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), found->second);
  g_used -= found->second;
  g_device.erase(found);
  return kSuccess;
}
API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  *free_bytes = g_settings.memory - g_used;
  *total = g_settings.memory;
  return kSuccess;
}
API cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  Guard lock(g_mutex);
  *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  g_pinned[reinterpret_cast<uintptr_t>(*out)] = bytes;
  return *out != nullptr ? kSuccess : kOutOfMemory;
}
API cuMemFreeHost(void* memory) {
  Guard lock(g_mutex);
  g_pinned.erase(reinterpret_cast<uintptr_t>(memory));
  free(memory);
  return kSuccess;
}
API cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream) {
  Guard lock(g_mutex);
  auto host = reinterpret_cast<uintptr_t>(from);
  if (!(OnDevice(to, bytes) || Contains(g_globals, to, bytes)) || Touches(host)) {
    return kInvalidValue;
  }
  void* target = reinterpret_cast<void*>(to);
  if (Contains(g_pinned, host, bytes)) {
    return Enqueue(
        StreamOf(stream), "copies", [=] { return memcpy(target, from, bytes), kSuccess; }, true);
  }
  // Pageable memory is read before the call returns.
  std::string kept(static_cast<const char*>(from), bytes);
  return Enqueue(
      StreamOf(stream), "copies", [=] { return memcpy(target, kept.data(), bytes), kSuccess; },
      true);
}
API cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  Guard lock(g_mutex);
  auto host = reinterpret_cast<uintptr_t>(to);
  if (!OnDevice(from, bytes) || Touches(host)) return kInvalidValue;
  const void* source = reinterpret_cast<const void*>(from);
  int result = Enqueue(
      StreamOf(stream), "copies", [=] { return memcpy(to, source, bytes), kSuccess; }, true);
  if (result != kSuccess || Contains(g_pinned, host, bytes)) return result;
  return Run(StreamOf(stream));
}
API cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes,
                         void* stream) {
  Guard lock(g_mutex);
  if (!OnDevice(to, bytes) || !OnDevice(from, bytes)) return kInvalidValue;
  return Enqueue(StreamOf(stream), "copies", [=] {
    return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes),
           kSuccess;
  });
}

// CUDA_MEMCPY2D between places on the device.
struct Place2D {
  size_t x, y;
  int type;
  const void* host;
  unsigned long long device;
  void* array;
  size_t pitch;
};
struct Copy2D {
  Place2D from, to;
  size_t width, height;
};
API cuMemcpy2DAsync_v2(const Copy2D* given, void* stream) {
  Guard lock(g_mutex);
  const Copy2D copy = *given;
  for (const Place2D& place : {copy.from, copy.to}) {
    size_t bytes = (copy.height - 1) * place.pitch + copy.width;
    if (place.type != 2 || place.x != 0 || place.y != 0 || place.pitch < copy.width ||
        !OnDevice(place.device, bytes)) {
      return kInvalidValue;
    }
  }
  return Enqueue(StreamOf(stream), "copies", [=] {
    for (size_t row = 0; row < copy.height; ++row) {
      memcpy(reinterpret_cast<void*>(copy.to.device + row * copy.to.pitch),
             reinterpret_cast<const void*>(copy.from.device + row * copy.from.pitch), copy.width);
    }
    return kSuccess;
  });
}

template <class T>
static int Fill(unsigned long long to, T value, size_t count, void* stream) {
  Guard lock(g_mutex);
  if (!OnDevice(to, count * sizeof(T)) || to % sizeof(T) != 0) return kInvalidValue;
  return Enqueue(StreamOf(stream), "fills", [=] {
    for (size_t k = 0; k < count; ++k) reinterpret_cast<T*>(to)[k] = value;
    return kSuccess;
  });
}
API cuMemsetD8Async(unsigned long long to, unsigned char value, size_t count, void* stream) {
  return Fill(to, value, count, stream);
}
API cuMemsetD16Async(unsigned long long to, unsigned short value, size_t count, void* stream) {
  return Fill(to, value, count, stream);
}
API cuMemsetD32Async(unsigned long long to, unsigned value, size_t count, void* stream) {
  return Fill(to, value, count, stream);
}
API cuStreamCreate(void** out, unsigned) {
  *out = new Stream;
  return kSuccess;
}
API cuStreamDestroy_v2(void* stream) {
  Guard lock(g_mutex);
  Run(StreamOf(stream));
  // The next stream may lie at the same address, and has done nothing yet.
  for (auto it = g_counts_on.begin(); it != g_counts_on.end();)
    it = it->first.first == stream ? g_counts_on.erase(it) : std::next(it);
  delete static_cast<Stream*>(stream);
  return kSuccess;
}
API cuStreamSynchronize(void* stream) {
  Guard lock(g_mutex);
  ++g_counts["waits"];
  ++g_counts_on[{StreamOf(stream), "waits"}];
  if (g_contexts == 0) return kInvalidContext;
  return Run(StreamOf(stream));
}
API cuEventCreate(void** out, unsigned) {
  *out = new Event;
  return kSuccess;
}
API cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}
// Waits for what was there when the event was recorded last.
static int WaitFor(const std::shared_ptr<Moment>& moment) {
  return moment == nullptr || moment->done ? int{kSuccess} : Run(moment->stream, moment.get());
}
API cuEventRecord(void* event, void* stream) {
  Guard lock(g_mutex);
  auto moment = std::make_shared<Moment>(Moment{StreamOf(stream), false});
  static_cast<Event*>(event)->moment = moment;
  return Enqueue(moment->stream, "events", [=] { return moment->done = true, int{kSuccess}; });
}
API cuStreamWaitEvent(void* stream, void* event, unsigned) {
  Guard lock(g_mutex);
  auto moment = static_cast<Event*>(event)->moment;
  return Enqueue(StreamOf(stream), "event waits", [=] { return WaitFor(moment); });
}
API cuEventSynchronize(void* event) {
  Guard lock(g_mutex);
  ++g_counts["waits"];
  return WaitFor(static_cast<Event*>(event)->moment);
}
API cuGetErrorName(int result, const char** name) {
  static const std::map<int, const char*> kNames = {{0, "CUDA_SUCCESS"},
                                                    {1, "CUDA_ERROR_INVALID_VALUE"},
                                                    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                    {100, "CUDA_ERROR_NO_DEVICE"},
                                                    {101, "CUDA_ERROR_INVALID_DEVICE"},
                                                    {200, "CUDA_ERROR_INVALID_IMAGE"},
                                                    {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                                                    {218, "CUDA_ERROR_INVALID_PTX"},
                                                    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
                                                    {500, "CUDA_ERROR_NOT_FOUND"},
                                                    {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                    {801, "CUDA_ERROR_NOT_SUPPORTED"},
                                                    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                                                    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}};
  auto found = kNames.find(result);
  *name = found != kNames.end() ? found->second : nullptr;
  return *name != nullptr ? kSuccess : kInvalidValue;
}
API cuGetErrorString(int, const char** text) {
  *text = "emulated";
  return kSuccess;
}

API cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** args, void**) {
  Guard lock(g_mutex);
  Function* function = static_cast<Function*>(handle);
  if (gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535) return kInvalidValue;
  if (bx == 0 || by == 0 || bz == 0 || bx * by * bz > 1024 || bz > 64) return kInvalidValue;
  if (static_cast<int>(shared) > function->max_dynamic) return kInvalidValue;
  if (function->kernel == nullptr) {
    std::vector<uint64_t> values(function->ptx.parameters.size());
    for (size_t k = 0; k < values.size(); ++k) memcpy(&values[k], args[k], sizeof(uint64_t));
    return Enqueue(StreamOf(stream), "conditions", [=] {
      return RunPtx(function->ptx, values, SetConditional) ? kSuccess : kLaunchFailed;
    });
  }
  // The arguments are read now; all are addresses of the device.
  std::vector<uintptr_t> values(function->kernel->num_args);
  for (size_t k = 0; k < values.size(); ++k) {
    memcpy(&values[k], args[k], sizeof(uintptr_t));
    if (!Touches(values[k])) return kInvalidValue;
  }
  bool fails = g_settings.fail_kernels;
  return Enqueue(StreamOf(stream), "launches", [=]() mutable -> int {
    if (fails) return kLaunchFailed;
    g_counts["blocks"] += long{gx} * gy * gz;
    std::vector<void*> places;
    for (uintptr_t& value : values) places.push_back(&value);
    bool good = emulated::RunGrid(*function->kernel, {gx, gy, gz}, {bx, by, bz}, places.data());
    return good && !std::exchange(g_trapped, false) ? kSuccess : kLaunchFailed;
  });
}
