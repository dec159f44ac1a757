// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs a model that is linked in, from several threads at once, through every kind of end: returns,
// raises, failing kernels, wrong inputs. Built with sanitizers by tests/python/runtime/test_cpp.py.
//
//   stress params-file damaged-params-file...
#include <dycl/module.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

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
  CHECK(session.StartProfile(ring, 8, 1).ok() && !session.StartProfile(ring, 8, 1).ok());
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
  // One run of two is timed inside, the first for sure; of the other there is the path.
  DyclEvent many[64];
  CHECK(session.StartProfile(many, 64, 2).ok());
  for (int k = 0; k < 2; ++k) CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(0)}).ok());
  DyclEvent all[64];
  const size_t told = session.ReadProfile(all, 64).value();
  CHECK(told == 8 + 4 && session.StopProfile().ok());
  CHECK(all[0].kind == DYCL_EVENT_START && all[0].index == 2 && all[0].choice == 0 &&
        all[7].kind == DYCL_EVENT_RUN);
  CHECK(all[8].kind == DYCL_EVENT_START && all[8].choice == 1 && all[11].kind == DYCL_EVENT_RUN);
  for (int k = 9; k < 11; ++k) {
    CHECK(all[k].kind == DYCL_EVENT_DECISION && all[k].end_ns == all[11].end_ns);
    CHECK(all[k].choice == session.Path()[static_cast<size_t>(k - 9)].choice);
  }
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

// While others run, the threads of their kernels are now the program's, now the library's.
void ThreadsOfTheProgram(const dycl::Module& module) {
  std::atomic<int> tasks{0};
  for (int k = 0; k < 20; ++k) {
    auto parallel = [&tasks](int n, const std::function<void(int)>& task) {
      std::vector<std::thread> threads;
      for (int t = 0; t < n; ++t) threads.emplace_back([&tasks, &task, t] { task(t), ++tasks; });
      for (std::thread& thread : threads) thread.join();
    };
    CHECK(dycl::SetParallel(module, parallel, 3).ok());
    dycl::Result<dycl::Session> session = module.NewSession();
    Image image(1);
    CHECK(session.value().Run({dycl::Tensor(image.tensor), dycl::Int(0)}).ok());
    CHECK(First(session.value()) == 2 * (1 + 10) && tasks > 0);
    CHECK(dycl::SetParallel(module, nullptr, 0).ok());
    std::this_thread::yield();
  }
}

// Two sessions that compute in one arena of the caller, one after the other, into tensors of
// theirs.
void MemoryOfTheCaller(const dycl::Module& module) {
  const uint64_t bytes = module.Info().arena_bytes;
  std::vector<char> room(static_cast<size_t>(bytes) + 64 + 64);
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64;
  char* arena = room.data() + (begin - reinterpret_cast<uintptr_t>(room.data()));
  DyclSessionOptions options{};
  options.struct_size = sizeof(options);
  CHECK(module.NewSession(&options).ok());
  options.arena_bytes = bytes;
  CHECK(module.NewSession(&options).status().kind() == "UsageError");
  options.arena = arena + 8;
  CHECK(module.NewSession(&options).status().message().find("multiple of 64") != std::string::npos);
  options.arena = arena;
  options.arena_bytes = bytes - 1;
  CHECK(module.NewSession(&options).status().message().find("needs") != std::string::npos);
  options.arena_bytes = bytes;
  dycl::Result<dycl::Session> first = module.NewSession(&options);
  dycl::Result<dycl::Session> second = module.NewSession(&options);
  CHECK(first.ok() && second.ok());
  Image image(3), seen(0), other(0);
  for (int64_t n = 4; n < 9; ++n) {
    for (dycl::Session* session : {&first.value(), &second.value()}) {
      std::fill(arena, arena + bytes, static_cast<char>(n));
      dycl::Result<int32_t> site = session->RunInto({&seen.tensor, nullptr, &other.tensor},
                                                    {dycl::Tensor(image.tensor), dycl::Int(n)});
      CHECK(site.ok() && seen.data[0] == 2 * (static_cast<float>(3 + n) + 10));
      CHECK(other.data[0] == 0 && session->Output(1).value().u.v_int == 100);
      DLTensor inside = seen.tensor;
      inside.data = arena;
      CHECK(!session->RunInto({&inside}, {dycl::Tensor(image.tensor), dycl::Int(n)}).ok());
      // what lies in the arena is copied before the run writes there
      std::fill_n(reinterpret_cast<float*>(arena), 4, 5.0F);
      CHECK(session->Run({dycl::Tensor(inside), dycl::Int(n)}).ok());
      CHECK(First(*session) == 2 * (static_cast<float>(5 + n) + 10));
    }
  }
  CHECK(!first.value().RunInto({nullptr, &seen.tensor}, {dycl::Int(1), dycl::Int(1)}).ok());
}

// What a run in the session's thread ended in.
class Ended {
 public:
  void Set(dycl::Result<int32_t> result) {
    std::lock_guard<std::mutex> lock(mutex_);
    kind_ = result.ok() ? "site " + std::to_string(result.value()) : result.status().kind();
    changed_.notify_all();
  }
  std::string Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return !kind_.empty(); });
    std::string kind;
    kind.swap(kind_);
    return kind;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string kind_;
};

