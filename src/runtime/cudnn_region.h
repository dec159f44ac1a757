// Licensed under the Apache License, Version 2.0; see LICENSE.
// Convolutions of two dimensions by cuDNN, for regions of the backend `cudnn`. A session has one
// handle, and of each convolution the descriptors and an algorithm, made when the session is made.
#ifndef DYCL_RUNTIME_CUDNN_REGION_H_
#define DYCL_RUNTIME_CUDNN_REGION_H_

#include "gpu_library.h"

namespace dycl {
namespace cudnn {

using Status = int;

// cudnnDataType_t, cudnnTensorFormat_t, cudnnConvolutionMode_t, cudnnNanPropagation_t,
// cudnnActivationMode_t, cudnnConvolutionFwdAlgo_t.
constexpr int kFloat32 = 0, kFloat16 = 2;
constexpr int kNCHW = 0;
constexpr int kCrossCorrelation = 1;
constexpr int kPropagateNan = 1;
constexpr int kIdentity = 5;
constexpr int kImplicitPrecompGemm = 1, kNumAlgorithms = 8;
// cudnnMathType_t. Without kFma, cuDNN rounds factors of float32 to TF32 where the GPU has it.
constexpr int kTensorCores = 1, kFma = 3;

// Algorithms that want more than this are passed over: boards have little memory.
constexpr uint64_t kMostWorkspace = uint64_t{256} << 20;

// cudnnConvolutionFwdAlgoPerf_t.
struct Algorithm {
  int algorithm;
  Status status;
  float time;
  size_t memory;
  int determinism;
  int math;
  int reserved[3];
};
static_assert(sizeof(Algorithm) == 48 || sizeof(void*) != 8, "as in cudnn.h");

// What cuDNN 8 and 9 have, without the prefix `cudnn`; descriptors are void*.
#define DYCL_CUDNN_FUNCTIONS(X)                                                                    \
  X(Create, (void**))                                                                              \
  X(Destroy, (void*))                                                                              \
  X(SetStream, (void*, void*))                                                                     \
  X(CreateTensorDescriptor, (void**))                                                              \
  X(SetTensor4dDescriptor, (void*, int, int, int, int, int, int))                                  \
  X(DestroyTensorDescriptor, (void*))                                                              \
  X(CreateFilterDescriptor, (void**))                                                              \
  X(SetFilter4dDescriptor, (void*, int, int, int, int, int, int))                                  \
  X(DestroyFilterDescriptor, (void*))                                                              \
  X(CreateConvolutionDescriptor, (void**))                                                         \
  X(SetConvolution2dDescriptor, (void*, int, int, int, int, int, int, int, int))                   \
  X(SetConvolutionGroupCount, (void*, int))                                                        \
  X(SetConvolutionMathType, (void*, int))                                                          \
  X(DestroyConvolutionDescriptor, (void*))                                                         \
  X(CreateActivationDescriptor, (void**))                                                          \
  X(SetActivationDescriptor, (void*, int, int, double))                                            \
  X(DestroyActivationDescriptor, (void*))                                                          \
  X(GetConvolutionForwardAlgorithm_v7, (void*, void*, void*, void*, void*, int, int*, Algorithm*)) \
  X(GetConvolutionForwardWorkspaceSize, (void*, void*, void*, void*, void*, int, size_t*))         \
  X(ConvolutionForward, (void*, const void*, void*, const void*, void*, const void*, void*, int,   \
                         void*, size_t, const void*, void*, void*))                                \
  X(ConvolutionBiasActivationForward,                                                              \
    (void*, const void*, void*, const void*, void*, const void*, void*, int, void*, size_t,        \
     const void*, void*, const void*, void*, const void*, void*, void*, void*))                    \
  X(AddTensor, (void*, const void*, void*, const void*, const void*, void*, void*))

struct Library : cuda::SharedLibrary {
  static constexpr const char *kName = "cuDNN", *kBackend = "cudnn";
  static constexpr uint32_t kState = kCudnnState;

#define DYCL_CUDNN_MEMBER(name, parameters) Status(*name) parameters = nullptr;
  DYCL_CUDNN_FUNCTIONS(DYCL_CUDNN_MEMBER)
#undef DYCL_CUDNN_MEMBER
  size_t (*GetVersion)() = nullptr;

