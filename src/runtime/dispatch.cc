// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "dispatch.h"

#include <cinttypes>
#include <cstdlib>

#include "error.h"

namespace dycl {
namespace {

void AppendOrigin(uint32_t origin) {
  if (origin == kNone) return;
  const OriginDesc& at = kProgram.origins[origin];
  AppendError("\n  File \"%s\", line %u%s%s", at.file, at.line, at.function[0] ? " in " : "",
              at.function);
  if (at.code[0] != '\0') AppendError("\n    %s", at.code);
}

}  // namespace

int32_t FailHost(HostStatus status, uint32_t origin) {
  HostErrorText text = TextOf(status);
  return FailRaise(text.kind, text.message, origin);
}

int32_t FailIndex(int64_t index, uint32_t count, uint32_t origin) {
  SetError("IndexError", "index %" PRId64 " is out of range for %u items", index, count);
  AppendOrigin(origin);
  return kRunFailed;
}

int32_t FailRaise(const char* kind, const char* message, uint32_t origin) {
  SetError(kind, "%s", message);
  AppendOrigin(origin);
  return kRunFailed;
}

int32_t FailMemory() {
  NoMemory("there is no memory for the stack of a recursive function");
  return kRunFailed;
}

bool GrowStack(Stack& stack, size_t bytes) {
  size_t capacity = 2 * stack.capacity + bytes + 4096;
  void* data = realloc(stack.data, capacity);
  if (data == nullptr) return false;
  stack.data = static_cast<unsigned char*>(data);
  stack.capacity = capacity;
  return true;
}

bool FailCall(uint32_t call) {
  // Whoever runs the program says what kind of error that is.
  if (LastErrorKind()[0] == '\0') SetError("", "the kernel gave no reason");
  AppendError("\n  in kernel %s (call %u)", kProgram.kernels[kProgram.calls[call].kernel].symbol,
              call);
  return false;
}

double HalfToDouble(uint16_t bits) {
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// Rounds to `keep` significant bits, half to even; `value` is finite and positive.
static double RoundBits(double value, int keep, int min_exponent) {
  int exponent;
  std::frexp(value, &exponent);
  int ulp = exponent - keep < min_exponent ? min_exponent : exponent - keep;
  double scaled = std::ldexp(value, -ulp);
  double floored = std::floor(scaled);
  double rest = scaled - floored;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(floored, 2.0) != 0.0)) floored += 1.0;
  return std::ldexp(floored, ulp);
}

uint16_t DoubleToHalf(double value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  double a = std::fabs(value);
  if (std::isfinite(a) && a != 0.0) a = RoundBits(a, 11, -24);
  if (a >= 65536.0) return sign | 0x7c00;
  if (a < std::ldexp(1.0, -14)) return sign | static_cast<uint16_t>(std::ldexp(a, 24));
  int exponent;
  double m = std::frexp(a, &exponent);
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) +
                                      (static_cast<int>(std::ldexp(m, 11)) - 1024));
}

uint16_t DoubleToBFloat16(double value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7fc0;
  double a = std::fabs(value);
  if (std::isfinite(a) && a != 0.0) a = RoundBits(a, 8, -133);
  float single = a > 3.4028234663852886e38 ? INFINITY : static_cast<float>(a);
  uint32_t bits;
  memcpy(&bits, &single, 4);
  return sign | static_cast<uint16_t>(bits >> 16);
}

}  // namespace dycl
