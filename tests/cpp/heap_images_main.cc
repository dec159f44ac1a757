// Licensed under the Apache License, Version 2.0; see LICENSE.
// Counts the heap allocations of a network that takes images, after its first run.
//
//   heap model.so model.params images.bin side
#include <dlfcn.h>
#include <dycl/dycl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "count_allocations.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  auto get = reinterpret_cast<const DyclApi* (*)(int32_t)>(dlsym(library, "dycl_api"));
  const DyclApi* api = get(DYCL_ABI_VERSION);
  DyclModel* model = nullptr;
  DyclSession* session = nullptr;
  if (api->model_create(argv[2], &model) || api->session_create(model, &session)) return 1;

  int64_t side = std::atoi(argv[4]);
  size_t pixels = static_cast<size_t>(3 * side * side);
  std::ifstream file(argv[3], std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t count = bytes.size() / (pixels * sizeof(float));
  std::vector<float> data(count * pixels);
  std::memcpy(data.data(), bytes.data(), count * pixels * sizeof(float));

  int64_t shape[4] = {1, 3, side, side};
  DLTensor x;
  std::memset(&x, 0, sizeof(x));
  x.device.device_type = kDLCPU;
  x.ndim = 4;
  x.dtype = DLDataType{kDLFloat, 32, 1};
  x.shape = shape;
  DyclValue input;
  std::memset(&input, 0, sizeof(input));
  input.u.tensor = &x;

  long allocations = 0;
  std::set<std::string> paths;
  std::vector<DyclPathEntry> entries(4096);
  for (size_t k = 0; k < count; ++k) {
    x.data = data.data() + k * pixels;
    int32_t site = 0;
    long before = g_allocations;
    if (api->run(session, &input, 1, &site) != DYCL_OK) {
      return std::fprintf(stderr, "%s\n", api->last_error()), 1;
    }
    if (k > 0) allocations += g_allocations - before;
    size_t written = 0;
    uint64_t total = 0;
    if (api->path(session, entries.data(), entries.size(), &written, &total) != DYCL_OK) return 1;
    std::string path = std::to_string(site);
    for (size_t e = 0; e < written; ++e) path += "," + std::to_string(entries[e].choice);
    paths.insert(path);
  }
  std::printf("%zu images, %zu paths, %ld allocations\n", count, paths.size(), allocations);
  api->session_destroy(session);
  api->model_destroy(model);
  return allocations == 0 && paths.size() > 1 ? 0 : 1;
}
