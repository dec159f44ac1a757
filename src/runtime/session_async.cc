// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs that go on in a thread of the session's own, which is made for the first of them.
#include <cstring>

#include "error.h"
#include "session.h"

int32_t DyclSession::RunAsync(const DyclValue* inputs, size_t num_inputs,
                              const DLTensor* const* outputs, size_t num_outputs,
                              const DyclRunOptions& options, DyclDone done, void* user) {
  if (int32_t status = CheckCounts(num_inputs, num_outputs)) return status;
  dycl::InUse use(&running_);
  if (!use.taken()) return AlreadyRunning();
  if (worker_ == nullptr || !worker_->alive()) {
    worker_ = dycl::Worker::Start();
    if (worker_ == nullptr) return dycl::NoMemory("there is no thread for the run");
  }
  if (num_inputs != 0) memcpy(later_.inputs, inputs, num_inputs * sizeof(*inputs));
  if (num_outputs != 0) memcpy(later_.outputs, outputs, num_outputs * sizeof(*outputs));
  later_.num_outputs = num_outputs;
  later_.options = options;
  later_.done = done;
  later_.user = user;
  // From here on the run can be cancelled, and its time runs.
  dycl::BeginControl(frame_, options);
  if (!worker_->Give([](void* session) { static_cast<DyclSession*>(session)->RunLater(); }, this)) {
    return dycl::UsageError("the session is being destroyed");
  }
  use.Keep();
  return DYCL_OK;
}

void DyclSession::RunLater() {
  int32_t site = dycl::kRunFailed;
  int32_t status = dycl::Guard([&] {
    return RunBegun(later_.inputs, later_.outputs, later_.num_outputs, later_.options, &site);
  });
  DyclDone done = later_.done;
  void* user = later_.user;
  running_.store(false, std::memory_order_release);
  // The last thing that is done here with the session, which may begin the next run or be
  // destroyed.
  done(user, status, site);
}

void DyclSession::EndAsync() {
  if (worker_ == nullptr) return;
  // In this order no run can begin that is not cancelled.
  worker_->Stop();
  Cancel();
  worker_->End();
}
