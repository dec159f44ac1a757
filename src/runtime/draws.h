// Licensed under the Apache License, Version 2.0; see LICENSE.
// Kernels that draw tensors of random numbers. Generated code calls one for each distinct draw of
// a network. Arguments of a kernel: the generator's state, operands, the result, the new state.
#ifndef DYCL_RUNTIME_DRAWS_H_
#define DYCL_RUNTIME_DRAWS_H_

#include <algorithm>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "error.h"
#include "kernel_tensors.h"
#include "random.h"

namespace dycl::random {

// Runs `draw` on a generator whose state is argument 0 before and argument `last` after.
template <class Draw>
int Drawn(const TVMFFIAny* args, int last, Draw draw) {
  Arguments a(args);
  char* state = a.data(last);
  if (state != a.data(0)) memcpy(state, a.data(0), kStateBytes);
  Generator generator(state);
  if (!generator.IsValid()) {
    SetError("RuntimeError", "the state of a generator of random numbers is not valid");
    return -1;
  }
  return draw(a, generator);
}

template <class T, class Next>
int Fill(const TVMFFIAny* args, Next next) {
  return Drawn(args, 2, [&](const Arguments& a, Generator& g) {
    T* out = a.data<T>(1);
    for (int64_t k = 0, n = a.size(1); k < n; ++k) out[k] = Element<T>::From(next(g));
    return 0;
  });
}

// ---- distributions of numbers -------------------------------------------------------------------
template <class T>
int Uniform(const TVMFFIAny* args, double from, double to) {
  using W = Wide<T>;
  W low = static_cast<W>(from), high = static_cast<W>(to);
  W first = Element<T>::Widened(Element<T>::From(from));
  W last = Element<T>::Widened(Element<T>::From(to));
  return Fill<T>(args, [=](Generator& g) {
    W x = Element<T>::Widened(Element<T>::From(g.Uniform(low, high)));
    return x == last ? first : x;  // it was rounded to the end of the interval
  });
}

template <class T>
int Exponential(const TVMFFIAny* args, double rate) {
  return Fill<T>(args,
                 [=](Generator& g) { return -1.0 / rate * std::log1p(-g.Uniform(0.0, 1.0)); });
}

template <class T>
int Geometric(const TVMFFIAny* args, double p) {
  return Fill<T>(args, [=](Generator& g) {
    return std::ceil(std::log(g.Uniform(0.0, 1.0)) / std::log(1.0 - p));
  });
}

template <class T>
int Cauchy(const TVMFFIAny* args, double median, double sigma) {
  return Fill<T>(args, [=](Generator& g) {
    return std::fma(sigma, std::tan(Generator::kPi * (g.Uniform(0.0, 1.0) - 0.5)), median);
  });
}

template <class T>
int LogNormal(const TVMFFIAny* args, double mean, double deviation) {
  return Fill<T>(args, [=](Generator& g) { return std::exp(g.Normal(mean, deviation)); });
}

template <class T>
int Bernoulli(const TVMFFIAny* args, double p) {
  return Fill<T>(args, [=](Generator& g) { return g.Uniform(0.0, 1.0) < p ? 1 : 0; });
}

// Each element with a probability of its own; argument 1 has them.
template <class T, class P>
int BernoulliEach(const TVMFFIAny* args) {
  return Drawn(args, 3, [&](const Arguments& a, Generator& g) {
    const P* p = a.data<P>(1);
    T* out = a.data<T>(2);
    for (int64_t k = 0, n = a.size(2); k < n; ++k) {
      Wide<P> chance = Element<P>::Widened(p[k]);
      if (!(chance >= 0 && chance <= 1)) {
        SetError("RuntimeError", "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
        return -1;
      }
      out[k] = Element<T>::From(g.Uniform(Wide<P>(0), Wide<P>(1)) < chance ? 1 : 0);
    }
    return 0;
  });
}

// Whole numbers from `base`, `range` of them.
template <class T>
int Integers(const TVMFFIAny* args, int64_t base, uint64_t range) {
  return Fill<T>(args, [=](Generator& g) {
    uint64_t word = range >= 1ULL << 28 ? g.Next64() : g.Next();
    return static_cast<int64_t>(word % range + static_cast<uint64_t>(base));
  });
}

template <class T>
int Permutation(const TVMFFIAny* args) {
  return Drawn(args, 2, [&](const Arguments& a, Generator& g) {
    T* out = a.data<T>(1);
    int64_t n = a.size(1);
    for (int64_t k = 0; k < n; ++k) out[k] = Element<T>::From(k);
    for (int64_t k = 0; k < n - 1; ++k) std::swap(out[k], out[k + g.Next() % (n - k)]);
    return 0;
  });
}

// ---- normal numbers -----------------------------------------------------------------------------
// One after the other, for few elements and those that are not contiguous.
template <class T>
int NormalOneByOne(const TVMFFIAny* args, double mean, double deviation) {
  return Fill<T>(args, [=](Generator& g) { return g.Normal(mean, deviation); });
}

// The logarithm, sine and cosine of Cephes in float, with the steps and contractions that PyTorch's
// kernels for AVX2 have.
__attribute__((always_inline)) inline float Log(float x) {
  uint32_t bits = BitsOf(x);
  float e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 0x7f) + 1.0F;
  x = FloatOf((bits & ~0x7f800000U) | 0x3f000000U);
  float add = x < 0.707106781186547524F ? x : 0.0F;
  e -= x < 0.707106781186547524F ? 1.0F : 0.0F;
  x = (x - 1.0F) + add;
  float z = x * x;
  float y = 7.0376836292E-2F;
  y = std::fma(y, x, -1.1514610310E-1F);
  y = std::fma(y, x, 1.1676998740E-1F);
  y = std::fma(y, x, -1.2420140846E-1F);
  y = std::fma(y, x, 1.4249322787E-1F);
  y = std::fma(y, x, -1.6668057665E-1F);
  y = std::fma(y, x, 2.0000714765E-1F);
  y = std::fma(y, x, -2.4999993993E-1F);
  y = std::fma(y, x, 3.3333331174E-1F);
  y = y * x;
  y = std::fma(y, z, e * -2.12194440E-4F);
  y = std::fma(z, -0.5F, y);
  return std::fma(e, 0.693359375F, x + y);
}

__attribute__((always_inline)) inline void SinCos(float angle, float* sine, float* cosine) {
  int32_t octant = (static_cast<int32_t>(angle * 1.27323954473516F) + 1) & ~1;
  float y = static_cast<float>(octant), x = angle;
  x = std::fma(y, -0.78515625F, x);
  x = std::fma(y, -2.4187564849853515625E-4F, x);
  x = std::fma(y, -3.77489497744594108E-8F, x);
  float z = x * x;
  float c = 2.443315711809948E-005F;
  c = std::fma(c, z, -1.388731625493765E-003F);
  c = std::fma(c, z, 4.166664568298827E-002F);
  c = c * z;
  c = std::fma(c, z, -(z * 0.5F)) + 1.0F;
  float s = -1.9515295891E-4F;
  s = std::fma(s, z, 8.3321608736E-3F);
  s = std::fma(s, z, -1.6666654611E-1F);
  s = s * z;
  s = std::fma(s, x, x);
  bool swapped = (octant & 2) != 0;
  float first = swapped ? c : s, second = swapped ? s : c;
  *sine = (octant & 4) != 0 ? -first : first;
  *cosine = ((octant - 2) & 4) == 0 ? -second : second;
}

// Turns 16 uniform numbers into normal ones.
__attribute__((always_inline)) inline void Pairs(float* data, float mean, float deviation) {
  for (int k = 0; k < 8; ++k) {
    float radius = std::sqrt(-2.0F * Log(1.0F - data[k]));
    float sine, cosine;
    SinCos(static_cast<float>(2.0F * Generator::kPi) * data[k + 8], &sine, &cosine);
    data[k] = std::fma(radius * cosine, deviation, mean);
    data[k + 8] = std::fma(radius * sine, deviation, mean);
  }
}

#if defined(__x86_64__)
// Without the instruction a fused product and sum is a call.
__attribute__((target("avx2,fma"))) inline void PairsByFma(float* data, float mean, float dev) {
  Pairs(data, mean, dev);
}
#endif

inline void NormalPairs(float* data, float mean, float deviation) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
    PairsByFma(data, mean, deviation);
    return;
  }
