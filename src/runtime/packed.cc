// Licensed under the Apache License, Version 2.0; see LICENSE.
// The packed functions of a model: what Python's tvm, TVM RPC and other TVM hosts call.
//
//   create(params_path = "") -> handle        run(handle, inputs...) -> return site
//   create_up_to(params_path, size's name, largest, ...) -> handle
//   run_within(handle, milliseconds, inputs...) -> return site
//   num_outputs(handle) -> int                output(handle, k) -> tensor | int | float | bool
//   copy_output(handle, k, tensor)            to_device(handle, tensor) -> tensor
//   path(handle) -> str
//   kernel_runs(handle, k) -> int             set_num_threads(handle, n)
//   set_priority(handle, n)
//   reset_state(handle)                       destroy(handle)
//   manual_seed(handle, seed)                 cancel(handle)
//   unload()
//   metadata() -> str                         abi_version() -> int
//
// A handle is a number, not a pointer: a wrong one is an error, also when it comes over RPC.
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "dycl/dycl.h"
#include "error.h"
#include "host_process.h"
#include "library.h"
#include "path_text.h"
#include "session.h"
#include "tensor_copy.h"

namespace dycl {
namespace {

std::mutex g_mutex;
std::vector<DyclSession*>* g_sessions = nullptr;  // handle - 1; null where destroyed

// When the library leaves memory; not at the end of a program, where threads may still run.
__attribute__((destructor)) void FreeHandles() {
  if (!LibraryIsHeld()) delete g_sessions;
}

int Raise() {
  const char* message = LastErrorMessage();
  if (Host().error_set_raised != nullptr) {
    const char* kind = LastErrorKind();
    // Python has no exceptions of our names: its nearest ones say the same.
    switch (LastStatus()) {
      case DYCL_ERROR_INPUT:
      case DYCL_ERROR_USAGE:
        kind = "ValueError";
        break;
      case DYCL_ERROR_ARTIFACT:
      case DYCL_ERROR_DEVICE:
      case DYCL_ERROR_CANCELLED:
      case DYCL_ERROR_DEADLINE:
        kind = "RuntimeError";
        break;
    }
    Host().error_set_raised(kind, &message, 1);
  }
  return -1;
}

void SetInt(TVMFFIAny* out, int64_t value) {
  out->type_index = kTVMFFIInt;
  out->zero_padding = 0;
  out->v_int64 = value;
}

int SetString(TVMFFIAny* out, const char* text, size_t size) {
  TVMFFIByteArray bytes{text, size};
  if (Host().string_from_byte_array == nullptr) {
    UsageError("this function returns a string, for which the process needs libtvm_ffi");
    return Raise();
  }
  return Host().string_from_byte_array(&bytes, out);
}

// The session of a handle, null where there is none; with the lock.
DyclSession* Known(int64_t handle) {
  int64_t known = g_sessions != nullptr ? static_cast<int64_t>(g_sessions->size()) : 0;
  return handle >= 1 && handle <= known ? (*g_sessions)[static_cast<size_t>(handle - 1)] : nullptr;
}

// A place for a session, before there is one: it has an end only by its handle. Stays null where
// none is made.
size_t NewPlace() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_sessions == nullptr) g_sessions = new std::vector<DyclSession*>;
  g_sessions->push_back(nullptr);
  return g_sessions->size() - 1;
}

void NoSession(const char* function, int64_t handle) {
  UsageError("%s: %lld is not a session; create() makes one", function,
             static_cast<long long>(handle));
}

// Reads arguments one after the other; the first that does not fit is an error that says which.
class Args {
 public:
  Args(const char* function, const TVMFFIAny* args, int32_t count)
      : function_(function), args_(args), count_(count) {}

  int32_t left() const { return count_ - next_; }

  bool Int(int64_t* out) {
    if (!Have("an int")) return false;
    const TVMFFIAny& a = args_[next_];
    if (a.type_index != kTVMFFIInt && a.type_index != kTVMFFIBool) return Wrong("an int");
    *out = a.v_int64;
    return ++next_, true;
  }

