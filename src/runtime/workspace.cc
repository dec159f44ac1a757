// Licensed under the Apache License, Version 2.0; see LICENSE.
// Scratch memory of kernels. Blocks are kept per thread and used again, so that from the second run
// on a path nothing is allocated.
#include <cstdint>
#include <cstdlib>

namespace dycl {
namespace {

constexpr int kKept = 32;
constexpr uint64_t kAlign = 64;

// A block: one cache line with its size, then the memory that the kernel sees.
struct Header {
  uint64_t bytes;
};

struct Cache {
  Header* blocks[kKept];
  int count = 0;
  ~Cache() {
    for (int i = 0; i < count; ++i) free(blocks[i]);
  }
};

thread_local Cache t_cache;

void* AllocWorkspace(int /*device_type*/, int /*device_id*/, uint64_t bytes, int /*dtype_code*/,
                     int /*dtype_bits*/) {
  Cache& cache = t_cache;
  int best = -1;
  for (int i = 0; i < cache.count; ++i) {
    if (cache.blocks[i]->bytes < bytes) continue;
    if (best < 0 || cache.blocks[i]->bytes < cache.blocks[best]->bytes) best = i;
  }
  Header* block = nullptr;
  if (best >= 0) {
    block = cache.blocks[best];
    cache.blocks[best] = cache.blocks[--cache.count];
  } else {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlign, kAlign + bytes) != 0) return nullptr;
    block = static_cast<Header*>(memory);
    block->bytes = bytes;
  }
  return reinterpret_cast<char*>(block) + kAlign;
}

int FreeWorkspace(int /*device_type*/, int /*device_id*/, void* memory) {
  if (memory == nullptr) return 0;
  Header* block = reinterpret_cast<Header*>(static_cast<char*>(memory) - kAlign);
  Cache& cache = t_cache;
  if (cache.count < kKept) {
    cache.blocks[cache.count++] = block;
    return 0;
  }
  // Keep the large ones: they serve small requests too.
  int smallest = 0;
  for (int i = 1; i < kKept; ++i) {
    if (cache.blocks[i]->bytes < cache.blocks[smallest]->bytes) smallest = i;
  }
  if (cache.blocks[smallest]->bytes < block->bytes) {
    Header* dropped = cache.blocks[smallest];
    cache.blocks[smallest] = block;
    block = dropped;
  }
  free(block);
  return 0;
}

}  // namespace
}  // namespace dycl

extern "C" {
void* __TVMBackendAllocWorkspace = reinterpret_cast<void*>(dycl::AllocWorkspace);
void* __TVMBackendFreeWorkspace = reinterpret_cast<void*>(dycl::FreeWorkspace);
}
