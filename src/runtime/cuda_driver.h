// Licensed under the Apache License, Version 2.0; see LICENSE.
// NVIDIA's driver, found at run time: a library links nothing of CUDA. The types are those of the
// driver's binary interface.
#ifndef DYCL_RUNTIME_CUDA_DRIVER_H_
#define DYCL_RUNTIME_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>

namespace dycl {
namespace cuda {

using Result = int;  // CUresult
using Device = int;
using Pointer = unsigned long long;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using GraphNode = struct GraphNodeTag*;

// Results that are told apart here.
constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNoDevice = 100;
constexpr Result kUnknown = 999;

// CUdevice_attribute and CUjit_option.
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;
constexpr int kMultiprocessors = 16;
constexpr int kThreadsOfMultiprocessor = 39;
constexpr int kMaxDynamicShared = 8;  // CUfunction_attribute
constexpr int kJitErrorLog = 5;
constexpr int kJitErrorLogBytes = 6;
constexpr int kCaptureThreadLocal = 1;
constexpr unsigned kNoTiming = 2;  // CUevent_flags
constexpr unsigned kSetCaptureDependencies = 1;
constexpr int kConditionalVersion = 12080;

// CUgraphNodeParams of a conditional node (CUDA_CONDITIONAL_NODE_PARAMS).
struct ConditionalNode {
  int type = 13;  // CU_GRAPH_NODE_TYPE_CONDITIONAL
  int reserved0[3] = {};
  uint64_t handle = 0;
  int kind = 0;  // kConditionalIf, kConditionalSwitch
  unsigned size = 0;
  Graph* bodies = nullptr;  // by the driver
  Context context = nullptr;
  long long reserved1[25] = {};
  long long reserved2 = 0;
};
static_assert(sizeof(ConditionalNode) == 16 + 29 * 8 + 8, "as in cuda.h");
constexpr int kConditionalIf = 0;
constexpr int kConditionalSwitch = 2;

// CUDA_MEMCPY2D: rows of bytes that lie `pitch` bytes apart.
struct Place2D {
  size_t x = 0, y = 0;
  int type = 2;  // CU_MEMORYTYPE_DEVICE
  const void* host = nullptr;
  Pointer device = 0;
  void* array = nullptr;
  size_t pitch = 0;
};
struct Copy2D {
  Place2D from, to;
  size_t width = 0, height = 0;
};
static_assert(sizeof(Copy2D) == 128, "as in cuda.h");

// What every driver since CUDA 10 has: (name here, symbol, parameters).
#define DYCL_CUDA_FUNCTIONS(X)                                                               \
  X(Init, "cuInit", (unsigned))                                                              \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                          \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                              \
  X(DeviceGet, "cuDeviceGet", (Device*, int))                                                \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, Device))                                  \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                         \
  X(PrimaryRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))                           \
  X(PrimaryRelease, "cuDevicePrimaryCtxRelease", (Device))                                   \
  X(CtxPush, "cuCtxPushCurrent_v2", (Context))                                               \
  X(CtxPop, "cuCtxPopCurrent_v2", (Context*))                                                \
  X(ModuleLoadDataEx, "cuModuleLoadDataEx", (Module*, const void*, unsigned, int*, void**))  \
  X(ModuleUnload, "cuModuleUnload", (Module))                                                \
  X(ModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))              \
  X(ModuleGetGlobal, "cuModuleGetGlobal_v2", (Pointer*, size_t*, Module, const char*))       \
  X(FuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                            \
  X(MemAlloc, "cuMemAlloc_v2", (Pointer*, size_t))                                           \
  X(MemFree, "cuMemFree_v2", (Pointer))                                                      \
  X(MemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                       \
  X(MemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                              \
  X(MemFreeHost, "cuMemFreeHost", (void*))                                                   \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (Pointer, const void*, size_t, Stream))         \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void*, Pointer, size_t, Stream))               \
  X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (Pointer, Pointer, size_t, Stream))             \
  X(Memcpy2DAsync, "cuMemcpy2DAsync_v2", (const Copy2D*, Stream))                            \
  X(MemsetD8Async, "cuMemsetD8Async", (Pointer, unsigned char, size_t, Stream))              \
  X(MemsetD16Async, "cuMemsetD16Async", (Pointer, unsigned short, size_t, Stream))           \
  X(MemsetD32Async, "cuMemsetD32Async", (Pointer, unsigned, size_t, Stream))                 \
  X(StreamCreate, "cuStreamCreate", (Stream*, unsigned))                                     \
  X(StreamDestroy, "cuStreamDestroy_v2", (Stream))                                           \
  X(StreamSynchronize, "cuStreamSynchronize", (Stream))                                      \
  X(StreamWaitEvent, "cuStreamWaitEvent", (Stream, Event, unsigned))                         \
  X(EventCreate, "cuEventCreate", (Event*, unsigned))                                        \
  X(EventRecord, "cuEventRecord", (Event, Stream))                                           \
  X(EventSynchronize, "cuEventSynchronize", (Event))                                         \
  X(EventDestroy, "cuEventDestroy_v2", (Event))                                              \
  X(GetErrorName, "cuGetErrorName", (Result, const char**))                                  \
  X(GetErrorString, "cuGetErrorString", (Result, const char**))                              \
  X(LaunchKernel, "cuLaunchKernel",                                                          \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**, void**))

