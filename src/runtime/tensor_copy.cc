// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "tensor_copy.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "dycl/dycl.h"
#include "error.h"

namespace dycl {
namespace {

// Text in a fixed buffer: error paths do not allocate either.
struct ShapeText {
  char text[256];

  ShapeText(const char* dtype, const int64_t* shape, int ndim) {
    size_t used = static_cast<size_t>(snprintf(text, sizeof(text), "%s[", dtype));
    for (int d = 0; d < ndim && used + 32 < sizeof(text); ++d) {
      used += static_cast<size_t>(
          snprintf(text + used, sizeof(text) - used, "%s%" PRId64, d != 0 ? ", " : "", shape[d]));
    }
    snprintf(text + used, sizeof(text) - used, "]");
  }
};

void DLTypeName(DLDataType t, char* out, size_t size) {
  const char* names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  if (t.code == kDLBool && t.bits == 8) {
    snprintf(out, size, "bool");
  } else {
    snprintf(out, size, "%s%d", t.code < 7 ? names[t.code] : "unknown", t.bits);
  }
  if (t.lanes != 1) {
    size_t used = strlen(out);
    snprintf(out + used, size - used, "x%d", t.lanes);
  }
}

bool SameType(DLDataType given, DLDataType want) {
  if (given.lanes != 1) return false;
  // Older frameworks call a bool a one-bit unsigned int.
  if (want.code == kDLBool && given.code == kDLUInt && given.bits == 1) return true;
  return given.code == want.code && given.bits == want.bits;
}

void CopyAxis(const DLTensor& t, int axis, const char* from, size_t item_bytes, char** to) {
  int64_t extent = t.shape[axis];
  int64_t stride = t.strides[axis];
  if (axis + 1 == t.ndim) {
    if (stride == 1) {
      memcpy(*to, from, static_cast<size_t>(extent) * item_bytes);
      *to += static_cast<size_t>(extent) * item_bytes;
      return;
    }
    for (int64_t i = 0; i < extent; ++i, *to += item_bytes) {
      memcpy(*to, from + i * stride * static_cast<int64_t>(item_bytes), item_bytes);
    }
    return;
  }
  for (int64_t i = 0; i < extent; ++i) {
    CopyAxis(t, axis + 1, from + i * stride * static_cast<int64_t>(item_bytes), item_bytes, to);
  }
}

}  // namespace

int32_t CheckTensor(const char* name, const TensorDesc& want, const DLTensor* given) {
  if (given == nullptr) return InputError("input '%s': the tensor is null", name);
  const int64_t* dims = kProgram.dims.data + want.dims;
  ShapeText expected(DTypeName(want.dtype), dims, want.ndim);
  char dtype[32];
  DLTypeName(given->dtype, dtype, sizeof(dtype));
  if (given->ndim < 0 || (given->ndim > 0 && given->shape == nullptr)) {
    return InputError("input '%s': expected %s, got a tensor without a shape", name, expected.text);
  }
  ShapeText got(dtype, given->shape, given->ndim);
  bool same = given->ndim == want.ndim && SameType(given->dtype, ToDLDataType(want.dtype));
  for (int d = 0; same && d < want.ndim; ++d) same = given->shape[d] == dims[d];
  if (!same) {
    return InputError("input '%s': expected %s, got %s", name, expected.text, got.text);
  }
  int device = static_cast<int>(given->device.device_type);
  if (device != kDLCPU && device != kDLCUDAHost &&
      (kProgram.device == nullptr || device != kDLCUDA)) {
    return InputError("input '%s': expected a tensor in CPU memory%s, got one on device type %d",
                      name, kProgram.device != nullptr ? " or on the GPU" : "", device);
  }
  if (given->data == nullptr && NumBytes(want.dtype, dims, want.ndim) != 0) {
    return InputError("input '%s': expected %s, got a null pointer to its data", name,
                      expected.text);
  }
  return DYCL_OK;
}

uint64_t TensorBytes(const DLTensor& t) {
  uint64_t bytes = t.dtype.bits / 8;
  for (int d = 0; d < t.ndim; ++d) bytes *= static_cast<uint64_t>(t.shape[d]);
  return bytes;
}

namespace {

struct Range {
  intptr_t begin, end;
};

// Where the elements of a tensor lie.
Range RangeOf(const DLTensor& t) {
  intptr_t begin = reinterpret_cast<intptr_t>(t.data) + static_cast<intptr_t>(t.byte_offset);
  intptr_t item = t.dtype.bits * t.dtype.lanes / 8;
  intptr_t end = begin + item, compact = item;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return {begin, begin};
    intptr_t step = t.strides == nullptr ? compact : t.strides[d] * item;
    (step < 0 ? begin : end) += (t.shape[d] - 1) * step;
    compact *= t.shape[d];
  }
  return {begin, end};
}

bool IsSameView(const DLTensor& a, const DLTensor& b) {
  const Range one = RangeOf(a), other = RangeOf(b);
  if (one.begin != other.begin || one.end != other.end || a.ndim != b.ndim) return false;
  if (IsContiguous(a) && IsContiguous(b)) return true;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.strides == nullptr || b.strides == nullptr) return false;
    if (a.shape[d] != 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

}  // namespace

int32_t CheckInputPairs(const DyclValue* inputs) {
  for (uint32_t k = 0; k < kProgram.input_pairs.size; ++k) {
    const InputPair& pair = kProgram.input_pairs[k];
    const DLTensor &a = *inputs[pair.first].u.tensor, &b = *inputs[pair.second].u.tensor;
    const char* first = kProgram.inputs[pair.first].name;
    const char* second = kProgram.inputs[pair.second].name;
    const Range one = RangeOf(a), other = RangeOf(b);
    if (one.begin == one.end || other.begin == other.end) continue;
    if (pair.kind == InputPair::kOne) {
      if (IsSameView(a, b)) continue;
      return InputError("inputs '%s' and '%s': expected one tensor, as in the example inputs",
                        first, second);
    }
    if (a.device.device_type != b.device.device_type) continue;
    bool apart = pair.kind == InputPair::kApart;
    if (apart ? one.end <= other.begin || other.end <= one.begin : !IsSameView(a, b)) continue;
    return InputError(
        "inputs '%s' and '%s' lie in one memory: the network %s, and was built for different ones; "
        "give a copy, or build it with such example inputs",
        first, second, apart ? "changes one of them in place" : "asks whether they are one tensor");
  }
  return DYCL_OK;
}

bool IsContiguous(const DLTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

void CopyStrided(const DLTensor& from, size_t item_bytes, char* to) {
  const char* data = static_cast<const char*>(from.data) + from.byte_offset;
  if (IsContiguous(from)) {
    size_t bytes = item_bytes;
    for (int d = 0; d < from.ndim; ++d) bytes *= static_cast<size_t>(from.shape[d]);
    memmove(to, data, bytes);
    return;
  }
  CopyAxis(from, 0, data, item_bytes, &to);
}

}  // namespace dycl
