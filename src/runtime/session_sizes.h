// Licensed under the Apache License, Version 2.0; see LICENSE.
// The largest sizes that the calls of a session have, and the memory that it needs for them.
#ifndef DYCL_RUNTIME_SESSION_SIZES_H_
#define DYCL_RUNTIME_SESSION_SIZES_H_

#include <vector>

#include "dycl/dycl.h"
#include "program.h"

namespace dycl {

class SessionSizes {
 public:
  // At first they are those of the library. Takes those of a session's options; returns a
  // DyclStatus.
  [[nodiscard]] int32_t Read(const DyclSessionOptions& options);

  int64_t most(uint32_t size) const {
    return most_.empty() ? kProgram.sizes[size].most : most_[size];
  }
  uint64_t arena_bytes() const {
    return need_ == kNone ? kProgram.arena_bytes : kProgram.needs[need_];
  }
  // The bounds of the dimensions of an input, as dycl_input_bounds() gives them.
  [[nodiscard]] int32_t InputBounds(size_t input, DyclExtent* extents, size_t capacity,
                                    size_t* ndim) const;

 private:
  // Whether calls of these sizes are among those of a row of ProgramDesc::needs.
  bool IsWithin(uint32_t need) const;

  std::vector<int64_t> most_;  // empty: those of the library, for which nothing is allocated
  uint32_t need_ = kNone;      // a row of ProgramDesc::needs
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_SESSION_SIZES_H_
