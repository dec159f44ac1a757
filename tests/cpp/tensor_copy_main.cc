// Licensed under the Apache License, Version 2.0; see LICENSE.
// Tensors of changing sizes at the front of one place: what is behind each is zeros, whatever the
// last one left there.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "tensor_copy.h"

namespace {

std::mt19937 g_random(1);

int64_t Draw(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(g_random);
}

// One place, and some calls that follow one another. Elements are of one byte to eight, and never
// zero.
void Place() {
  const int ndim = static_cast<int>(Draw(1, 4));
  const size_t item = size_t{1} << Draw(0, 3);
  std::vector<int64_t> dims, held(ndim, 0);
  int64_t room = 1;
  for (int d = 0; d < ndim; ++d) {
    dims.push_back(Draw(1, 6));
    room *= dims[d];
  }
  std::vector<char> place(room * item, 0);
  for (int call = 0; call < 12; ++call) {
    // In memory of its own, of which it may be a part with gaps, or transposed.
    std::vector<int64_t> shape(ndim), strides(ndim);
    std::vector<int> order(ndim);
    for (int d = 0; d < ndim; ++d) order[d] = d;
    if (Draw(0, 2) == 0) std::shuffle(order.begin(), order.end(), g_random);
    int64_t step = Draw(1, 2);
    for (int d = 0; d < ndim; ++d) shape[d] = Draw(0, 3) == 0 ? dims[d] : Draw(0, dims[d]);
    for (int k = ndim - 1; k >= 0; --k) {
      strides[order[k]] = step;
      step *= shape[order[k]] + Draw(0, 1);
    }
    std::vector<char> given((step + 1) * item);
    for (char& c : given) c = static_cast<char>(Draw(1, 127));
    DLTensor tensor{};
    tensor.data = given.data();
    tensor.ndim = ndim;
    tensor.dtype = {kDLInt, static_cast<uint8_t>(8 * item), 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
    dycl::CopyToFront(tensor, item, dims.data(), place.data(), held.data());
    for (int64_t at = 0; at < room; ++at) {
      int64_t rest = at, from = 0;
      bool inside = true;
      for (int d = ndim - 1; d >= 0; --d) {
        inside = inside && rest % dims[d] < shape[d];
        from += rest % dims[d] * strides[d];
        rest /= dims[d];
      }
      for (size_t byte = 0; byte < item; ++byte) {
        const char wanted = inside ? given[from * item + byte] : 0;
        CHECK(place[at * item + byte] == wanted);
      }
    }
    CHECK(held == shape);
  }
}

}  // namespace

int main() {
  for (int k = 0; k < 3000; ++k) Place();
  printf("done\n");
  return 0;
}