#endif
  Pairs(data, mean, deviation);
}

inline void NormalPairs(double* data, double mean, double deviation) {
  for (int k = 0; k < 8; ++k) {
    double radius = std::sqrt(-2.0 * std::log(1.0 - data[k]));
    double angle = 2.0 * Generator::kPi * data[k + 8];
    data[k] = std::fma(radius * std::cos(angle), deviation, mean);
    data[k + 8] = std::fma(radius * std::sin(angle), deviation, mean);
  }
}

// Sixteen at a time, for 16 contiguous elements and more; the last 16 are drawn anew if the number
// is no multiple. Floats and doubles are all drawn before the first is turned into a normal one.
template <class T>
int Normal(const TVMFFIAny* args, double mean, double deviation) {
  return Drawn(args, 2, [&](const Arguments& a, Generator& g) {
    using W = Wide<T>;
    T* out = a.data<T>(1);
    int64_t n = a.size(1);
    W m = static_cast<W>(mean), d = static_cast<W>(deviation);
    W block[16];
    auto draw = [&](W* at) {
      for (int k = 0; k < 16; ++k) at[k] = g.Uniform(W(0), W(1));
    };
    auto store = [&](int64_t at) {
      NormalPairs(block, m, d);
      for (int k = 0; k < 16; ++k) out[at + k] = Element<T>::From(block[k]);
    };
    if (std::is_same<T, W>::value) {
      for (int64_t k = 0; k < n; ++k) out[k] = Element<T>::From(g.Uniform(W(0), W(1)));
    }
    for (int64_t at = 0; at < n - 15; at += 16) {
      if (std::is_same<T, W>::value) {
        for (int k = 0; k < 16; ++k) block[k] = static_cast<W>(Element<T>::Widened(out[at + k]));
      } else {
        draw(block);
      }
      store(at);
    }
    if (n % 16 != 0) {
      draw(block);
      store(n - 16);
    }
    return 0;
  });
}