  explicit Library(int) {
    Open("libcudnn", 9, 8);
#define DYCL_CUDNN_FIND(name, parameters) Find("cudnn" #name, &name);
    DYCL_CUDNN_FUNCTIONS(DYCL_CUDNN_FIND)
#undef DYCL_CUDNN_FIND
    Find("cudnnGetVersion", &GetVersion);
  }
  Status Version(void*, int* version) const {
    *version = static_cast<int>(GetVersion());
    return 0;
  }
};
using Handle = cuda::LibraryHandle<Library>;

// A convolution of compact tensors. w[1] is the channels of a group; the last four are numbers of
// arguments, `bias` is -1 where there is none.
struct Shape {
  int x[4], w[4], y[4];
  int stride[2], padding[2], dilation[2];
  int groups;
  bool half;
  int in, weight, bias, out;
};

// What is made of a convolution once a session.
struct Plan {
  explicit Plan(const Library& made_by) : library(made_by) {}
  ~Plan() {
    if (x != nullptr) library.DestroyTensorDescriptor(x);
    if (y != nullptr) library.DestroyTensorDescriptor(y);
    if (bias != nullptr) library.DestroyTensorDescriptor(bias);
    if (w != nullptr) library.DestroyFilterDescriptor(w);
    if (convolution != nullptr) library.DestroyConvolutionDescriptor(convolution);
    if (identity != nullptr) library.DestroyActivationDescriptor(identity);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  static void Release(void* data) { delete static_cast<Plan*>(data); }

  int32_t Describe(const Shape& s);
  int32_t ChooseAlgorithm(void* handle, bool half);
  int32_t Run(void* handle, const LibraryCall& call, const Shape& s);

  const Library& library;
  void *x = nullptr, *y = nullptr, *bias = nullptr, *w = nullptr;
  void *convolution = nullptr, *identity = nullptr;
  int algorithm = 0;
  size_t workspace_bytes = 0;
  bool fused = false;  // the bias is added by the same call
};

// Stops at the first call that fails.
class Checked {
 public:
  bool operator()(Status status, const char* what) {
    error_ = cuda::CheckLibrary<Library>(status, what);
    return error_ == DYCL_OK;
  }
  int32_t error() const { return error_; }

