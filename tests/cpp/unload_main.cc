// Licensed under the Apache License, Version 2.0; see LICENSE.
// Libraries that are loaded and unloaded by the C API and by dycl/module.h.
#include <dlfcn.h>
#include <dycl/module.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#define REQUIRE(condition)                                    \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

namespace {

bool Mapped(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path) != std::string::npos) return true;
  }
  return false;
}

long Pages() {
  long all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

struct Input {
  Input() {
    for (int k = 0; k < 1000; ++k) data[k] = static_cast<float>(k);
    tensor = DLTensor{data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
  }
  alignas(64) float data[1000];
  int64_t shape[1] = {1000};
  DLTensor tensor;
};

void ByC(const std::string& path, const char* params) {
  Input x;
  void* library = dlopen(path.c_str(), RTLD_NOW);
  REQUIRE(library != nullptr);
  auto get = reinterpret_cast<const DyclApi* (*)(int32_t)>(dlsym(library, "dycl_api"));
  const DyclApi* api = get(DYCL_ABI_VERSION);
  DyclModel* model = nullptr;
  DyclSession* session = nullptr;
  REQUIRE(api->model_create(params, &model) == DYCL_OK);
  REQUIRE(api->session_create(model, &session) == DYCL_OK);
  const DLTensor* inputs[] = {&x.tensor};
  int32_t site = -1;
  // Threads of the program that have used it keep nothing of it in memory either.
  std::thread other([&] { REQUIRE(api->run_tensors(session, inputs, 1, &site) == DYCL_OK); });
  other.join();
  REQUIRE(api->run_tensors(session, inputs, 1, &site) == DYCL_OK);
  REQUIRE(api->unload(model) == DYCL_ERROR_USAGE);
  REQUIRE(std::string(api->last_error()).find("1 sessions, 0 other models") != std::string::npos);
  REQUIRE(api->run_tensors(session, inputs, 1, &site) == DYCL_OK);
  api->session_destroy(session);
  // Closed by whoever had it open it stays, because it has a model.
  dlclose(library);
  REQUIRE(Mapped(path));
  library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  REQUIRE(api->unload(model) == DYCL_OK);
  REQUIRE(api->unload(nullptr) == DYCL_OK);
  dlclose(library);
  REQUIRE(!Mapped(path));
}

// A callback that destroys its session: its thread is out of the library before that is unloaded.
struct Ending {
  const DyclApi* api;
  DyclModel* model;
  DyclSession* session;
  int32_t unloaded = DYCL_OK;
  std::atomic<bool> done{false};

  static void Done(void* user, int32_t status, int32_t) {
    auto* self = static_cast<Ending*>(user);
    REQUIRE(status == DYCL_OK);
    self->api->session_destroy(self->session);
    self->unloaded = self->api->unload(self->model);
    self->done.store(true);
    usleep(20000);
  }
};

void InCallback(const std::string& path, const char* params) {
  Input x;
  void* library = dlopen(path.c_str(), RTLD_NOW);
  auto get = reinterpret_cast<const DyclApi* (*)(int32_t)>(dlsym(library, "dycl_api"));
  Ending ending{get(DYCL_ABI_VERSION), nullptr, nullptr};
  const DyclApi* api = ending.api;
  REQUIRE(api->model_create(params, &ending.model) == DYCL_OK);
  REQUIRE(api->session_create(ending.model, &ending.session) == DYCL_OK);
  DyclValue value{};
  value.type = DYCL_TENSOR;
  value.u.tensor = &x.tensor;
  REQUIRE(api->run_async(ending.session, &value, 1, nullptr, 0, nullptr, Ending::Done, &ending) ==
          DYCL_OK);
  while (!ending.done.load()) usleep(100);
  REQUIRE(ending.unloaded == DYCL_ERROR_USAGE);
  REQUIRE(api->unload(ending.model) == DYCL_OK);
  dlclose(library);
  REQUIRE(!Mapped(path));
}

void ByCpp(const std::string& path, const char* params) {
  Input x;
  auto module = dycl::Module::Load(path, params);
  REQUIRE(module.ok());
  {
    auto session = module.value().NewSession();
    REQUIRE(session.ok() && session.value().Run({dycl::Tensor(x.tensor)}).ok());
    dycl::Status refused = module.value().Unload();
    REQUIRE(!refused.ok() && refused.kind() == "UsageError");
    REQUIRE(session.value().Run({dycl::Tensor(x.tensor)}).ok());
  }
  {
    auto second = dycl::Module::Load(path, params);
    REQUIRE(second.ok() && !module.value().Unload().ok());
  }
  REQUIRE(module.value().Unload().ok());
  REQUIRE(!Mapped(path));
}

}  // namespace

int main(int, char** argv) {
  setenv("DYCL_NUM_THREADS", "3", 1);
  // The other library has the pool of the process now and then.
  Input x;
  auto other = dycl::Module::Load(argv[3], argv[4]);
  REQUIRE(other.ok());
  auto running = other.value().NewSession();
  long before = 0;
  for (int k = 0; k < 40; ++k) {
    ByC(argv[1], argv[2]);
    ByCpp(argv[1], argv[2]);
    InCallback(argv[1], argv[2]);
    REQUIRE(running.value().Run({dycl::Tensor(x.tensor)}).ok());
    if (k == 15) before = Pages();
  }
  long grown = (Pages() - before) * sysconf(_SC_PAGESIZE);
  fprintf(stderr, "48 reloads: %ld bytes\n", grown);
  REQUIRE(grown < 48 * 1024);
  printf("done\n");
  return 0;
}