  bool Number(double* out) {
    int64_t whole;
    if (!Have("a number")) return false;
    const TVMFFIAny& a = args_[next_];
    if (a.type_index == kTVMFFIFloat) {
      *out = a.v_float64;
      return ++next_, true;
    }
    if (a.type_index != kTVMFFIInt && a.type_index != kTVMFFIBool) return Wrong("a number");
    if (!Int(&whole)) return false;
    *out = static_cast<double>(whole);
    return true;
  }

  bool String(std::string* out) {
    if (!Have("a string")) return false;
    const TVMFFIAny& a = args_[next_];
    if (a.type_index == kTVMFFIRawStr) {
      *out = a.v_c_str;
    } else if (a.type_index == kTVMFFISmallStr) {
      out->assign(a.v_bytes, a.small_str_len);
    } else if (a.type_index == kTVMFFIStr) {
      const auto* bytes = reinterpret_cast<const TVMFFIByteArray*>(
          reinterpret_cast<const char*>(a.v_obj) + sizeof(TVMFFIObject));
      out->assign(bytes->data, bytes->size);
    } else {
      return Wrong("a string");
    }
    return ++next_, true;
  }

  bool Value(DyclValue* out) {
    const TVMFFIAny& a = args_[next_];
    memset(out, 0, sizeof(*out));
    switch (a.type_index) {
      case kTVMFFIDLTensorPtr:
        out->u.tensor = static_cast<const DLTensor*>(a.v_ptr);
        break;
      case kTVMFFITensor:
        out->u.tensor = reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(a.v_obj) +
                                                          sizeof(TVMFFIObject));
        break;
      case kTVMFFIInt:
        out->type = DYCL_INT;
        out->u.v_int = a.v_int64;
        break;
      case kTVMFFIFloat:
        out->type = DYCL_FLOAT;
        out->u.v_float = a.v_float64;
        break;
      case kTVMFFIBool:
        out->type = DYCL_BOOL;
        out->u.v_bool = a.v_int64;
        break;
      default:
        return Wrong("a tensor or a number");
    }
    return ++next_, true;
  }

  bool Session(DyclSession** out) {
    int64_t handle;
    if (!Int(&handle)) return false;
    std::lock_guard<std::mutex> lock(g_mutex);
    *out = Known(handle);
    if (*out == nullptr) NoSession(function_, handle);
    return *out != nullptr;
  }

 private:
  bool Have(const char* what) {
    if (next_ < count_) return true;
    UsageError("%s: argument %d, %s, is missing", function_, next_, what);
    return false;
  }
  bool Wrong(const char* what) {
    UsageError("%s: argument %d must be %s (it has type index %d)", function_, next_, what,
               args_[next_].type_index);
    return false;
  }

  const char* function_;
  const TVMFFIAny* args_;
  int32_t count_;
  int32_t next_ = 0;
};

int CreateWith(const std::string& path, const DyclSessionOptions* options, TVMFFIAny* result) {
  const size_t place = NewPlace();
  DyclModel* model = nullptr;
  DyclSession* session = nullptr;
  if (dycl_model_create(path.empty() ? nullptr : path.c_str(), &model) != DYCL_OK) return Raise();
  int32_t status = dycl_session_create_with(model, options, &session);
  dycl_model_destroy(model);  // the session keeps it
  if (status != DYCL_OK) return Raise();
  std::lock_guard<std::mutex> lock(g_mutex);
  (*g_sessions)[place] = session;
  SetInt(result, static_cast<int64_t>(place) + 1);
  return 0;
}

int Create(Args& args, TVMFFIAny* result) {
  std::string path;
  if (args.left() != 0 && !args.String(&path)) return Raise();
  return CreateWith(path, nullptr, result);
}