 private:
  int32_t error_ = DYCL_OK;
};

inline int32_t Plan::Describe(const Shape& s) {
  const Library& l = library;
  int type = s.half ? kFloat16 : kFloat32;
  Checked good;
  auto tensor = [&](void** made, int n, int c, int height, int width) {
    return good(l.CreateTensorDescriptor(made), "cudnnCreateTensorDescriptor") &&
           good(l.SetTensor4dDescriptor(*made, kNCHW, type, n, c, height, width),
                "cudnnSetTensor4dDescriptor");
  };
  bool described =
      tensor(&x, s.x[0], s.x[1], s.x[2], s.x[3]) && tensor(&y, s.y[0], s.y[1], s.y[2], s.y[3]) &&
      good(l.CreateFilterDescriptor(&w), "cudnnCreateFilterDescriptor") &&
      good(l.SetFilter4dDescriptor(w, type, kNCHW, s.w[0], s.w[1], s.w[2], s.w[3]),
           "cudnnSetFilter4dDescriptor") &&
      good(l.CreateConvolutionDescriptor(&convolution), "cudnnCreateConvolutionDescriptor") &&
      good(l.SetConvolution2dDescriptor(convolution, s.padding[0], s.padding[1], s.stride[0],
                                        s.stride[1], s.dilation[0], s.dilation[1],
                                        kCrossCorrelation, kFloat32),
           "cudnnSetConvolution2dDescriptor") &&
      good(l.SetConvolutionGroupCount(convolution, s.groups), "cudnnSetConvolutionGroupCount") &&
      good(l.SetConvolutionMathType(convolution, s.half ? kTensorCores : kFma),
           "cudnnSetConvolutionMathType");
  if (described && s.bias >= 0 && tensor(&bias, 1, s.y[1], 1, 1) &&
      good(l.CreateActivationDescriptor(&identity), "cudnnCreateActivationDescriptor")) {
    good(l.SetActivationDescriptor(identity, kIdentity, kPropagateNan, 0),
         "cudnnSetActivationDescriptor");
  }
  return good.error();
}

// The first of cuDNN's list, which is by estimated time, that has a workspace of moderate size.
inline int32_t Plan::ChooseAlgorithm(void* handle, bool half) {
  const Library& l = library;
  Algorithm found[kNumAlgorithms] = {};
  int count = 0;
  Checked good;
  if (!good(l.GetConvolutionForwardAlgorithm_v7(handle, x, w, convolution, y, kNumAlgorithms,
                                                &count, found),
            "cudnnGetConvolutionForwardAlgorithm_v7")) {
    return good.error();
  }
  for (int k = 0; k < count; ++k) {
    if (found[k].status != 0) continue;
    if (half && !good(l.SetConvolutionMathType(convolution, found[k].math),
                      "cudnnSetConvolutionMathType")) {
      return good.error();
    }
    algorithm = found[k].algorithm;
    if (l.GetConvolutionForwardWorkspaceSize(handle, x, w, convolution, y, algorithm,
                                             &workspace_bytes) == 0 &&
        workspace_bytes <= kMostWorkspace) {
      // The only algorithm that adds a bias without an activation.
      fused = bias != nullptr && algorithm == kImplicitPrecompGemm;
      return DYCL_OK;
    }
  }
  return cuda::LibraryError("cuDNN has no algorithm for a convolution of '%s'", kProgram.name);
}

inline int32_t Plan::Run(void* handle, const LibraryCall& call, const Shape& s) {
  const Library& l = library;
  const float one = 1, zero = 0;
  const void *in = cuda::Address(call, s.in), *weight = cuda::Address(call, s.weight);
  void* out = cuda::Address(call, s.out);
  void* workspace = workspace_bytes != 0 ? call.workspace : nullptr;
  if (fused) {
    // `out` stands for a summand whose factor is zero, and is not read.
    Status status = l.ConvolutionBiasActivationForward(
        handle, &one, x, in, w, weight, convolution, algorithm, workspace, workspace_bytes, &zero,
        y, out, bias, cuda::Address(call, s.bias), identity, y, out);
    if (status == 0) return DYCL_OK;
    fused = false;  // not for this shape, which only the call itself tells
  }
  Checked good;
  if (good(l.ConvolutionForward(handle, &one, x, in, w, weight, convolution, algorithm, workspace,
                                workspace_bytes, &zero, y, out),
           "cudnnConvolutionForward") &&
      bias != nullptr) {
    good(l.AddTensor(handle, &one, bias, cuda::Address(call, s.bias), &one, y, out),
         "cudnnAddTensor");
  }
  return good.error();
}

inline int32_t Convolution(const LibraryCall& call, const Shape& s) {
  if (call.step == LibraryStep::kFind) {
    const Library* library = nullptr;
    return cuda::FindLibrary(call, &library);
  }
  const Handle* handle = nullptr;
  if (int32_t status = cuda::GetHandle(call, &handle)) return status;
  if (call.step == LibraryStep::kRun) {
    return static_cast<Plan*>(call.state->data)->Run(handle->handle, call, s);
  }
  auto* plan = new Plan(*handle->library);
  *call.state = KernelState{plan, Plan::Release};
  if (int32_t status = plan->Describe(s)) return status;
  if (int32_t status = plan->ChooseAlgorithm(handle->handle, s.half)) return status;
  if (*call.workspace_bytes < plan->workspace_bytes) *call.workspace_bytes = plan->workspace_bytes;
  return DYCL_OK;
}

}  // namespace cudnn
}  // namespace dycl

#endif  // DYCL_RUNTIME_CUDNN_REGION_H_
