// Licensed under the Apache License, Version 2.0; see LICENSE.
// Random numbers, bit for bit those that PyTorch's CPU generator gives on x86-64: its Mersenne
// twister, and its ways from 32-bit words to distributions. The state is the array of bytes that
// `torch.Generator.get_state()` returns. Files with this header are compiled without contraction;
// where PyTorch's kernels contract a product and a sum, std::fma stands here.
#ifndef DYCL_RUNTIME_RANDOM_H_
#define DYCL_RUNTIME_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace dycl::random {

constexpr uint64_t kStateBytes = 5056;
constexpr int kWords = 624;
// The name of the state variable that stands for PyTorch's default generator.
constexpr const char* kDefaultGenerator = "torch.default_generator";

// The layout of the bytes.
struct State {
  uint64_t seed;
  int32_t left;
  int32_t seeded;
  uint64_t next;
  uint64_t words[kWords];  // 32 bits each
  double unused_x;
  double next_normal;
  double unused_rho;
  int32_t has_next_normal;
  float next_float_normal;
  uint8_t has_next_float_normal;
};
static_assert(sizeof(State) == kStateBytes, "the layout of torch.Generator.get_state()");

class Generator {
 public:
  explicit Generator(void* bytes) : state_(static_cast<State*>(bytes)) {}

  void Seed(uint64_t seed) {
    memset(state_, 0, kStateBytes);
    state_->seed = seed;
    state_->left = 1;
    state_->seeded = 1;
    uint32_t word = static_cast<uint32_t>(seed);
    state_->words[0] = word;
    for (uint32_t k = 1; k < kWords; ++k) {
      word = 1812433253U * (word ^ (word >> 30)) + k;
      state_->words[k] = word;
    }
  }

  bool IsValid() const {
    return state_->seeded == 1 && state_->left > 0 && state_->left <= kWords &&
           state_->next <= kWords - static_cast<uint64_t>(state_->left == 1 ? 0 : state_->left - 1);
  }

  uint32_t Next() {
    if (--state_->left == 0) Twist();
    uint32_t y = static_cast<uint32_t>(state_->words[state_->next++]);
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
  }

  uint64_t Next64() {
    uint64_t high = Next();
    return high << 32 | Next();
  }

  float Uniform(float from, float to) {
    float x = static_cast<float>(Next() & 0xffffffU) * 0x1p-24F;
    return std::fma(x, to - from, from);
  }

  double Uniform(double from, double to) {
    double x = static_cast<double>(Next64() & ((1ULL << 53) - 1)) * 0x1p-53;
    return std::fma(x, to - from, from);
  }

  // One of a pair by the method of Box and Muller; the other is kept for the next call.
  double Normal(double mean, double deviation) {
    if (state_->has_next_normal != 0) {
      double kept = state_->next_normal;
      state_->has_next_normal = 0;
      state_->next_normal = 0;
      return std::fma(kept, deviation, mean);
    }
    double u1 = Uniform(0.0, 1.0), u2 = Uniform(0.0, 1.0);
    double radius = std::sqrt(-2.0 * std::log1p(-u2));
    double angle = 2.0 * kPi * u1;
    state_->next_normal = radius * std::sin(angle);
    state_->has_next_normal = 1;
    return std::fma(radius * std::cos(angle), deviation, mean);
  }

  static constexpr double kPi = 3.14159265358979323846;

 private:
  void Twist() {
    uint64_t* w = state_->words;
    auto mixed = [](uint64_t a, uint64_t b) {
      uint32_t y =
          (static_cast<uint32_t>(a) & 0x80000000U) | (static_cast<uint32_t>(b) & 0x7fffffffU);
      return (y >> 1) ^ ((b & 1) != 0 ? 0x9908b0dfU : 0U);
    };
    for (int k = 0; k < kWords; ++k) {
      w[k] = static_cast<uint32_t>(w[(k + 397) % kWords]) ^ mixed(w[k], w[(k + 1) % kWords]);
    }
    state_->left = kWords;
    state_->next = 0;
  }

  State* state_;
};

}  // namespace dycl::random

#endif  // DYCL_RUNTIME_RANDOM_H_
