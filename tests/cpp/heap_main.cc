// Licensed under the Apache License, Version 2.0; see LICENSE.
// Counts heap allocations of all threads while a session runs: none after the first run of each
// path, while it is profiled too.
//
//   heap model.so model.params
#include <dlfcn.h>
#include <dycl/dycl.h>

#include <cstdio>
#include <cstring>

#include "count_allocations.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  auto get = reinterpret_cast<const DyclApi* (*)(int32_t)>(dlsym(library, "dycl_api"));
  const DyclApi* api = get(DYCL_ABI_VERSION);
  DyclModel* model = nullptr;
  DyclSession* session = nullptr;
  if (api->model_create(argv[2], &model) || api->session_create(model, &session)) return 1;

  alignas(64) float data[8] = {0};
  int64_t shape[1] = {4};
  DLTensor x;
  std::memset(&x, 0, sizeof(x));
  x.device.device_type = kDLCPU;
  x.ndim = 1;
  x.dtype = DLDataType{kDLFloat, 32, 1};
  x.shape = shape;
  DyclValue inputs[2];
  std::memset(inputs, 0, sizeof(inputs));
  inputs[0].u.tensor = &x;
  inputs[1].type = DYCL_INT;

  // All paths: returns, a raise, a failing kernel, a bad index; aligned inputs and copied ones.
  const int64_t cases[] = {0, 9, 1, 2, 3, -5};
  long before = 0;
  static DyclEvent ring[100];
  DyclProfileOptions profile = {sizeof(profile), ring, 100};
  for (int round = 0; round < 20; ++round) {
    if (round == 1) before = g_allocations;
    if (round == 10 && api->profile_start(session, &profile) != DYCL_OK) return 1;
    for (int64_t n : cases) {
      x.data = data + round % 2;
      inputs[1].u.v_int = n;
      int32_t site = 0;
      int32_t status = api->run(session, inputs, 2, &site);
      bool fails = n == 2 || n == 3 || n < 0;
      if ((status != DYCL_OK) != fails) return std::fprintf(stderr, "%s\n", api->last_error()), 1;
      DyclValue output;
      if (!fails && api->output(session, 0, &output) != DYCL_OK) return 1;
    }
  }
  DyclEvent last[100];
  size_t written = 0;
  if (api->profile_read(session, last, 100, &written, nullptr) != DYCL_OK || written != 100)
    return 1;
  long after = g_allocations;
  std::printf("%ld allocations before, %ld while running\n", before, after - before);
  api->session_destroy(session);
  api->model_destroy(model);
  return before > 0 ? 0 : 1;
}