// Each with a mean and a spread of its own, arguments 1 and 2; the product and the sum are rounded.
template <class T>
int NormalEach(const TVMFFIAny* args, bool one_by_one) {
  Arguments a(args);
  const T *mean = a.data<T>(1), *deviation = a.data<T>(2);
  int64_t n = a.size(3);
  for (int64_t k = 0; k < n; ++k) {
    if (!(Element<T>::Widened(deviation[k]) >= 0)) {
      SetError("RuntimeError", "normal expects all elements of std >= 0.0");
      return -1;
    }
  }
  TVMFFIAny inner[3] = {args[0], args[3], args[4]};
  int failed = one_by_one ? NormalOneByOne<T>(inner, 0, 1) : Normal<T>(inner, 0, 1);
  T* out = a.data<T>(3);
  for (int64_t k = 0; k < n && failed == 0; ++k) {
    T scaled = Element<T>::From(Element<T>::Widened(out[k]) * Element<T>::Widened(deviation[k]));
    out[k] = Element<T>::From(Element<T>::Widened(scaled) + Element<T>::Widened(mean[k]));
  }
  return failed;
}

// ---- numbers whose parameter is an element of argument 1 ----------------------------------------
// `next` gives one, or nothing but an error.
template <class T, class Next>
int FillEach(const TVMFFIAny* args, Next next) {
  return Drawn(args, 3, [&](const Arguments& a, Generator& g) {
    const T* params = a.data<T>(1);
    T* out = a.data<T>(2);
    for (int64_t k = 0, n = a.size(2); k < n; ++k) {
      double made = 0;
      if (!next(g, Element<T>::Widened(params[k]), &made)) return -1;
      out[k] = Element<T>::From(made);
    }
    return 0;
  });
}

