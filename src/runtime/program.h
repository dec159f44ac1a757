// Licensed under the Apache License, Version 2.0; see LICENSE.
// The tables that a generated dispatcher fills, and the frame in which it runs. Everything here is
// plain data: the generated source stays readable, and its tables live in read-only memory.
#ifndef DYCL_RUNTIME_PROGRAM_H_
#define DYCL_RUNTIME_PROGRAM_H_

#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "artifact_info.h"

namespace dycl {

class DeviceModel;
class DeviceSession;
class Params;
class Recorder;

enum class DType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
  kComplex64,
  kComplex128,
};

enum class Space : uint8_t { kArena, kInput, kWeight, kState };

enum class Kind : uint8_t { kTensor = 0, kInt = 1, kFloat = 2, kBool = 3 };

constexpr uint32_t kNone = UINT32_MAX;

// Where tensors begin: kernels suppose it, and params files have it.
constexpr uint64_t kAlign = 64;

union Scalar {
  int64_t i;
  double f;
  bool b;
};

// A tensor at a fixed place. `index` is its number in its space, or of the arena its home: tensors
// of one home, which is not 0, may be elsewhere, together. `dims` is the first of `ndim` extents in
// ProgramDesc::dims.
struct TensorDesc {
  Space space;
  DType dtype;
  uint16_t ndim;
  uint32_t index;
  uint64_t offset;
  uint32_t dims;
};

struct KernelDesc {
  const char* symbol;
  TVMFFISafeCallType function;
};

// The arguments are tensors: ProgramDesc::args[first_arg .. first_arg + num_args).
struct CallDesc {
  uint32_t kernel;
  uint32_t first_arg;
  uint32_t num_args;
};

struct OriginDesc {
  const char* file;
  uint32_t line;
  const char* function;
  const char* code;
};

struct InputDesc {
  const char* name;
  Kind kind;
  uint32_t tensor;  // kNone for scalars
};

// A size that the caller decides: an input of its own, after those that the caller gives, told by
// the first of ProgramDesc::sized_dims[first_dim .. first_dim + num_dims).
struct SizeDesc {
  int64_t least;
  int64_t most;
  uint32_t first_dim;
  uint32_t num_dims;
};

// The extent of a dimension of an input: factor * size + constant.
struct SizedDim {
  uint32_t input;
  uint32_t dim;
  int64_t factor;
  int64_t constant;
  int64_t At(int64_t size) const { return factor * size + constant; }
};

// Two tensors among the inputs of which it matters whether they are one.
struct InputPair {
  enum Kind {
    kApart,      // must have no memory in common
    kDifferent,  // must not be one view of one memory
    kOne         // must be one view of one memory
  };
  uint32_t first;
  uint32_t second;
  Kind kind;
};

// The leaves of a return site: ProgramDesc::leaves[first_leaf .. first_leaf + num_leaves).
struct SiteDesc {
  uint32_t num_leaves;
  uint32_t origin;  // kNone where unknown
  uint32_t first_leaf;
};

// What a leaf is: of a tensor the largest that it can be.
struct LeafDesc {
  Kind kind;
  DType dtype;
  uint16_t ndim;
  uint32_t dims;
};

// The caller's memory for a leaf may stand for a home: ProgramDesc::tensors[first .. first +
// count).
struct DirectDesc {
  uint32_t leaf;
  uint32_t first;
  uint32_t count;
};

struct DecisionDesc {
  bool is_switch;
  uint32_t origin;
};

// A state variable: a tensor begins as a copy of a weight, a scalar as `initial`.
struct StateDesc {
  const char* name;
  Kind kind;
  uint32_t tensor;
  uint32_t weight;
  Scalar initial;
};

struct WeightDesc {
  const char* name;
  DType dtype;
  uint16_t ndim;
  uint32_t dims;
};

// `along` is kNone, or the dimension of the tensor whose extent is scalar.i: the first elements.
// With kSeveral it is the set of such dimensions, one bit each, whose extents are in
// Frame::extents.
constexpr uint32_t kSeveral = 1u << 31;
struct Output {
  Kind kind;
  uint32_t tensor;
  Scalar scalar;
  uint32_t along;
};

