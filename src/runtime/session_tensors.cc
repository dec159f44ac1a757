// Licensed under the Apache License, Version 2.0; see LICENSE.
// Tensors that leave a session, or stay in its model's memory: copies between host and device.
#include <cstdlib>
#include <cstring>

#include "error.h"
#include "session.h"
#include "tensor_copy.h"

using dycl::kAlign;

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
  int32_t status = device_->End();
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
