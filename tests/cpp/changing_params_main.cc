// Licensed under the Apache License, Version 2.0; see LICENSE.
// A params file that somebody writes to after it was opened and before all of it was read.
//
//   changing_params model.so model.params
#include <dlfcn.h>
#include <dycl/dycl.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "check.h"

namespace {

// What happens to the file: once the library has asked how large it is, or at the last moment,
// before it asks again.
std::function<void()> g_change;
bool g_late = false;
int g_asked = 0;
std::string g_path, g_bytes;

}  // namespace

// The program's definition takes the place of the C library's.
extern "C" int fstat(int fd, struct stat* out) noexcept {
  const auto change = [] {
    const std::function<void()> make = std::move(g_change);
    g_change = nullptr;
    if (make) make();
  };
  ++g_asked;
  if (g_late && g_asked == 2) change();
  const long status = syscall(SYS_fstat, fd, out);
  if (!g_late && g_asked == 1) change();
  return static_cast<int>(status);
}

namespace {

std::string Read(const std::string& path) {
  std::string bytes;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  CHECK(file != nullptr);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file))
    bytes.push_back(static_cast<char>(c));
  std::fclose(file);
  return bytes;
}

// Writes in place, as a careless program does.
void Write(const std::string& bytes, size_t at = 0) {
  const int fd = open(g_path.c_str(), O_WRONLY);
  CHECK(fd >= 0);
  CHECK(pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at)) ==
        static_cast<ssize_t>(bytes.size()));
  close(fd);
}

// As it was, and for a while: the system's clock of files goes in steps.
void Restore() {
  CHECK(truncate(g_path.c_str(), 0) == 0);
  Write(g_bytes);
  const timespec then[2] = {{1000000000, 0}, {1000000000, 0}};
  CHECK(utimensat(AT_FDCWD, g_path.c_str(), then, 0) == 0);
}

int32_t Load(const DyclApi* api, int32_t from, int32_t copy, std::function<void()> change) {
  Restore();
  DyclModelOptions options{};
  options.struct_size = sizeof(options);
  options.params_from = from;
  options.copy_params = copy;
  options.params_fd = open(g_path.c_str(), O_RDONLY);
  g_change = std::move(change);
  g_asked = 0;
  DyclModel* model = nullptr;
  const bool by_path = from == DYCL_PARAMS_FROM_PATH;
  const int32_t status =
      api->model_create_with(by_path ? g_path.c_str() : nullptr, &options, &model);
  CHECK(g_change == nullptr);  // it has happened
  CHECK((status == DYCL_OK) == (model != nullptr));
  api->model_destroy(model);
  CHECK(fcntl(options.params_fd, F_GETFD) != -1);
  close(options.params_fd);
  return status;
}

int OpenFiles() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) count += fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  CHECK(library != nullptr);
  const auto get = reinterpret_cast<const DyclApi* (*)(int32_t)>(dlsym(library, "dycl_api"));
  const DyclApi* api = get(DYCL_ABI_VERSION);
  g_path = argv[2];
  g_bytes = Read(g_path);
  const auto says = [&](const char* words) {
    return std::strstr(api->last_error(), words) != nullptr;
  };
  const int before = OpenFiles();
  for (bool late : {false, true}) {
    g_late = late;
    for (int32_t from : {DYCL_PARAMS_FROM_PATH, DYCL_PARAMS_FROM_DESCRIPTOR}) {
      for (int32_t copy : {DYCL_PARAMS_MAP, DYCL_PARAMS_COPY, DYCL_PARAMS_SEAL}) {
        CHECK(Load(api, from, copy, [] {}) == DYCL_OK);
        // The same bytes: nothing but the time tells of it.
        CHECK(Load(api, from, copy, [] { Write(g_bytes); }) == DYCL_ERROR_ARTIFACT);
        CHECK(says("changed while it was read"));
        // What is behind the params, of which the library reads nothing.
        CHECK(Load(api, from, copy, [] { Write("more", g_bytes.size()); }) == DYCL_ERROR_ARTIFACT);
        CHECK(says("changed while it was read"));
        // A weight.
        CHECK(Load(api, from, copy, [] { Write("\x7f", g_bytes.size() - 1); }) ==
              DYCL_ERROR_ARTIFACT);
        CHECK(says(g_late ? "changed while it was read" : "its checksum does not match"));
        // Another file in its place is none of its business.
        const std::string other = g_path + ".new";
        CHECK(Load(api, from, copy, [&] {
                std::FILE* file = std::fopen(other.c_str(), "wb");
                CHECK(file != nullptr && std::fputs("nothing", file) >= 0);
                std::fclose(file);
                CHECK(rename(other.c_str(), g_path.c_str()) == 0);
              }) == DYCL_OK);
        // Shorter: under a mapping that would end the process, as docs/runtime.md says.
        if (copy == DYCL_PARAMS_MAP) continue;
        CHECK(Load(api, from, copy, [] { CHECK(truncate(g_path.c_str(), 100) == 0); }) ==
              DYCL_ERROR_ARTIFACT);
        CHECK(says(g_late ? "changed while it was read" : "became shorter while it was read"));
      }
    }
  }
  CHECK(OpenFiles() == before);
  CHECK(Load(api, DYCL_PARAMS_FROM_PATH, DYCL_PARAMS_MAP, [] {}) == DYCL_OK);
  std::puts("what changes is refused");
  return 0;
}
