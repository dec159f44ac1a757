// Licensed under the Apache License, Version 2.0; see LICENSE.
// Checks and copies of the tensors that callers give.
#ifndef DYCL_RUNTIME_TENSOR_COPY_H_
#define DYCL_RUNTIME_TENSOR_COPY_H_

#include "dycl/dycl.h"
#include "program.h"

namespace dycl {

// Checks a caller's tensor; returns a DyclStatus and an error that names the input.
int32_t CheckTensor(const char* name, const TensorDesc& want, const DLTensor* given);

// Checks which of a call's inputs lie in one memory, where that matters to the network; they have
// passed CheckTensor.
int32_t CheckInputPairs(const DyclValue* inputs);

bool IsContiguous(const DLTensor& t);
uint64_t TensorBytes(const DLTensor& t);

// Copies a tensor of any strides to `to`, row-major.
void CopyStrided(const DLTensor& from, size_t item_bytes, char* to);

}  // namespace dycl

#endif  // DYCL_RUNTIME_TENSOR_COPY_H_
