// Licensed under the Apache License, Version 2.0; see LICENSE.
// Sessions that are made for smaller sizes, in C++ and by the C API: the library has sizes B up to
// 4 and T up to 64, and a path for T <= 8. What they compute in lies alone in its memory, so that a
// sanitizer sees who leaves it.
#include <dycl/module.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace {

struct Inputs {
  Inputs(int64_t b, int64_t t)
      : shape{b, t}, ids(static_cast<size_t>(b * t), 3), scale(static_cast<size_t>(b * t), 0.5F) {}
  std::vector<DyclValue> Values() {
    x = DLTensor{ids.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
    y = DLTensor{scale.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
    return {dycl::Tensor(x), dycl::Tensor(y)};
  }
  int64_t shape[2];
  std::vector<int64_t> ids;
  std::vector<float> scale;
  DLTensor x, y;
};

bool Refuses(const dycl::Result<dycl::Session>& made, const char* why) {
  return made.status().kind() == "UsageError" &&
         made.status().message().find(why) != std::string::npos;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 3);
  auto loaded = dycl::Module::Load(argv[1], argv[2]);
  CHECK(loaded.ok());
  dycl::Module& module = loaded.value();

  const DyclLargestSize sizes[] = {{"T", 8}};
  DyclSessionOptions options;
  std::memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.largest_sizes = sizes;
  options.num_largest_sizes = 1;
  auto needs = module.SessionNeeds(options);
  CHECK(needs.ok() && needs.value().arena_bytes < module.Info().arena_bytes);
  CHECK(needs.value().session_bytes < module.Info().session_bytes);

  options.arena_bytes = needs.value().arena_bytes;
  void* room = std::aligned_alloc(64, options.arena_bytes);
  options.arena = room;
  {
    auto made = module.NewSession(&options);
    CHECK(made.ok());
    dycl::Session& session = made.value();
    auto bounds = session.InputBounds(0);
    CHECK(bounds.ok() && bounds.value().size() == 2);
    CHECK(bounds.value()[0].most == 4 && bounds.value()[1].most == 8);
    CHECK(!session.InputBounds(9).ok() && module.Inputs()[0].extents[1].most == 64);
    for (int64_t t : {8, 1, 9, 5, 64, 8}) {
      Inputs in(4, t);
      auto site = session.Run(in.Values());
      CHECK(site.ok() == (t <= 8));
      CHECK(site.ok() || site.status().kind() == "InputError");
      CHECK(!site.ok() || session.Output(0).value().u.tensor->shape[1] == t);
    }
  }
  CHECK(Refuses(module.NewSessionUpTo({{"T", 8}, {"T", 8}}), "given twice"));
  CHECK(Refuses(module.NewSessionUpTo({{"N", 8}}), "has no size 'N'"));
  CHECK(Refuses(module.NewSessionUpTo({{nullptr, 8}}), "must not be NULL"));
  CHECK(Refuses(module.NewSessionUpTo({{"T", 65}}), "expected 1 to 64"));
  options.largest_sizes = nullptr;
  CHECK(Refuses(module.NewSession(&options), "must not be NULL"));
  options.num_largest_sizes = 0;
  CHECK(Refuses(module.NewSession(&options), "needs"));
  // A host of before knows nothing of sizes.
  options.struct_size = offsetof(DyclSessionOptions, largest_sizes);
  options.num_largest_sizes = 1;
  options.arena = nullptr;
  options.arena_bytes = 0;
  CHECK(module.NewSession(&options).ok());
  auto small = module.NewSessionUpTo({{"B", 2}, {"T", 3}});
  Inputs in(3, 3);
  CHECK(small.ok() && small.value().Run(in.Values()).status().kind() == "InputError");
  std::free(room);
  std::printf("done\n");
  return 0;
}
