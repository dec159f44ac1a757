// Licensed under the Apache License, Version 2.0; see LICENSE.
// Checks and copies of the tensors that callers give.
#ifndef DYCL_RUNTIME_TENSOR_COPY_H_
#define DYCL_RUNTIME_TENSOR_COPY_H_

#include "dycl/dycl.h"
#include "program.h"
#include "session_sizes.h"

namespace dycl {

// Checks a caller's tensor, but for its sizes that the caller decides; returns a DyclStatus and an
// error that names the input.
int32_t CheckTensor(uint32_t input, const DLTensor* given, const SessionSizes& bounds);

// Takes the sizes that the caller decides from a call's inputs, which have passed CheckTensor, and
// checks that they are within their bounds and agree.
int32_t Measure(const DyclValue* inputs, const SessionSizes& bounds, Scalar* sizes);

// Checks which of a call's inputs lie in one memory, where that matters to the network; they have
// passed CheckTensor.
int32_t CheckInputPairs(const DyclValue* inputs);

bool IsContiguous(const DLTensor& t);
uint64_t TensorBytes(const DLTensor& t);

// Copies a tensor of any strides to `to`, row-major.
void CopyStrided(const DLTensor& from, size_t item_bytes, char* to);

// Copies a tensor of any strides to the front of a row-major one of the extents `dims`; behind it
// are zeros. `held` are the extents of the front behind which there were zeros before, and then of
// this one: what the last call left is cleared, and not all that there is room for.
void CopyToFront(const DLTensor& from, size_t item_bytes, const int64_t* dims, char* to,
                 int64_t* held);

// Whether the elements of a contiguous tensor follow one another in a row-major one of the extents
// `dims` too, of which it is the front.
bool IsFront(const DLTensor& t, const int64_t* dims);

}  // namespace dycl

#endif  // DYCL_RUNTIME_TENSOR_COPY_H_