// What an external backend keeps for one call of a session: packed weights, say. It is `self` of
// the kernel, empty at first, and is released with the session.
struct KernelState {
  void* data;
  void (*release)(void* data);

  void Release() {
    if (release != nullptr) release(data);
    *this = KernelState{nullptr, nullptr};
  }
};

struct Call {
  TVMFFISafeCallType function;
  const TVMFFIAny* args;
  int32_t num_args;
  KernelState* state;
};

// What recursive functions keep over the calls that they make. It grows when it has to and stays.
struct Stack {
  unsigned char* data;
  size_t used;
  size_t capacity;
};

// Frame::cut_at of a run in which no decision was forced.
constexpr uint64_t kNotCut = UINT64_MAX;

// What the dispatcher sees of a session. All arrays are made once, when the session is made.
struct Frame {
  DLTensor* tensors;
  const Call* calls;
  uint32_t* call_runs;
  uint64_t* path;
  uint64_t path_count;
  const Scalar* inputs;
  Scalar* state;
  Output* outputs;
  DeviceSession* device;  // null where the tensors are in CPU memory
  Stack stack;
  int64_t* extents;  // of each leaf that is returned: `max_rank` numbers
  uint32_t max_rank;
  // What else than the program may end the run: bits of Asked. Other threads set them, so they are
  // read and written with the functions of control.h only.
  uint32_t asked;
  int64_t deadline_ns;  // of CLOCK_MONOTONIC, where kDeadline is asked
  Recorder* recorder;   // null: runs are not recorded
  // Where kBudget is asked: when the run is to have ended, the time that going on takes at each
  // decision, and which decision of the path was taken so that the run leaves.
  int64_t budget_end_ns;
  const uint64_t* needed_ns;
  uint64_t cut_at;
};

// The path is a ring: a loop of millions of steps keeps the last decisions. A power of two.
constexpr uint64_t kPathCapacity = 4096;

// A run that ended in an error; the text is in the thread's error.
constexpr int32_t kRunFailed = -1;

template <class T>
struct Table {
  const T* data;
  uint32_t size;
  const T& operator[](uint32_t k) const { return data[k]; }
};

// An argument of a launch: a tensor of the call, by its place in it, or (kNone) bytes of the
// workspace.
struct LaunchArg {
  uint32_t tensor;
  uint64_t offset;
};

// A call of a library in place of a launch. kFind, when a model is loaded: is the library there?
// kPrepare, when a session is made: makes all that can be made once. kRun puts work on the stream.
enum class LibraryStep : uint8_t { kFind, kPrepare, kRun };
struct LibraryCall {
  LibraryStep step;
  int cuda_version;  // of the driver, 11040 for CUDA 11.4
  // The session's, from kPrepare on: its stream, a state for each library and one for this launch.
  void* stream;
  KernelState* libraries;
  KernelState* state;
  uint64_t* workspace_bytes;  // kPrepare: raised to what the work needs
  void* workspace;            // kRun: that many bytes on the device
  void* const* args;          // kRun: point to the addresses of the tensors
};
constexpr uint32_t kCublasState = 0, kCudnnState = 1, kNumLibraryStates = 2;
using LibraryFunction = int32_t (*)(const LibraryCall& call);

// How many blocks a launch has along an axis, where a size of the call decides: the size goes
// through DeviceDesc::grid_steps[first_step .. first_step + num_steps), each of which rounds up.
struct GridSize {
  uint32_t axis;
  uint32_t size;
  uint32_t first_step;
  uint32_t num_steps;
};
struct GridStep {
  int64_t multiply;
  int64_t add;
  int64_t divide;
  int64_t At(int64_t size) const {
    int64_t scaled = size * multiply + add;
    return (scaled > 0 ? scaled + divide - 1 : scaled) / divide;
  }
};