// What is left are names of sizes, each with the largest that calls of the session have.
int CreateUpTo(Args& args, TVMFFIAny* result) {
  constexpr size_t kMost = 64;
  std::string path, names[kMost];
  DyclLargestSize sizes[kMost];
  DyclSessionOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.largest_sizes = sizes;
  if (!args.String(&path)) return Raise();
  for (; args.left() != 0; ++options.num_largest_sizes) {
    const size_t k = options.num_largest_sizes;
    if (k == kMost) {
      UsageError("create_up_to: more than %zu sizes", kMost);
      return Raise();
    }
    if (!args.String(&names[k]) || !args.Int(&sizes[k].most)) return Raise();
    sizes[k].name = names[k].c_str();
  }
  return CreateWith(path, &options, result);
}

int Destroy(Args& args, TVMFFIAny*) {
  Args copy = args;
  int64_t handle = 0;
  DyclSession* session;
  if (!args.Session(&session)) return Raise();
  copy.Int(&handle);
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    (*g_sessions)[static_cast<size_t>(handle - 1)] = nullptr;
  }
  dycl_session_destroy(session);
  return 0;
}

// What is left are the inputs.
int RunInputs(DyclSession* session, const DyclRunOptions* options, Args& args, TVMFFIAny* result) {
  constexpr int32_t kMost = 64;
  DyclValue values[kMost];
  int32_t count = 0;
  if (args.left() > kMost) {
    UsageError("run: more than %d inputs", kMost);
    return Raise();
  }
  for (; args.left() != 0; ++count) {
    if (!args.Value(&values[count])) return Raise();
  }
  int32_t site;
  if (dycl_run_with(session, values, static_cast<size_t>(count), options, &site) != DYCL_OK) {
    return Raise();
  }
  SetInt(result, site);
  return 0;
}

int Run(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  return args.Session(&session) ? RunInputs(session, nullptr, args, result) : Raise();
}

int RunWithin(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  DyclRunOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  if (!args.Session(&session) || !args.Number(&options.deadline_ms)) return Raise();
  if (options.deadline_ms <= 0) options.deadline_ms = -1;  // 0 is no deadline to C
  return RunInputs(session, &options, args, result);
}

int NumOutputs(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  size_t count;
  if (!args.Session(&session) || dycl_num_outputs(session, &count) != DYCL_OK) return Raise();
  SetInt(result, static_cast<int64_t>(count));
  return 0;
}

// A tensor with memory of its own, which may outlive the session. It is freed by code of this
// library, so it is counted among what is alive.
struct OwnedTensor {
  DLManagedTensor managed;
  DyclModel* model;  // whose device the memory is of; null for memory of the CPU
  int64_t* shape() { return reinterpret_cast<int64_t*>(this + 1); }
};

void DeleteOwned(DLManagedTensor* managed) {
  auto* owned = static_cast<OwnedTensor*>(managed->manager_ctx);
  if (owned->model != nullptr) {
    DyclSession::FreeTensor(owned->model, managed->dl_tensor.data);
    owned->model->Release();
  } else {
    free(managed->dl_tensor.data);
  }
  free(owned);
  g_living.tensors.fetch_sub(1);
}

// A tensor like `like`, without memory; null where there is none for itself.
OwnedTensor* NewOwned(const DLTensor& like) {
  size_t shape_bytes = sizeof(int64_t) * 2 * static_cast<size_t>(like.ndim);
  auto* owned = static_cast<OwnedTensor*>(calloc(1, sizeof(OwnedTensor) + shape_bytes));
  if (owned == nullptr) {
    MemoryError(sizeof(OwnedTensor) + shape_bytes);
    return nullptr;
  }
  g_living.tensors.fetch_add(1);
  DLTensor& t = owned->managed.dl_tensor;
  t = like;
  t.data = nullptr;
  t.byte_offset = 0;
  t.shape = owned->shape();
  t.strides = owned->shape() + like.ndim;
  int64_t stride = 1;
  for (int d = like.ndim - 1; d >= 0; --d) {
    t.shape[d] = like.shape[d];
    t.strides[d] = stride;
    stride *= like.shape[d];
  }
  owned->managed.manager_ctx = owned;
  owned->managed.deleter = DeleteOwned;
  return owned;
}