void InTheBackground(const dycl::Module& module) {
  const int64_t endless = int64_t{1} << 62;
  dycl::Result<dycl::Session> made = module.NewSession();
  CHECK(made.ok());
  dycl::Session session = std::move(made.value());
  Image image(2), seen(0);
  Ended ended;
  auto done = [&](dycl::Result<int32_t> result) { ended.Set(std::move(result)); };
  const DLTensor* outputs[] = {&seen.tensor};
  for (int64_t n = 4; n < 24; ++n) {
    DyclValue inputs[] = {dycl::Tensor(image.tensor), dycl::Int(n)};
    CHECK(session.RunAsync(inputs, 2, done, outputs, 1).ok());
    inputs[1] = dycl::Int(-1);  // the array is the caller's again
    // What is refused leaves the run that goes on alone.
    const DLTensor* too_many[64] = {};
    CHECK(session.RunAsync(inputs, 2, done, too_many, 64).kind() == "UsageError");
    CHECK(ended.Wait() == "site 0" && seen.data[0] == 2 * (static_cast<float>(2 + n) + 10));
  }
  CHECK(session.RunAsync({dycl::Tensor(image.tensor), dycl::Int(2)}, done).ok());
  CHECK(ended.Wait() == "KeyError");
  CHECK(session.RunAsync({dycl::Tensor(image.tensor), dycl::Tensor(image.tensor)}, done).ok());
  CHECK(ended.Wait() == "InputError");
  CHECK(session.RunAsync({}, done).kind() == "InputError");

  // One run at a time; a cancel just after the beginning is not lost.
  for (int k = 0; k < 20; ++k) {
    CHECK(session.RunAsync({dycl::Tensor(image.tensor), dycl::Int(endless)}, done).ok());
    CHECK(session.RunAsync({dycl::Tensor(image.tensor), dycl::Int(0)}, done).kind() ==
          "UsageError");
    CHECK(session.Run({dycl::Tensor(image.tensor), dycl::Int(0)}).status().kind() == "UsageError");
    CHECK(session.ResetState().kind() == "UsageError");
    CHECK(session.SetNumThreads(1 + k % 3).kind() == "UsageError");
    session.Cancel();
    CHECK(ended.Wait() == "CancelledError");
    CHECK(session.SetNumThreads(1 + k % 3).ok());
  }
  DyclRunOptions soon{};
  soon.struct_size = sizeof(soon);
  soon.deadline_ms = 5;
  DyclValue inputs[] = {dycl::Tensor(image.tensor), dycl::Int(endless)};
  CHECK(session.RunAsync(inputs, 2, done, nullptr, 0, &soon).ok());
  CHECK(ended.Wait() == "DeadlineError");

  // The end of a run may begin the next one, and the destruction of a session ends such a chain.
  std::atomic<int> runs{0};
  auto* chain = new dycl::Session(std::move(session));
  std::function<void(dycl::Result<int32_t>)> again = [&](dycl::Result<int32_t> result) {
    ++runs;
    if (!result.ok()) return;
    dycl::Status status = chain->RunAsync({dycl::Tensor(image.tensor), dycl::Int(9)}, again);
    CHECK(status.ok() || status.kind() == "UsageError");
  };
  CHECK(chain->RunAsync({dycl::Tensor(image.tensor), dycl::Int(9)}, again).ok());
  while (runs < 50) std::this_thread::yield();
  delete chain;
  const int last = runs;
  CHECK(module.NewSession().ok() && runs == last);

  // It also ends one that goes on, and waits for it.
  for (int k = 0; k < 10; ++k) {
    dycl::Result<dycl::Session> other = module.NewSession();
    CHECK(other.value().RunAsync({dycl::Tensor(image.tensor), dycl::Int(endless)}, done).ok());
    {
      dycl::Session gone = std::move(other.value());
    }
    CHECK(ended.Wait() == "CancelledError");
  }
  // The end of a run may destroy its session.
  auto* own = new dycl::Session(std::move(module.NewSession().value()));
  CHECK(own->RunAsync({dycl::Tensor(image.tensor), dycl::Int(5)},
                      [&, own](dycl::Result<int32_t> result) {
                        delete own;
                        ended.Set(std::move(result));
                      })
            .ok());
  CHECK(ended.Wait() == "site 0");
}

// The params from everywhere else than their path.
void OtherPlaces(const DyclApi* api, const char* path) {
  int file = open(path, O_RDONLY);
  struct stat info{};
  CHECK(file >= 0 && fstat(file, &info) == 0);
  auto size = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  CHECK(memory != MAP_FAILED);
  for (int32_t from = DYCL_PARAMS_FROM_MEMORY; from <= 3; ++from) {
    for (int32_t copy = DYCL_PARAMS_MAP; copy <= DYCL_PARAMS_SEAL; ++copy) {
      DyclModelOptions options{};
      options.struct_size = sizeof(options);
      options.copy_params = copy;
      options.params_from = from;
      options.params_fd = file;
      options.params_size = size;
      options.params_data = memory;
      dycl::Result<dycl::Module> module = dycl::Module::FromApi(api, "", &options);
      CHECK(module.ok() == (from != 3));
      CHECK(!dycl::Module::FromApi(api, path, &options).ok());
      options.params_size = size - 1;
      CHECK(!dycl::Module::FromApi(api, "", &options).ok());
      if (!module.ok()) continue;
      CHECK((api->params_fd(module.value().handle()) >= 0) == (copy == DYCL_PARAMS_SEAL));
      Work(module.value(), 1);
    }
  }
  munmap(memory, size);
  close(file);
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
  ThreadsOfTheProgram(module.value());
  for (std::thread& thread : threads) thread.join();
  MemoryOfTheCaller(module.value());
  std::thread others[2];
  for (std::thread& thread : others)
    thread = std::thread(InTheBackground, std::cref(module.value()));
  for (std::thread& thread : others) thread.join();
  OtherPlaces(api, argv[1]);
  std::puts("done");
  return 0;
}
