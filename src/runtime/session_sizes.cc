// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "session_sizes.h"

#include <cinttypes>
#include <cstring>
#include <utility>

#include "error.h"

namespace dycl {
namespace {

const char* NameOf(uint32_t size) { return kProgram.inputs[kProgram.num_given() + size].name; }

}  // namespace

int32_t SessionSizes::Read(const DyclSessionOptions& options) {
  if (options.num_largest_sizes == 0) return DYCL_OK;
  if (options.largest_sizes == nullptr) return UsageError("'largest_sizes' must not be NULL");
  std::vector<bool> given(kProgram.sizes.size);
  std::vector<int64_t> read;
  for (uint32_t k = 0; k < kProgram.sizes.size; ++k) read.push_back(kProgram.sizes[k].most);
  for (size_t j = 0; j < options.num_largest_sizes; ++j) {
    const DyclLargestSize& want = options.largest_sizes[j];
    if (want.name == nullptr) return UsageError("a name in 'largest_sizes' must not be NULL");
    uint32_t k = 0;
    while (k < kProgram.sizes.size && strcmp(NameOf(k), want.name) != 0) ++k;
    if (k == kProgram.sizes.size) {
      return UsageError("'%s' has no size '%s' that each call decides", kProgram.name, want.name);
    }
    if (given[k]) return UsageError("the largest '%s' of a session is given twice", want.name);
    given[k] = true;
    const SizeDesc& size = kProgram.sizes[k];
    if (want.most < size.least || want.most > size.most) {
      return UsageError("the largest '%s' of a session is %" PRId64 ", expected %" PRId64
                        " to %" PRId64,
                        want.name, want.most, size.least, size.most);
    }
    read[k] = want.most;
  }
  most_ = std::move(read);
  for (uint32_t k = 0; k < kProgram.needs.size; ++k) {
    if (IsWithin(k) && kProgram.needs[k] < arena_bytes()) need_ = k;
  }
  return DYCL_OK;
}

bool SessionSizes::IsWithin(uint32_t need) const {
  const uint32_t count = kProgram.sizes.size;
  for (uint32_t k = 0; k < count; ++k) {
    if (most(k) > kProgram.need_sizes[need * count + k]) return false;
  }
  return true;
}

int32_t SessionSizes::InputBounds(size_t input, DyclExtent* extents, size_t capacity,
                                  size_t* ndim) const {
  if (input >= kProgram.num_given()) {
    return UsageError("there is no input %zu: there are %" PRIu32, input, kProgram.num_given());
  }
  const InputDesc& given = kProgram.inputs[static_cast<uint32_t>(input)];
  const bool is_tensor = given.tensor != kNone;
  const uint32_t rank = is_tensor ? kProgram.tensors[given.tensor].ndim : 0;
  if (ndim != nullptr) *ndim = rank;
  for (uint32_t d = 0; d < rank && d < capacity; ++d) {
    int64_t extent = kProgram.dims[kProgram.tensors[given.tensor].dims + d];
    extents[d] = DyclExtent{extent, extent, 1, -1, 0};
  }
  for (uint32_t k = 0; k < kProgram.sizes.size; ++k) {
    const SizeDesc& size = kProgram.sizes[k];
    for (uint32_t j = 0; j < size.num_dims; ++j) {
      const SizedDim& d = kProgram.sized_dims[size.first_dim + j];
      if (d.input != input || d.dim >= capacity) continue;
      extents[d.dim] =
          DyclExtent{d.At(size.least), d.At(most(k)), d.factor, static_cast<int32_t>(k), 0};
    }
  }
  return DYCL_OK;
}

}  // namespace dycl
