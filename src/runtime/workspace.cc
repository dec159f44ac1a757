// Licensed under the Apache License, Version 2.0; see LICENSE.
// Blocks are kept per thread and used again, so that from the second run on a path nothing is
// allocated. What a thread keeps is no object that ends with it: such an object would keep the
// library in memory until the thread has ended. The next thread takes what one that has ended left.
#include "workspace.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include "program.h"

namespace dycl {
namespace {

constexpr int kKept = 32;

// A block: one cache line with its size, then the memory that the kernel sees.
struct Header {
  uint64_t bytes;
};

struct Cache {
  Header* blocks[kKept];
  // Whoever takes over what a thread has left sees all that it did before it last set this.
  std::atomic<int> count;
  pid_t thread;  // 0: nobody's
  Cache* next;
};

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
Cache* g_caches = nullptr;
// Counts how often all were freed.
uint32_t g_round = 0;
// Counts how often a kernel got none. Not by thread: tasks of a kernel run in many.
std::atomic<uint32_t> g_shortages{0};

void* Short() {
  g_shortages.fetch_add(1);
  return nullptr;
}

struct Mine {
  Cache* cache;
  uint32_t round;
};
thread_local Mine t_mine;

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

bool HasEnded(pid_t thread) {
  return thread == 0 || (syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH);
}

void FreeBlocks(Cache& cache) {
  const int count = cache.count.load(std::memory_order_acquire);
  for (int k = 0; k < count; ++k) free(cache.blocks[k]);
  cache.count.store(0, std::memory_order_release);
}

// A thread without a cache has the number of the one whose cache it finds: that one has ended.
__attribute__((noinline)) Cache* NewCache() {
  const pid_t thread = ThisThread();
  pthread_mutex_lock(&g_mutex);
  Cache* cache = g_caches;
  while (cache != nullptr && cache->thread != thread && !HasEnded(cache->thread)) {
    cache = cache->next;
  }
  if (cache == nullptr) {
    cache = static_cast<Cache*>(calloc(1, sizeof(Cache)));
    if (cache != nullptr) {
      cache->next = g_caches;
      g_caches = cache;
    }
  }
  if (cache != nullptr) {
    cache->thread = thread;
    t_mine = Mine{cache, g_round};
  }
  pthread_mutex_unlock(&g_mutex);
  return cache;
}

// Null where there is no memory for it.
Cache* ThisCache() {
  const Mine& mine = t_mine;
  return mine.cache != nullptr && mine.round == g_round ? mine.cache : NewCache();
}

void* AllocWorkspace(int /*device_type*/, int /*device_id*/, uint64_t bytes, int /*dtype_code*/,
                     int /*dtype_bits*/) {
  Cache* cache = ThisCache();
  if (cache == nullptr) return Short();
  const int count = cache->count.load(std::memory_order_acquire);
  int best = -1;
  for (int i = 0; i < count; ++i) {
    if (cache->blocks[i]->bytes < bytes) continue;
    if (best < 0 || cache->blocks[i]->bytes < cache->blocks[best]->bytes) best = i;
  }
  Header* block = nullptr;
  if (best >= 0) {
    block = cache->blocks[best];
    cache->blocks[best] = cache->blocks[count - 1];
    cache->count.store(count - 1, std::memory_order_release);
  } else {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlign, kAlign + bytes) != 0) return Short();
    block = static_cast<Header*>(memory);
    block->bytes = bytes;
  }
  return reinterpret_cast<char*>(block) + kAlign;
}

int FreeWorkspace(int /*device_type*/, int /*device_id*/, void* memory) {
  if (memory == nullptr) return 0;
  Header* block = reinterpret_cast<Header*>(static_cast<char*>(memory) - kAlign);
  Cache* cache = ThisCache();
  if (cache == nullptr) {
    free(block);
    return 0;
  }
  const int count = cache->count.load(std::memory_order_acquire);
  if (count < kKept) {
    cache->blocks[count] = block;
    cache->count.store(count + 1, std::memory_order_release);
    return 0;
  }
  // Keep the large ones: they serve small requests too.
  int smallest = 0;
  for (int i = 1; i < kKept; ++i) {
    if (cache->blocks[i]->bytes < cache->blocks[smallest]->bytes) smallest = i;
  }
  if (cache->blocks[smallest]->bytes < block->bytes) {
    Header* dropped = cache->blocks[smallest];
    cache->blocks[smallest] = block;
    block = dropped;
  }
  free(block);
  return 0;
}

}  // namespace

// This thread has another number. What the others have is left behind: they may have been in the
// middle of a change.
void ForkedWorkspaces() {
  g_mutex = PTHREAD_MUTEX_INITIALIZER;
  g_caches = t_mine.round == g_round ? t_mine.cache : nullptr;
  if (g_caches == nullptr) return;
  g_caches->thread = ThisThread();
  g_caches->next = nullptr;
}

uint32_t WorkspaceShortages() { return g_shortages.load(); }

void FreeUnusedWorkspaces() {
  pthread_mutex_lock(&g_mutex);
  for (Cache* cache = g_caches; cache != nullptr; cache = cache->next) {
    if (!HasEnded(cache->thread)) continue;
    FreeBlocks(*cache);
    cache->thread = 0;
  }
  pthread_mutex_unlock(&g_mutex);
}

void FreeWorkspaces() {
  pthread_mutex_lock(&g_mutex);
  while (g_caches != nullptr) {
    Cache* cache = g_caches;
    g_caches = cache->next;
    FreeBlocks(*cache);
    free(cache);
  }
  ++g_round;
  pthread_mutex_unlock(&g_mutex);
}

}  // namespace dycl

extern "C" {
void* __TVMBackendAllocWorkspace = reinterpret_cast<void*>(dycl::AllocWorkspace);
void* __TVMBackendFreeWorkspace = reinterpret_cast<void*>(dycl::FreeWorkspace);
}
