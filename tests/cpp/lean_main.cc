// Licensed under the Apache License, Version 2.0; see LICENSE.
// What a lack of memory does to a program. Each of the stories below is told again and again, each
// time in a new process that has nothing yet, and each time with one more allocation that succeeds
// before one fails, in whichever thread. Every call must succeed or say that memory is short; made
// once more it succeeds, and what was made before works as if nothing had been.
//
//   lean model.so model.params
#include <dlfcn.h>
#include <dycl/module.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "fail_allocations.h"

namespace {

const char* g_story = "";
long g_at = 0;
std::string g_library, g_params, g_bytes;

[[noreturn]] void Stop(int line, const char* what, const std::string& why) {
  g_left.store(LONG_MAX);
  std::fprintf(stderr, "%s, allocation %ld, line %d: %s: %s\n", g_story, g_at, line, what,
               why.c_str());
  std::abort();
}

#define CHECK(condition)                              \
  do {                                                \
    if (!(condition)) Stop(__LINE__, #condition, ""); \
  } while (0)

// The kind of an error, and its words.
struct Error {
  bool is = false;
  std::string kind, text;
  Error() = default;
  Error(const dycl::Status& status)  // NOLINT(runtime/explicit)
      : is(!status.ok()), kind(status.kind()), text(status.message()) {}
};

// Makes a call. If it fails for lack of memory, once more.
template <typename Make>
void Do(int line, const char* what, Make make) {
  for (bool again = false;; again = true) {
    const bool failed_before = g_failed.load();
    const Error error = make();
    if (!error.is) return;
    // The system's loader has no kind for it, and other words each time, behind the name.
    const bool lacks = error.kind == "MemoryError" || error.text.find(g_library) == 0 ||
                       error.text.find("memory") != std::string::npos;
    if (again || failed_before || !g_failed.load() || !lacks) {
      Stop(line, what, error.kind + ": " + error.text);
    }
  }
}

// A text is made only where there is an error, whose making is not counted.
Error Of(const DyclApi* api, int32_t status) {
  Error error;
  if (status == DYCL_OK) return error;
  const long left = g_left.exchange(LONG_MAX);
  error.is = true;
  error.kind = api->last_error_kind();
  error.text = api->last_error();
  g_left.store(left);
  return error;
}

#define OK(call) Do(__LINE__, #call, [&] { return Of(api, call); })
#define GOOD(call) Do(__LINE__, #call, [&] { return Error(call); })

struct Input {
  alignas(64) float data[4] = {1, 1, 1, 1};
  int64_t shape[1] = {4};
  DLTensor x{};
  DyclValue values[2];
  explicit Input(int64_t n = 0) {
    x.data = data;
    x.device.device_type = kDLCPU;
    x.ndim = 1;
    x.dtype = DLDataType{kDLFloat, 32, 1};
    x.shape = shape;
    values[0] = dycl::Tensor(x);
    values[1] = dycl::Int(n);
  }
};

const DyclApi* Open() {
  const DyclApi* api = nullptr;
  Do(__LINE__, "dlopen", [&] {
    Error error;
    void* library = dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
    const long left = g_left.exchange(LONG_MAX);
    if (library == nullptr) {
      const char* why = dlerror();
      error.is = true;
      error.text = why != nullptr ? why : "no memory for the words";
    } else {
      api = reinterpret_cast<const DyclApi* (*)(int32_t)>(dlsym(library, "dycl_api"))(
          DYCL_ABI_VERSION);
    }
    g_left.store(left);
    return error;
  });
  return api;
}

void IsRight(const DyclApi* api, DyclSession* session) {
  DyclValue value;
  CHECK(api->output(session, 0, &value) == DYCL_OK && value.type == DYCL_TENSOR);
  CHECK(static_cast<const float*>(value.u.tensor->data)[0] == 22);
}

void Runs(const DyclApi* api, DyclSession* session) {
  Input in;
  int32_t site = -1;
  OK(api->run(session, in.values, 2, &site));
  CHECK(site == 0);
  IsRight(api, session);
}

// A model and a session of it, by the C API.
struct Made {
  const DyclApi* api = Open();
  DyclModel* model = nullptr;
  DyclSession* session = nullptr;
  Made() {
    OK(api->model_create(g_params.c_str(), &model));
    OK(api->session_create(model, &session));
  }
  // Nothing may be left that would keep the library in use.
  void End() {
    Runs(api, session);
    api->session_destroy(session);
    OK(api->unload(model));
  }
};

void InCpp() {
  Do(__LINE__, "all of it", [] {
    Input in;
    auto module = dycl::Module::Load(g_library, g_params);
    if (!module.ok()) return Error(module.status());
    auto made = module.value().NewSession();
    if (!made.ok()) return Error(made.status());
    dycl::Session& session = made.value();
    GOOD(session.SetNumThreads(2));
    // Over all kinds of ends.
    for (int64_t n : {0, 9, 1, 2, 3}) {
      const bool raises = n == 2 || n == 3;
      in.values[1] = dycl::Int(n);
      Do(__LINE__, "Run", [&] {
        auto site = session.Run(in.values, 2);
        if (site.ok()) CHECK(!raises);
        const char* kind = n == 2 ? "KeyError" : "ValueError";
        if (!site.ok() && raises && site.status().kind() == kind) return Error();
        return Error(site.status());
      });
      if (n == 0) CHECK(session.NumOutputs().value() == 3);
    }
    std::string state;
    GOOD([&] {
      auto got = session.GetState();
      if (got.ok()) state = std::move(got.value());
      return got.status();
    }());
    GOOD(session.SetState(state));
    GOOD(session.ResetState());
    return Error();
  });
}

// How the params may be given, and who keeps them.
template <int kFrom, int kCopy>
void Params() {
  const DyclApi* api = Open();
  DyclModelOptions options{};
  options.struct_size = sizeof(options);
  options.copy_params = kCopy;
  options.params_from = kFrom;
  options.params_data = g_bytes.data() + (-reinterpret_cast<uintptr_t>(g_bytes.data()) % 64);
  options.params_size = kFrom == DYCL_PARAMS_FROM_PATH ? 0 : g_bytes.size() - 64;
  options.params_fd = open(g_params.c_str(), O_RDONLY | O_CLOEXEC);
  const char* path = kFrom == DYCL_PARAMS_FROM_PATH ? g_params.c_str() : nullptr;
  DyclModel* model = nullptr;
  DyclSession* session = nullptr;
  OK(api->model_create_with(path, &options, &model));
  OK(api->session_create(model, &session));
  Runs(api, session);
  api->session_destroy(session);
  OK(api->unload(model));
  CHECK(fcntl(options.params_fd, F_GETFD) != -1);  // it is the caller's
}

void RunsOfAllKinds() {
  Made made;
  const DyclApi* api = made.api;
  DyclSession* session = made.session;
  Input in, out;
  const DLTensor* outputs[] = {&out.x};
  DyclRunOptions options{};
  options.struct_size = sizeof(options);
  options.deadline_ms = 60000;
  int32_t site = -1;
  OK(api->run_with(session, in.values, 2, &options, &site));
  IsRight(api, session);
  OK(api->run_into(session, in.values, 2, outputs, 1, &options, &site));
  CHECK(out.data[0] == 22);
  OK(api->copy_output(session, 2, &out.x));
  DyclPathEntry entries[8];
  size_t written = 0, needed = 0;
  uint64_t total = 0;
  char text[512];
  OK(api->path(session, entries, 8, &written, &total));
  OK(api->path_text(session, text, sizeof(text), &needed));
  CHECK(written == 2 && needed == std::strlen(text) + 1);
  OK(api->session_set_num_threads(session, 3));
  Runs(api, session);
  OK(api->session_set_num_threads(session, 0));
  OK(api->session_set_priority(session, DYCL_PRIORITY_HIGH));
  OK(api->manual_seed(session, 3));
  made.End();
}

void ArenaOfTheCaller() {
  Made made;
  const DyclApi* api = made.api;
  alignas(64) static char room[1 << 16];
  DyclSessionOptions options{};
  options.struct_size = sizeof(options);
  options.arena = room;
  options.arena_bytes = sizeof(room);
  DyclSession* other = nullptr;
  OK(api->session_create_with(made.model, &options, &other));
  Runs(api, other);
  api->session_destroy(other);
  made.End();
}

struct Waiting {
  std::atomic<int> status{-1};
  static void Done(void* self, int32_t status, int32_t) {
    static_cast<Waiting*>(self)->status.store(status);
  }
};

void InTheBackground() {
  Made made;
  const DyclApi* api = made.api;
  Input in, out;
  const DLTensor* outputs[] = {&out.x};
  for (int k = 0; k < 2; ++k) {
    Do(__LINE__, "run_async", [&] {
      Waiting waiting;
      const Error refused = Of(api, api->run_async(made.session, in.values, 2, outputs, 1, nullptr,
                                                   Waiting::Done, &waiting));
      if (refused.is) return refused;
      while (waiting.status.load() < 0) usleep(50);
      Error error;
      error.is = waiting.status.load() != DYCL_OK;
      if (error.is) error.kind = waiting.status.load() == DYCL_ERROR_MEMORY ? "MemoryError" : "";
      return error;
    });
    CHECK(out.data[0] == 22);
    out.data[0] = 0;
  }
  made.End();
}

void Profiled() {
  Made made;
  const DyclApi* api = made.api;
  static DyclEvent events[64], read[64];
  DyclProfileOptions options{};
  options.struct_size = sizeof(options);
  options.events = events;
  options.capacity = 64;
  options.every = 1;
  size_t written = 0;
  OK(api->profile_start(made.session, &options));
  Runs(api, made.session);
  OK(api->profile_read(made.session, read, 64, &written, nullptr));
  CHECK(written >= 6);
  OK(api->profile_stop(made.session));
  made.End();
}

void Listens(void* user, int32_t, const char*, size_t) { ++*static_cast<std::atomic<int>*>(user); }

int32_t InOrder(void*, DyclTask task, void* data, int32_t n) {
  for (int32_t k = 0; k < n; ++k) task(data, k);
  return 0;
}

void ThreadsAndTexts() {
  Made made;
  const DyclApi* api = made.api;
  std::atomic<int> heard{0};
  api->set_log(Listens, &heard, DYCL_LOG_WARNING);
  const int32_t cpus[] = {0};
  DyclThreadOptions options{};
  options.struct_size = sizeof(options);
  options.cpus = cpus;
  options.num_cpus = 1;
  OK(api->set_thread_options(&options));
  Runs(api, made.session);
  OK(api->set_parallel(InOrder, nullptr, 4));
  Runs(api, made.session);
  OK(api->set_parallel(nullptr, nullptr, 0));
  OK(api->set_thread_options(nullptr));
  Runs(api, made.session);
  api->set_log(nullptr, nullptr, DYCL_LOG_PRINT);
  made.End();
}

void TwoThreadsAtOnce() {
  Made made;
  const DyclApi* api = made.api;
  DyclSession* other = nullptr;
  OK(api->session_create(made.model, &other));
  const long left = g_left.exchange(LONG_MAX);  // the program's own thread is none of the library
  std::thread beside([&] {
    g_left.store(left);
    for (int k = 0; k < 3; ++k) Runs(api, other);
  });
  for (int k = 0; k < 3; ++k) Runs(api, made.session);
  beside.join();
  api->session_destroy(other);
  made.End();
}

void UnloadedAndLoadedAgain() {
  for (int k = 0; k < 2; ++k) {
    Made made;
    made.End();
  }
}

// A packed function, and what it gives.
struct Packed {
  void* library = dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  TVMFFIAny result{};
  Error operator()(const DyclApi* api, const char* name, std::initializer_list<TVMFFIAny> args) {
    const long left = g_left.exchange(LONG_MAX);
    auto call = reinterpret_cast<TVMFFISafeCallType>(
        dlsym(library, (std::string("__tvm_ffi_") + name).c_str()));
    if (call == nullptr) Stop(__LINE__, name, "is missing");
    g_left.store(left);
    const int status = call(nullptr, args.begin(), static_cast<int32_t>(args.size()), &result);
    return Of(api, status == 0 ? DYCL_OK : DYCL_ERROR_RUN);
  }
};

TVMFFIAny Number(int64_t value) {
  TVMFFIAny any{};
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

TVMFFIAny Text(const std::string& text) {
  TVMFFIAny any{};
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = text.c_str();
  return any;
}

TVMFFIAny View(DLTensor* tensor) {
  TVMFFIAny any{};
  any.type_index = kTVMFFIDLTensorPtr;
  any.v_ptr = tensor;
  return any;
}

#define CALL(name, ...) Do(__LINE__, name, [&] { return call(api, name, {__VA_ARGS__}); })

void OfTvm() {
  const DyclApi* api = Open();
  Packed call;
  Input in, out;
  CALL("create", Text(g_params));
  const TVMFFIAny session = Number(call.result.v_int64);
  for (int k = 0; k < 2; ++k) {
    CALL("run", session, View(&in.x), Number(0));
    CHECK(call.result.v_int64 == 0);
    CALL("copy_output", session, Number(0), View(&out.x));
    CHECK(out.data[0] == 22);
  }
  CALL("run_within", session, Number(60000), View(&in.x), Number(0));
  CALL("num_outputs", session);
  CHECK(call.result.v_int64 == 3);
  for (const char* name : {"output", "to_device"}) {
    const TVMFFIAny what = name[0] == 'o' ? Number(0) : View(&in.x);
    CALL(name, session, what);
    auto* tensor = reinterpret_cast<DLManagedTensor*>(call.result.v_obj);
    CHECK(static_cast<float*>(tensor->dl_tensor.data)[0] == (name[0] == 'o' ? 22 : 1));
    tensor->deleter(tensor);
  }
  CALL("path", session);
  CALL("metadata");
  CALL("kernel_runs", session, Number(0));
  CALL("set_num_threads", session, Number(2));
  CALL("run", session, View(&in.x), Number(0));
  CALL("set_num_threads", session, Number(0));
  CALL("set_priority", session, Number(1));
  CALL("reset_state", session);
  CALL("manual_seed", session, Number(3));
  CALL("cancel", session);
  CALL("run", session, View(&in.x), Number(0));
  CALL("destroy", session);
  CALL("unload");
}

struct Story {
  const char* name;
  void (*tell)();
};

const Story kStories[] = {
    {"in C++", InCpp},
    {"params at a path", Params<DYCL_PARAMS_FROM_PATH, DYCL_PARAMS_MAP>},
    {"params at a path, copied", Params<DYCL_PARAMS_FROM_PATH, DYCL_PARAMS_COPY>},
    {"params at a path, sealed", Params<DYCL_PARAMS_FROM_PATH, DYCL_PARAMS_SEAL>},
    {"params in memory", Params<DYCL_PARAMS_FROM_MEMORY, DYCL_PARAMS_MAP>},
    {"params in memory, copied", Params<DYCL_PARAMS_FROM_MEMORY, DYCL_PARAMS_COPY>},
    {"params in memory, sealed", Params<DYCL_PARAMS_FROM_MEMORY, DYCL_PARAMS_SEAL>},
    {"params of a descriptor", Params<DYCL_PARAMS_FROM_DESCRIPTOR, DYCL_PARAMS_MAP>},
    {"params of a descriptor, copied", Params<DYCL_PARAMS_FROM_DESCRIPTOR, DYCL_PARAMS_COPY>},
    {"params of a descriptor, sealed", Params<DYCL_PARAMS_FROM_DESCRIPTOR, DYCL_PARAMS_SEAL>},
    {"runs", RunsOfAllKinds},
    {"arena", ArenaOfTheCaller},
    {"background", InTheBackground},
    {"profile", Profiled},
    {"threads", ThreadsAndTexts},
    {"two threads", TwoThreadsAtOnce},
    {"unload", UnloadedAndLoadedAgain},
    {"packed functions", OfTvm},
};

enum class End { kNoneFailed, kHeld, kEndedByC };

// The end of a story in which one allocation fails, if there are so many.
End Tell(const Story& story, long at) {
  const pid_t child = fork();
  if (child == 0) {
    g_story = story.name;
    g_at = at;
    g_left.store(at);
    story.tell();
    g_left.store(LONG_MAX);
    std::_Exit(g_failed.load() ? 1 : 0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) std::abort();
  // A thread's first look at a variable of its own in a library that was loaded later: glibc ends
  // the process where there is no memory for these, and nobody can ask it first.
  constexpr int kByLoader = 127;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kByLoader) return End::kEndedByC;
  if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) {
    std::fprintf(stderr, "%s, allocation %ld: status %x\n", story.name, at, status);
    std::exit(1);
  }
  return WEXITSTATUS(status) == 1 ? End::kHeld : End::kNoneFailed;
}

}  // namespace

// What libtvm_ffi would do, for one who looks at the results only.
extern "C" {
int TVMFFIStringFromByteArray(const TVMFFIByteArray*, TVMFFIAny* out) {
  out->type_index = kTVMFFINone;
  return 0;
}
int TVMFFITensorFromDLPack(DLManagedTensor* from, int32_t, int32_t, TVMFFIObjectHandle* out) {
  *out = from;
  return 0;
}
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  g_library = argv[1];
  g_params = argv[2];
  std::FILE* file = std::fopen(argv[2], "rb");
  if (file == nullptr) return 2;
  std::fseek(file, 0, SEEK_END);
  const size_t size = static_cast<size_t>(std::ftell(file));
  std::rewind(file);
  g_bytes.resize(size + 64);
  char* begin = &g_bytes[0] + (-reinterpret_cast<uintptr_t>(g_bytes.data()) % 64);
  if (std::fread(begin, 1, size, file) != size) return 2;
  std::fclose(file);
  for (const Story& story : kStories) {
    long held = 0, ended = 0;
    for (End end = End::kHeld; end != End::kNoneFailed;) {
      end = Tell(story, held + ended);
      held += end == End::kHeld ? 1 : 0;
      ended += end == End::kEndedByC ? 1 : 0;
    }
    std::printf("%s: %ld allocations failed, %ld ended the process in the C library\n", story.name,
                held, ended);
  }
  return 0;
}
