// Licensed under the Apache License, Version 2.0; see LICENSE.
// Priorities of sessions of two libraries: whose kernels leave the other threads to whom.
//
//   priority library params library params
#include <dycl/module.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "check.h"

namespace {

constexpr DyclPriority kLow = DYCL_PRIORITY_LOW, kNormal = DYCL_PRIORITY_NORMAL,
                       kHigh = DYCL_PRIORITY_HIGH;

struct Vector {
  alignas(64) float data[1000];
  int64_t shape[1] = {1000};
  DLTensor tensor = {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
};

int g_loops = 0;
// What happens in the middle of the first kernel of the next run.
std::function<void()> g_meanwhile;

void Parallel(int n, const std::function<void(int)>& task) {
  ++g_loops;
  for (int k = 0; k < n; ++k) task(k);
  std::function<void()> meanwhile;
  meanwhile.swap(g_meanwhile);
  if (meanwhile) meanwhile();
}

// How many of the two kernels of a run were given to the threads of the program.
int Loops(dycl::Session& session) {
  Vector x;
  for (float& element : x.data) element = 3;
  const int before = g_loops;
  CHECK(session.Run({dycl::Tensor(x.tensor)}).ok());
  dycl::Result<DyclValue> y = session.Output(0);
  for (int k = 0; k < 1000; ++k)
    CHECK(static_cast<const float*>(y.value().u.tensor->data)[k] == 12);
  return g_loops - before;
}

// As many of a run in another thread, while a run of `around` is in its first kernel.
int LoopsDuring(dycl::Session& around, dycl::Session& session) {
  int loops = -1;
  g_meanwhile = [&] { std::thread([&] { loops = Loops(session); }).join(); };
  const int all = Loops(around);
  CHECK(all == 2 + loops);
  return loops;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 5);
  dycl::Result<dycl::Module> one = dycl::Module::Load(argv[1], argv[2]);
  dycl::Result<dycl::Module> two = dycl::Module::Load(argv[3], argv[4]);
  CHECK(one.ok() && two.ok() && dycl::SetParallel(one.value(), Parallel, 3).ok());
  dycl::Result<dycl::Session> first = one.value().NewSession(), second = two.value().NewSession();
  dycl::Session &a = first.value(), &b = second.value();

  // Who leaves the threads to whom: only a lower one to a higher one, and only as long as that
  // runs.
  for (DyclPriority around : {kLow, kNormal, kHigh}) {
    for (DyclPriority other : {kLow, kNormal, kHigh}) {
      CHECK(a.SetPriority(around).ok() && b.SetPriority(other).ok());
      CHECK(LoopsDuring(a, b) == (other < around ? 0 : 2));
      CHECK(Loops(b) == 2);
      CHECK(LoopsDuring(b, a) == (around < other ? 0 : 2));
      CHECK(Loops(a) == 2);
    }
  }

  // The kernel that goes on is ended; the next one is left to the more important run.
  CHECK(a.SetPriority(kLow).ok() && b.SetPriority(kHigh).ok());
  int inside = -1;
  g_meanwhile = [&] {
    std::thread([&] {
      g_meanwhile = [&] {
        // As b's run goes on, another low one gets no threads, a high one does.
        dycl::Result<dycl::Session> third = one.value().NewSession();
        CHECK(third.value().SetPriority(kLow).ok());
        inside = 0;
        std::thread([&] { inside = Loops(third.value()); }).join();
        CHECK(inside == 0 && third.value().SetPriority(kHigh).ok());
        std::thread([&] { inside = Loops(third.value()); }).join();
      };
      Loops(b);
    }).join();
  };
  Loops(a);
  CHECK(inside == 2);

  // A run that ends in an error, or that was cancelled, is over too.
  Vector wrong;
  wrong.shape[0] = 999;
  CHECK(!b.Run({dycl::Tensor(wrong.tensor)}).ok() && Loops(a) == 2);
  g_meanwhile = [&] { b.Cancel(); };
  Vector x{};
  CHECK(!b.Run({dycl::Tensor(x.tensor)}).ok() && Loops(a) == 2);

  // It is no business of a session that runs, and there are three.
  g_meanwhile = [&] { CHECK(b.SetPriority(kLow).kind() == "UsageError"); };
  Loops(b);
  for (int n : {-2, 2, 1 << 30}) {
    CHECK(b.SetPriority(static_cast<DyclPriority>(n)).kind() == "UsageError");
  }

  // A session that goes takes its priority with it.
  {
    dycl::Result<dycl::Session> low = two.value().NewSession();
    CHECK(low.value().SetPriority(kLow).ok());
  }
  CHECK(b.SetPriority(kNormal).ok() && a.SetPriority(kNormal).ok() && LoopsDuring(a, b) == 2);

  // The runs that go on in the parent are not there in a child of fork(), and its own one ends.
  CHECK(b.SetPriority(kHigh).ok());
  pid_t child = -1;
  g_meanwhile = [&] { child = fork(); };
  Loops(b);
  if (child == 0) {
    g_meanwhile = nullptr;
    CHECK(dycl::SetParallel(one.value(), Parallel, 3).ok());
    CHECK(Loops(a) == 2 && LoopsDuring(b, a) == 0 && Loops(a) == 2);
    _exit(0);
  }
  int how = -1;
  CHECK(waitpid(child, &how, 0) == child && how == 0);

  // Libraries know of each other's runs whichever of them was there first.
  {
    dycl::Result<dycl::Session> gone = std::move(first);
  }
  CHECK(one.value().Unload().ok());
  one = dycl::Module::Load(argv[1], argv[2]);
  CHECK(one.ok() && dycl::SetParallel(two.value(), Parallel, 3).ok());
  dycl::Result<dycl::Session> again = one.value().NewSession();
  CHECK(LoopsDuring(b, again.value()) == 0 && Loops(again.value()) == 2);
  std::printf("all as written\n");
  return 0;
}
