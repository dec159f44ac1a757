// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "session.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "error.h"
#include "random.h"
#include "tensor_copy.h"
#include "workspace.h"

using dycl::kAlign;
using dycl::Kind;
using dycl::kProgram;
using dycl::Space;
using dycl::TensorDesc;

namespace {

const int64_t* DimsOf(const TensorDesc& t) { return kProgram.dims.data + t.dims; }

uint64_t BytesOf(const TensorDesc& t) { return dycl::NumBytes(t.dtype, DimsOf(t), t.ndim); }

uint32_t MaxRank() {
  uint32_t rank = 1;
  for (uint32_t t = 0; t < kProgram.tensors.size; ++t) {
    if (kProgram.tensors[t].ndim > rank) rank = kProgram.tensors[t].ndim;
  }
  return rank;
}

// Hands out parts of one block; without a block it only adds up.
class Carver {
 public:
  explicit Carver(char* block) : block_(block) {}
  template <class T = char>
  T* Take(uint64_t count) {
    uint64_t at = used_;
    used_ += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return block_ != nullptr ? reinterpret_cast<T*>(block_ + at) : nullptr;
  }
  uint64_t used() const { return used_; }

 private:
  char* block_;
  uint64_t used_ = 0;
};

struct Layout {
  char* arena;
  DLTensor* tensors;
  TVMFFIAny* args;
  dycl::Call* calls;
  dycl::KernelState* kernel_states;
  uint32_t* call_runs;
  uint64_t* path;
  dycl::Scalar* inputs;
  dycl::Scalar* state;
  dycl::Output* outputs;
  void** input_data;
  char** staging;
  int64_t* held;
  char** state_tensors;
  DLTensor* views;
  int64_t* view_strides;
  int64_t* view_shapes;
  char** output_data;
  dycl::Target* targets;
  DyclValue* later_inputs;
  const DLTensor** later_outputs;
};

// `arena`: whether the arena is a part of the block, its first.
uint64_t Carve(char* block, bool arena, const dycl::SessionSizes& sizes, Layout* l) {
  Carver c(block);
  bool on_device = kProgram.device != nullptr;
  l->arena = c.Take(arena && !on_device ? sizes.arena_bytes() : 0);
  l->tensors = c.Take<DLTensor>(kProgram.tensors.size);
  l->args = c.Take<TVMFFIAny>(kProgram.args.size);
  l->calls = c.Take<dycl::Call>(kProgram.calls.size);
  l->kernel_states = c.Take<dycl::KernelState>(kProgram.calls.size);
  l->call_runs = c.Take<uint32_t>(kProgram.calls.size);
  l->path = c.Take<uint64_t>(dycl::kPathCapacity);
  l->inputs = c.Take<dycl::Scalar>(kProgram.inputs.size);
  l->state = c.Take<dycl::Scalar>(kProgram.state.size);
  l->outputs = c.Take<dycl::Output>(kProgram.max_leaves);
  l->input_data = c.Take<void*>(kProgram.inputs.size);
  l->staging = c.Take<char*>(kProgram.inputs.size);
  l->held = c.Take<int64_t>(static_cast<uint64_t>(kProgram.inputs.size) * MaxRank());
  l->state_tensors = c.Take<char*>(kProgram.state.size);
  l->views = c.Take<DLTensor>(kProgram.max_leaves);
  l->view_strides = c.Take<int64_t>(static_cast<uint64_t>(kProgram.max_leaves) * MaxRank());
  l->view_shapes = c.Take<int64_t>(static_cast<uint64_t>(kProgram.max_leaves) * MaxRank());
  for (uint32_t k = 0; k < kProgram.inputs.size; ++k) {
    if (kProgram.inputs[k].kind != Kind::kTensor) continue;
    char* place = c.Take(BytesOf(kProgram.tensors[kProgram.inputs[k].tensor]));
    if (block != nullptr) l->staging[k] = place;
  }
  l->output_data = c.Take<char*>(kProgram.max_leaves);
  l->targets = c.Take<dycl::Target>(kProgram.max_leaves);
  l->later_inputs = c.Take<DyclValue>(kProgram.num_given());
  l->later_outputs = c.Take<const DLTensor*>(kProgram.max_leaves);
  for (uint32_t k = 0; k < kProgram.state.size; ++k) {
    if (kProgram.state[k].kind != Kind::kTensor || on_device) continue;
    char* place = c.Take(BytesOf(kProgram.tensors[kProgram.state[k].tensor]));
    if (block != nullptr) l->state_tensors[k] = place;
  }
  return c.used();
}

}  // namespace