// By products of uniform numbers; large rates by transformed rejection (W. Hoermann, 1993).
inline int64_t OnePoisson(Generator& g, double rate) {
  if (rate < 10) {
    if (rate == 0) return 0;
    double least = std::exp(-rate), product = g.Uniform(0.0, 1.0);
    int64_t count = 0;
    for (; product > least; ++count) product *= g.Uniform(0.0, 1.0);
    return count;
  }
  double log_rate = std::log(rate), b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b;
  double inverse = 1.1239 + 1.1328 / (b - 3.4), limit = 0.9277 - 3.6224 / (b - 2);
  while (true) {
    double u = g.Uniform(0.0, 1.0) - 0.5, v = g.Uniform(0.0, 1.0);
    double from_end = 0.5 - std::fabs(u);
    double k = std::floor((2 * a / from_end + b) * u + rate + 0.43);
    if (from_end >= 0.07 && v <= limit) return static_cast<int64_t>(k);
    if (k < 0 || (from_end < 0.013 && v > from_end)) continue;
    double drawn = std::log(v) + std::log(inverse) - std::log(a / (from_end * from_end) + b);
    if (drawn <= -rate + k * log_rate - std::lgamma(k + 1)) return static_cast<int64_t>(k);
  }
}

template <class T>
int Poisson(const TVMFFIAny* args) {
  return FillEach<T>(args, [](Generator& g, double rate, double* made) {
    if (!(rate >= 0)) {
      SetError("RuntimeError", "invalid Poisson rate, expected rate to be non-negative");
      return false;
    }
    *made = static_cast<double>(OnePoisson(g, rate));
    return true;
  });
}

// By the method of G. Marsaglia and W. W. Tsang (2000), for float and double.
template <class T>
double OneGamma(Generator& g, T shape) {
  double scale = 1;
  if (shape < 1) {
    if (shape == 0) return 0;
    scale = std::pow(1 - g.Uniform(0.0, 1.0), static_cast<double>(1.0F / shape));
    shape += 1;
  }
  double d = shape - 1.0F / 3.0F, c = 1 / std::sqrt(9 * d);
  while (true) {
    double x, y;
    do {
      x = g.Normal(0, 1);
      y = 1 + c * x;
    } while (y <= 0);
    double v = y * y * y, u = 1 - g.Uniform(0.0, 1.0), square = x * x;
    if (u < 1 - 0.0331F * square * square) return scale * d * v;
    if (std::log(u) < 0.5F * square + d * (1 - v + std::log(v))) return scale * d * v;
  }
}

template <class T>
int Gamma(const TVMFFIAny* args) {
  return FillEach<T>(args, [](Generator& g, T shape, double* made) {
    T drawn = static_cast<T>(OneGamma<T>(g, shape));
    *made = std::max(std::numeric_limits<T>::min(), drawn);
    return true;
  });
}

// ---- as many numbers as a tensor says
// ------------------------------------------------------------ Argument 1 says how many numbers are
// drawn; what is behind them in the result is zero.
template <class Kernel>
int Some(const TVMFFIAny* args, int result, Kernel kernel) {
  Arguments a(args);
  DLTensor front = *static_cast<DLTensor*>(args[result].v_ptr);
  int64_t size = a.size(result), bytes = (front.dtype.bits + 7) / 8;
  int64_t count = std::min(std::max<int64_t>(*a.data<int64_t>(1), 0), size);
  memset(a.data(result) + count * bytes, 0, (size - count) * bytes);
  front.ndim = 1;
  front.shape = &count;
  front.strides = nullptr;
  TVMFFIAny inner[3] = {args[0], args[result], args[result + 1]};
  inner[1].v_ptr = &front;
  return kernel(inner);
}

template <class T>
int SomeUniform(const TVMFFIAny* args, double from, double to) {
  return Some(args, 2, [=](const TVMFFIAny* some) { return Uniform<T>(some, from, to); });
}

// Argument 2 says whether they are drawn one by one, however many they are.
template <class T>
int SomeNormal(const TVMFFIAny* args, double mean, double deviation) {
  bool one_by_one = *Arguments(args).data<bool>(2);
  return Some(args, 3, [=](const TVMFFIAny* some) {
    if (one_by_one || Arguments(some).size(1) < 16) {
      return NormalOneByOne<T>(some, mean, deviation);
    }
    return Normal<T>(some, mean, deviation);
  });
}