// A launch of a device function; its arguments are DeviceDesc::args[first_arg ...]. The grid is the
// largest: DeviceDesc::grid_sizes[first_size .. first_size + num_sizes) say along which axes it is
// smaller.
struct LaunchDesc {
  const char* function;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t first_arg;
  uint32_t num_args;
  uint32_t first_size;
  uint32_t num_sizes;
  LibraryFunction library;  // is called instead, unless it is null
};

// The launches of a kernel: DeviceDesc::launches[first .. first + count).
struct KernelLaunches {
  uint32_t first;
  uint32_t count;
};

// What the device does in a segment: the calls first, ..., first + second - 1; a copy of `bytes` to
// the tensor first from the tensor second; or the branch first.
enum class StepKind : uint8_t { kCalls, kCopy, kBranch };
struct StepDesc {
  StepKind kind;
  uint32_t first;
  uint32_t second;
  uint64_t bytes;
};

// DeviceDesc::steps[first .. first + count): a side of a branch, or a segment.
struct StepRange {
  uint32_t first;
  uint32_t count;
};

// A branch on an item that the device can take; the choice is the number of the side.
struct DeviceBranchDesc {
  uint32_t decision;
  uint32_t item;  // a tensor: a bool, or an integer
  uint32_t first_side;
  uint32_t num_sides;
  uint32_t negated;  // 1: side 1 is that of false
};

// What a program has besides, whose tensors live on a device.
struct DeviceDesc {
  const char* kind;
  const char* arch;
  int arch_number;          // 72 for sm_72
  const char* ptx_version;  // what the driver must take where it refuses the machine code
  uint64_t workspace_bytes;
  uint64_t output_bytes;  // of the largest return site, each tensor aligned to 64 bytes
  Table<LaunchDesc> launches;
  Table<LaunchArg> args;
  Table<GridSize> grid_sizes;
  Table<GridStep> grid_steps;
  Table<KernelLaunches> kernels;
  Table<StepDesc> steps;
  Table<StepRange> sides;
  Table<DeviceBranchDesc> branches;
  Table<StepRange> segments;
  const unsigned char* cubin;
  const unsigned char* ptx;
  int32_t (*open)(const Params& params, std::unique_ptr<DeviceModel>* out);
};

struct ProgramDesc {
  const char* name;
  uint64_t arena_bytes;
  Table<int64_t> dims;
  Table<TensorDesc> tensors;
  Table<KernelDesc> kernels;
  Table<uint32_t> args;
  Table<CallDesc> calls;
  Table<OriginDesc> origins;
  Table<InputDesc> inputs;
  Table<SizeDesc> sizes;
  Table<SizedDim> sized_dims;
  // Bytes of the arena that sessions need all of whose calls have sizes of at most
  // need_sizes[k * sizes.size ...].
  Table<uint64_t> needs;
  Table<int64_t> need_sizes;
  Table<InputPair> input_pairs;
  Table<SiteDesc> sites;
  Table<LeafDesc> leaves;
  Table<DirectDesc> direct;
  Table<DecisionDesc> decisions;
  Table<StateDesc> state;
  Table<WeightDesc> weights;
  uint32_t max_leaves;
  int32_t (*run)(Frame& f);  // returns the return site, or kRunFailed
  const DeviceDesc* device;  // null: all runs on the CPU
  bool amx;                  // kernels use the tiles of AMX

  // How many inputs the caller gives; the sizes of some are the last ones.
  uint32_t num_given() const { return inputs.size - sizes.size; }
};

// Defined by the generated dispatcher.
extern const ProgramDesc kProgram;

inline size_t ItemBytes(DType dtype) {
  constexpr uint8_t kBytes[] = {8, 4, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16};
  return kBytes[static_cast<int>(dtype)];
}

// The name as in NumPy and TVM.
const char* DTypeName(DType dtype);
// The name in a safetensors header.
const char* DTypeFileName(DType dtype);
DLDataType ToDLDataType(DType dtype);
uint64_t NumBytes(DType dtype, const int64_t* dims, uint32_t ndim);

}  // namespace dycl

#endif  // DYCL_RUNTIME_PROGRAM_H_