// CUDA graphs: without them launches go to the stream one by one.
#define DYCL_CUDA_GRAPH_FUNCTIONS(X)                              \
  X(StreamBeginCapture, "cuStreamBeginCapture_v2", (Stream, int)) \
  X(StreamEndCapture, "cuStreamEndCapture", (Stream, Graph*))     \
  X(GraphLaunch, "cuGraphLaunch", (GraphExec, Stream))            \
  X(GraphExecDestroy, "cuGraphExecDestroy", (GraphExec))          \
  X(GraphDestroy, "cuGraphDestroy", (Graph))

// Making a graph executable has another form in each generation of drivers: one of these is there.
#define DYCL_CUDA_INSTANTIATE_FUNCTIONS(X)                                                    \
  X(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                 \
    (GraphExec*, Graph, unsigned long long))                                                  \
  X(GraphInstantiateLog, "cuGraphInstantiate_v2", (GraphExec*, Graph, void**, char*, size_t)) \
  X(GraphInstantiateLog10, "cuGraphInstantiate", (GraphExec*, Graph, void**, char*, size_t))

// Conditional nodes: CUDA 12.8 has those of two sides and of many.
#define DYCL_CUDA_CONDITIONAL_FUNCTIONS(X)                                       \
  X(StreamGetCaptureInfo, "cuStreamGetCaptureInfo_v3",                           \
    (Stream, int*, uint64_t*, Graph*, const GraphNode**, const void**, size_t*)) \
  X(StreamUpdateCaptureDependencies, "cuStreamUpdateCaptureDependencies_v2",     \
    (Stream, GraphNode*, const void*, size_t, unsigned))                         \
  X(StreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph",                    \
    (Stream, Graph, const GraphNode*, const void*, size_t, int))                 \
  X(GraphConditionalHandleCreate, "cuGraphConditionalHandleCreate",              \
    (uint64_t*, Graph, Context, unsigned, unsigned))                             \
  X(GraphAddNode, "cuGraphAddNode_v2",                                           \
    (GraphNode*, Graph, const GraphNode*, const void*, size_t, ConditionalNode*))

struct Driver {
#define DYCL_CUDA_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  DYCL_CUDA_FUNCTIONS(DYCL_CUDA_MEMBER)
  DYCL_CUDA_GRAPH_FUNCTIONS(DYCL_CUDA_MEMBER)
  DYCL_CUDA_INSTANTIATE_FUNCTIONS(DYCL_CUDA_MEMBER)
  DYCL_CUDA_CONDITIONAL_FUNCTIONS(DYCL_CUDA_MEMBER)
#undef DYCL_CUDA_MEMBER
  bool has_graphs = false;
  bool has_conditionals = false;
  int version = 0;  // 11040 for CUDA 11.4

  Result GraphInstantiate(GraphExec* out, Graph graph) const {
    if (GraphInstantiateWithFlags != nullptr) return GraphInstantiateWithFlags(out, graph, 0);
    auto with_log = GraphInstantiateLog != nullptr ? GraphInstantiateLog : GraphInstantiateLog10;
    return with_log(out, graph, nullptr, nullptr, 0);
  }
};

// Finds and initialises the driver, once a process; null with an error where there is none, where
// it is too old, or where there is no GPU.
const Driver* GetDriver();

// An error of the device; returns DYCL_ERROR_DEVICE, or DYCL_ERROR_MEMORY.
__attribute__((format(printf, 2, 3))) int32_t Fail(Result result, const char* format, ...);

}  // namespace cuda
}  // namespace dycl

#endif  // DYCL_RUNTIME_CUDA_DRIVER_H_
