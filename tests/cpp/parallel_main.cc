// Licensed under the Apache License, Version 2.0; see LICENSE.
// Kernels on threads of the program, in several libraries, with functions that do wrong.
//
//   parallel library params library params library-with-a-barrier params
#include <dirent.h>
#include <dycl/module.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

int Threads() {
  DIR* tasks = opendir("/proc/self/task");
  int n = 0;
  while (readdir(tasks) != nullptr) ++n;
  closedir(tasks);
  return n - 2;
}

struct Vector {
  alignas(64) float data[1000];
  int64_t shape[1] = {1000};
  DLTensor tensor = {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, nullptr, 0};
  explicit Vector(float value) {
    for (float& x : data) x = value;
  }
};

// Runs a session; the text of its error, or nothing.
std::string Run(dycl::Session& session) {
  Vector x(3);
  dycl::Result<int32_t> site = session.Run({dycl::Tensor(x.tensor)});
  if (!site.ok()) {
    CHECK(site.status().kind() == "RuntimeError");
    return site.status().message();
  }
  dycl::Result<DyclValue> y = session.Output(0);
  for (int k = 0; k < 1000; ++k)
    CHECK(static_cast<const float*>(y.value().u.tensor->data)[k] == 12);
  return "";
}

// A function for dycl_set_parallel() that does what `wrong` says.
enum Wrong { kNothing, kLeavesOut, kTwice, kNone, kRefuses };
struct Loop {
  Wrong wrong;
  std::atomic<int> calls{0};
};

int32_t Parallel(void* user, DyclTask task, void* data, int32_t n) {
  auto* loop = static_cast<Loop*>(user);
  ++loop->calls;
  for (int32_t k = loop->wrong == kLeavesOut ? 1 : 0; k < n; ++k) task(data, k);
  if (loop->wrong == kTwice) task(data, n - 1);
  if (loop->wrong == kNone) {
    task(data, n);
    task(data, -1);
  }
  return loop->wrong == kRefuses ? 7 : 0;
}

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void Faults(const DyclApi* api, dycl::Session& session, dycl::Session& other) {
  const char* expected[] = {"", "2 of 3 tasks", "twice", "none of 0 to 2", "returned 7"};
  for (int wrong = kNothing; wrong <= kRefuses; ++wrong) {
    Loop loop{static_cast<Wrong>(wrong)};
    CHECK(api->set_parallel(Parallel, &loop, 3) == DYCL_OK);
    const std::string told = Run(session);
    CHECK(wrong == kNothing ? told.empty() : Has(told, expected[wrong]) && Has(told, "k_twice"));
    CHECK(Run(other).empty() == (wrong == kNothing));
    CHECK(loop.calls == (wrong == kNothing ? 4 : 2));
    CHECK(api->set_parallel(nullptr, nullptr, 0) == DYCL_OK);
    CHECK(Run(session).empty() && loop.calls == (wrong == kNothing ? 4 : 2));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 7);
  dycl::Result<dycl::Module> one = dycl::Module::Load(argv[1], argv[2]);
  CHECK(one.ok());
  const DyclApi* api = one.value().api();
  std::atomic<int> tasks{0}, inside{0}, calls{0};
  auto in_order = [&](int n, const std::function<void(int)>& task) {
    ++calls;
    ++inside;
    for (int k = n; k-- > 0;) task(k), ++tasks;
    --inside;
  };
  for (int n : {0, -1, 257}) {
    CHECK(dycl::SetParallel(one.value(), in_order, n).kind() == "UsageError");
  }
  CHECK(dycl::SetParallel(one.value(), in_order, 5).ok());

  // For all libraries, also those that come later; no thread is made.
  dycl::Result<dycl::Module> two = dycl::Module::Load(argv[3], argv[4]);
  dycl::Result<dycl::Session> first = one.value().NewSession(), second = two.value().NewSession();
  CHECK(Run(first.value()).empty() && tasks == 10);
  CHECK(Run(second.value()).empty() && tasks == 20 && Threads() == 1);

  // Sessions with threads of their own keep them; a single part is run without the function.
  dycl::Result<dycl::Session> own = one.value().NewSession();
  CHECK(own.value().SetNumThreads(2).ok() && Run(own.value()).empty() && tasks == 20);
  CHECK(Threads() == 2);
  CHECK(dycl::SetParallel(two.value(), in_order, 256).ok());
  CHECK(Run(first.value()).empty() && tasks == 20 + 512);

  // A barrier between tasks that may not run at the same time is an error, and no endless wait.
  {
    dycl::Result<dycl::Module> barrier = dycl::Module::Load(argv[5], argv[6]);
    dycl::Result<dycl::Session> session = barrier.value().NewSession();
    CHECK(Has(Run(session.value()), "k_barrier"));
    CHECK(dycl::SetParallel(one.value(), in_order, 1).ok() && Run(session.value()).empty());
  }

  // In a child of fork() the libraries have threads of their own.
  CHECK(dycl::SetParallel(one.value(), in_order, 5).ok());
  const pid_t child = fork();
  if (child == 0) {
    const int before = calls;
    const bool good = Run(first.value()).empty() && Run(second.value()).empty() && calls == before;
    _exit(good && Threads() == 3 ? 0 : 3);
  }
  int how = -1;
  CHECK(waitpid(child, &how, 0) == child && how == 0);

  // What it must not do.
  dycl::Status nested;
  auto sets = [&](int n, const std::function<void(int)>& task) {
    for (int k = 0; k < n; ++k) task(k);
    nested =
        dycl::Status(api->set_parallel(nullptr, nullptr, 0) == DYCL_OK ? "" : "UsageError", "");
  };
  CHECK(dycl::SetParallel(one.value(), sets, 2).ok() && Run(first.value()).empty());
  CHECK(nested.kind() == "UsageError");
  auto throws = [&](int n, const std::function<void(int)>& task) {
    for (int k = 0; k < n; ++k) task(k);
    throw std::runtime_error("no");
  };
  CHECK(dycl::SetParallel(one.value(), throws, 2).ok() && Has(Run(first.value()), "returned 1"));
  Faults(api, first.value(), second.value());

  // Another one, or none, while kernels run: afterwards nobody is in the one that was there before.
  std::atomic<bool> over{false};
  std::thread runners[2];
  for (int k = 0; k < 2; ++k) {
    runners[k] = std::thread([&, k] {
      dycl::Result<dycl::Session> mine = (k == 0 ? one : two).value().NewSession();
      while (!over) CHECK(Run(mine.value()).empty());
    });
  }
  for (int k = 0; k < 300; ++k) {
    const int before = calls;
    CHECK(dycl::SetParallel((k % 2 == 0 ? one : two).value(), in_order, 1 + k % 7).ok());
    while (k % 7 != 0 && calls < before + 2) std::this_thread::yield();
    CHECK(dycl::SetParallel((k % 3 == 0 ? one : two).value(), nullptr, 0).ok());
    const int after = calls;
    CHECK(inside == 0);
    std::this_thread::yield();
    CHECK(calls == after);
  }
  over = true;
  for (std::thread& runner : runners) runner.join();
  std::printf("all as written\n");
  return 0;
}
