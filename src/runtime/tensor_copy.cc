// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "tensor_copy.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "dycl/dycl.h"
#include "error.h"

namespace dycl {
namespace {

bool IsSized(uint32_t input, int dim) {
  for (uint32_t k = 0; k < kProgram.sized_dims.size; ++k) {
    const SizedDim& d = kProgram.sized_dims[k];
    if (d.input == input && static_cast<int>(d.dim) == dim) return true;
  }
  return false;
}

// Text in a fixed buffer: error paths do not allocate either.
struct ShapeText {
  char text[256];

  ShapeText(const char* dtype, const int64_t* shape, int ndim) : used_(Begin(dtype)) {
    for (int d = 0; d < ndim; ++d) Add(d, "", shape[d]);
    snprintf(text + used_, sizeof(text) - used_, "]");
  }
  // What is expected of an input.
  ShapeText(uint32_t input, const SessionSizes& bounds)
      : used_(Begin(DTypeName(kProgram.tensors[kProgram.inputs[input].tensor].dtype))) {
    constexpr size_t kMost = 64;
    DyclExtent extents[kMost];
    size_t ndim = 0;
    if (bounds.InputBounds(input, extents, kMost, &ndim) != DYCL_OK) ndim = 0;
    for (size_t d = 0; d < ndim && d < kMost; ++d) {
      Add(static_cast<int>(d), extents[d].size >= 0 ? "<=" : "", extents[d].most);
    }
    snprintf(text + used_, sizeof(text) - used_, "]");
  }

 private:
  size_t used_;
  size_t Begin(const char* dtype) {
    return static_cast<size_t>(snprintf(text, sizeof(text), "%s[", dtype));
  }
  void Add(int d, const char* before, int64_t extent) {
    if (used_ + 32 >= sizeof(text)) return;
    used_ += static_cast<size_t>(snprintf(text + used_, sizeof(text) - used_, "%s%s%" PRId64,
                                          d != 0 ? ", " : "", before, extent));
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

// Copies one axis of a tensor and those within it. From `compact` on a row lies there as here.
void CopyAxis(const DLTensor& t, int axis, int compact, const char* from, size_t item_bytes,
              const int64_t* dims, char* to) {
  size_t step = item_bytes;
  for (int d = axis + 1; d < t.ndim; ++d) step *= static_cast<size_t>(dims[d]);
  int64_t extent = t.shape[axis];
  if (axis >= compact) {
    memcpy(to, from, static_cast<size_t>(extent) * step);
    return;
  }
  int64_t stride = t.strides == nullptr ? 1 : t.strides[axis];
  for (int d = axis + 1; t.strides == nullptr && d < t.ndim; ++d) stride *= t.shape[d];
  stride *= static_cast<int64_t>(item_bytes);
  for (int64_t i = 0; i < extent; ++i, from += stride, to += step) {
    if (axis + 1 == t.ndim) {
      memcpy(to, from, item_bytes);
    } else {
      CopyAxis(t, axis + 1, compact, from, item_bytes, dims, to);
    }
  }
}

}  // namespace

int32_t CheckTensor(uint32_t input, const DLTensor* given, const SessionSizes& bounds) {
  const char* name = kProgram.inputs[input].name;
  const TensorDesc& want = kProgram.tensors[kProgram.inputs[input].tensor];
  if (given == nullptr) return InputError("input '%s': the tensor is null", name);
  const int64_t* dims = kProgram.dims.data + want.dims;
  if (given->ndim < 0 || (given->ndim > 0 && given->shape == nullptr)) {
    return InputError("input '%s': expected %s, got a tensor without a shape", name,
                      ShapeText(input, bounds).text);
  }
  bool same = given->ndim == want.ndim && SameType(given->dtype, ToDLDataType(want.dtype));
  for (int d = 0; same && d < want.ndim; ++d) {
    same = given->shape[d] == dims[d] || IsSized(input, d);
  }
  if (!same) {
    char dtype[32];
    DLTypeName(given->dtype, dtype, sizeof(dtype));
    return InputError("input '%s': expected %s, got %s", name, ShapeText(input, bounds).text,
                      ShapeText(dtype, given->shape, given->ndim).text);
  }
  int device = static_cast<int>(given->device.device_type);
  if (device != kDLCPU && device != kDLCUDAHost &&
      (kProgram.device == nullptr || device != kDLCUDA)) {
    return InputError("input '%s': expected a tensor in CPU memory%s, got one on device type %d",
                      name, kProgram.device != nullptr ? " or on the GPU" : "", device);
  }
  if (given->data == nullptr && NumBytes(want.dtype, given->shape, want.ndim) != 0) {
    return InputError("input '%s': expected %s, got a null pointer to its data", name,
                      ShapeText(input, bounds).text);
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
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 0) return true;  // whatever its strides are: those of NumPy are zeros
  }
  int64_t stride = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

namespace {

// Copies a tensor of any strides to the front of a row-major one of the extents `dims`.
void Copy(const DLTensor& from, size_t item_bytes, const int64_t* dims, char* to) {
  const char* data = static_cast<const char*>(from.data) + from.byte_offset;
  int compact = from.ndim;
  int64_t stride = 1;
  size_t bytes = item_bytes;
  for (int d = from.ndim - 1; d >= 0; --d) {
    bytes *= static_cast<size_t>(from.shape[d]);
    bool alike = compact == d + 1 &&
                 (from.strides == nullptr || from.shape[d] == 1 || from.strides[d] == stride);
    // Of the outermost such axis there may be less than there is room for.
    if (alike && (d + 1 == from.ndim || from.shape[d + 1] == dims[d + 1])) compact = d;
    stride *= from.shape[d];
  }
  if (bytes == 0) return;
  if (IsContiguous(from) && IsFront(from, dims)) {
    memmove(to, data, bytes);  // it may lie here already: the last run has returned this input
  } else {
    CopyAxis(from, 0, compact, data, item_bytes, dims, to);
  }
}

// Clears what the front of the extents `held` has behind that of the extents `now`; all of it where
// `now` is null.
void ClearBehind(const int64_t* now, const int64_t* held, const int64_t* dims, int ndim,
                 size_t item_bytes, char* to) {
  bool behind = false, whole = true;
  size_t step = item_bytes;
  for (int d = 0; d < ndim; ++d) {
    if (held[d] == 0) return;
    behind = behind || now == nullptr || held[d] > now[d];
    if (d == 0) continue;
    step *= static_cast<size_t>(dims[d]);
    whole = whole && held[d] == dims[d];
  }
  if (!behind) return;
  int64_t both = now == nullptr ? 0 : std::min(now[0], held[0]);
  for (int64_t i = 0; i < both && ndim > 1; ++i) {
    ClearBehind(now + 1, held + 1, dims + 1, ndim - 1, item_bytes, to + i * step);
  }
  if (whole) {
    memset(to + both * step, 0, static_cast<size_t>(held[0] - both) * step);
    return;
  }
  for (int64_t i = both; i < held[0]; ++i) {
    ClearBehind(nullptr, held + 1, dims + 1, ndim - 1, item_bytes, to + i * step);
  }
}

}  // namespace

void CopyStrided(const DLTensor& from, size_t item_bytes, char* to) {
  Copy(from, item_bytes, from.shape, to);
}

void CopyToFront(const DLTensor& from, size_t item_bytes, const int64_t* dims, char* to,
                 int64_t* held) {
  Copy(from, item_bytes, dims, to);
  ClearBehind(from.shape, held, dims, from.ndim, item_bytes, to);
  std::copy_n(from.shape, from.ndim, held);
}

bool IsFront(const DLTensor& t, const int64_t* dims) {
  int64_t before = 1;
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] != dims[d] && before != 1) return false;
    before *= t.shape[d];
  }
  return true;
}