uint64_t DyclSession::BlockBytes(bool arena, const dycl::SessionSizes& sizes) {
  Layout layout;
  return Carve(nullptr, arena, sizes, &layout);
}

int32_t DyclSession::CheckArena(const DyclSessionOptions& options) const {
  auto* arena = static_cast<char*>(options.arena);
  if (arena == nullptr) {
    return options.arena_bytes == 0 ? DYCL_OK : dycl::UsageError("'arena' must not be NULL");
  }
  if (model_->device != nullptr) {
    return dycl::UsageError("'%s' has its arena on the GPU; it cannot be memory of the caller",
                            kProgram.name);
  }
  if (options.arena_bytes < sizes_.arena_bytes()) {
    return dycl::UsageError("the arena has %" PRIu64 " bytes, '%s' needs %" PRIu64,
                            options.arena_bytes, kProgram.name, sizes_.arena_bytes());
  }
  if ((reinterpret_cast<uintptr_t>(arena) & (kAlign - 1)) != 0) {
    return dycl::UsageError("the arena must begin at a multiple of %" PRIu64 " bytes", kAlign);
  }
  if (model_->params.Holds(arena, options.arena_bytes)) {
    return dycl::UsageError("the arena lies in the weights");
  }
  return DYCL_OK;
}

int32_t DyclSession::Create(DyclModel* model, const DyclSessionOptions& options,
                            DyclSession** out) {
  std::unique_ptr<DyclSession> session(new DyclSession(model));
  model->references.fetch_add(1);
  if (int32_t status = session->sizes_.Read(options)) return status;
  if (int32_t status = session->CheckArena(options)) return status;
  uint64_t bytes = BlockBytes(options.arena == nullptr, session->sizes_);
  void* block = nullptr;
  if (posix_memalign(&block, kAlign, bytes + kAlign) != 0) return dycl::MemoryError(bytes);
  session->block_ = static_cast<char*>(block);
  session->block_bytes_ = bytes;
  if (model->device != nullptr) {
    if (int32_t status = model->device->CreateSession(session->sizes_, &session->device_))
      return status;
  }
  session->Bind(static_cast<char*>(options.arena));
  if (session->device_ != nullptr) {
    if (int32_t status = session->device_->Bind(session->frame_)) return status;
  }
  if (int32_t status = session->ResetState()) return status;
  *out = session.release();
  return DYCL_OK;
}

DyclSession::~DyclSession() {
  EndAsync();
  device_.reset();
  for (uint32_t c = 0; frame_.calls != nullptr && c < kProgram.calls.size; ++c) {
    frame_.calls[c].state->Release();
  }
  free(frame_.stack.data);
  free(block_);
  model_->Release();
  dycl::FreeUnusedWorkspaces();
}

void DyclSession::Bind(char* arena) {
  Layout l;
  Carve(block_, arena == nullptr, sizes_, &l);
  // The arena may hold anything; the tables after it begin as zeros. Then the places go into them.
  auto* tables = reinterpret_cast<char*>(l.tensors);
  memset(tables, 0, block_bytes_ - static_cast<uint64_t>(tables - block_));
  Carve(block_, arena == nullptr, sizes_, &l);
  arena_ = arena != nullptr ? arena : l.arena;
  inputs_data_ = l.input_data;
  staging_ = l.staging;
  held_ = l.held;
  state_tensors_ = l.state_tensors;
  input_scalars_ = l.inputs;
  views_ = l.views;
  view_strides_ = l.view_strides;
  view_shapes_ = l.view_shapes;
  output_data_ = l.output_data;
  targets_ = l.targets;
  later_.inputs = l.later_inputs;
  later_.outputs = l.later_outputs;

  for (uint32_t t = 0; t < kProgram.tensors.size; ++t) {
    const TensorDesc& desc = kProgram.tensors[t];
    DLTensor& tensor = l.tensors[t];
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = desc.ndim;
    tensor.dtype = dycl::ToDLDataType(desc.dtype);
    tensor.shape = const_cast<int64_t*>(DimsOf(desc));
    tensor.strides = nullptr;  // compact; kernels check that faster than strides
    if (device_ != nullptr) {
      tensor.device = device_->device();
      tensor.data = device_->Place(desc);
      continue;
    }
    switch (desc.space) {
      case Space::kArena:
        tensor.data = ArenaPlace(desc);
        break;
      case Space::kInput:
        tensor.data = l.staging[desc.index];
        break;
      case Space::kWeight:
        tensor.data = const_cast<void*>(model_->params.weight(desc.index));
        break;
      case Space::kState:
        tensor.data = l.state_tensors[desc.index];
        break;
    }
  }
  for (uint32_t a = 0; a < kProgram.args.size; ++a) {
    l.args[a].type_index = kTVMFFIDLTensorPtr;
    l.args[a].v_ptr = &l.tensors[kProgram.args[a]];
  }
  for (uint32_t c = 0; c < kProgram.calls.size; ++c) {
    const dycl::CallDesc& desc = kProgram.calls[c];
    l.calls[c] = dycl::Call{kProgram.kernels[desc.kernel].function, l.args + desc.first_arg,
                            static_cast<int32_t>(desc.num_args), l.kernel_states + c};
  }
  frame_ = dycl::Frame{
      l.tensors,     l.calls,         l.call_runs,  l.path,    0, l.inputs, l.state, l.outputs,
      device_.get(), {nullptr, 0, 0}, view_shapes_, MaxRank(), 0, 0,        nullptr, 0,
      nullptr,       dycl::kNotCut};
}

