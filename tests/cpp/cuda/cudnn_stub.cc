// Licensed under the Apache License, Version 2.0; see LICENSE.
// The part of libcudnn.so.9 that artefacts call, on memory of the emulated GPU. As the library, it
// checks descriptors against each other, puts its work on the handle's stream, rounds factors of
// float32 unless it is told not to, uses all of the workspace, and has algorithms that some calls
// cannot use.
#include <cstdint>
#include <cstring>
#include <memory>

#include "half_on_cpu.h"

extern "C" {
int emulated_cuda_enqueue(void* stream, void (*work)(void*), void* data);
int emulated_cuda_on_device(const void* address, size_t bytes);

constexpr int kBadParam = 2000, kNotSupported = 3000, kExecutionFailed = 5000;

static int g_alive = 0;
static int g_fused = 0;
static int g_algorithm = 1;
static size_t g_workspace = 1000;
static bool g_fuses = true;

// Handles and descriptors that are not destroyed.
int emulated_cudnn_alive() { return g_alive; }
// Convolutions that added their bias themselves.
int emulated_cudnn_fused() { return g_fused; }
// What is estimated to be the fastest, its workspace for each filter, and whether it can add a
// bias.
void emulated_cudnn_fastest(int algorithm, size_t workspace, int fuses) {
  g_algorithm = algorithm;
  g_workspace = workspace;
  g_fuses = fuses != 0;
  g_fused = 0;
}

struct Handle {
  void* stream;
};
struct Tensor {
  int type, n[4];
};
struct Window {
  int padding[2], stride[2], dilation[2], groups, math;
};
struct Activation {
  int mode;
};
struct Algorithm {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

size_t cudnnGetVersion() { return 90100; }

#define DESCRIPTOR(name, type)          \
  int cudnnCreate##name(type** out) {   \
    *out = new type{};                  \
    ++g_alive;                          \
    return 0;                           \
  }                                     \
  int cudnnDestroy##name(type* which) { \
    delete which;                       \
    --g_alive;                          \
    return 0;                           \
  }
DESCRIPTOR(, Handle)
DESCRIPTOR(TensorDescriptor, Tensor)
DESCRIPTOR(FilterDescriptor, Tensor)
DESCRIPTOR(ConvolutionDescriptor, Window)
DESCRIPTOR(ActivationDescriptor, Activation)

