// Licensed under the Apache License, Version 2.0; see LICENSE.
// Tensors that come to a session on a device or leave one, or stay in its model's memory: copies
// between host and device.
#include <cstdlib>
#include <cstring>

#include "error.h"
#include "session.h"
#include "tensor_copy.h"

using dycl::kAlign;
using dycl::Kind;
using dycl::kProgram;
using dycl::TensorDesc;

bool DyclSession::IsStagedOnDevice(const char* data) const {
  for (uint32_t k = 0; k < kProgram.inputs.size; ++k) {
    if (kProgram.inputs[k].kind != Kind::kTensor) continue;
    const TensorDesc& desc = kProgram.tensors[kProgram.inputs[k].tensor];
    const auto* begin = static_cast<const char*>(device_->Place(desc));
    const int64_t* dims = kProgram.dims.data + desc.dims;
    if (data >= begin && data < begin + dycl::NumBytes(desc.dtype, dims, desc.ndim)) return true;
  }
  return false;
}

// Copies a compact tensor that is smaller than its buffer in some dimensions. Between two such
// dimensions rows lie evenly apart, here and there: one copy takes them.
bool DyclSession::CopyToFrontThere(const DLTensor& from, const int64_t* dims, char* to) {
  const char* data = static_cast<const char*>(from.data) + from.byte_offset;
  int inner = from.ndim - 1;
  uint64_t below = from.dtype.bits / 8;  // bytes of an index of `inner`
  for (; inner > 0 && from.shape[inner] == dims[inner]; --inner) {
    below *= static_cast<uint64_t>(dims[inner]);
  }
  int outer = inner - 1;
  uint64_t rows = 1, pitch = below * static_cast<uint64_t>(dims[inner]), block = pitch;
  for (; outer >= 0; --outer) {
    rows *= static_cast<uint64_t>(from.shape[outer]);
    block *= static_cast<uint64_t>(dims[outer]);
    if (from.shape[outer] != dims[outer]) break;
  }
  uint64_t row_bytes = below * static_cast<uint64_t>(from.shape[inner]), blocks = 1;
  for (int d = 0; d < outer; ++d) blocks *= static_cast<uint64_t>(from.shape[d]);
  for (uint64_t k = 0; k < blocks; ++k) {
    uint64_t rest = k, at = 0, step = block;
    for (int d = outer - 1; d >= 0; --d) {
      at += rest % static_cast<uint64_t>(from.shape[d]) * step;
      rest /= static_cast<uint64_t>(from.shape[d]);
      step *= static_cast<uint64_t>(dims[d]);
    }
    const char* source = data + k * rows * row_bytes;
    if (!device_->CopyRows(to + at, pitch, source, row_bytes, row_bytes, rows)) return false;
  }
  return true;
}

int32_t DyclSession::UploadTensor(const dycl::InputDesc& want, const DLTensor& given) {
  const TensorDesc& desc = kProgram.tensors[want.tensor];
  const DLDevice device = device_->device();
  const int64_t* dims = kProgram.dims.data + desc.dims;
  uint64_t bytes = dycl::NumBytes(desc.dtype, dims, desc.ndim);
  char* data = static_cast<char*>(given.data) + given.byte_offset;
  void* place = device_->Place(desc);
  bool there = given.device.device_type == device.device_type;
  device_outputs_ = device_outputs_ || there;
  if (there) {
    if (given.device.device_id != device.device_id) {
      return dycl::InputError("input '%s': the tensor is on GPU %d, the library runs on GPU %d",
                              want.name, given.device.device_id, device.device_id);
    }
    if (!dycl::IsContiguous(given)) {
      return dycl::InputError("input '%s': a tensor on the GPU must be contiguous", want.name);
    }
    bool aligned = (reinterpret_cast<uintptr_t>(data) & (kAlign - 1)) == 0;
    uint64_t there_are = dycl::TensorBytes(given);
    if (bytes != 0 && aligned && there_are == bytes && !device_->Owns(data, bytes) &&
        !IsTarget(data, bytes)) {
      PlaceInput(desc.index, data);
      return DYCL_OK;
    }
    bool front = dycl::IsFront(given, dims);
    if ((data != place || !front) && IsStagedOnDevice(data)) {
      return dycl::InputError(
          "input '%s': the tensor lies where the session keeps inputs that it copied; give a copy",
          want.name);
    }
    PlaceInput(desc.index, place);
    // Behind what is given there are zeros, as in CPU memory: they may be read as indices.
    auto* begin = static_cast<char*>(place);
    bool good = front ? device_->Copy(place, data, there_are) &&
                            device_->Zero(begin + there_are, bytes - there_are)
                      : device_->Zero(place, bytes) && CopyToFrontThere(given, dims, begin);
    return good ? DYCL_OK : dycl::LastStatus();
  }
  const void* from = data;
  if (!dycl::IsContiguous(given) || dycl::TensorBytes(given) != bytes) {
    from = staging_[desc.index];
    dycl::CopyToFront(given, dycl::ItemBytes(desc.dtype), dims, staging_[desc.index], HeldOf(desc));
  }
  PlaceInput(desc.index, place);
  return device_->Upload(place, from, bytes) ? DYCL_OK : dycl::LastStatus();
}

