// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "process_pool.h"

#include <link.h>
#include <sched.h>

#include <cstddef>
#include <cstring>
#include <new>

#include "forks.h"

namespace dycl {
namespace {

constexpr uint32_t kOpen = uint32_t{1} << 31;
constexpr uint32_t kPoolNote = 2;

int32_t NumThreads() {
  ThreadPool* pool = ThreadPool::Shared();
  return pool != nullptr ? pool->num_threads() : 1;
}

int32_t Launch(ParallelLambda lambda, void* closure, int32_t num_task) {
  ThreadPool* pool = ThreadPool::Shared();
  return pool != nullptr ? pool->Launch(lambda, closure, num_task)
                         : RunAlone(lambda, closure, num_task);
}

void Settings(ThreadSettings* out) { *out = SaidThreadSettings(); }

void Configure(const ThreadSettings* settings) { ThreadPool::Configure(*settings); }

// Null: there are none. Read by those that are in the pool of the process.
std::atomic<const CallersThreads*> g_callers{nullptr};

// How often the process was forked since the library was loaded.
std::atomic<uint32_t> g_forks{0};

void Callers(CallersThreads* out);
bool UseCallers(const CallersThreads* threads);

}  // namespace
}  // namespace dycl

extern "C" {
__attribute__((visibility("hidden"), used)) dycl::PoolHost dycl_pool_host = {sizeof(dycl::PoolHost),
                                                                             dycl::NumThreads,
                                                                             dycl::Launch,
                                                                             dycl::Settings,
                                                                             dycl::Configure,
                                                                             {0},
                                                                             {0},
                                                                             {0},
                                                                             {nullptr},
                                                                             dycl::Callers,
                                                                             dycl::UseCallers,
                                                                             {nullptr}};
}
// The note: sizes of name and contents, type, name, and how far from there dycl_pool_host is.
asm(R"(
  .pushsection .note.dycl,"a",%note
  .balign 4
  .long 5
  .long 4
  .long 2
  .asciz "DYCL"
  .balign 4
  .long dycl_pool_host - .
  .popsection
)");

namespace dycl {
namespace {

PoolHost& Ours() { return dycl_pool_host; }

// Keeps a library in memory that takes part; false if it is leaving.
bool Pin(PoolHost* host) {
  uint32_t pins = host->pins.load();
  while ((pins & kOpen) != 0) {
    if (host->pins.compare_exchange_weak(pins, pins + 1)) return true;
  }
  return false;
}

void Unpin(PoolHost* host) { host->pins.fetch_sub(1); }

struct Note {
  uint32_t name_size, size, type;
};

// The host of a loaded object; null where it is no library of ours.
PoolHost* HostOf(const dl_phdr_info& object) {
  for (int k = 0; k < object.dlpi_phnum; ++k) {
    const ElfW(Phdr) & part = object.dlpi_phdr[k];
    if (part.p_type != PT_NOTE) continue;
    const size_t align = part.p_align == 8 ? 8 : 4;
    auto* at = reinterpret_cast<const char*>(object.dlpi_addr + part.p_vaddr);
    const char* end = at + part.p_memsz;
    while (static_cast<size_t>(end - at) >= sizeof(Note)) {
      Note note;
      memcpy(&note, at, sizeof(note));
      const char* name = at + sizeof(note);
      const size_t to_contents = (sizeof(note) + note.name_size + align - 1) / align * align;
      const size_t whole = (to_contents + note.size + align - 1) / align * align;
      const char* contents = at + to_contents;
      if (whole > static_cast<size_t>(end - at)) break;
      if (note.name_size == 5 && note.size == 4 && note.type == kPoolNote &&
          memcmp(name, "DYCL", 5) == 0) {
        int32_t distance;
        memcpy(&distance, contents, sizeof(distance));
        return reinterpret_cast<PoolHost*>(const_cast<char*>(contents) + distance);
      }
      at += whole;
    }
  }
  return nullptr;
}

struct Wanted {
  PoolHost* of;      // one that uses this one's pool; null: any
  uint32_t skipped;  // how many of these to leave out
  PoolHost* pinned;
};

// The loader keeps all others out meanwhile, so that what it shows is there until it is pinned.
int PinWanted(dl_phdr_info* object, size_t /*size*/, void* data) {
  auto* wanted = static_cast<Wanted*>(data);
  PoolHost* host = HostOf(*object);
  if (host == nullptr || !Pin(host)) return 0;
  if ((wanted->of == nullptr || host->of.load() == wanted->of) && wanted->skipped-- == 0) {
    wanted->pinned = host;
    return 1;
  }
  Unpin(host);
  return 0;
}

PoolHost* PinOne(PoolHost* of, uint32_t skipped) {
  Wanted wanted{of, skipped, nullptr};
  NoForks none;  // the loader has a lock under which it shows what is loaded
  dl_iterate_phdr(PinWanted, &wanted);
  return wanted.pinned;
}

// The oldest library that takes part. Ours must, or nobody would tell it that this one leaves.
PoolHost* Find() {
  if ((Ours().pins.load() & kOpen) == 0) JoinProcessPool();
  PoolHost* host = PinOne(nullptr, 0);
  if (host == nullptr) return &Ours();
  Ours().of.store(host);
  Unpin(host);
  return host;
}

// While it lives the pool of the process stays, unless it says that there is none for the moment.
class UseOfPool {
 public:
  UseOfPool() {
    PoolHost& ours = Ours();
    forks_ = g_forks.load(std::memory_order_relaxed);
    ours.users.fetch_add(1);
    if (ours.paused.load() != 0) return;
    callers_ = g_callers.load();
    host_ = ours.of.load();
    if (host_ == nullptr) host_ = Find();
  }
  ~UseOfPool() {
    // A function of the program that runs a kernel may fork; the child has counted nobody.
    if (forks_ == g_forks.load(std::memory_order_relaxed)) Ours().users.fetch_sub(1);
  }
  UseOfPool(const UseOfPool&) = delete;
  UseOfPool& operator=(const UseOfPool&) = delete;
  // Null: there is none for the moment.
  PoolHost* host() const { return host_; }
  // Threads of the program to be used instead; null: none.
  const CallersThreads* callers() const { return callers_; }

