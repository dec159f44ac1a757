// Licensed under the Apache License, Version 2.0; see LICENSE.
// The code and weights of a program on a CUDA GPU.
#ifndef DYCL_RUNTIME_CUDA_MODEL_H_
#define DYCL_RUNTIME_CUDA_MODEL_H_

#include <vector>

#include "cuda_driver.h"
#include "device.h"

namespace dycl {
namespace cuda {

// Makes a context current as long as it lives; the caller's own one comes back afterwards.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, Context context) : driver_(driver) {
    result_ = driver.CtxPush(context);
  }
  ~ScopedContext() {
    Context popped;
    if (result_ == kSuccess) driver_.CtxPop(&popped);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  Result result() const { return result_; }

 private:
  const Driver& driver_;
  Result result_;
};

inline Pointer ToPointer(const void* address) { return reinterpret_cast<uintptr_t>(address); }
inline void* ToAddress(Pointer pointer) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
}

class CudaModel final : public DeviceModel {
 public:
  CudaModel(const Driver& driver, const DeviceDesc& program) : driver_(driver), program_(program) {}
  ~CudaModel() override;

  // Takes the GPU, loads the code, copies the weights. Returns a DyclStatus.
  int32_t Open(const Params& params);

  int32_t CreateSession(const SessionSizes& sizes, std::unique_ptr<DeviceSession>* out) override;
  void* weight(uint32_t k) const override { return weights_[k]; }
  int32_t Take(uint64_t bytes, void** out) override;
  void GiveBack(void* memory) override;

  const Driver& driver() const { return driver_; }
  const DeviceDesc& program() const { return program_; }
  Context context() const { return context_; }
  int ordinal() const { return ordinal_; }
  // The function of a row of DeviceDesc::launches.
  Function function(uint32_t launch) const { return functions_[launch]; }
  // The function that sets the condition of a branch on an item of that type; null where the driver
  // has no conditional nodes.
  Function condition(DType item) const;
  // Memory of the GPU, or an error that says what it was for.
  int32_t Allocate(uint64_t bytes, const char* what, Pointer* out) const;

 private:
  int32_t LoadCode(int number);
  void LoadConditions();
  // Tells kernels that draw random numbers how many threads the GPU runs at once.
  int32_t TellThreads();
  int32_t FindFunctions();
  // Writes to the GPU, and waits for it.
  Result Write(Pointer to, const void* from, uint64_t bytes) const;
  int32_t CopyWeights(const Params& params);

  const Driver& driver_;
  const DeviceDesc& program_;
  int ordinal_ = 0;
  Device device_ = 0;
  Context context_ = nullptr;
  Module module_ = nullptr;
  Module conditions_module_ = nullptr;
  Function conditions_[3] = {};
  Pointer weights_block_ = 0;
  std::vector<Function> functions_;
  std::vector<void*> weights_;
};

// A stretch is run this often before it is made a graph: paths that are rare stay cheap.
constexpr uint32_t kRunsBeforeGraph = 2;

// Memory of the session: in one block on the GPU, and pinned on the host.
class CudaSession final : public DeviceSession {
 public:
  explicit CudaSession(const CudaModel* model) : model_(model), driver_(model->driver()) {}
  ~CudaSession() override;
  int32_t Allocate(const SessionSizes& sizes);

  DLDevice device() const override { return DLDevice{kDLCUDA, model_->ordinal()}; }
  void* Place(const TensorDesc& tensor) const override;
  bool Owns(const void* address, uint64_t bytes) const override;
  char* host_outputs() const override { return pinned_ + PinnedBytes(); }
  int32_t Bind(const Frame& frame) override;

  void SetStream(bool given, void* stream) override;
  int32_t Begin() override;
  int32_t End(Waits waits) override;
  bool Upload(void* to, const void* from, uint64_t bytes) override;
  bool Download(void* to, const void* from, uint64_t bytes) override;
  bool Copy(void* to, const void* from, uint64_t bytes) override;
  bool CopyRows(void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch,
                uint64_t row_bytes, uint64_t rows) override;
  bool Zero(void* to, uint64_t bytes) override;
  bool Store(void* to, const void* item, uint32_t bytes) override;
  bool Fetch(uint32_t slot, const void* from, uint32_t bytes) override;
  bool Wait() override;
  const void* Fetched(uint32_t slot) const override { return pinned_ + slot * kItemBytes; }
  bool Launch(uint32_t first, uint32_t count) override;

