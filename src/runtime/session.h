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
#include "library.h"
#include "params.h"
#include "priorities.h"
#include "program.h"
#include "recorder.h"
#include "session_sizes.h"
#include "thread_pool.h"
#include "worker.h"

namespace dycl {

// Where the caller wants a result of this run; none was given: nowhere.
struct Target {
  char* data;
  uint64_t bytes;  // of the largest that the result can be
  DLDevice device;
  bool given;
};

}  // namespace dycl

struct DyclModel {
  dycl::Alive alive{&dycl::g_living.models};
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
  [[nodiscard]] static int32_t Create(DyclModel* model, const DyclSessionOptions& options,
                                      DyclSession** out);
  ~DyclSession();
  DyclSession(const DyclSession&) = delete;
  DyclSession& operator=(const DyclSession&) = delete;

  // Bytes of its memory, with its arena or without.
  static uint64_t BlockBytes(bool arena, const dycl::SessionSizes& sizes);
  const dycl::SessionSizes& sizes() const { return sizes_; }

  [[nodiscard]] int32_t SetNumThreads(int32_t num_threads);
  [[nodiscard]] int32_t SetPriority(int32_t priority);
  [[nodiscard]] int32_t SetDeviceBranches(bool on);
  // Has runs put their work on a stream of the caller's, or on the session's own.
  [[nodiscard]] int32_t SetCudaStream(bool given, void* stream);
  // Results go to the tensors `outputs`; null ones, and others, stay in the session.
  [[nodiscard]] int32_t Run(const DyclValue* inputs, size_t num_inputs,
                            const DLTensor* const* outputs, size_t num_outputs,
                            const DyclRunOptions& options, int32_t* site);
  // Has a thread of the session do it; `done` is called there once the run is over, unless this
  // returns an error. The arrays are copied.
  [[nodiscard]] int32_t RunAsync(const DyclValue* inputs, size_t num_inputs,
                                 const DLTensor* const* outputs, size_t num_outputs,
                                 const DyclRunOptions& options, DyclDone done, void* user);
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
  [[nodiscard]] int32_t StartProfile(DyclEvent* events, size_t capacity, uint32_t every);
  [[nodiscard]] int32_t StopProfile();
  [[nodiscard]] int32_t ReadProfile(DyclEvent* events, size_t capacity, size_t* written,
                                    uint64_t* lost);

 private:
  explicit DyclSession(DyclModel* model) : model_(model) {}

  [[nodiscard]] int32_t CheckArena(const DyclSessionOptions& options) const;
  // `arena` is the caller's, or null.
  void Bind(char* arena);
  // Calls use(scalar, tensor, bytes) on each state variable, which is one of the two.
  template <class Use>
  [[nodiscard]] int32_t EachState(Use use);
  [[nodiscard]] int32_t SeedOnDevice(char* state, uint64_t seed);
  [[nodiscard]] int32_t BindInput(uint32_t k, const DyclValue& value);
  // Whether an address is in the memory for inputs that are copied.
  bool IsStaged(const char* data) const;
  bool IsStagedOnDevice(const char* data) const;
  bool CopyToFrontThere(const DLTensor& from, const int64_t* dims, char* to);
  [[nodiscard]] int32_t BindSizes(const DyclValue* inputs);
  [[nodiscard]] int32_t BindTensor(uint32_t k, const DLTensor* given);
  [[nodiscard]] int32_t UploadTensor(const dycl::InputDesc& want, const DLTensor& given);
  // Of a session that may be running: they look at nothing of it.
  [[nodiscard]] static int32_t CheckCounts(size_t num_inputs, size_t num_outputs);
  [[nodiscard]] static int32_t AlreadyRunning();
  // Of a session that is marked as running, whose control has begun.
  [[nodiscard]] int32_t RunBegun(const DyclValue* inputs, const DLTensor* const* outputs,
                                 size_t num_outputs, const DyclRunOptions& options, int32_t* site);
  void RunLater();
  // Ends a run that goes on in the session's thread, and the thread.
  void EndAsync();
  [[nodiscard]] int32_t RunBound(const DyclValue* inputs, const DyclRunOptions& options);
  // Runs the dispatcher; on a device then brings the outputs to where the inputs were.
  [[nodiscard]] int32_t RunProgram();
  [[nodiscard]] int32_t PlaceOutputs();
  [[nodiscard]] int32_t BindOutputs(const DLTensor* const* outputs, size_t count);
  [[nodiscard]] int32_t AddTarget(uint32_t k, const DLTensor& to);
  void PlaceHome(const dycl::DirectDesc& direct, char* data);
  [[nodiscard]] int32_t CopyToTargets();
  // Whether bytes lie in CPU memory of this session, or where a result of this run is to go.
  bool IsOwn(const char* data, uint64_t bytes) const;
  bool IsTarget(const char* data, uint64_t bytes) const;
  // Where a tensor of the arena lies; null for one that no call of the session's sizes uses.
  char* ArenaPlace(const dycl::TensorDesc& tensor) const;
  // The extents of what was copied last to an input's place; behind them it is zero.
  [[nodiscard]] int64_t* HeldOf(const dycl::TensorDesc& input) const;
  // Points every view of an input at the caller's bytes, or at the staging area.
  void PlaceInput(uint32_t input, void* data);

  dycl::Alive alive_{&dycl::g_living.sessions};
  DyclModel* model_;
  dycl::SessionSizes sizes_;
  char* block_ = nullptr;
  uint64_t block_bytes_ = 0;
  dycl::Frame frame_{};
  void** inputs_data_ = nullptr;  // where each input of this run lies
  char** staging_ = nullptr;      // an aligned place for each input
  int64_t* held_ = nullptr;       // of each, the extents of what was copied there last
  char** state_tensors_ = nullptr;
  dycl::Scalar* input_scalars_ = nullptr;
  DLTensor* views_ = nullptr;  // the outputs as the caller sees them
  int64_t* view_strides_ = nullptr;
  int64_t* view_shapes_ = nullptr;  // of outputs that are the first elements of a tensor
  std::unique_ptr<dycl::DeviceSession> device_;
  bool callers_stream_ = false;   // whether runs go to a stream of the caller's
  bool device_outputs_ = false;   // whether outputs of this run stay on the device
  char** output_data_ = nullptr;  // where the outputs of a run on a device lie
  char* arena_ = nullptr;         // of a program that runs on the CPU
  dycl::Target* targets_ = nullptr;
  uint32_t num_targets_ = 0;
  int32_t site_ = dycl::kRunFailed;
  int32_t num_threads_ = 0;
  std::unique_ptr<dycl::ThreadPool> pool_;  // null: the shared one
  dycl::SessionPriority priority_;
  std::atomic<bool> running_{false};
  dycl::Recorder recorder_;
  // The run that its thread does, or has done last.
  struct {
    DyclValue* inputs;
    const DLTensor** outputs;
    size_t num_outputs;
    DyclRunOptions options;
    DyclDone done;
    void* user;
  } later_{};
  std::unique_ptr<dycl::Worker> worker_;  // null before the first such run
};

#endif  // DYCL_RUNTIME_SESSION_H_