int cudnnSetStream(Handle* handle, void* stream) {
  handle->stream = stream;
  return 0;
}
int cudnnSetTensor4dDescriptor(Tensor* t, int format, int type, int n, int c, int h, int w) {
  if (format != 0 || (type != 0 && type != 2)) return kNotSupported;
  *t = Tensor{type, {n, c, h, w}};
  return 0;
}
int cudnnSetFilter4dDescriptor(Tensor* t, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(t, format, type, k, c, h, w);
}
int cudnnSetConvolution2dDescriptor(Window* c, int pad_h, int pad_w, int stride_h, int stride_w,
                                    int dilation_h, int dilation_w, int mode, int compute) {
  if (mode != 1 || compute != 0) return kNotSupported;
  *c = Window{{pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, 1, 0};
  return 0;
}
int cudnnSetConvolutionGroupCount(Window* c, int groups) {
  c->groups = groups;
  return 0;
}
int cudnnSetConvolutionMathType(Window* c, int math) {
  c->math = math;
  return 0;
}
int cudnnSetActivationDescriptor(Activation* a, int mode, int nan, double) {
  a->mode = mode;
  return nan == 1 ? 0 : kNotSupported;
}

// What a convolution of these sizes has along one side.
static int OutSide(const Tensor& x, const Tensor& w, const Window& c, int k) {
  int extent = (w.n[2 + k] - 1) * c.dilation[k] + 1;
  return (x.n[2 + k] + 2 * c.padding[k] - extent) / c.stride[k] + 1;
}
static int Fits(const Tensor& x, const Tensor& w, const Window& c, const Tensor& y) {
  bool good = x.type == w.type && w.type == y.type && c.groups > 0 && w.n[0] % c.groups == 0 &&
              x.n[1] == w.n[1] * c.groups && y.n[0] == x.n[0] && y.n[1] == w.n[0];
  for (int k = 0; k < 2; ++k) good = good && y.n[2 + k] == OutSide(x, w, c, k);
  return good ? 0 : kBadParam;
}

// In proportion to the filters.
static size_t Workspace(int algorithm, const Tensor& w) {
  return algorithm == g_algorithm ? g_workspace * static_cast<size_t>(w.n[0]) : 0;
}

int cudnnGetConvolutionForwardWorkspaceSize(Handle*, Tensor* x, Tensor* w, Window* c, Tensor* y,
                                            int algorithm, size_t* bytes) {
  *bytes = Workspace(algorithm, *w);
  return Fits(*x, *w, *c, *y);
}

// One that failed, the fastest, and one without a workspace.
int cudnnGetConvolutionForwardAlgorithm_v7(Handle*, Tensor* x, Tensor* w, Window* c, Tensor* y,
                                           int wanted, int* count, Algorithm* out) {
  const Algorithm found[] = {{4, kNotSupported, -1, 0, 1, c->math, {}},
                             {g_algorithm, 0, -1, Workspace(g_algorithm, *w), 1, c->math, {}},
                             {0, 0, -1, 0, 1, c->math, {}}};
  *count = wanted < 3 ? wanted : 3;
  memcpy(out, found, static_cast<size_t>(*count) * sizeof(Algorithm));
  return Fits(*x, *w, *c, *y);
}

struct Convolution {
  Tensor dx, dw, dy;
  Window c;
  const char *x, *w, *bias;
  char *y, *workspace;
  size_t workspace_bytes;
};

static float Get(const char* at, long long k, int type) {
  if (type == 0) {
    float value;
    memcpy(&value, at + k * 4, 4);
    return value;
  }
  unsigned short bits;
  memcpy(&bits, at + k * 2, 2);
  return dycl_half_value(bits);
}
static void Put(char* at, long long k, int type, float value) {
  unsigned short bits = dycl_half_bits(value);
  memcpy(at + k * (type == 0 ? 4 : 2), type == 0 ? static_cast<void*>(&value) : &bits,
         type == 0 ? 4 : 2);
}
static long long At(const Tensor& t, int n, int c, int h, int w) {
  return ((1LL * n * t.n[1] + c) * t.n[2] + h) * t.n[3] + w;
}

static void Run(void* data) {
  std::unique_ptr<Convolution> run(static_cast<Convolution*>(data));
  const Tensor &dx = run->dx, &dw = run->dw, &dy = run->dy;
  const Window& c = run->c;
  if (run->workspace_bytes != 0) memset(run->workspace, 0xff, run->workspace_bytes);
  // TF32 has the digits of float16, and the exponents of float32.
  auto factor = [&](const char* at, long long k) {
    float value = Get(at, k, dx.type);
    return dx.type == 0 && c.math != 3 ? __uint_as_float(__float_as_uint(value) & 0xffffe000u)
                                       : value;
  };
  for (int n = 0; n < dy.n[0]; ++n) {
    for (int k = 0; k < dy.n[1]; ++k) {
      int first = k / (dw.n[0] / c.groups) * dw.n[1];
      for (int h = 0; h < dy.n[2]; ++h) {
        for (int w = 0; w < dy.n[3]; ++w) {
          float sum = run->bias != nullptr ? Get(run->bias, k, dy.type) : 0;
          for (int j = 0; j < dw.n[1]; ++j) {
            for (int p = 0; p < dw.n[2]; ++p) {
              for (int q = 0; q < dw.n[3]; ++q) {
                int row = h * c.stride[0] - c.padding[0] + p * c.dilation[0];
                int column = w * c.stride[1] - c.padding[1] + q * c.dilation[1];
                if (row < 0 || row >= dx.n[2] || column < 0 || column >= dx.n[3]) continue;
                sum += factor(run->x, At(dx, n, first + j, row, column)) *
                       factor(run->w, At(dw, k, j, p, q));
              }
            }
          }
          Put(run->y, At(dy, n, k, h, w), dy.type, sum);
        }
      }
    }
  }
}

static int Start(Handle* handle, const void* alpha, Tensor* dx, const void* x, Tensor* dw,
                 const void* w, Window* c, int algorithm, void* workspace, size_t bytes,
                 const void* beta, const void* bias, Tensor* dy, void* y) {
  if (int status = Fits(*dx, *dw, *c, *dy)) return status;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) {
    return kNotSupported;
  }
  size_t needed = Workspace(algorithm, *dw);
  if (algorithm != g_algorithm && algorithm != 0) return kNotSupported;
  bool held = needed == 0 || emulated_cuda_on_device(workspace, needed) != 0;
  if (bytes < needed || !held) return kBadParam;
  auto* run = new Convolution{*dx,
                              *dw,
                              *dy,
                              *c,
                              static_cast<const char*>(x),
                              static_cast<const char*>(w),
                              static_cast<const char*>(bias),
                              static_cast<char*>(y),
                              static_cast<char*>(workspace),
                              needed};
  return emulated_cuda_enqueue(handle->stream, Run, run) == 0 ? 0 : kExecutionFailed;
}

