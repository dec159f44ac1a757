// Licensed under the Apache License, Version 2.0; see LICENSE.
// What a lack of memory does to a program: the same calls again and again, each time with one more
// allocation that succeeds before one fails. Every call must succeed or say that memory is short,
// and what was made before must work as if nothing had been.
//
//   lean model.so model.params
#include <dycl/module.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fail_allocations.h"

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      g_left = -1;                                                                           \
      std::fprintf(stderr, "line %d, allocation %ld: %s fails\n", __LINE__, at, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (0)

namespace {

struct Call {
  alignas(64) float data[4] = {1, 1, 1, 1};
  int64_t shape[1] = {4};
  DLTensor x{};
  Call() {
    x.data = data;
    x.device.device_type = kDLCPU;
    x.ndim = 1;
    x.dtype = DLDataType{kDLFloat, 32, 1};
    x.shape = shape;
  }
};

// Returns whether all went well; `at` is for messages.
bool Lifetime(const std::string& library, const std::string& params, long at) {
  // The system's loader has no kind for it, but says so.
  const auto excused = [](const dycl::Status& status) {
    return status.kind() == "MemoryError" || status.message().find("memory") != std::string::npos;
  };
  Call call;
  DyclModelOptions copy{};
  copy.struct_size = sizeof(copy);
  copy.copy_params = static_cast<int32_t>(at % 3);
  auto module = dycl::Module::Load(library, params, at % 3 != 0 ? &copy : nullptr);
  CHECK(module.ok() || excused(module.status()));
  if (!module.ok()) return false;
  auto made = module.value().NewSession();
  CHECK(made.ok() || excused(made.status()));
  if (!made.ok()) return false;
  dycl::Session& session = made.value();
  dycl::Status threads = session.SetNumThreads(2);
  CHECK(threads.ok() || excused(threads));
  // Over all kinds of ends; what fails for lack of memory succeeds in the next run.
  for (int64_t n : {0, 9, 1, 2, 3}) {
    for (int attempt = 0;; ++attempt) {
      auto site = session.Run({dycl::Tensor(call.x), dycl::Int(n)});
      bool raises = n == 2 || n == 3;
      if (!site.ok() && g_failed && attempt == 0) continue;
      CHECK(site.ok() != raises);
      if (!raises) {
        auto output = session.Output(0);
        CHECK(output.ok());
        if (n == 0) CHECK(*static_cast<float*>(output.value().u.tensor->data) == 22);
      }
      break;
    }
  }
  size_t needed = 0;
  int32_t status = session.api()->path_text(session.handle(), nullptr, 0, &needed);
  CHECK(status == DYCL_OK || status == DYCL_ERROR_MEMORY);
  CHECK(session.GetState().ok() || g_failed);
  CHECK(session.ResetState().ok());
  return !g_failed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string library = argv[1], params = argv[2];
  bool good = Lifetime(library, params, 0);  // what is made once in a process
  long at = 0;
  if (!good) return 1;
  for (good = false; !good; ++at) {
    g_failed = false;
    g_left = at;
    good = Lifetime(library, params, at);
    g_left = -1;
    CHECK(good != g_failed);
  }
  std::printf("%ld allocations failed, one after the other\n", at - 1);
  return 0;
}