char* DyclSession::ArenaPlace(const TensorDesc& tensor) const {
  return tensor.offset + BytesOf(tensor) <= sizes_.arena_bytes() ? arena_ + tensor.offset : nullptr;
}

int32_t DyclSession::ResetState() {
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; reset its state before or after");
  }
  if (device_ != nullptr) {
    if (int32_t status = device_->Begin()) return status;
  }
  bool good = true;
  for (uint32_t k = 0; k < kProgram.state.size; ++k) {
    const dycl::StateDesc& state = kProgram.state[k];
    uint64_t bytes = state.kind == Kind::kTensor ? BytesOf(kProgram.tensors[state.tensor]) : 0;
    if (state.kind != Kind::kTensor) {
      frame_.state[k] = state.initial;
    } else if (device_ != nullptr) {
      good = good && device_->Copy(frame_.tensors[state.tensor].data,
                                   model_->device->weight(state.weight), bytes);
    } else {
      memcpy(state_tensors_[k], model_->params.weight(state.weight), bytes);
    }
  }
  if (device_ == nullptr) return DYCL_OK;
  int32_t status = device_->End();
  return good ? status : dycl::LastStatus();
}

int32_t DyclSession::ManualSeed(uint64_t seed) {
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; give it a seed before or after");
  }
  int32_t status = DYCL_OK;
  for (uint32_t k = 0; k < kProgram.state.size; ++k) {
    if (strcmp(kProgram.state[k].name, dycl::random::kDefaultGenerator) != 0) continue;
    if (device_ == nullptr) {
      dycl::random::Generator(state_tensors_[k]).Seed(seed);
    } else {
      status =
          SeedOnDevice(static_cast<char*>(frame_.tensors[kProgram.state[k].tensor].data), seed);
    }
  }
  return status;
}

// The state of a generator on a GPU is its seed and how far it is.
int32_t DyclSession::SeedOnDevice(char* state, uint64_t seed) {
  if (int32_t status = device_->Begin()) return status;
  uint64_t offset = 0;
  bool good = device_->Store(state, &seed, 8) && device_->Store(state + 8, &offset, 8);
  int32_t status = device_->End();
  return good ? status : dycl::LastStatus();
}

int32_t DyclSession::SetNumThreads(int32_t num_threads) {
  if (num_threads < 0) return dycl::UsageError("the number of threads must not be negative");
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; set its threads before or after");
  }
  pool_.reset(num_threads == 0 ? nullptr : new dycl::ThreadPool(num_threads));
  num_threads_ = num_threads;
  return DYCL_OK;
}

int32_t DyclSession::SetPriority(int32_t priority) {
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; set its priority before or after");
  }
  return priority_.Set(priority);
}

int32_t DyclSession::SetDeviceBranches(bool on) {
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; say who takes branches before or after");
  }
  if (device_ != nullptr) device_->SetDeviceBranches(on);
  return DYCL_OK;
}

int32_t DyclSession::SetCudaStream(bool given, void* stream) {
  dycl::InUse use(&running_);
  if (!use.taken()) {
    return dycl::UsageError("the session is running; give it a stream before or after");
  }
  if (device_ == nullptr) {
    return given
               ? dycl::UsageError("'%s' was built for CPUs; it takes no CUDA stream", kProgram.name)
               : DYCL_OK;
  }
  device_->SetStream(given, stream);
  callers_stream_ = given;
  return DYCL_OK;
}