int ReturnTensor(OwnedTensor* owned, TVMFFIAny* result) {
  TVMFFIObjectHandle handle = nullptr;
  if (Host().tensor_from_dlpack(&owned->managed, 0, 0, &handle) != 0) {
    DeleteOwned(&owned->managed);
    return -1;
  }
  result->type_index = kTVMFFITensor;
  result->zero_padding = 0;
  result->v_obj = static_cast<TVMFFIObject*>(handle);
  return 0;
}

bool CanReturnTensors() {
  if (Host().tensor_from_dlpack != nullptr) return true;
  UsageError("this function returns a tensor, for which the process needs libtvm_ffi");
  return false;
}

// A tensor in CPU memory with a copy of the k-th output: it outlives the session.
int SetTensor(DyclSession* session, size_t k, TVMFFIAny* result, const DLTensor& view) {
  if (!CanReturnTensors()) return Raise();
  OwnedTensor* owned = NewOwned(view);
  if (owned == nullptr) return Raise();
  uint64_t bytes = TensorBytes(view);
  DLTensor& t = owned->managed.dl_tensor;
  t.device = DLDevice{kDLCPU, 0};
  bool good = posix_memalign(&t.data, kAlign, bytes + kAlign) == 0;
  if (!good) {
    t.data = nullptr;
    MemoryError(bytes);
  }
  if (!good || session->CopyOutput(k, t) != DYCL_OK) {
    DeleteOwned(&owned->managed);
    return Raise();
  }
  return ReturnTensor(owned, result);
}

int ToDevice(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  DyclValue from;
  if (!args.Session(&session)) return Raise();
  if (args.left() == 0 || !args.Value(&from) || from.type != DYCL_TENSOR ||
      from.u.tensor == nullptr) {
    UsageError("to_device: argument 1 must be a tensor");
    return Raise();
  }
  if (!CanReturnTensors()) return Raise();
  OwnedTensor* owned = NewOwned(*from.u.tensor);
  if (owned == nullptr) return Raise();
  DLTensor& t = owned->managed.dl_tensor;
  if (session->TakeTensor(*from.u.tensor, &t.data, &t.device) != DYCL_OK) {
    DeleteOwned(&owned->managed);
    return Raise();
  }
  owned->model = session->model();
  owned->model->references.fetch_add(1);
  return ReturnTensor(owned, result);
}

int GetOutput(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  int64_t k;
  DyclValue value;
  if (!args.Session(&session) || !args.Int(&k)) return Raise();
  if (dycl_output(session, static_cast<size_t>(k), &value) != DYCL_OK) return Raise();
  SetInt(result, value.u.v_int);
  if (value.type == DYCL_TENSOR)
    return SetTensor(session, static_cast<size_t>(k), result, *value.u.tensor);
  if (value.type == DYCL_FLOAT) {
    result->type_index = kTVMFFIFloat;
    result->v_float64 = value.u.v_float;
  } else if (value.type == DYCL_BOOL) {
    result->type_index = kTVMFFIBool;
  }
  return 0;
}

int CopyOutput(Args& args, TVMFFIAny*) {
  DyclSession* session;
  int64_t k;
  DyclValue to;
  if (!args.Session(&session) || !args.Int(&k)) return Raise();
  if (args.left() == 0 || !args.Value(&to) || to.type != DYCL_TENSOR || to.u.tensor == nullptr) {
    UsageError("copy_output: argument 2 must be the tensor to fill");
    return Raise();
  }
  return session->CopyOutput(static_cast<size_t>(k), *to.u.tensor) == DYCL_OK ? 0 : Raise();
}

int GetPath(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  if (!args.Session(&session)) return Raise();
  std::string text = PathText(session->frame(), session->site());
  return SetString(result, text.data(), text.size());
}

int KernelRuns(Args& args, TVMFFIAny* result) {
  DyclSession* session;
  int64_t k;
  if (!args.Session(&session) || !args.Int(&k)) return Raise();
  if (k < 0 || k >= kProgram.kernels.size) {
    UsageError("kernel_runs: there is no kernel %lld", static_cast<long long>(k));
    return Raise();
  }
  uint64_t runs = 0;
  for (uint32_t c = 0; c < kProgram.calls.size; ++c) {
    if (kProgram.calls[c].kernel == k) runs += session->frame().call_runs[c];
  }
  SetInt(result, static_cast<int64_t>(runs));
  return 0;
}

