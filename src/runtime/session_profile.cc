// Licensed under the Apache License, Version 2.0; see LICENSE.
// Starting, reading and stopping the profile of a session.
#include "error.h"
#include "session.h"

namespace {

int32_t Running() {
  return dycl::UsageError(
      "the session is running; start, read or stop its profile before or after");
}

int32_t Stopped() { return dycl::UsageError("the session is not being profiled"); }

}  // namespace

int32_t DyclSession::StartProfile(DyclEvent* events, size_t capacity, uint32_t every) {
  dycl::InUse use(&running_);
  if (!use.taken()) return Running();
  if (frame_.recorder != nullptr) return dycl::UsageError("the session is being profiled already");
  if (capacity == 0) return dycl::UsageError("a profile needs room for events");
  // The host only puts work on the device's stream, so its clock says nothing of kernels.
  if (device_ != nullptr) {
    return dycl::UsageError(
        "profiles are of networks that run on the CPU; the GPU has tools of its own");
  }
  recorder_.Begin(events, capacity, every);
  frame_.recorder = &recorder_;
  return DYCL_OK;
}

int32_t DyclSession::StopProfile() {
  dycl::InUse use(&running_);
  if (!use.taken()) return Running();
  if (frame_.recorder == nullptr) return Stopped();
  frame_.recorder = nullptr;
  return DYCL_OK;
}

int32_t DyclSession::ReadProfile(DyclEvent* events, size_t capacity, size_t* written,
                                 uint64_t* lost) {
  dycl::InUse use(&running_);
  if (!use.taken()) return Running();
  if (frame_.recorder == nullptr) return Stopped();
  *written = recorder_.Take(events, capacity);
  if (lost != nullptr) *lost = recorder_.lost();
  return DYCL_OK;
}
