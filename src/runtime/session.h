// Licensed under the Apache License, Version 2.0; see LICENSE.
// A model (weights) and its sessions (execution states). All memory of a session is one block,
// taken when it is made; a run allocates nothing.
#ifndef DYCL_RUNTIME_SESSION_H_
#define DYCL_RUNTIME_SESSION_H_

#include <atomic>
#include <memory>

#include "control.h"
#include "device.h"
#include "dycl/dycl.h"
#include "params.h"
#include "program.h"
#include "recorder.h"
#include "thread_pool.h"

struct DyclModel {
  dycl::Params params;
  std::unique_ptr<dycl::DeviceModel> device;  // null: all runs on the CPU
  std::atomic<uint32_t> references{1};

  void Release() {
    if (references.fetch_sub(1) == 1) delete this;
  }
};

struct DyclSession {
 public:
  // Returns a DyclStatus.
  [[nodiscard]] static int32_t Create(DyclModel* model, DyclSession** out);
  ~DyclSession();
  DyclSession(const DyclSession&) = delete;
  DyclSession& operator=(const DyclSession&) = delete;

  static uint64_t BlockBytes();

  [[nodiscard]] int32_t SetNumThreads(int32_t num_threads);
  [[nodiscard]] int32_t SetDeviceBranches(bool on);
  [[nodiscard]] int32_t Run(const DyclValue* inputs, size_t num_inputs,
                            const DyclRunOptions& options, int32_t* site);
  // Ends the run that goes on. For other threads and signal handlers.
  void Cancel() { dycl::Cancel(frame_); }
  // Returns a DyclStatus: a device may fail.
  [[nodiscard]] int32_t ResetState();
  // The state variables as bytes, StateBytes() of them.
  static uint64_t StateBytes();
  [[nodiscard]] int32_t GetState(char* to);
  [[nodiscard]] int32_t SetState(const char* from);
  // Gives the generator of random numbers a seed, if the network draws from it.
  [[nodiscard]] int32_t ManualSeed(uint64_t seed);

  // The last run's return site; kRunFailed before the first run and after a failed one.
  [[nodiscard]] int32_t site() const { return site_; }
  [[nodiscard]] int32_t GetOutput(size_t k, DyclValue* out);
  // Copies an output to a compact tensor of its type, on the host or the device.
  [[nodiscard]] int32_t CopyOutput(size_t k, const DLTensor& to);
  // Copies a compact tensor to memory where the model's tensors live: on its device, or aligned in
  // CPU memory. `*data` is given back by FreeTensor, also after the session is gone.
  [[nodiscard]] int32_t TakeTensor(const DLTensor& from, void** data, DLDevice* device);
  static void FreeTensor(DyclModel* model, void* data);
  DyclModel* model() const { return model_; }
  const dycl::Frame& frame() const { return frame_; }

  // From the next run on events go into a ring of the caller's, until StopProfile.
  [[nodiscard]] int32_t StartProfile(DyclEvent* events, size_t capacity);
  [[nodiscard]] int32_t StopProfile();
  [[nodiscard]] int32_t ReadProfile(DyclEvent* events, size_t capacity, size_t* written,
                                    uint64_t* lost);

 private:
  explicit DyclSession(DyclModel* model) : model_(model) {}

  void Bind();
  // Calls use(scalar, tensor, bytes) on each state variable, which is one of the two.
  template <class Use>
  [[nodiscard]] int32_t EachState(Use use);
  [[nodiscard]] int32_t SeedOnDevice(char* state, uint64_t seed);
  [[nodiscard]] int32_t BindInput(uint32_t k, const DyclValue& value);
  // Whether an address is in the memory for inputs that are copied.
  bool IsStaged(const char* data) const;
  [[nodiscard]] int32_t BindSizes(const DyclValue* inputs);
  [[nodiscard]] int32_t BindTensor(uint32_t k, const DLTensor* given);
  [[nodiscard]] int32_t UploadTensor(const dycl::InputDesc& want, const DLTensor& given);
  [[nodiscard]] int32_t RunBound(const DyclValue* inputs, const DyclRunOptions& options);
  // Runs the dispatcher; on a device then brings the outputs to where the inputs were.
  [[nodiscard]] int32_t RunProgram();
  [[nodiscard]] int32_t PlaceOutputs();
  // Points every view of an input at the caller's bytes, or at the staging area.
  void PlaceInput(uint32_t input, void* data);

  DyclModel* model_;
  char* block_ = nullptr;
  uint64_t block_bytes_ = 0;
  dycl::Frame frame_{};
  void** inputs_data_ = nullptr;  // where each input of this run lies
  char** staging_ = nullptr;      // an aligned place for each input
  char** state_tensors_ = nullptr;
  dycl::Scalar* input_scalars_ = nullptr;
  DLTensor* views_ = nullptr;  // the outputs as the caller sees them
  int64_t* view_strides_ = nullptr;
  int64_t* view_shapes_ = nullptr;  // of outputs that are the first elements of a tensor
  std::unique_ptr<dycl::DeviceSession> device_;
  bool device_inputs_ = false;    // whether an input of this run lies on the device
  char** output_data_ = nullptr;  // where the outputs of a run on a device lie
  int32_t site_ = dycl::kRunFailed;
  int32_t num_threads_ = 0;
  std::unique_ptr<dycl::ThreadPool> pool_;  // null: the shared one
  std::atomic<bool> running_{false};
  dycl::Recorder recorder_;
};

#endif  // DYCL_RUNTIME_SESSION_H_