int32_t DyclSession::CopyOutput(size_t k, const DLTensor& to) {
  DyclValue value;
  if (int32_t status = GetOutput(k, &value)) return status;
  uint64_t bytes = value.type == DYCL_TENSOR ? dycl::TensorBytes(*value.u.tensor) : 0;
  if (value.type != DYCL_TENSOR || to.dtype.code != value.u.tensor->dtype.code ||
      to.dtype.bits != value.u.tensor->dtype.bits || dycl::TensorBytes(to) != bytes ||
      !dycl::IsContiguous(to)) {
    return dycl::UsageError("output %zu is of another type or size than the given tensor", k);
  }
  const DLTensor& from = *value.u.tensor;
  char* data = static_cast<char*>(to.data) + to.byte_offset;
  bool from_host = from.device.device_type == kDLCPU;
  bool to_host = to.device.device_type == kDLCPU || to.device.device_type == kDLCUDAHost;
  bool on_device = device_ != nullptr && to.device.device_type == device_->device().device_type &&
                   to.device.device_id == device_->device().device_id;
  if (!to_host && !on_device) {
    return dycl::UsageError("the output cannot be copied to device type %d, number %d",
                            static_cast<int>(to.device.device_type), to.device.device_id);
  }
  if (from_host && to_host) {
    memcpy(data, from.data, bytes);
    return DYCL_OK;
  }
  if (int32_t status = device_->Begin()) return status;
  bool good = from_host ? device_->Upload(data, from.data, bytes)
              : to_host ? device_->Download(data, from.data, bytes)
                        : device_->Copy(data, from.data, bytes);
  int32_t status = device_->End(dycl::DeviceSession::Waits::kIfNeeded);
  return good ? status : dycl::LastStatus();
}

int32_t DyclSession::TakeTensor(const DLTensor& from, void** data, DLDevice* device) {
  uint64_t bytes = dycl::TensorBytes(from);
  const char* source = static_cast<const char*>(from.data) + from.byte_offset;
  if (!dycl::IsContiguous(from)) return dycl::UsageError("only a contiguous tensor can be copied");
  bool on_host = from.device.device_type == kDLCPU || from.device.device_type == kDLCUDAHost;
  *device = device_ != nullptr ? device_->device() : DLDevice{kDLCPU, 0};
  if (!on_host && (from.device.device_type != device->device_type ||
                   from.device.device_id != device->device_id)) {
    return dycl::UsageError("a tensor on device type %d, number %d cannot be copied from there",
                            static_cast<int>(from.device.device_type), from.device.device_id);
  }
  if (device_ == nullptr) {
    if (posix_memalign(data, kAlign, bytes + kAlign) != 0) return dycl::MemoryError(bytes);
    memcpy(*data, source, bytes);
    return DYCL_OK;
  }
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; copy tensors before or after");
  }
  int32_t status = model_->device->Take(bytes, data);
  if (status == DYCL_OK) {
    status = device_->Begin();
    bool begun = status == DYCL_OK;
    if (begun) {
      bool good =
          on_host ? device_->Upload(*data, source, bytes) : device_->Copy(*data, source, bytes);
      if (!good) status = dycl::LastStatus();
      int32_t ended = device_->End();
      if (status == DYCL_OK) status = ended;
    }
    if (status != DYCL_OK) model_->device->GiveBack(*data);
  }
  return status;
}

void DyclSession::FreeTensor(DyclModel* model, void* data) {
  if (model->device != nullptr) {
    model->device->GiveBack(data);
  } else {
    free(data);
  }
}
