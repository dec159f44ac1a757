// Licensed under the Apache License, Version 2.0; see LICENSE.
// Elements of a buffer of which only a front counts along some dimensions, moved together, and
// moved apart again. Arguments of a kernel: the elements, a length (an int64) for each such
// dimension, and the result; `dims` has a bit for each of these dimensions of the buffer. `fills`
// is whether what is left of the result becomes zeros: else nobody reads it.
#ifndef DYCL_RUNTIME_MOVING_H_
#define DYCL_RUNTIME_MOVING_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernel_tensors.h"

namespace dycl::moving {

// The part of a buffer that counts, as runs of bytes that lie one after the other.
class Box {
 public:
  Box(const Arguments& args, int buffer, int64_t dims) {
    int length = 1, rank = args.rank(buffer);
    int64_t bytes = args.item_bytes(buffer);
    int64_t counts[kMost], rooms[kMost];
    int last = 0;
    for (int d = 0; d < rank; ++d) {
      rooms[d] = counts[d] = args.extent(buffer, rank - 1 - d);
      if (dims >> d & 1) {
        counts[d] = std::clamp<int64_t>(*args.data<int64_t>(length++), 0, rooms[d]);
        last = d;
      }
    }
    for (int d = last + 1; d < rank; ++d) bytes *= rooms[d];
    run_ = counts[last] * bytes;
    int64_t stride = rooms[last] * bytes;
    for (int d = last - 1; d >= 0; --d) {
      count_[depth_] = counts[d];
      stride_[depth_++] = stride;
      runs_ *= counts[d];
      stride *= rooms[d];
    }
  }

  int64_t bytes() const { return runs_ * run_; }

  // Calls move(where a run lies in the buffer, where it lies in order, its bytes) for each run.
  template <class F>
  void ForEachRun(F move) const {
    int64_t at[kMost] = {}, place = 0;
    for (int64_t run = 0; run < runs_; ++run) {
      move(place, run * run_, run_);
      for (int d = 0; d < depth_; ++d) {
        place += stride_[d];
        if (++at[d] < count_[d]) break;
        place -= at[d] * stride_[d];
        at[d] = 0;
      }
    }
  }

 private:
  static constexpr int kMost = 64;
  int64_t count_[kMost], stride_[kMost];  // of the dimensions around a run, from the inside out
  int64_t runs_ = 1, run_ = 0;
  int depth_ = 0;
};

inline int Together(const TVMFFIAny* args, int64_t dims, bool fills) {
  Arguments a(args);
  const int out = 1 + __builtin_popcountll(dims);
  const Box box(a, 0, dims);
  const char* from = a.data(0);
  char* to = a.data(out);
  box.ForEachRun(
      [&](int64_t place, int64_t order, int64_t n) { memcpy(to + order, from + place, n); });
  const int64_t room = a.bytes(out);
  if (fills) memset(to + box.bytes(), 0, room - box.bytes());
  return 0;
}

// Of a vector that is too short its elements are moved: the call ends with an error elsewhere.
inline int Apart(const TVMFFIAny* args, int64_t dims, bool fills) {
  Arguments a(args);
  const int out = 1 + __builtin_popcountll(dims);
  const Box box(a, out, dims);
  const char* from = a.data(0);
  char* to = a.data(out);
  const int64_t there = a.bytes(0);
  if (fills) memset(to, 0, a.bytes(out));
  box.ForEachRun([&](int64_t place, int64_t order, int64_t n) {
    n = std::min(n, there - order);
    if (n > 0) memcpy(to + place, from + order, n);
  });
  return 0;
}

}  // namespace dycl::moving

#endif  // DYCL_RUNTIME_MOVING_H_
