// Licensed under the Apache License, Version 2.0; see LICENSE.
// CUDA C++ as plain C++: enough of the language for the kernels of an artefact, whose text is
// compiled behind this header. The emulated driver runs the threads of a block as fibers.
#ifndef DYCL_TESTS_CUDA_ON_CPU_H_
#define DYCL_TESTS_CUDA_ON_CPU_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

struct EmulatedIndex {
  unsigned x, y, z;
};

// Defined by the emulated driver; it sets the indices before a thread goes on.
extern "C" {
extern EmulatedIndex threadIdx, blockIdx;
void emulated_syncthreads();
unsigned emulated_activemask();
// Gives a value of `lane` of the warp (or the thread's own); all lanes of `mask` must take part.
uint64_t emulated_shuffle(unsigned mask, uint64_t value, unsigned lane);
unsigned emulated_lane();
void emulated_trap();
}

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// One block runs at a time, so its shared memory is static.
#define __shared__ static
// TVM writes alignas where only the attribute may stand.
#define alignas(n) __attribute__((aligned(n)))

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef long long longlong;
typedef unsigned long long ulonglong;

#define DYCL_VECTOR(type)                                                                     \
  struct alignas(2 * sizeof(type)) type##2 { type x, y; };                                    \
  struct type##3 { type x, y, z; };                                                           \
  struct alignas(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)) type##4 { type x, y, z, w; }; \
  static inline type##2 make_##type##2(type x, type y) { return {x, y}; }                     \
  static inline type##3 make_##type##3(type x, type y, type z) { return {x, y, z}; }          \
  static inline type##4 make_##type##4(type x, type y, type z, type w) { return {x, y, z, w}; }
DYCL_VECTOR(float)
DYCL_VECTOR(double)
DYCL_VECTOR(int)
DYCL_VECTOR(uint)
DYCL_VECTOR(char)
DYCL_VECTOR(uchar)
DYCL_VECTOR(short)
DYCL_VECTOR(ushort)
DYCL_VECTOR(longlong)
DYCL_VECTOR(ulonglong)
#undef DYCL_VECTOR

// CUDA's max and min of floats give the other operand for a NaN.
template <class A, class B>
static inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <class A, class B>
static inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

// Quick approximations of a GPU: here they are exact and rounded. Macros, because glibc has
// functions of these names.
static inline float EmulatedLog(float x) {
  return static_cast<float>(std::log(static_cast<double>(x)));
}
static inline double EmulatedSinPi(double x) { return std::sin(x * M_PI); }
static inline double EmulatedCosPi(double x) { return std::cos(x * M_PI); }
#define sinpi(x) EmulatedSinPi(x)
#define cospi(x) EmulatedCosPi(x)
#define __expf(x) static_cast<float>(std::exp(static_cast<double>(static_cast<float>(x))))
#define __exp10f(x) std::pow(10.0f, static_cast<float>(x))
#define __logf(x) EmulatedLog(x)
#define logf(x) EmulatedLog(x)
#define __log2f(x) std::log2(static_cast<float>(x))
#define __log10f(x) std::log10(static_cast<float>(x))
#define __sinf(x) static_cast<float>(std::sin(static_cast<double>(static_cast<float>(x))))
#define __cosf(x) static_cast<float>(std::cos(static_cast<double>(static_cast<float>(x))))
#define __tanf(x) static_cast<float>(std::tan(static_cast<double>(static_cast<float>(x))))
#define __powf(x, y) std::pow(static_cast<float>(x), static_cast<float>(y))
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

template <class To, class From>
static inline To EmulatedBits(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
static inline float __int_as_float(int x) { return EmulatedBits<float>(x); }
static inline float __uint_as_float(unsigned x) { return EmulatedBits<float>(x); }
static inline int __float_as_int(float x) { return EmulatedBits<int>(x); }
static inline unsigned __float_as_uint(float x) { return EmulatedBits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return EmulatedBits<double>(x); }
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN __longlong_as_double(0xfff8000000000000ll)

static inline void __trap() { emulated_trap(); }
static inline void __syncthreads() { emulated_syncthreads(); }
static inline unsigned __activemask() { return emulated_activemask(); }

template <class T>
static inline T EmulatedShuffle(unsigned mask, T value, unsigned lane) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = emulated_shuffle(mask, bits, lane);
  memcpy(&value, &bits, sizeof(T));
  return value;
}
// A lane outside of the group of `width` gives the thread its own value back.
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned lane = emulated_lane(), base = lane / width * width;
  return EmulatedShuffle(mask, value, lane + delta < base + width ? lane + delta : lane);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned lane = emulated_lane(), base = lane / width * width;
  return EmulatedShuffle(mask, value, lane >= base + delta ? lane - delta : lane);
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  unsigned base = emulated_lane() / width * width;
  return EmulatedShuffle(mask, value, base + static_cast<unsigned>(source) % width);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  (void)width;
  return EmulatedShuffle(mask, value, emulated_lane() ^ static_cast<unsigned>(lanes));
}

// What the driver calls: the kernel with its arguments read from where cuLaunchKernel's point.
template <class... A, size_t... I>
static inline void EmulatedCall(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(args[I])...);
}
template <class... A>
static inline void EmulatedCall(void (*kernel)(A...), void** args) {
  EmulatedCall(kernel, args, std::index_sequence_for<A...>());
}
template <class... A>
static constexpr unsigned EmulatedArity(void (*)(A...)) {
  return sizeof...(A);
}

// The table that ends the text of the kernels.
struct EmulatedKernel {
  const char* name;
  void (*call)(void** args);
  unsigned num_args;
  bool cooperates;  // has barriers or shuffles: its threads must be fibers
};
#define EMULATED_KERNEL(name, cooperates) \
  {#name, [](void** args) { EmulatedCall(&name, args); }, EmulatedArity(&name), cooperates}

#endif  // DYCL_TESTS_CUDA_ON_CPU_H_
