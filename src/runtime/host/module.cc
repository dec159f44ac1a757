// Licensed under the Apache License, Version 2.0; see LICENSE.
#include <dlfcn.h>
#include <dycl/module.h>
#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "../json.h"
#include "files.h"

namespace dycl {
namespace {

DyclType TypeOf(const std::string& name) {
  if (name == "int") return DYCL_INT;
  if (name == "float") return DYCL_FLOAT;
  return name == "bool" ? DYCL_BOOL : DYCL_TENSOR;
}

// The dtype by its name in the metadata, such as float32 or bfloat16.
DLDataType DTypeOf(const std::string& name) {
  if (name == "bool") return DLDataType{kDLBool, 8, 1};
  size_t digits = name.find_first_of("0123456789");
  if (digits == std::string::npos) return DLDataType{kDLFloat, 32, 1};
  const std::string base = name.substr(0, digits);
  uint8_t code = kDLFloat;
  if (base == "int") code = kDLInt;
  if (base == "uint") code = kDLUInt;
  if (base == "bfloat") code = kDLBfloat;
  if (base == "complex") code = kDLComplex;
  return DLDataType{code, static_cast<uint8_t>(std::stoi(name.substr(digits))), 1};
}

// Both texts lie in a string itself, so that they need no memory.
Status OutOfMemory() { return Status("MemoryError", "out of memory"); }

Status LastError(const DyclApi* api) {
  try {
    return Status(api->last_error_kind(), api->last_error());
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

// Calls `use`, which returns a Status or a Result; a lack of memory becomes one.
template <class Use>
auto Guard(Use use) -> decltype(use()) {
  try {
    return use();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

// Whether the table of a library, which may be older than this program, has a function.
#define HAS(api, member) ((api)->struct_size >= offsetof(DyclApi, member) + sizeof((api)->member))

Status Missing(const char* function) {
  return Guard([&] {
    return Status("UsageError", std::string("the library was built before there was ") + function +
                                    "; build it again");
  });
}

// A reference to a library of the system's loader. A library with a model holds itself in memory,
// so that references may go at any time.
class Reference {
 public:
  Reference() = default;
  ~Reference() { Drop(); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  void Open(const std::string& path) {
    Drop();
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  void* get() const { return handle_; }
  void* Release() {
    void* handle = handle_;
    handle_ = nullptr;
    return handle;
  }

 private:
  void Drop() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  void* handle_ = nullptr;
};

Status OpenLibrary(const std::string& path, Reference* library, const DyclApi** api) {
  library->Open(path);
  if (library->get() == nullptr) return Status("ArtifactError", dlerror());
  typedef const DyclApi* (*GetApi)(int32_t);
  GetApi get = nullptr;
  void* symbol = dlsym(library->get(), "dycl_api");
  memcpy(&get, &symbol, sizeof(get));
  *api = get != nullptr ? get(DYCL_ABI_VERSION) : nullptr;
  if (*api == nullptr) return Status("ArtifactError", "'" + path + "' has another interface");
  return Status();
}

Status OpenCopy(const std::string& path, Reference* library, const DyclApi** api) {
  const char* folder = getenv("TMPDIR");
  std::string copy = std::string(folder != nullptr ? folder : "/tmp") + "/dycl-XXXXXX";
  int file = mkstemp(&copy[0]);
  if (file < 0) return Status("ArtifactError", "cannot make a temporary file " + copy);
  std::string data;
  std::string why = ReadFile(path, &data);
  if (why.empty()) why = WriteFile(file, data);
  close(file);
  Status status = why.empty() ? OpenLibrary(copy, library, api)
                              : Status("ArtifactError", "cannot copy '" + path + "': " + why);
  unlink(copy.c_str());
  return status;
}

// An older library would look at the path only, and copy what is to be sealed.
const char* WhatIsNew(const DyclModelOptions& options) {
  if (options.struct_size >= offsetof(DyclModelOptions, params_fd) &&
      options.params_from != DYCL_PARAMS_FROM_PATH) {
    return "params_from";
  }
  return options.copy_params == DYCL_PARAMS_SEAL ? "DYCL_PARAMS_SEAL" : nullptr;
}

// An older library would pass over them.
bool HasSizes(const DyclSessionOptions& options) {
  constexpr size_t end =
      offsetof(DyclSessionOptions, num_largest_sizes) + sizeof(options.num_largest_sizes);
  return options.struct_size >= end && options.num_largest_sizes != 0;
}

std::vector<DyclExtent> ExtentsOf(const DyclApi* api, size_t input,
                                  const std::vector<int64_t>& shape) {
  std::vector<DyclExtent> extents;
  for (int64_t extent : shape) extents.push_back(DyclExtent{extent, extent, 1, -1, 0});
  // A model that was built before this function was there has no sizes that it would tell.
  if (api->struct_size >= offsetof(DyclApi, input_bounds) + sizeof(api->input_bounds)) {
    api->input_bounds(input, extents.data(), extents.size(), nullptr);
  }
  return extents;
}

// Whether it is the library of that trailer which says `told` of itself. One with code for several
// CPUs has in its trailer what it says on each.
bool IsOf(const std::string& trailer, const char* told) {
  if (trailer == told) return true;
  return trailer.find("\"levels\":[") != std::string::npos &&
         trailer.find(told) != std::string::npos;
}

}  // namespace

Result<Module> Module::Load(const std::string& library, const std::string& params,
                            const DyclModelOptions* options) {
  return Guard([&]() -> Result<Module> {
    Result<std::string> metadata = CheckLibrary(library);
    if (!metadata.ok()) return metadata.status();
    // A name without a slash would be looked up on the library path.
    std::string path = library.find('/') == std::string::npos ? "./" + library : library;
    const DyclApi* api = nullptr;
    Reference opened;
    Status status = OpenLibrary(path, &opened, &api);
    if (!status.ok()) return status;
    if (!IsOf(metadata.value(), api->metadata())) {
      // The system's loader knows files by their names: it handed out a library of that name that
      // was loaded before the file was built again. The new one is loaded under another name.
      status = OpenCopy(path, &opened, &api);
      if (!status.ok()) return status;
      if (!IsOf(metadata.value(), api->metadata())) {
        return Status("ArtifactError", "'" + library + "' changed while it was loaded");
      }
    }
    Result<Module> module = FromApi(api, params, options);
    if (module.ok()) module.value().library_ = opened.Release();
    return module;
  });
}

Result<Module> Module::FromApi(const DyclApi* api, const std::string& params,
                               const DyclModelOptions* options) {
  if (api == nullptr) {
    return Guard([] {
      return Status("ArtifactError",
                    "there is no table of functions: the model has another interface");
    });
  }
  DyclModel* model = nullptr;
  const char* path = params.empty() ? nullptr : params.c_str();
  if (options != nullptr && !HAS(api, model_create_with)) return Missing("model_create_with");
  const char* fresh = options != nullptr ? WhatIsNew(*options) : nullptr;
  if (fresh != nullptr && !HAS(api, params_fd)) return Missing(fresh);
  int32_t status = options != nullptr ? api->model_create_with(path, options, &model)
                                      : api->model_create(path, &model);
  if (status != DYCL_OK) return LastError(api);
  return Module(api, model);
}

// The library holds itself in memory, for its sessions and its threads, until Unload().
Module::~Module() {
  if (model_ != nullptr) api_->model_destroy(model_);
  if (library_ != nullptr) dlclose(library_);
}

Status Module::Unload() {
  if (!HAS(api_, unload)) return Missing("unload");
  if (api_->unload(model_) != DYCL_OK) return LastError(api_);
  model_ = nullptr;
  if (library_ != nullptr) dlclose(library_);
  library_ = nullptr;
  return Status();
}

Status SetThreadOptions(const Module& module, const DyclThreadOptions* options) {
  const DyclApi* api = module.api();
  if (!HAS(api, set_thread_options)) return Missing("set_thread_options");
  return api->set_thread_options(options) == DYCL_OK ? Status() : LastError(api);
}

namespace {

pthread_mutex_t g_parallel_mutex = PTHREAD_MUTEX_INITIALIZER;
ParallelFor* g_parallel = nullptr;

int32_t CallParallel(void* user, DyclTask task, void* data, int32_t n) {
  try {
    (*static_cast<ParallelFor*>(user))(n, [task, data](int32_t k) { task(data, k); });
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace

Status SetParallel(const Module& module, ParallelFor function, int32_t num_threads) {
  const DyclApi* api = module.api();
  if (!HAS(api, set_parallel)) return Missing("set_parallel");
  std::unique_ptr<ParallelFor> made;
  if (function) {
    made.reset(new (std::nothrow) ParallelFor(std::move(function)));
    if (made == nullptr) return OutOfMemory();
  }
  pthread_mutex_lock(&g_parallel_mutex);
  const bool set =
      api->set_parallel(made ? CallParallel : nullptr, made.get(), num_threads) == DYCL_OK;
  if (set) {
    ParallelFor* before = g_parallel;
    g_parallel = made.release();
    made.reset(before);
  }
  pthread_mutex_unlock(&g_parallel_mutex);
  return set ? Status() : LastError(api);
}

std::string Module::Metadata() const { return api_->metadata(); }

const char* Module::UserMetadata(const char* key) const {
  return HAS(api_, user_metadata) ? api_->user_metadata(key) : nullptr;
}

Status Module::SetLog(DyclLog function, void* user, DyclLogLevel level) const {
  if (!HAS(api_, set_log)) return Missing("set_log");
  api_->set_log(function, user, level);
  return Status();
}

std::vector<InputSpec> Module::Inputs() const {
  std::vector<InputSpec> specs;
  const char* text = api_->metadata();
  Json metadata;
  if (!ParseJson(text, strlen(text), &metadata)) return specs;
  const Json* inputs = metadata.Find("inputs");
  const Json* names = metadata.Find("input_names");
  if (inputs == nullptr || names == nullptr) return specs;
  for (size_t k = 0; k < inputs->items.size() && k < names->items.size(); ++k) {
    const Json& input = inputs->items[k];
    InputSpec spec = {names->items[k].string, TypeOf(input.Text("type")),
                      DTypeOf(input.Text("dtype")), std::vector<int64_t>(),
                      std::vector<DyclExtent>()};
    if (const Json* shape = input.Find("shape")) {
      for (const Json& extent : shape->items) spec.shape.push_back(extent.integer);
    }
    spec.extents = ExtentsOf(api_, k, spec.shape);
    specs.push_back(spec);
  }
  return specs;
}

DyclModelInfo Module::Info() const {
  DyclModelInfo info;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  api_->model_info(model_, &info);
  return info;
}

Result<Session> Module::NewSession(const DyclSessionOptions* options) const {
  DyclSession* session = nullptr;
  if (options != nullptr && !HAS(api_, session_create_with)) return Missing("session_create_with");
  if (options != nullptr && HasSizes(*options) && !HAS(api_, session_needs)) {
    return Missing("largest_sizes");
  }
  int32_t status = options != nullptr ? api_->session_create_with(model_, options, &session)
                                      : api_->session_create(model_, &session);
  if (status != DYCL_OK) return LastError(api_);
  return Session(api_, session, Info().num_kernels);
}

Result<Session> Module::NewSessionUpTo(std::initializer_list<DyclLargestSize> sizes) const {
  DyclSessionOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.largest_sizes = sizes.begin();
  options.num_largest_sizes = sizes.size();
  return NewSession(&options);
}

Result<DyclModelInfo> Module::SessionNeeds(const DyclSessionOptions& options) const {
  if (!HAS(api_, session_needs)) return Missing("session_needs");
  DyclModelInfo info;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  if (api_->session_needs(model_, &options, &info) != DYCL_OK) return LastError(api_);
  return info;
}

Session::~Session() {
  if (session_ != nullptr) api_->session_destroy(session_);
}

Result<int32_t> Session::Run(const DyclValue* inputs, size_t count) {
  int32_t site = 0;
  if (api_->run(session_, inputs, count, &site) != DYCL_OK) return LastError(api_);
  return site;
}

Result<int32_t> Session::RunWithin(double deadline_ms, const DyclValue* inputs, size_t count) {
  if (!HAS(api_, run_with)) return Missing("run_with");
  DyclRunOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.deadline_ms = deadline_ms <= 0 ? -1 : deadline_ms;  // 0 is no deadline to C
  int32_t site = 0;
  if (api_->run_with(session_, inputs, count, &options, &site) != DYCL_OK) return LastError(api_);
  return site;
}

Result<int32_t> Session::RunInto(const DLTensor* const* outputs, size_t num_outputs,
                                 const DyclValue* inputs, size_t count,
                                 const DyclRunOptions* options) {
  if (!HAS(api_, run_into)) return Missing("run_into");
  int32_t site = 0;
  int32_t status = api_->run_into(session_, inputs, count, outputs, num_outputs, options, &site);
  if (status != DYCL_OK) return LastError(api_);
  return site;
}

namespace {

struct Waiting {
  const DyclApi* api;
  std::function<void(Result<int32_t>)> done;
};

void CallDone(void* user, int32_t status, int32_t site) {
  std::unique_ptr<Waiting> waiting(static_cast<Waiting*>(user));
  if (status == DYCL_OK) {
    waiting->done(site);
  } else {
    waiting->done(LastError(waiting->api));
  }
}

}  // namespace

Status Session::RunAsync(const DyclValue* inputs, size_t count,
                         std::function<void(Result<int32_t>)> done, const DLTensor* const* outputs,
                         size_t num_outputs, const DyclRunOptions* options) {
  if (!HAS(api_, run_async)) return Missing("run_async");
  std::unique_ptr<Waiting> waiting(new (std::nothrow) Waiting{api_, std::move(done)});
  if (waiting == nullptr) return OutOfMemory();
  int32_t status = api_->run_async(session_, inputs, count, outputs, num_outputs, options, CallDone,
                                   waiting.get());
  if (status != DYCL_OK) return LastError(api_);
  waiting.release();
  return Status();
}

void Session::Cancel() {
  if (HAS(api_, cancel)) api_->cancel(session_);
}

Result<size_t> Session::NumOutputs() const {
  size_t count = 0;
  if (api_->num_outputs(session_, &count) != DYCL_OK) return LastError(api_);
  return count;
}

Result<DyclValue> Session::Output(size_t k) const {
  DyclValue value;
  if (api_->output(session_, k, &value) != DYCL_OK) return LastError(api_);
  return value;
}

Status Session::CopyOutput(size_t k, const DLTensor& to) {
  return api_->copy_output(session_, k, &to) == DYCL_OK ? Status() : LastError(api_);
}

std::vector<DyclPathEntry> Session::Path() const {
  uint64_t total = 0;
  api_->path(session_, nullptr, 0, nullptr, &total);
  // A session keeps the last decisions only, however many a loop takes.
  const uint64_t most = 65536;
  std::vector<DyclPathEntry> entries(static_cast<size_t>(total < most ? total : most));
  size_t written = 0;
  api_->path(session_, entries.data(), entries.size(), &written, nullptr);
  entries.resize(written);
  return entries;
}

std::string Session::PathText() const {
  size_t needed = 0;
  api_->path_text(session_, nullptr, 0, &needed);
  std::vector<char> text(needed + 1);
  api_->path_text(session_, text.data(), text.size(), nullptr);
  return text.data();
}

Result<std::vector<DyclExtent>> Session::InputBounds(size_t input) const {
  if (!HAS(api_, session_input_bounds)) return Missing("session_input_bounds");
  size_t ndim = 0;
  if (api_->session_input_bounds(session_, input, nullptr, 0, &ndim) != DYCL_OK) {
    return LastError(api_);
  }
  std::vector<DyclExtent> extents(ndim);
  api_->session_input_bounds(session_, input, extents.data(), extents.size(), nullptr);
  return extents;
}

std::vector<uint64_t> Session::KernelRuns() const {
  std::vector<uint64_t> counts(num_kernels_);
  api_->kernel_runs(session_, counts.data(), counts.size());
  return counts;
}

Status Session::SetNumThreads(int32_t num_threads) {
  return api_->session_set_num_threads(session_, num_threads) == DYCL_OK ? Status()
                                                                         : LastError(api_);
}

Status Session::SetPriority(DyclPriority priority) {
  if (!HAS(api_, session_set_priority)) return Missing("session_set_priority");
  return api_->session_set_priority(session_, priority) == DYCL_OK ? Status() : LastError(api_);
}

Status Session::SetDeviceBranches(bool on) {
  if (!HAS(api_, session_set_device_branches)) return Missing("session_set_device_branches");
  return api_->session_set_device_branches(session_, on ? 1 : 0) == DYCL_OK ? Status()
                                                                            : LastError(api_);
}

Status Session::SetCudaStream(void* stream) {
  if (!HAS(api_, session_set_cuda_stream)) return Missing("session_set_cuda_stream");
  return api_->session_set_cuda_stream(session_, 1, stream) == DYCL_OK ? Status() : LastError(api_);
}

Status Session::SetOwnStream() {
  if (!HAS(api_, session_set_cuda_stream)) return Missing("session_set_cuda_stream");
  return api_->session_set_cuda_stream(session_, 0, nullptr) == DYCL_OK ? Status()
                                                                        : LastError(api_);
}

Status Session::ResetState() {
  return api_->reset_state(session_) == DYCL_OK ? Status() : LastError(api_);
}

Result<std::string> Session::GetState() const {
  if (!HAS(api_, get_state)) return Missing("get_state");
  return Guard([&]() -> Result<std::string> {
    size_t size = 0;
    if (api_->get_state(session_, nullptr, 0, &size) != DYCL_OK) return LastError(api_);
    std::string state(size, '\0');
    if (size != 0 && api_->get_state(session_, &state[0], size, nullptr) != DYCL_OK) {
      return LastError(api_);
    }
    return state;
  });
}

Status Session::SetState(const std::string& state) {
  if (!HAS(api_, set_state)) return Missing("set_state");
  return api_->set_state(session_, state.data(), state.size()) == DYCL_OK ? Status()
                                                                          : LastError(api_);
}

Status Session::StartProfile(DyclEvent* events, size_t capacity, uint32_t every) {
  if (!HAS(api_, profile_start)) return Missing("profile_start");
  DyclProfileOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.events = events;
  options.capacity = capacity;
  options.every = every;
  return api_->profile_start(session_, &options) == DYCL_OK ? Status() : LastError(api_);
}

Result<size_t> Session::ReadProfile(DyclEvent* events, size_t capacity, uint64_t* lost) {
  if (!HAS(api_, profile_read)) return Missing("profile_read");
  size_t written = 0;
  if (api_->profile_read(session_, events, capacity, &written, lost) != DYCL_OK) {
    return LastError(api_);
  }
  return written;
}

Status Session::StopProfile() {
  if (!HAS(api_, profile_stop)) return Missing("profile_stop");
  return api_->profile_stop(session_) == DYCL_OK ? Status() : LastError(api_);
}

Status Session::ManualSeed(uint64_t seed) {
  return api_->manual_seed(session_, seed) == DYCL_OK ? Status() : LastError(api_);
}

}  // namespace dycl