int64_t* DyclSession::HeldOf(const TensorDesc& input) const {
  return held_ + static_cast<uint64_t>(input.index) * frame_.max_rank;
}

void DyclSession::PlaceInput(uint32_t input, void* data) {
  if (inputs_data_[input] == data) return;
  inputs_data_[input] = data;
  for (uint32_t t = 0; t < kProgram.tensors.size; ++t) {
    const TensorDesc& desc = kProgram.tensors[t];
    // Generated tables begin with the inputs' tensors.
    if (desc.space != Space::kInput) break;
    if (desc.index == input) frame_.tensors[t].data = data;
  }
}

// Before any input is copied: what is larger than its buffer must not be.
int32_t DyclSession::BindSizes(const DyclValue* inputs) {
  for (uint32_t k = 0; k < kProgram.num_given(); ++k) {
    if (kProgram.inputs[k].kind != Kind::kTensor || inputs[k].type != DYCL_TENSOR) continue;
    if (int32_t status = dycl::CheckTensor(k, inputs[k].u.tensor, sizes_)) return status;
  }
  for (uint32_t k = 0; k < kProgram.sized_dims.size; ++k) {
    const dycl::SizedDim& d = kProgram.sized_dims[k];
    if (inputs[d.input].type == DYCL_TENSOR) continue;
    return BindInput(d.input, inputs[d.input]);
  }
  return dycl::Measure(inputs, sizes_, input_scalars_ + kProgram.num_given());
}

bool DyclSession::IsStaged(const char* data) const {
  for (uint32_t k = 0; k < kProgram.inputs.size; ++k) {
    if (kProgram.inputs[k].kind != Kind::kTensor) continue;
    const char* begin = staging_[k];
    if (data >= begin && data < begin + BytesOf(kProgram.tensors[kProgram.inputs[k].tensor])) {
      return true;
    }
  }
  return false;
}

int32_t DyclSession::BindTensor(uint32_t k, const DLTensor* given) {
  const dycl::InputDesc& want = kProgram.inputs[k];
  const TensorDesc& desc = kProgram.tensors[want.tensor];
  if (int32_t status = dycl::CheckTensor(k, given, sizes_)) return status;
  if (device_ != nullptr) return UploadTensor(want, *given);
  uint64_t bytes = BytesOf(desc);
  char* data = static_cast<char*>(given->data) + given->byte_offset;
  bool aligned = (reinterpret_cast<uintptr_t>(data) & (kAlign - 1)) == 0;
  bool whole = dycl::TensorBytes(*given) == bytes;  // else it is less than its buffer has room for
  // A view of this session's own memory (the output of its last run) would be written over.
  bool own = IsOwn(data, bytes);
  char* staging = staging_[desc.index];
  // A view of an input that the last run has returned, and the inputs before may have been written
  // over.
  bool stays = data == staging && dycl::IsContiguous(*given) && dycl::IsFront(*given, DimsOf(desc));
  if (own && !stays && IsStaged(data)) {
    return dycl::InputError(
        "input '%s': the tensor lies where the session keeps inputs that it copied; give a copy",
        want.name);
  }
  if (bytes == 0) {
    PlaceInput(desc.index, staging);
  } else if (aligned && !own && whole && dycl::IsContiguous(*given) && !IsTarget(data, bytes)) {
    PlaceInput(desc.index, data);
  } else {
    dycl::CopyToFront(*given, dycl::ItemBytes(desc.dtype), DimsOf(desc), staging, HeldOf(desc));
    PlaceInput(desc.index, staging);
  }
  return DYCL_OK;
}

int32_t DyclSession::BindInput(uint32_t k, const DyclValue& value) {
  const dycl::InputDesc& want = kProgram.inputs[k];
  dycl::Scalar& scalar = input_scalars_[k];
  constexpr const char* kNames[] = {"a tensor", "an int", "a float", "a bool"};
  const char* given = value.type >= 0 && value.type < 4 ? kNames[value.type] : "nothing known";
  switch (want.kind) {
    case Kind::kTensor:
      if (value.type != DYCL_TENSOR) break;
      return BindTensor(k, value.u.tensor);
    case Kind::kInt:
      if (value.type != DYCL_INT && value.type != DYCL_BOOL) break;
      scalar.i = value.type == DYCL_INT ? value.u.v_int : static_cast<int64_t>(value.u.v_bool != 0);
      return DYCL_OK;
    case Kind::kFloat:
      if (value.type == DYCL_FLOAT) {
        scalar.f = value.u.v_float;
      } else if (value.type == DYCL_INT) {
        scalar.f = static_cast<double>(value.u.v_int);
      } else {
        break;
      }
      return DYCL_OK;
    case Kind::kBool:
      if (value.type != DYCL_BOOL) break;
      scalar.i = 0;
      scalar.b = value.u.v_bool != 0;
      return DYCL_OK;
  }
  return dycl::InputError("input '%s': expected %s, got %s", want.name,
                          kNames[static_cast<int>(want.kind)], given);
}