// ---- multinomial: rows of weights in argument 1, indices in argument 2 --------------------------
inline int InvalidWeights(const char* what) {
  SetError("RuntimeError", "%s", what);
  return -1;
}

template <class W>
int CheckWeights(const W* row, int64_t n) {
  W sum = 0;
  for (int64_t k = 0; k < n; ++k) {
    if (!(row[k] >= 0) || row[k] > std::numeric_limits<W>::max()) {
      return InvalidWeights("probability tensor contains either `inf`, `nan` or element < 0");
    }
    sum = std::max(sum, row[k]);
  }
  return sum > 0 ? 0
                 : InvalidWeights("invalid multinomial distribution (sum of probabilities <= 0)");
}

template <class T>
int WithReplacement(const TVMFFIAny* args) {
  return Drawn(args, 3, [&](const Arguments& a, Generator& g) {
    int64_t n = a.extent(1, 0), count = a.extent(2, 0), rows = n == 0 ? 0 : a.size(1) / n;
    const T* weights = a.data<T>(1);
    int64_t* out = a.data<int64_t>(2);
    std::vector<T> sums(n);
    for (int64_t r = 0; r < rows; ++r, weights += n, out += count) {
      if (CheckWeights(weights, n) != 0) return -1;
      T sum = 0;
      for (int64_t k = 0; k < n; ++k) sums[k] = sum += weights[k];
      for (T& s : sums) s /= sum;
      sums[n - 1] = 1;
      for (int64_t k = 0; k < count; ++k) {
        double x = g.Uniform(0.0, 1.0);
        out[k] = std::lower_bound(sums.begin(), sums.end(), x) - sums.begin();
      }
    }
    return 0;
  });
}

// The largest of weights divided by exponentially distributed numbers, which are drawn for all rows
// before: along the rows, or along the columns if the weights lie in memory so.
template <class T>
int WithoutReplacement(const TVMFFIAny* args, bool by_columns) {
  return Drawn(args, 3, [&](const Arguments& a, Generator& g) {
    int64_t n = a.extent(1, 0), count = a.extent(2, 0), rows = n == 0 ? 0 : a.size(1) / n;
    const T* weights = a.data<T>(1);
    int64_t* out = a.data<int64_t>(2);
    std::vector<std::pair<T, int64_t>> race(rows * n);
    for (int64_t r = 0; r < rows; ++r) {
      if (CheckWeights(weights + r * n, n) != 0) return -1;
    }
    for (int64_t k = 0; k < rows * n; ++k) {
      int64_t at = by_columns ? k % rows * n + k / rows : k;
      T time = static_cast<T>(-std::log1p(-g.Uniform(0.0, 1.0)));
      race[at] = std::make_pair(weights[at] / time, at % n);
    }
    using Pair = std::pair<T, int64_t>;
    auto before = [](const Pair& x, const Pair& y) {
      return (x.first != x.first && y.first == y.first) || x.first > y.first;
    };
    for (int64_t r = 0; r < rows; ++r) {
      auto first = race.begin() + r * n, last = first + n;
      if (count == 1) {
        first = std::min_element(first, last, before);
      } else if (count * 64 <= n) {
        std::partial_sort(first, first + count, last, before);
      } else {
        std::nth_element(first, first + count - 1, last, before);
        std::sort(first, first + count - 1, before);
      }
      for (int64_t k = 0; k < count; ++k) out[r * count + k] = first[k].second;
    }
    return 0;
  });
}

// ---- states -------------------------------------------------------------------------------------
// The state of a generator that was given a seed: argument 0 to argument 1.
inline int Seeded(const TVMFFIAny* args) {
  Arguments a(args);
  Generator(a.data(1)).Seed(static_cast<uint64_t>(*a.data<int64_t>(0)));
  return 0;
}

}  // namespace dycl::random

#endif  // DYCL_RUNTIME_DRAWS_H_
