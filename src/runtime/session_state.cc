// Licensed under the Apache License, Version 2.0; see LICENSE.
// The state variables of a session as bytes: one after the other, a number takes eight.
#include <cstring>

#include "error.h"
#include "session.h"

using dycl::Kind;
using dycl::kProgram;

namespace {

uint64_t BytesOf(const dycl::StateDesc& state) {
  if (state.kind != Kind::kTensor) return sizeof(dycl::Scalar);
  const dycl::TensorDesc& t = kProgram.tensors[state.tensor];
  return dycl::NumBytes(t.dtype, kProgram.dims.data + t.dims, t.ndim);
}

int32_t Running() {
  return dycl::UsageError("the session is running; get or set its state before or after");
}

}  // namespace

uint64_t DyclSession::StateBytes() {
  uint64_t bytes = 0;
  for (uint32_t k = 0; k < kProgram.state.size; ++k) bytes += BytesOf(kProgram.state[k]);
  return bytes;
}

int32_t DyclSession::GetState(char* to) {
  return EachState([&](dycl::Scalar* scalar, char* tensor, uint64_t bytes) {
    bool good = true;
    if (scalar != nullptr) {
      memcpy(to, scalar, bytes);
    } else if (device_ != nullptr) {
      good = device_->Download(to, tensor, bytes);
    } else {
      memcpy(to, tensor, bytes);
    }
    to += bytes;
    return good;
  });
}

int32_t DyclSession::SetState(const char* from) {
  return EachState([&](dycl::Scalar* scalar, char* tensor, uint64_t bytes) {
    bool good = true;
    if (scalar != nullptr) {
      memcpy(scalar, from, bytes);
    } else if (device_ != nullptr) {
      good = device_->Upload(tensor, from, bytes);
    } else {
      memcpy(tensor, from, bytes);
    }
    from += bytes;
    return good;
  });
}

template <class Use>
int32_t DyclSession::EachState(Use use) {
  dycl::InUse mine(&running_);
  if (!mine.taken()) return Running();
  if (device_ != nullptr) {
    if (int32_t status = device_->Begin()) return status;
  }
  bool good = true;
  for (uint32_t k = 0; k < kProgram.state.size && good; ++k) {
    const dycl::StateDesc& state = kProgram.state[k];
    bool is_tensor = state.kind == Kind::kTensor;
    char* tensor = is_tensor ? static_cast<char*>(frame_.tensors[state.tensor].data) : nullptr;
    good = use(is_tensor ? nullptr : frame_.state + k, tensor, BytesOf(state));
  }
  if (device_ == nullptr) return DYCL_OK;
  int32_t status = device_->End();
  return good ? status : dycl::LastStatus();
}