int SetNumThreads(Args& args, TVMFFIAny*) {
  DyclSession* session;
  int64_t n;
  if (!args.Session(&session) || !args.Int(&n)) return Raise();
  // Not the low half of a larger number, which may be 0.
  const auto threads = static_cast<int32_t>(n < 0 ? -1 : n > INT32_MAX ? INT32_MAX : n);
  return dycl_session_set_num_threads(session, threads) == DYCL_OK ? 0 : Raise();
}

int SetPriority(Args& args, TVMFFIAny*) {
  DyclSession* session;
  int64_t n;
  if (!args.Session(&session) || !args.Int(&n)) return Raise();
  const auto priority = static_cast<int32_t>(n < -2 ? -2 : n > 2 ? 2 : n);
  return dycl_session_set_priority(session, priority) == DYCL_OK ? 0 : Raise();
}

int ResetState(Args& args, TVMFFIAny*) {
  DyclSession* session;
  if (!args.Session(&session)) return Raise();
  if (session->ResetState() != DYCL_OK) return Raise();
  return 0;
}

int ManualSeed(Args& args, TVMFFIAny*) {
  DyclSession* session;
  int64_t seed;
  if (!args.Session(&session) || !args.Int(&seed)) return Raise();
  return session->ManualSeed(static_cast<uint64_t>(seed)) == DYCL_OK ? 0 : Raise();
}

// Called while another thread runs the session, so it looks at nothing but the word to be set. The
// lock keeps the session from being destroyed meanwhile.
int CancelRun(Args& args, TVMFFIAny*) {
  int64_t handle;
  if (!args.Int(&handle)) return Raise();
  std::lock_guard<std::mutex> lock(g_mutex);
  DyclSession* session = Known(handle);
  if (session == nullptr) {
    NoSession("cancel", handle);
    return Raise();
  }
  session->Cancel();
  return 0;
}

int UnloadLibrary(Args&, TVMFFIAny*) { return dycl_unload(nullptr) == DYCL_OK ? 0 : Raise(); }

int Metadata(Args&, TVMFFIAny* result) {
  return SetString(result, kArtifactInfo.metadata, strlen(kArtifactInfo.metadata));
}

int AbiVersion(Args&, TVMFFIAny* result) {
  SetInt(result, DYCL_ABI_VERSION);
  return 0;
}

int Invoke(int (*function)(Args&, TVMFFIAny*), const char* name, const TVMFFIAny* args,
           int32_t count, TVMFFIAny* result) {
  try {
    result->type_index = kTVMFFINone;
    result->zero_padding = 0;
    result->v_int64 = 0;
    Args reader(name, args, count);
    return function(reader, result);
  } catch (const std::bad_alloc&) {
    MemoryError(0);
    return Raise();
  }
}

}  // namespace
}  // namespace dycl

#define PACKED(name, function)                                                          \
  extern "C" DYCL_API int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t count, \
                                           TVMFFIAny* result) {                         \
    return dycl::Invoke(dycl::function, #name, args, count, result);                    \
  }

PACKED(create, Create)
PACKED(create_up_to, CreateUpTo)
PACKED(destroy, Destroy)
PACKED(run, Run)
PACKED(run_within, RunWithin)
PACKED(num_outputs, NumOutputs)
PACKED(output, GetOutput)
PACKED(copy_output, CopyOutput)
PACKED(to_device, ToDevice)
PACKED(path, GetPath)
PACKED(kernel_runs, KernelRuns)
PACKED(set_num_threads, SetNumThreads)
PACKED(set_priority, SetPriority)
PACKED(reset_state, ResetState)
PACKED(manual_seed, ManualSeed)
PACKED(cancel, CancelRun)
PACKED(unload, UnloadLibrary)
PACKED(metadata, Metadata)
PACKED(abi_version, AbiVersion)
