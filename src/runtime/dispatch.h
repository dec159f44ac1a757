// Licensed under the Apache License, Version 2.0; see LICENSE.
// The vocabulary of a generated dispatcher. Its one function `Run(Frame& f)` has a label for each
// block and a goto for each edge; host scalars are its locals.
#ifndef DYCL_RUNTIME_DISPATCH_H_
#define DYCL_RUNTIME_DISPATCH_H_

#include <cstring>

#include "control.h"
#include "host_clock.h"
#include "host_ops.h"
#include "host_print.h"
#include "program.h"
#include "sanitizer.h"

#define DYCL_UNLIKELY(x) __builtin_expect(!!(x), 0)

// A kernel by its C symbol.
#define KERNEL(symbol)                                                                   \
  extern "C" int __tvm_ffi_##symbol(void* self, const TVMFFIAny* args, int32_t num_args, \
                                    TVMFFIAny* result)

// The kernel calls first, first + 1, ..., first + count - 1, in order.
#define CALLS(first, count)                                                           \
  do {                                                                                \
    if (DYCL_UNLIKELY(!::dycl::RunCalls(f, first, count))) return ::dycl::kRunFailed; \
  } while (0)

// A host operation that can fail; `origin` is the user's line (an index into kOrigins, or kNone).
#define TRY(operation, origin)                               \
  do {                                                       \
    ::dycl::HostStatus status_ = (operation);                \
    if (DYCL_UNLIKELY(status_ != ::dycl::HostStatus::kOk)) { \
      return ::dycl::FailHost(status_, origin);              \
    }                                                        \
  } while (0)

// A push on the stack of recursive functions, which fails where there is no memory.
#define STACK(push)                                          \
  do {                                                       \
    if (DYCL_UNLIKELY(!(push))) return ::dycl::FailMemory(); \
  } while (0)

// Writes one decision of the path down, and ends the run there if it was asked to: a loop has a
// decision in every turn, so that none goes on for ever, and a wait for kernels is one kernel long.
#define DECIDE(decision, choice)                                                \
  do {                                                                          \
    ::dycl::RecordDecision(f, decision, choice);                                \
    if (::dycl::IsWatched(f) && !::dycl::DecidedWatched(f, decision, choice)) { \
      return ::dycl::kRunFailed;                                                \
    }                                                                           \
  } while (0)

// The same for the side of a branch that goes on, where the other one, at the label `leave`, ends
// the run: that one is taken if what remains of a budget is too little to go on.
#define DECIDE_OR_LEAVE(decision, choice, leave)                                   \
  do {                                                                             \
    ::dycl::RecordDecision(f, decision, choice);                                   \
    if (::dycl::IsWatched(f)) {                                                    \
      if (::dycl::MustLeave(f, decision)) goto leave;                              \
      if (!::dycl::DecidedWatched(f, decision, choice)) return ::dycl::kRunFailed; \
    }                                                                              \
  } while (0)

