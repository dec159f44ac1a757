// Licensed under the Apache License, Version 2.0; see LICENSE.
// The first k elements of rows in order, as PyTorch's CPU kernel gives them: which of equal
// elements are taken, and in which order, follows from the algorithms of the C++ library, so they
// stand here too. Arguments of a kernel: x of (lead, n, tail), values and indices of (lead, k,
// tail).
#ifndef DYCL_RUNTIME_ORDER_H_
#define DYCL_RUNTIME_ORDER_H_

#include <algorithm>
#include <cmath>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.h"
#include "kernel_tensors.h"

namespace dycl::order {

template <class W>
bool IsNan(W x) {
  if constexpr (std::is_floating_point_v<W>) return std::isnan(x);
  return false;
}

// PyTorch's comparisons: NaN is the largest.
template <class W>
struct Greater {
  bool operator()(const std::pair<W, int64_t>& x, const std::pair<W, int64_t>& y) const {
    return (IsNan(x.first) && !IsNan(y.first)) || x.first > y.first;
  }
};

template <class W>
struct Less {
  bool operator()(const std::pair<W, int64_t>& x, const std::pair<W, int64_t>& y) const {
    return (!IsNan(x.first) && IsNan(y.first)) || x.first < y.first;
  }
};

// Leaves out what std::partial_sort would look at and leave where it is: once the first elements
// are in its heap, those that are no better than the worst of the best k so far.
template <class W, class Before>
void Filter(std::vector<std::pair<W, int64_t>>& row, int64_t k, Before before) {
  constexpr int64_t kPrefix = 1024;
  int64_t n = static_cast<int64_t>(row.size()), prefix = std::max(2 * k, kPrefix);
  if (n < 4 * prefix) return;
  std::vector<std::pair<W, int64_t>> first(row.begin(), row.begin() + prefix);
  std::nth_element(first.begin(), first.begin() + (k - 1), first.end(), before);
  const std::pair<W, int64_t> worst = first[k - 1];
  auto kept = row.begin() + prefix;
  for (auto x = kept; x != row.end(); ++x) {
    if (before(*x, worst)) *kept++ = *x;
  }
  row.erase(kept, row.end());
}

template <class W, class Before>
void Choose(std::vector<std::pair<W, int64_t>>& row, int64_t k, bool sorted, Before before) {
  if (k * 64 <= static_cast<int64_t>(row.size())) {
    Filter(row, k, before);
    std::partial_sort(row.begin(), row.begin() + k, row.end(), before);
    return;
  }
  std::nth_element(row.begin(), row.begin() + (k - 1), row.end(), before);
  if (sorted) std::sort(row.begin(), row.begin() + (k - 1), before);
}

// Of the first n of the `room` elements of each row the first k, in rows of `most`, whose rest is
// zeros.
template <class T>
int Rows(const T* x, T* values, int64_t* indices, int64_t rows, int64_t tail, int64_t room,
         int64_t n, int64_t most, int64_t k, bool largest, bool sorted) {
  using W = Wide<T>;
  try {
    std::vector<std::pair<W, int64_t>> row;
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = x + (r / tail) * room * tail + r % tail;
      const int64_t to = (r / tail) * most * tail + r % tail;
      if (k > 0) {
        row.resize(n);
        for (int64_t j = 0; j < n; ++j) row[j] = {Element<T>::Widened(from[j * tail]), j};
        if (largest) {
          Choose(row, k, sorted, Greater<W>());
        } else {
          Choose(row, k, sorted, Less<W>());
        }
      }
      for (int64_t j = 0; j < most; ++j) {
        values[to + j * tail] = j < k ? from[row[j].second * tail] : T{};
        indices[to + j * tail] = j < k ? row[j].second : 0;
      }
    }
  } catch (const std::bad_alloc&) {
    NoMemory("no memory for the elements of a row");
    return -1;
  }
  return 0;
}

template <class T>
int TopK(const TVMFFIAny* args, bool largest, bool sorted) {
  Arguments a(args);
  const int64_t n = a.extent(0, 1), tail = a.extent(0, 0), k = a.extent(1, 1);
  return Rows(a.data<T>(0), a.data<T>(1), a.data<int64_t>(2), a.extent(0, 2) * tail, tail, n, n, k,
              k, largest, sorted);
}

// The same of the first elements of rows: how many there are, and how many are taken, are
// arguments.
template <class T>
int TopKOfSome(const TVMFFIAny* args, bool largest, bool sorted) {
  Arguments a(args);
  const int64_t room = a.extent(0, 1), tail = a.extent(0, 0), most = a.extent(3, 1);
  const int64_t n = std::clamp<int64_t>(*a.data<int64_t>(1), 0, room);
  const int64_t k = std::clamp<int64_t>(*a.data<int64_t>(2), 0, std::min(n, most));
  return Rows(a.data<T>(0), a.data<T>(3), a.data<int64_t>(4), a.extent(0, 2) * tail, tail, room, n,
              most, k, largest, sorted);
}

}  // namespace dycl::order

#endif  // DYCL_RUNTIME_ORDER_H_
