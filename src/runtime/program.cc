// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "program.h"

namespace dycl {

const char* DTypeName(DType dtype) {
  constexpr const char* kNames[] = {"float64", "float32", "float16",   "bfloat16",
                                    "int64",   "int32",   "int16",     "int8",
                                    "uint8",   "bool",    "complex64", "complex128"};
  return kNames[static_cast<int>(dtype)];
}

const char* DTypeFileName(DType dtype) {
  constexpr const char* kNames[] = {"F64", "F32", "F16", "BF16", "I64", "I32",
                                    "I16", "I8",  "U8",  "BOOL", "C64", "C128"};
  return kNames[static_cast<int>(dtype)];
}

DLDataType ToDLDataType(DType dtype) {
  constexpr uint8_t kCodes[] = {kDLFloat, kDLFloat, kDLFloat, kDLBfloat, kDLInt,     kDLInt,
                                kDLInt,   kDLInt,   kDLUInt,  kDLBool,   kDLComplex, kDLComplex};
  return DLDataType{kCodes[static_cast<int>(dtype)], static_cast<uint8_t>(8 * ItemBytes(dtype)), 1};
}

uint64_t NumBytes(DType dtype, const int64_t* dims, uint32_t ndim) {
  uint64_t n = ItemBytes(dtype);
  for (uint32_t d = 0; d < ndim; ++d) n *= static_cast<uint64_t>(dims[d]);
  return n;
}

}  // namespace dycl
