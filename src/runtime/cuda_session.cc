// Licensed under the Apache License, Version 2.0; see LICENSE.
#include <cstdlib>
#include <cstring>

#include "cuda_model.h"
#include "dycl/dycl.h"
#include "error.h"

namespace dycl {
namespace cuda {
namespace {

constexpr uint64_t kDeviceAlign = 256;
// CUstream_flags: nothing runs on a stream that is only captured.
constexpr unsigned kNonBlocking = 1;
// Shorter stretches gain nothing.
constexpr uint32_t kLeastLaunches = 3;

uint64_t BytesOf(uint32_t tensor) {
  const TensorDesc& t = kProgram.tensors[tensor];
  return NumBytes(t.dtype, kProgram.dims.data + t.dims, t.ndim);
}

// Hands out parts of the session's block; without a block it only adds up.
class Parts {
 public:
  explicit Parts(Pointer block) : block_(block) {}
  Pointer Take(uint64_t bytes) {
    uint64_t at = used_;
    used_ += (bytes + kDeviceAlign - 1) / kDeviceAlign * kDeviceAlign;
    return block_ + at;
  }
  uint64_t used() const { return used_; }

 private:
  Pointer block_;
  uint64_t used_ = 0;
};

}  // namespace

CudaSession::~CudaSession() {
  ScopedContext current(driver_, model_->context());
  for (Stretch& s : stretches_) {
    if (s.graph != nullptr) driver_.GraphExecDestroy(s.graph);
  }
  for (Stretch& s : segments_) {
    if (s.graph != nullptr) driver_.GraphExecDestroy(s.graph);
  }
  if (body_stream_ != nullptr) driver_.StreamDestroy(body_stream_);
  if (pending_) driver_.EventSynchronize(done_);
  if (done_ != nullptr) driver_.EventDestroy(done_);
  if (own_stream_ != nullptr) {
    driver_.StreamSynchronize(own_stream_);
    for (KernelState& state : library_launches_) state.Release();
    for (KernelState& state : libraries_) state.Release();
    driver_.StreamDestroy(own_stream_);
  }
  if (block_ != 0) driver_.MemFree(block_);
  if (pinned_ != nullptr) driver_.MemFreeHost(pinned_);
}

int32_t CudaSession::Allocate(const SessionSizes& sizes) {
  const char* wanted = getenv("DYCL_CUDA_GRAPHS");
  graphs_ = driver_.has_graphs && (wanted == nullptr || strcmp(wanted, "0") != 0);
  // A blocking stream: it waits for what the caller put on the default stream, such as a
  // framework's kernels that compute the inputs.
  if (Result r = driver_.StreamCreate(&own_stream_, 0)) return Fail(r, "cannot make a CUDA stream");
  if (Result r = driver_.EventCreate(&done_, kNoTiming)) return Fail(r, "cannot make a CUDA event");
  stream_ = own_stream_;
  const DeviceDesc& device = model_->program();
  conditionals_ = graphs_ && model_->condition(DType::kBool) != nullptr;
  if (conditionals_ && driver_.StreamCreate(&body_stream_, kNonBlocking) != kSuccess)
    conditionals_ = false;
  segments_.resize(device.segments.size);
  started_.reserve(device.segments.size);
  inputs_.assign(kProgram.inputs.size, 0);
  state_.assign(kProgram.state.size, 0);
  uint64_t library_bytes = 0;
  if (int32_t status = PrepareLibraries(&library_bytes)) return status;
  for (int pass = 0; pass < 2; ++pass) {
    Parts parts(block_);
    arena_ = parts.Take(sizes.arena_bytes());
    workspace_ = parts.Take(device.workspace_bytes);
    library_workspace_ = parts.Take(library_bytes);
    records_ = parts.Take(device.branches.size * sizeof(int64_t));
    for (uint32_t k = 0; k < kProgram.inputs.size; ++k) {
      if (kProgram.inputs[k].kind != Kind::kTensor) continue;
      inputs_[k] = parts.Take(BytesOf(kProgram.inputs[k].tensor));
    }
    for (uint32_t k = 0; k < kProgram.state.size; ++k) {
      if (kProgram.state[k].kind != Kind::kTensor) continue;
      state_[k] = parts.Take(BytesOf(kProgram.state[k].tensor));
    }
    if (pass != 0) break;
    block_bytes_ = parts.used();
    if (int32_t status = model_->Allocate(block_bytes_, "tensors of a session", &block_)) {
      return status;
    }
  }
  uint64_t pinned = PinnedBytes() + device.output_bytes;
  void* memory = nullptr;
  if (Result r = driver_.MemHostAlloc(&memory, pinned, 0)) {
    return Fail(r, "cannot take %llu bytes of pinned memory",
                static_cast<unsigned long long>(pinned));
  }
  pinned_ = static_cast<char*>(memory);
  return DYCL_OK;
}

void* CudaSession::Place(const TensorDesc& tensor) const {
  switch (tensor.space) {
    case Space::kArena:
      return ToAddress(arena_ + tensor.offset);
    case Space::kInput:
      return ToAddress(inputs_[tensor.index]);
    case Space::kWeight:
      return model_->weight(tensor.index);
    case Space::kState:
      return ToAddress(state_[tensor.index]);
  }
  return nullptr;
}

bool CudaSession::Owns(const void* address, uint64_t bytes) const {
  Pointer at = ToPointer(address);
  return at + bytes > block_ && at < block_ + block_bytes_;
}

int32_t CudaSession::Bind(const Frame& frame) {
  frame_ = &frame;
  const DeviceDesc& device = model_->program();
  size_t num_args = 0;
  for (uint32_t c = 0; c < kProgram.calls.size; ++c) {
    const KernelLaunches& of = device.kernels[kProgram.calls[c].kernel];
    for (uint32_t k = of.first; k < of.first + of.count; ++k) {
      num_args += device.launches[k].num_args;
    }
  }
  // The pointers into these stay good: neither grows any more.
  args_.reserve(num_args);
  workspace_places_.reserve(num_args);
  for (uint32_t c = 0; c < kProgram.calls.size; ++c) {
    const CallDesc& call = kProgram.calls[c];
    const KernelLaunches& of = device.kernels[call.kernel];
    first_launch_.push_back(static_cast<uint32_t>(prepared_.size()));
    for (uint32_t k = of.first; k < of.first + of.count; ++k) {
      const LaunchDesc& launch = device.launches[k];
      prepared_.push_back(Prepared{k, args_.data() + args_.size()});
      for (uint32_t a = launch.first_arg; a < launch.first_arg + launch.num_args; ++a) {
        const LaunchArg& arg = device.args[a];
        if (arg.tensor == kNone) {
          workspace_places_.push_back(workspace_ + arg.offset);
          args_.push_back(&workspace_places_.back());
        } else {
          // The driver reads the address of the tensor at each launch.
          args_.push_back(&frame.tensors[kProgram.args[call.first_arg + arg.tensor]].data);
        }
      }
    }
  }
  first_launch_.push_back(static_cast<uint32_t>(prepared_.size()));
  stretches_.resize(kProgram.calls.size);
  seen_.assign(kProgram.tensors.size, nullptr);
  if (device.grid_sizes.size != 0) seen_sizes_.assign(kProgram.sizes.size, -1);
  return DYCL_OK;
}

uint64_t CudaSession::PinnedBytes() const {
  uint64_t bytes = kFetchSlots * kItemBytes + model_->program().branches.size * sizeof(int64_t);
  return (bytes + kDeviceAlign - 1) / kDeviceAlign * kDeviceAlign;
}

void CudaSession::SetStream(bool given, void* stream) {
  is_callers_ = given;
  stream_ = given ? static_cast<Stream>(stream) : own_stream_;
}

int32_t CudaSession::Begin() {
  Result r = driver_.CtxPush(model_->context());
  if (r != kSuccess) return Fail(r, "cannot use GPU %d", model_->ordinal());
  to_host_ = false;
  // What was put on another stream before uses the same memory.
  if (pending_) r = driver_.StreamWaitEvent(stream_, done_, 0);
  if (r == kSuccess) return DYCL_OK;
  Context popped;
  driver_.CtxPop(&popped);
  return Fail(r, "cannot use the CUDA stream");
}

int32_t CudaSession::End(Waits waits) {
  bool wait = !is_callers_ || to_host_ || waits == Waits::kAlways;
  Result r = wait ? driver_.StreamSynchronize(stream_) : driver_.EventRecord(done_, stream_);
  pending_ = !wait && r == kSuccess;
  Context popped;
  driver_.CtxPop(&popped);
  if (r == kSuccess) return TakeDecisions() ? DYCL_OK : DYCL_ERROR_RUN;
  if (!started_.empty()) running_->path_count = started_[0].path;  // nobody knows what they were
  started_.clear();
  return Fail(r, "the GPU failed in a run of '%s'", kProgram.name);
}

bool CudaSession::Check(Result result, const char* what) {
  if (result == kSuccess) return true;
  Fail(result, "%s in a run of '%s'", what, kProgram.name);
  return false;
}

bool CudaSession::Upload(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return true;
  return Check(driver_.MemcpyHtoDAsync(ToPointer(to), from, bytes, stream_),
               "cannot copy to the GPU");
}

bool CudaSession::Download(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0) return true;
  to_host_ = true;
  return Check(driver_.MemcpyDtoHAsync(to, ToPointer(from), bytes, stream_),
               "cannot copy from the GPU");
}

bool CudaSession::Copy(void* to, const void* from, uint64_t bytes) {
  if (bytes == 0 || to == from) return true;
  return Check(driver_.MemcpyDtoDAsync(ToPointer(to), ToPointer(from), bytes, stream_),
               "cannot copy on the GPU");
}

bool CudaSession::CopyRows(void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch,
                           uint64_t row_bytes, uint64_t rows) {
  if (row_bytes == 0 || rows == 0) return true;
  Copy2D copy;
  copy.from.device = ToPointer(from);
  copy.from.pitch = from_pitch;
  copy.to.device = ToPointer(to);
  copy.to.pitch = to_pitch;
  copy.width = row_bytes;
  copy.height = rows;
  return Check(driver_.Memcpy2DAsync(&copy, stream_), "cannot copy on the GPU");
}

bool CudaSession::Zero(void* to, uint64_t bytes) {
  if (bytes == 0) return true;
  return Check(driver_.MemsetD8Async(ToPointer(to), 0, bytes, stream_), "cannot write to the GPU");
}

bool CudaSession::Store(void* to, const void* item, uint32_t bytes) {
  Pointer at = ToPointer(to);
  Result r = kSuccess;
  if (bytes == 1) {
    r = driver_.MemsetD8Async(at, *static_cast<const unsigned char*>(item), 1, stream_);
  } else if (bytes == 2) {
    uint16_t value;
    memcpy(&value, item, 2);
    r = driver_.MemsetD16Async(at, value, 1, stream_);
  } else {
    for (uint32_t k = 0; k < bytes && r == kSuccess; k += 4) {
      uint32_t value;
      memcpy(&value, static_cast<const char*>(item) + k, 4);
      r = driver_.MemsetD32Async(at + k, value, 1, stream_);
    }
  }
  return Check(r, "cannot write a number to the GPU");
}

bool CudaSession::Fetch(uint32_t slot, const void* from, uint32_t bytes) {
  return Download(pinned_ + slot * kItemBytes, from, bytes);
}

bool CudaSession::Wait() {
  to_host_ = false;
  return Check(driver_.StreamSynchronize(stream_), "the GPU failed") && TakeDecisions();
}

LibraryCall CudaSession::CallOf(uint32_t launch, LibraryStep step) {
  LibraryCall call{};
  call.step = step;
  call.cuda_version = driver_.version;
  call.stream = stream_;
  call.libraries = libraries_;
  call.state = &library_launches_[launch];
  return call;
}

// Work on one stream is done in order: the calls share a workspace, that of the largest.
int32_t CudaSession::PrepareLibraries(uint64_t* workspace_bytes) {
  const Table<LaunchDesc>& launches = model_->program().launches;
  library_launches_.assign(launches.size, KernelState{});
  for (uint32_t k = 0; k < launches.size; ++k) {
    if (launches[k].library == nullptr) continue;
    LibraryCall call = CallOf(k, LibraryStep::kPrepare);
    call.workspace_bytes = workspace_bytes;
    if (int32_t status = launches[k].library(call)) return status;
  }
  return DYCL_OK;
}

// Where sizes of the call leave nothing to do there are no blocks, but at least `least`: that a
// side of a conditional node may be empty is promised nowhere.
CudaSession::Grid CudaSession::GridOf(const LaunchDesc& launch, uint32_t least) const {
  const DeviceDesc& device = model_->program();
  uint32_t blocks[3] = {launch.grid[0], launch.grid[1], launch.grid[2]};
  for (uint32_t k = launch.first_size; k < launch.first_size + launch.num_sizes; ++k) {
    const GridSize& of = device.grid_sizes[k];
    int64_t count = frame_->inputs[kProgram.num_given() + of.size].i;
    for (uint32_t s = of.first_step; s < of.first_step + of.num_steps; ++s) {
      count = device.grid_steps[s].At(count);
    }
    if (count < least) count = least;
    if (count < blocks[of.axis]) blocks[of.axis] = static_cast<uint32_t>(count);
  }
  return Grid{blocks[0], blocks[1], blocks[2]};
}

Result CudaSession::LaunchEach(uint32_t first, uint32_t count, Stream stream) {
  uint32_t end = first_launch_[first + count];
  for (uint32_t k = first_launch_[first]; k < end; ++k) {
    const Prepared& p = prepared_[k];
    const LaunchDesc& l = model_->program().launches[p.launch];
    if (l.library != nullptr) {
      LibraryCall call = CallOf(p.launch, LibraryStep::kRun);
      call.workspace = ToAddress(library_workspace_);
      call.args = p.args;
      if (l.library(call) != DYCL_OK) return kUnknown;  // it has set the error
      continue;
    }
    const bool in_branch = body_stream_ != nullptr && stream == body_stream_;
    const Grid grid = GridOf(l, in_branch ? 1 : 0);
    if (grid.IsEmpty()) continue;
    Result r =
        driver_.LaunchKernel(model_->function(p.launch), grid.x, grid.y, grid.z, l.block[0],
                             l.block[1], l.block[2], l.shared_bytes, stream, p.args, nullptr);
    if (r != kSuccess) return Fail(r, "cannot launch the kernel %s", l.function), r;
  }
  return kSuccess;
}

// Libraries may do more than put work on the stream: their calls are in no graph.
bool CudaSession::CallsLibrary(uint32_t first, uint32_t count) const {
  for (uint32_t k = first_launch_[first]; k < first_launch_[first + count]; ++k) {
    if (model_->program().launches[prepared_[k].launch].library != nullptr) return true;
  }
  return false;
}

// Graphs hold the addresses of the inputs, and grids that follow from sizes: where any of these
// changes, a new generation begins.
uint64_t CudaSession::Generation() {
  bool moved = false;
  for (uint32_t k = 0; k < seen_sizes_.size(); ++k) {
    const int64_t size = frame_->inputs[kProgram.num_given() + k].i;
    moved |= seen_sizes_[k] != size;
    seen_sizes_[k] = size;
  }
  for (uint32_t t = 0; t < kProgram.tensors.size; ++t) {
    if (kProgram.tensors[t].space != Space::kInput) break;  // the tables begin with the inputs
    moved |= seen_[t] != frame_->tensors[t].data;
    seen_[t] = frame_->tensors[t].data;
  }
  if (moved) ++generation_;
  return generation_;
}

bool CudaSession::BeginCapture(Stretch* stretch) {
  if (stretch->graph != nullptr) driver_.GraphExecDestroy(stretch->graph);
  stretch->graph = nullptr;
  return driver_.StreamBeginCapture(own_stream_, kCaptureThreadLocal) == kSuccess;
}

bool CudaSession::EndCapture(Stretch* stretch, Result built) {
  Graph graph = nullptr;
  Result ended = driver_.StreamEndCapture(own_stream_, &graph);
  bool good = built == kSuccess && ended == kSuccess &&
              driver_.GraphInstantiate(&stretch->graph, graph) == kSuccess;
  if (graph != nullptr) driver_.GraphDestroy(graph);
  if (!good) stretch->graph = nullptr;
  return good;
}

bool CudaSession::Launch(uint32_t first, uint32_t count) {
  uint32_t launches = first_launch_[first + count] - first_launch_[first];
  Stretch& stretch = stretches_[first];
  if (!graphs_ || launches < kLeastLaunches || stretch.runs < kRunsBeforeGraph) {
    if (!CallsLibrary(first, count)) ++stretch.runs;
    return LaunchEach(first, count, stream_) == kSuccess;
  }
  uint64_t generation = Generation();
  if (stretch.graph == nullptr || stretch.generation != generation) {
    // Inputs that lie elsewhere in every run would cost a capture each time.
    if (stretch.graph != nullptr && stretch.generation != generation) stretch.runs = 0;
    if (!BeginCapture(&stretch) || !EndCapture(&stretch, LaunchEach(first, count, own_stream_))) {
      graphs_ = false;
      return LaunchEach(first, count, stream_) == kSuccess;
    }
    stretch.generation = generation;
  }
  return Check(driver_.GraphLaunch(stretch.graph, stream_), "cannot launch a graph");
}

}  // namespace cuda
}  // namespace dycl