int cudnnConvolutionForward(Handle* handle, const void* alpha, Tensor* dx, const void* x,
                            Tensor* dw, const void* w, Window* c, int algorithm, void* workspace,
                            size_t bytes, const void* beta, Tensor* dy, void* y) {
  return Start(handle, alpha, dx, x, dw, w, c, algorithm, workspace, bytes, beta, nullptr, dy, y);
}

static int IsBias(const Tensor& bias, const Tensor& y) {
  bool good = bias.type == y.type && bias.n[0] == 1 && bias.n[1] == y.n[1] && bias.n[2] == 1 &&
              bias.n[3] == 1;
  return good ? 0 : kBadParam;
}

int cudnnConvolutionBiasActivationForward(Handle* handle, const void* alpha1, Tensor* dx,
                                          const void* x, Tensor* dw, const void* w, Window* c,
                                          int algorithm, void* workspace, size_t bytes,
                                          const void* alpha2, Tensor* dz, const void* z,
                                          Tensor* dbias, const void* bias, Activation* activation,
                                          Tensor* dy, void* y) {
  if (algorithm != 1 || activation->mode != 5 || !g_fuses) return kNotSupported;
  if (z == nullptr || memcmp(dz, dy, sizeof(Tensor)) != 0) return kBadParam;
  if (int status = IsBias(*dbias, *dy)) return status;
  ++g_fused;
  return Start(handle, alpha1, dx, x, dw, w, c, algorithm, workspace, bytes, alpha2, bias, dy, y);
}

static void Add(void* data) {
  std::unique_ptr<Convolution> run(static_cast<Convolution*>(data));
  const Tensor& dy = run->dy;
  long long pixels = 1LL * dy.n[2] * dy.n[3];
  for (long long k = 0; k < dy.n[0] * dy.n[1] * pixels; ++k) {
    Put(run->y, k, dy.type,
        Get(run->y, k, dy.type) + Get(run->bias, k / pixels % dy.n[1], dy.type));
  }
}

int cudnnAddTensor(Handle* handle, const void* alpha, Tensor* dbias, const void* bias,
                   const void* beta, Tensor* dy, void* y) {
  if (int status = IsBias(*dbias, *dy)) return status;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 1) {
    return kNotSupported;
  }
  auto* run = new Convolution{};
  run->dy = *dy;
  run->bias = static_cast<const char*>(bias);
  run->y = static_cast<char*>(y);
  return emulated_cuda_enqueue(handle->stream, Add, run) == 0 ? 0 : kExecutionFailed;
}
}
