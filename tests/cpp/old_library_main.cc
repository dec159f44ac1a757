// Licensed under the Apache License, Version 2.0; see LICENSE.
// A library of an earlier release (tests/abi) in a program of today, beside a library of today: it
// does what it could do, and what came later is an error that says so.
//
//   old_library recorded.so recorded.params model.so model.params
#include <dycl/module.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr int64_t kRows = 512, kColumns = 64, kEndless = int64_t{1} << 62;

struct Tensor {
  std::vector<float> room;
  int64_t shape[2];
  int64_t count = 0;
  DLTensor x{}, n{};
  Tensor(int64_t rows, int64_t columns, float fill)
      : room(static_cast<size_t>(rows * columns) + 16, fill), shape{rows, columns} {
    const uintptr_t at = reinterpret_cast<uintptr_t>(room.data());
    x.data = room.data() + (-at % 64) / sizeof(float);
    x.device.device_type = n.device.device_type = kDLCPU;
    x.ndim = 2;
    x.dtype = DLDataType{kDLFloat, 32, 1};
    x.shape = shape;
    n.data = &count;
    n.dtype = DLDataType{kDLInt, 64, 1};
  }
  float* data() { return static_cast<float*>(x.data); }
};

bool Lacks(const dycl::Status& status) {
  return !status.ok() && status.kind() == "UsageError" &&
         status.message().find("was built before there was ") != std::string::npos;
}

float Last(dycl::Session& session) {
  auto output = session.Output(0);
  CHECK(output.ok());
  return static_cast<const float*>(output.value().u.tensor->data)[kRows * kColumns - 1];
}

void DoesWhatItCould(dycl::Module& old) {
  auto made = old.NewSession();
  CHECK(made.ok());
  dycl::Session& session = made.value();
  Tensor in(kRows, kColumns, 1), out(kRows, kColumns, 0);
  const std::vector<DyclValue> inputs = {dycl::Tensor(in.x), dycl::Tensor(in.n)};
  auto site = session.Run(inputs);
  CHECK(site.ok() && site.value() == 0 && Last(session) == 1 + kRows);
  auto state = session.GetState();
  CHECK(state.ok() && session.Run(inputs).ok() && Last(session) == 1 + 2 * kRows);
  CHECK(session.CopyOutput(0, out.x).ok() && out.data()[0] == 1 + 2 * kRows);
  CHECK(session.PathText().find("return network.py") != std::string::npos);
  CHECK(session.SetState(state.value()).ok() && session.Run(inputs).ok());
  CHECK(Last(session) == 1 + 2 * kRows);
  in.count = -1;
  site = session.Run(inputs);
  CHECK(!site.ok() && site.status().kind() == "ValueError");
  in.count = kEndless;
  site = session.RunWithin(2, inputs.data(), inputs.size());
  CHECK(!site.ok() && site.status().kind() == "DeadlineError");
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over.load()) session.Cancel();
  });
  site = session.Run(inputs);
  over.store(true);
  other.join();
  CHECK(!site.ok() && site.status().kind() == "CancelledError");
  CHECK(session.SetNumThreads(2).ok() && session.SetDeviceBranches(false).ok());
  CHECK(session.ManualSeed(3).ok() && session.ResetState().ok());
  in.count = 0;
  CHECK(session.Run(inputs).ok() && Last(session) == 1 + kRows);
}

void SaysWhatItLacks(dycl::Module& old, const std::string& library, const std::string& params) {
  auto made = old.NewSession();
  CHECK(made.ok());
  dycl::Session& session = made.value();
  Tensor in(kRows, kColumns, 1), out(kRows, kColumns, 0);
  const std::vector<DyclValue> inputs = {dycl::Tensor(in.x), dycl::Tensor(in.n)};
  const DLTensor* to = &out.x;
  CHECK(Lacks(session.RunInto(&to, 1, inputs.data(), inputs.size()).status()));
  CHECK(Lacks(session.RunAsync(inputs.data(), inputs.size(), [](dycl::Result<int32_t>) {})));
  DyclEvent events[4];
  CHECK(Lacks(session.StartProfile(events, 4)) && Lacks(session.StopProfile()));
  CHECK(Lacks(session.ReadProfile(events, 4).status()));
  CHECK(Lacks(session.SetPriority(DYCL_PRIORITY_LOW)));
  CHECK(Lacks(session.SetCudaStream(nullptr)) && Lacks(session.SetOwnStream()));
  DyclSessionOptions options{};
  options.struct_size = sizeof(options);
  CHECK(Lacks(old.NewSession(&options).status()));
  CHECK(Lacks(old.SessionNeeds(options).status()) && Lacks(session.InputBounds(0).status()));
  CHECK(Lacks(old.NewSessionUpTo({{"N", 1}}).status()));
  CHECK(Lacks(old.SetLog(nullptr, nullptr, DYCL_LOG_PRINT)));
  CHECK(Lacks(old.Unload()) && Lacks(dycl::SetThreadOptions(old, nullptr)));
  CHECK(Lacks(dycl::SetParallel(old, nullptr, 1)) && old.UserMetadata("version") == nullptr);
  DyclModelOptions copy{};
  copy.struct_size = sizeof(copy);
  copy.copy_params = DYCL_PARAMS_COPY;
  CHECK(dycl::Module::Load(library, params, &copy).ok());
  copy.copy_params = DYCL_PARAMS_SEAL;
  CHECK(Lacks(dycl::Module::Load(library, params, &copy).status()));
  copy.copy_params = DYCL_PARAMS_MAP;
  copy.params_from = DYCL_PARAMS_FROM_MEMORY;
  CHECK(Lacks(dycl::Module::Load(library, "", &copy).status()));
  CHECK(session.Run(inputs).ok() && Last(session) == 1 + kRows);
}

// The small network of today, again and again.
void Beside(dycl::Session& session, const std::atomic<bool>& over) {
  Tensor in(1, 4, 1);
  in.x.ndim = 1;
  in.x.shape = in.shape + 1;
  do {
    CHECK(session.Run({dycl::Tensor(in.x), dycl::Int(0)}).ok());
    auto output = session.Output(0);
    CHECK(output.ok() && *static_cast<float*>(output.value().u.tensor->data) == 22);
  } while (!over.load());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  auto old = dycl::Module::Load(argv[1], argv[2]);
  CHECK(old.ok());
  auto today = dycl::Module::Load(argv[3], argv[4]);
  CHECK(today.ok());
  auto made = today.value().NewSession();
  CHECK(made.ok());
  std::atomic<bool> over{false};
  std::thread other([&] { Beside(made.value(), over); });
  DoesWhatItCould(old.value());
  SaysWhatItLacks(old.value(), argv[1], argv[2]);
  over.store(true);
  other.join();
  std::puts("the old library runs");
  return 0;
}