 private:
  PoolHost* host_ = nullptr;
  const CallersThreads* callers_ = nullptr;
  uint32_t forks_;
};

// While it lives, nobody of a library is in the pool of the process; kernels run on the threads
// that call. That is for a moment: whoever is there ends a kernel first.
class Pause {
 public:
  explicit Pause(PoolHost* host) : host_(host) {
    host_->paused.fetch_add(1);
    while (host_->users.load() != 0) sched_yield();
  }
  ~Pause() { host_->paused.fetch_sub(1); }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  PoolHost* host_;
};

void Callers(CallersThreads* out) {
  Ours().users.fetch_add(1);
  const CallersThreads* threads = g_callers.load();
  *out = threads != nullptr ? *threads : CallersThreads{};
  Ours().users.fetch_sub(1);
}

bool UseCallers(const CallersThreads* threads) {
  const CallersThreads* made = nullptr;
  if (threads->function != nullptr) {
    made = new (std::nothrow) CallersThreads(*threads);
    if (made == nullptr) return false;
  }
  const CallersThreads* before = g_callers.exchange(made);
  // Those that come from here on use what is new; those that use what was there are waited for.
  Pause pause(&Ours());
  delete before;
  return true;
}

// As another library was told. This one may run a kernel already, so that nobody is waited for.
// False where there is no memory.
bool UseCallersOf(PoolHost* other) {
  CallersThreads threads;
  other->callers(&threads);
  if (threads.function == nullptr) return true;
  auto* made = new (std::nothrow) CallersThreads(threads);
  const CallersThreads* none = nullptr;
  if (made != nullptr && !g_callers.compare_exchange_strong(none, made)) delete made;
  return made != nullptr;
}

// Refers to `runs`, unless the library does so already.
void TakeRuns(RunsByPriority* runs) {
  RunsByPriority* none = nullptr;
  if (runs != nullptr && !Ours().runs.compare_exchange_strong(none, runs)) Release(runs);
}

// Another library, which refers to it as long as it is pinned.
void ShareRunsOf(PoolHost* other) {
  if (other->struct_size < offsetof(PoolHost, runs) + sizeof(other->runs)) return;
  RunsByPriority* runs = other->runs.load();
  if (runs != nullptr) runs->references.fetch_add(1);
  TakeRuns(runs);
}

// Forgets what was taken over from other libraries, or is shared with them.
void Forget() {
  delete g_callers.exchange(nullptr);
  Release(Ours().runs.exchange(nullptr));
}

}  // namespace

// The other threads are in the parent: nobody looks at anything any more.
void ForkedProcessPool() {
  g_forks.fetch_add(1);
  Ours().pins.fetch_and(kOpen);
  Ours().paused.store(0);
  Ours().users.store(0);
  // The program's threads are there too.
  g_callers.store(nullptr);
  Forked(Ours().runs.load());
}

RunsByPriority* ProcessRuns() { return Ours().runs.load(std::memory_order_relaxed); }

bool JoinProcessPool() {
  bool good = true;
  // How threads run was said to those that were there.
  if (PoolHost* other = PinOne(nullptr, 0)) {
    ThreadSettings settings;
    other->settings(&settings);
    good = UseCallersOf(other);
    ShareRunsOf(other);
    Unpin(other);
    if (settings.said != 0) ThreadPool::Configure(settings);
  }
  TakeRuns(NewRunsByPriority());
  good = good && ProcessRuns() != nullptr;
  if (good) {
    Ours().pins.fetch_or(kOpen);
  } else {
    Forget();
  }
  return good;
}

void LeaveProcessPool() {
  PoolHost& ours = Ours();
  ours.pins.fetch_and(~kOpen);
  while (ours.pins.load() != 0) sched_yield();
  // From here on nobody finds this pool. Those that have found it forget it, and leave it.
  while (PoolHost* other = PinOne(&ours, 0)) {
    PoolHost* expected = &ours;
    other->of.compare_exchange_strong(expected, nullptr);
    Pause pause(other);
    Unpin(other);
  }
  ours.of.store(nullptr);
  Forget();
  ThreadPool::EndShared();
}

int LaunchInProcessPool(ParallelLambda lambda, void* closure, int num_task) {
  UseOfPool use;
  if (use.callers() != nullptr) return LaunchOnCallers(*use.callers(), lambda, closure, num_task);
  return use.host() != nullptr ? use.host()->launch(lambda, closure, num_task)
                               : RunAlone(lambda, closure, num_task);
}

void ConfigureThreads(const ThreadSettings& settings) {
  ThreadPool::Configure(settings);
  for (uint32_t k = 0; PoolHost* host = PinOne(nullptr, k); ++k) {
    if (host != &Ours()) host->configure(&settings);
    Unpin(host);
  }
}

bool UseCallersThreads(const CallersThreads& threads) {
  bool good = UseCallers(&threads);
  for (uint32_t k = 0; PoolHost* host = PinOne(nullptr, k); ++k) {
    if (host != &Ours()) good = host->use_callers(&threads) && good;
    Unpin(host);
  }
  return good;
}

int ProcessPoolThreads() {
  UseOfPool use;
  if (use.callers() != nullptr) return use.callers()->num_threads;
  return use.host() != nullptr ? use.host()->num_threads() : 1;
}

}  // namespace dycl