namespace dycl {

// Ends of a run in an error: all return kRunFailed.
int32_t FailHost(HostStatus status, uint32_t origin);
int32_t FailIndex(int64_t index, uint32_t count, uint32_t origin);
int32_t FailRaise(const char* kind, const char* message, uint32_t origin);
int32_t FailMemory();
// Makes room for more on the stack; false where there is no memory.
bool GrowStack(Stack& stack, size_t bytes);
// A kernel said no: keeps the kernel's own error and adds which call it was.
bool FailCall(uint32_t call);

// What a part of a dispatcher returns to go on in another part: a number below kRunFailed.
constexpr int32_t GoTo(int32_t block) { return kRunFailed - 1 - block; }

// The same as RunCalls and GoesOn where something is asked of the run.
bool RunCallsWatched(Frame& f, uint32_t first, uint32_t count);
bool DecidedWatched(const Frame& f, uint32_t decision, uint32_t choice);

DYCL_INLINE bool RunCall(const Call& call, uint32_t* runs, uint32_t number) {
  TVMFFIAny result;
  result.type_index = kTVMFFINone;
  result.zero_padding = 0;
  result.v_int64 = 0;
  ++*runs;
  TellUseByKernel(call);
  return __builtin_expect(call.function(call.state, call.args, call.num_args, &result) == 0, 1) ||
         FailCall(number);
}

// Not inlined: a thousand blocks cost a thousand call instructions, not a thousand loops.
__attribute__((noinline)) inline bool RunCalls(Frame& f, uint32_t first, uint32_t count) {
  const Call* call = f.calls + first;
  uint32_t* runs = f.call_runs + first;
  for (uint32_t k = 0; k < count; ++k, ++call, ++runs) {
    if (IsWatched(f)) return RunCallsWatched(f, first + k, count - k);
    if (!RunCall(*call, runs, first + k)) return false;
  }
  return true;
}

// Writes down that calls were run, where something else than RunCalls runs them.
inline void CountCalls(Frame& f, uint32_t first, uint32_t count) {
  for (uint32_t k = 0; k < count; ++k) ++f.call_runs[first + k];
}

DYCL_INLINE void RecordDecision(Frame& f, uint32_t decision, uint32_t choice) {
  f.path[f.path_count++ & (kPathCapacity - 1)] = (static_cast<uint64_t>(decision) << 32) | choice;
}

DYCL_INLINE void CopyTensor(Frame& f, uint32_t dst, uint32_t src, size_t bytes) {
  void* to = f.tensors[dst].data;
  const void* from = f.tensors[src].data;
  if (to != from) memcpy(to, from, bytes);
}

// ---- the stack of recursive functions -----------------------------------------------------------
DYCL_INLINE bool PushBytes(Frame& f, const void* from, size_t bytes) {
  Stack& stack = f.stack;
  if (DYCL_UNLIKELY(stack.capacity - stack.used < bytes) && !GrowStack(stack, bytes)) return false;
  memcpy(stack.data + stack.used, from, bytes);
  stack.used += bytes;
  return true;
}
DYCL_INLINE void PopBytes(Frame& f, void* to, size_t bytes) {
  f.stack.used -= bytes;
  memcpy(to, f.stack.data + f.stack.used, bytes);
}
DYCL_INLINE bool PushTensor(Frame& f, uint32_t tensor, size_t bytes) {
  return PushBytes(f, f.tensors[tensor].data, bytes);
}
DYCL_INLINE void PopTensor(Frame& f, uint32_t tensor, size_t bytes) {
  PopBytes(f, f.tensors[tensor].data, bytes);
}
// Numbers: an int64_t, a double or a bool.
template <class T>
DYCL_INLINE bool Push(Frame& f, T value) {
  return PushBytes(f, &value, sizeof(T));
}
template <class T>
DYCL_INLINE void Pop(Frame& f, T* value) {
  PopBytes(f, value, sizeof(T));
}

DYCL_INLINE void OutTensor(Frame& f, uint32_t leaf, uint32_t tensor) {
  f.outputs[leaf].kind = Kind::kTensor;
  f.outputs[leaf].tensor = tensor;
  f.outputs[leaf].along = kNone;
}
// The first elements of a tensor: as many as make one whose extent `along` a dimension is `length`.
DYCL_INLINE void OutFirst(Frame& f, uint32_t leaf, uint32_t tensor, uint32_t along,
                          int64_t length) {
  OutTensor(f, leaf, tensor);
  f.outputs[leaf].along = along;
  f.outputs[leaf].scalar.i = length;
}
// The same where several extents are not those of the tensor: one of them.
DYCL_INLINE void OutCut(Frame& f, uint32_t leaf, uint32_t dim, int64_t length) {
  uint32_t& along = f.outputs[leaf].along;
  along = (along == kNone ? kSeveral : along) | 1u << dim;
  f.extents[leaf * f.max_rank + dim] = length;
}
DYCL_INLINE void OutInt(Frame& f, uint32_t leaf, int64_t value) {
  f.outputs[leaf].kind = Kind::kInt;
  f.outputs[leaf].scalar.i = value;
}
DYCL_INLINE void OutFloat(Frame& f, uint32_t leaf, double value) {
  f.outputs[leaf].kind = Kind::kFloat;
  f.outputs[leaf].scalar.f = value;
}
DYCL_INLINE void OutBool(Frame& f, uint32_t leaf, bool value) {
  f.outputs[leaf].kind = Kind::kBool;
  f.outputs[leaf].scalar.b = value;
}

// ---- one-element tensors ------------------------------------------------------------------------
double HalfToDouble(uint16_t bits);
uint16_t DoubleToHalf(double value);
uint16_t DoubleToBFloat16(double value);

template <DType D>
struct Item;
template <class T>
struct PlainItem {
  static T Read(const void* p) {
    T value;
    memcpy(&value, p, sizeof(T));
    return value;
  }
};
template <class T>
struct IntItem : PlainItem<T> {
  static HostStatus Write(void* p, int64_t value) {
    T narrow = static_cast<T>(value);
    if (narrow != value) return HostStatus::kIntOverflow;
    memcpy(p, &narrow, sizeof(T));
    return HostStatus::kOk;
  }
  static HostStatus Write(void* p, double value) {
    int64_t whole = 0;
    HostStatus status = ops::ToInt(value, &whole);
    return status == HostStatus::kOk ? Write(p, whole) : status;
  }
};
template <class T>
struct FloatItem : PlainItem<T> {
  template <class V>
  static HostStatus Write(void* p, V value) {
    T narrow = static_cast<T>(static_cast<double>(value));
    memcpy(p, &narrow, sizeof(T));
    return HostStatus::kOk;
  }
};
template <>
struct Item<DType::kFloat64> : FloatItem<double> {};
template <>
struct Item<DType::kFloat32> : FloatItem<float> {};
template <>
struct Item<DType::kInt64> : IntItem<int64_t> {};
template <>
struct Item<DType::kInt32> : IntItem<int32_t> {};
template <>
struct Item<DType::kInt16> : IntItem<int16_t> {};
template <>
struct Item<DType::kInt8> : IntItem<int8_t> {};
template <>
struct Item<DType::kUInt8> : IntItem<uint8_t> {};
template <>
struct Item<DType::kFloat16> {
  static double Read(const void* p) { return HalfToDouble(PlainItem<uint16_t>::Read(p)); }
  template <class V>
  static HostStatus Write(void* p, V value) {
    uint16_t bits = DoubleToHalf(static_cast<double>(value));
    memcpy(p, &bits, 2);
    return HostStatus::kOk;
  }
};
template <>
struct Item<DType::kBFloat16> {
  static double Read(const void* p) {
    uint32_t bits = static_cast<uint32_t>(PlainItem<uint16_t>::Read(p)) << 16;
    return PlainItem<float>::Read(&bits);
  }
  template <class V>
  static HostStatus Write(void* p, V value) {
    uint16_t bits = DoubleToBFloat16(static_cast<double>(value));
    memcpy(p, &bits, 2);
    return HostStatus::kOk;
  }
};
template <>
struct Item<DType::kBool> {
  static bool Read(const void* p) { return PlainItem<uint8_t>::Read(p) != 0; }
  template <class V>
  static HostStatus Write(void* p, V value) {
    *static_cast<uint8_t*>(p) = value != V(0) ? 1 : 0;
    return HostStatus::kOk;
  }
};

template <DType D>
DYCL_INLINE auto ReadItem(const Frame& f, uint32_t tensor) {
  return Item<D>::Read(f.tensors[tensor].data);
}
// Fails where the value does not fit the tensor's int type.
template <DType D>
DYCL_INLINE HostStatus WriteItem(Frame& f, uint32_t tensor, int64_t value) {
  return Item<D>::Write(f.tensors[tensor].data, value);
}
template <DType D>
DYCL_INLINE HostStatus WriteItem(Frame& f, uint32_t tensor, double value) {
  return Item<D>::Write(f.tensors[tensor].data, value);
}
template <DType D>
DYCL_INLINE HostStatus WriteItem(Frame& f, uint32_t tensor, bool value) {
  return Item<D>::Write(f.tensors[tensor].data, static_cast<int64_t>(value));
}

}  // namespace dycl

#endif  // DYCL_RUNTIME_DISPATCH_H_
