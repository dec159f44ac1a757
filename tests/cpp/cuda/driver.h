// Licensed under the Apache License, Version 2.0; see LICENSE.
// What the parts of the emulated driver share: its results, its settings, and streams and graphs.
#ifndef DYCL_TESTS_CUDA_DRIVER_H_
#define DYCL_TESTS_CUDA_DRIVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace emulated {

enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kUnsupportedPtx = 222,
  kNotFound = 500,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureUnjoined = 904,
};

struct Settings {
  int sm = 72;
  int version = 11040;  // CUDA of the driver
  bool reject_cubin = false;
  bool fail_kernels = false;
  int devices = 1;
  size_t memory = size_t{1} << 32;
  std::string kernels;  // the library of the kernels of the next module
};

using Work = std::function<int()>;

// Work in an order; a node is known by how many there are up to it. Work that does not wait for the
// work before it is what nobody here wants: it makes the graph useless.
struct Graph {
  std::vector<Work> work;
  bool forked = false;
  bool is_body = false;
  std::vector<uint64_t> handles;    // of conditions
  std::vector<uint64_t> with_node;  // those that have a node
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<std::shared_ptr<std::vector<void*>>> arrays;  // of bodies, as the caller sees them

  void Add(size_t after, Work next) {
    forked = forked || after != work.size();
    work.push_back(std::move(next));
  }
};

// The end of what was on a stream when it was recorded; null before.
struct Moment {
  struct Stream* stream;
  bool done;
};
struct Event {
  std::shared_ptr<Moment> moment;
};

struct Stream {
  std::deque<Work> queue;
  Graph* capture = nullptr;      // where work goes instead of the queue
  std::unique_ptr<Graph> owned;  // of a capture that began without a graph
  size_t last = 0;               // the node that the next one waits for
};

// A stream of the program's; null is the default stream. A real one is never captured.
Stream* StreamOf(void* stream);

extern Settings g_settings;
extern std::recursive_mutex g_mutex;
extern std::map<std::string, long> g_counts;
extern std::map<std::pair<void*, std::string>, long> g_counts_on;  // of each stream
extern thread_local int g_contexts;                                // pushed by this thread
using Guard = std::lock_guard<std::recursive_mutex>;

// Does the work of a stream; what comes after a moment is left.
int Run(Stream* stream, const Moment* until = nullptr);

// What device code calls.
void SetConditional(uint64_t handle, uint32_t value);

}  // namespace emulated

#define API extern "C" __attribute__((visibility("default"))) int

#endif  // DYCL_TESTS_CUDA_DRIVER_H_