  bool TakesBranches(uint32_t segment) override;
  bool Branches(Frame& frame, uint32_t segment) override;
  bool Settle() override;
  void SetDeviceBranches(bool on) override { branches_on_ = on; }

 private:
  static constexpr uint64_t kItemBytes = 8;

  // A launch of a call: the pointers to its arguments are made once.
  struct Prepared {
    uint32_t launch;  // in DeviceDesc::launches
    void** args;
  };
  // A stretch of calls as a graph. Its arguments are those of `generation`.
  struct Stretch {
    GraphExec graph = nullptr;
    uint64_t generation = 0;
    uint32_t runs = 0;
  };
  // A segment that was started, and whose decisions the host does not know yet.
  struct Started {
    uint32_t segment;
    uint64_t path;  // the place of its first decision
  };

  // What stands before the outputs in pinned memory: items, and one choice for each branch.
  uint64_t PinnedBytes() const;
  const int64_t* choices() const {
    return reinterpret_cast<const int64_t*>(pinned_ + kFetchSlots * kItemBytes);
  }
  bool CaptureSegment(uint32_t segment, Stretch* stretch);
  Result CaptureSteps(Stream stream, const StepRange& steps);
  Result CaptureBranch(const DeviceBranchDesc& branch, Pointer record);
  uint32_t FirstBranch(uint32_t segment) const;
  bool TakeDecisions();

  // The blocks of a launch.
  struct Grid {
    uint32_t x, y, z;
    bool IsEmpty() const { return x == 0 || y == 0 || z == 0; }
  };
  Grid GridOf(const LaunchDesc& launch, uint32_t least) const;

  bool Check(Result result, const char* what);
  Result LaunchEach(uint32_t first, uint32_t count, Stream stream);
  LibraryCall CallOf(uint32_t launch, LibraryStep step);
  int32_t PrepareLibraries(uint64_t* workspace_bytes);
  // What is put on the stream between these two becomes the graph of a stretch; `built` says
  // whether all of it could be.
  bool BeginCapture(Stretch* stretch);
  bool EndCapture(Stretch* stretch, Result built);
  bool CallsLibrary(uint32_t first, uint32_t count) const;
  uint64_t Generation();

  const CudaModel* model_;
  const Driver& driver_;
  Stream own_stream_ = nullptr;  // graphs are captured from it, whichever they are launched on
  Stream stream_ = nullptr;      // where work goes
  bool is_callers_ = false;      // whether that is a stream of the caller's
  bool to_host_ = false;         // whether something is on its way to the host
  Event done_ = nullptr;         // the end of what was last put on a stream of the caller's
  bool pending_ = false;         // whether nobody has waited for it
  KernelState libraries_[kNumLibraryStates] = {};
  std::vector<KernelState> library_launches_;  // of each row of DeviceDesc::launches
  Pointer block_ = 0;
  uint64_t block_bytes_ = 0;
  char* pinned_ = nullptr;
  Pointer arena_ = 0;
  std::vector<Pointer> inputs_;
  std::vector<Pointer> state_;
  Pointer workspace_ = 0;
  Pointer library_workspace_ = 0;
  const Frame* frame_ = nullptr;
  std::vector<Prepared> prepared_;      // of all calls, in order
  std::vector<uint32_t> first_launch_;  // of each call, in prepared_; one more at the end
  std::vector<void*> args_;
  std::vector<Pointer> workspace_places_;
  std::vector<Stretch> stretches_;   // by the first call
  std::vector<const void*> seen_;    // where the inputs lay when the generation began
  std::vector<int64_t> seen_sizes_;  // and the sizes on which grids depend
  uint64_t generation_ = 1;
  bool graphs_ = false;

  // Segments: branches that the device takes.
  std::vector<Stretch> segments_;
  std::vector<Started> started_;
  Pointer records_ = 0;           // the choices, on the device
  Stream body_stream_ = nullptr;  // to capture the sides of branches
  Frame* running_ = nullptr;      // the frame whose path has the places of `started_`
  bool conditionals_ = false;     // whether the driver builds them
  bool branches_on_ = true;       // what the user wants
};

}  // namespace cuda
}  // namespace dycl

#endif  // DYCL_RUNTIME_CUDA_MODEL_H_