int32_t DyclSession::CheckCounts(size_t num_inputs, size_t num_outputs) {
  if (num_inputs != kProgram.num_given()) {
    return dycl::InputError("'%s' takes %u inputs, got %zu", kProgram.name, kProgram.num_given(),
                            num_inputs);
  }
  if (num_outputs <= kProgram.max_leaves) return DYCL_OK;
  return dycl::UsageError("tensors for %zu outputs were given, there are %" PRIu32 " at most",
                          num_outputs, kProgram.max_leaves);
}

int32_t DyclSession::AlreadyRunning() {
  return dycl::UsageError(
      "the session is already running in another thread; give each thread its own");
}

int32_t DyclSession::Run(const DyclValue* inputs, size_t num_inputs, const DLTensor* const* outputs,
                         size_t num_outputs, const DyclRunOptions& options, int32_t* site) {
  if (int32_t status = CheckCounts(num_inputs, num_outputs)) return status;
  dycl::InUse use(&running_);
  if (!use.taken()) return AlreadyRunning();
  dycl::BeginControl(frame_, options);
  return RunBegun(inputs, outputs, num_outputs, options, site);
}

int32_t DyclSession::RunBegun(const DyclValue* inputs, const DLTensor* const* outputs,
                              size_t num_outputs, const DyclRunOptions& options, int32_t* site) {
  int32_t status = BindOutputs(outputs, num_outputs);
  if (status == DYCL_OK) status = RunBound(inputs, options);
  if (status == DYCL_OK) status = CopyToTargets();
  if (status != DYCL_OK) site_ = dycl::kRunFailed;
  if (site != nullptr) *site = site_;
  return status;
}

int32_t DyclSession::RunBound(const DyclValue* inputs, const DyclRunOptions& options) {
  dycl::RecordedRun recorded(frame_);
  dycl::CancelOnSignal interruptible(&frame_, options.cancel_on_signal);
  site_ = dycl::kRunFailed;
  frame_.path_count = 0;
  frame_.cut_at = dycl::kNotCut;
  frame_.stack.used = 0;
  memset(frame_.call_runs, 0, kProgram.calls.size * sizeof(uint32_t));
  int32_t status = device_ != nullptr ? device_->Begin() : DYCL_OK;
  bool begun = device_ != nullptr && status == DYCL_OK;
  device_outputs_ = callers_stream_;
  if (status == DYCL_OK && kProgram.sizes.size != 0) status = BindSizes(inputs);
  for (uint32_t k = 0; k < kProgram.num_given() && status == DYCL_OK; ++k) {
    status = BindInput(k, inputs[k]);
  }
  if (status == DYCL_OK) status = dycl::CheckInputPairs(inputs);
  if (status == DYCL_OK) {
    if (pool_ != nullptr && !pool_->alive()) {
      std::unique_ptr<dycl::ThreadPool> pool(new dycl::ThreadPool(num_threads_));
      pool.swap(pool_);
      pool.release();  // left behind by fork(): its threads are not ours to join
    }
    dycl::ScopedPool scope(pool_.get());
    dycl::ScopedPriority rank(priority_);
    dycl::ClearError();
    recorded.Started();
    status = RunProgram();
    recorded.Ended(site_);
  }
  if (begun) {
    int32_t ended = device_->End(dycl::DeviceSession::Waits::kIfNeeded);
    if (status == DYCL_OK) status = ended;
  }
  return status;
}

int32_t DyclSession::RunProgram() {
  const uint32_t shortages = dycl::WorkspaceShortages();
  site_ = kProgram.run(frame_);
  if (site_ == dycl::kRunFailed && dycl::LastErrorKind()[0] == '\0') {
    // A kernel without memory only says that it failed.
    if (dycl::WorkspaceShortages() != shortages) {
      return dycl::NoMemory("there is no scratch memory: %s", dycl::LastErrorMessage());
    }
    dycl::SetError("RuntimeError", "%s", dycl::LastErrorMessage());
  }
  if (site_ == dycl::kRunFailed) return dycl::LastStatus();
  return device_ != nullptr ? PlaceOutputs() : DYCL_OK;
}