int32_t Measure(const DyclValue* inputs, const SessionSizes& bounds, Scalar* sizes) {
  for (uint32_t k = 0; k < kProgram.sizes.size; ++k) {
    const SizeDesc& size = kProgram.sizes[k];
    const char* symbol = kProgram.inputs[kProgram.num_given() + k].name;
    const SizedDim& first = kProgram.sized_dims[size.first_dim];
    const char* name = kProgram.inputs[first.input].name;
    int64_t extent = inputs[first.input].u.tensor->shape[first.dim];
    sizes[k].i = (extent - first.constant) / first.factor;
    if (sizes[k].i < size.least || sizes[k].i > bounds.most(k) || first.At(sizes[k].i) != extent) {
      char step[32] = "";
      if (first.factor != 1) snprintf(step, sizeof(step), ", by %" PRId64, first.factor);
      return InputError(
          "input '%s': dimension %u is %" PRId64 ", expected %s = %" PRId64 " to %" PRId64 "%s",
          name, first.dim, extent, symbol, first.At(size.least), first.At(bounds.most(k)), step);
    }
    for (uint32_t j = 1; j < size.num_dims; ++j) {
      const SizedDim& d = kProgram.sized_dims[size.first_dim + j];
      int64_t found = inputs[d.input].u.tensor->shape[d.dim];
      if (found == d.At(sizes[k].i)) continue;
      return InputError("input '%s': dimension %u is %" PRId64 ", expected %" PRId64
                        ", because dimension %u of '%s' is %" PRId64,
                        kProgram.inputs[d.input].name, d.dim, found, d.At(sizes[k].i), first.dim,
                        name, extent);
    }
  }
  return DYCL_OK;
}

}  // namespace dycl
