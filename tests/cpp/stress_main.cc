// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs a model that is linked in, from several threads at once, through every kind of end: returns,
// raises, failing kernels, wrong inputs. Built with sanitizers by tests/python/runtime/test_cpp.py.
//
//   stress params-file damaged-params-file...
#include <dycl/module.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#define CHECK(condition)                                                 \
  do {                                                                   \
    if (!(condition)) {                                                  \
      std::fprintf(stderr, "line %d: %s fails\n", __LINE__, #condition); \
      std::abort();                                                      \
    }                                                                    \
  } while (0)

namespace {

struct Image {
  alignas(64) float data[8];
  int64_t shape[1];
  DLTensor tensor;

  explicit Image(float value) : shape{4}, tensor() {
    for (float& x : data) x = value;
    tensor.data = data;
    tensor.device.device_type = kDLCPU;
    tensor.ndim = 1;
    tensor.dtype = DLDataType{kDLFloat, 32, 1};
    tensor.shape = shape;
  }
};

float First(const dycl::Session& session) {
  return static_cast<const float*>(session.Output(0).value().u.tensor->data)[0];
}

// A ring that is smaller than what is written to it keeps the last events, in order.
void Profile(dycl::Session& session, const Image& image) {
  DyclEvent ring[8], events[8];
  CHECK(!session.StartProfile(ring, 0).ok() && !session.StopProfile().ok());
  CHECK(session.StartProfile(ring, 8).ok() && !session.StartProfile(ring, 8).ok());
  for (int64_t n : {0, 9}) CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(n)}).ok());
  uint64_t lost = 0;
  CHECK(session.ReadProfile(events, 3, &lost).value() == 3 &&
        session.ReadProfile(events + 3, 8).value() == 5);
  // 8 and 26 events: the beginning, decisions of the loop and the switch, kernels, the end.
  CHECK(lost == 26 && events[7].kind == DYCL_EVENT_RUN && events[7].index == 0);
  CHECK(events[2].kind == DYCL_EVENT_DECISION && events[2].index == 1 && events[2].choice == 4);
  for (int k = 3; k < 7; ++k) {
    CHECK(events[k].kind == DYCL_EVENT_CALL && events[k].index == static_cast<uint32_t>(k - 2));
    CHECK(events[k].begin_ns <= events[k].end_ns);
    if (k > 3) CHECK(events[k].begin_ns == events[k - 1].end_ns);  // the others are of another read
  }
  CHECK(session.ReadProfile(events, 8).value() == 0 && session.StopProfile().ok());
  CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(0)}).ok() &&
        !session.ReadProfile(events, 8).ok());
}

void Work(const dycl::Module& module, int seed) {
  dycl::Result<dycl::Session> made = module.NewSession();
  CHECK(made.ok());
  dycl::Session session = std::move(made.value());
  CHECK(session.SetNumThreads(seed % 4).ok());
  Image image(static_cast<float>(seed));
  for (int k = 0; k < 60; ++k) {
    int64_t n = 4 + (seed + k) % 7;
    dycl::Result<int32_t> site = session.Run({dycl::Tensor(image.tensor), dycl::Int(n)});
    CHECK(site.ok() && site.value() == 0);
    CHECK(First(session) == 2 * (static_cast<float>(seed + n) + 10));
    CHECK(session.Path().size() == static_cast<size_t>(n) + 2);
    CHECK(session.KernelRuns()[0] == static_cast<uint64_t>(n));
    CHECK(session.PathText().find("model.py:9") != std::string::npos);

    DLTensor shifted = image.tensor;  // not aligned: goes through the staging area
    shifted.byte_offset = 4;
    CHECK(session.Run({dycl::Tensor(shifted), dycl::Int(0)}).ok());
    CHECK(First(session) == 2 * (static_cast<float>(seed) + 10));

    site = session.Run({dycl::Tensor(image.tensor), dycl::Int(1)});
    CHECK(site.ok() && site.value() == 1);
    site = session.Run({dycl::Tensor(image.tensor), dycl::Int(2)});
    CHECK(!site.ok() && site.status().kind() == "KeyError");
    CHECK(!session.Output(0).ok());
    CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(3)}).status().kind() == "ValueError");
    CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(-9)}).status().kind() == "IndexError");
    CHECK(session.Run({dycl::Int(1), dycl::Int(1)}).status().kind() == "InputError");
    CHECK(session.Run({}).status().kind() == "InputError");
    image.shape[0] = 3;
    CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(1)}).status().kind() == "InputError");
    image.shape[0] = 4;
    CHECK(session.SetNumThreads((seed + k) % 3).ok());
  }
  CHECK(session.ManualSeed(static_cast<uint64_t>(seed)).ok());
  CHECK(session.ResetState().ok());

  // Over and over in a loop that would take centuries, until another thread or the clock ends it.
  const int64_t endless = int64_t{1} << 62;
  dycl::Result<std::string> state = session.GetState();
  CHECK(state.ok() && session.SetState(state.value()).ok() && !session.SetState("abc").ok());
  dycl::Result<int32_t> late =
      session.RunWithin(5, {dycl::Tensor(image.tensor), dycl::Int(endless)});
  CHECK(late.status().kind() == "DeadlineError" && session.GetState().value() == state.value());
  std::atomic<bool> over{false};
  std::thread canceller([&] {
    while (!over) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      session.Cancel();
    }
  });
  late = session.Run({dycl::Tensor(image.tensor), dycl::Int(endless)});
  over = true;
  canceller.join();
  CHECK(late.status().kind() == "CancelledError" && !session.Output(0).ok());
  CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(0)}).ok());
  Image copy(0);
  CHECK(session.CopyOutput(0, copy.tensor).ok() && copy.data[0] == First(session));
  CHECK(session.SetDeviceBranches(false).ok());
  Profile(session, image);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 2);
  const DyclApi* api = dycl_api(DYCL_ABI_VERSION);
  CHECK(api != nullptr && dycl_api(DYCL_ABI_VERSION + 1) == nullptr);
  CHECK(dycl::Module::FromApi(nullptr).status().kind() == "ArtifactError");
  CHECK(api->struct_size == sizeof(DyclApi) && api->set_state == dycl_set_state);
  for (int k = 2; k < argc; ++k) {
    dycl::Result<dycl::Module> refused = dycl::Module::FromApi(api, argv[k]);
    CHECK(!refused.ok() && refused.status().kind() == "ArtifactError");
  }
  dycl::Result<dycl::Module> module = dycl::Module::FromApi(api, argv[1]);
  CHECK(module.ok());
  CHECK(module.value().Inputs().size() == 2 && module.value().Inputs()[0].bytes() == 16);
  std::thread threads[4];
  for (int t = 0; t < 4; ++t) threads[t] = std::thread(Work, std::cref(module.value()), t);
  for (std::thread& thread : threads) thread.join();
  std::puts("done");
  return 0;
}
