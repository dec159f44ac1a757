// Licensed under the Apache License, Version 2.0; see LICENSE.
// Host scalar operations with the semantics of Python's int, float and bool. An int is a checked
// int64: a result that Python would hold in a larger integer is an OverflowError.
//
// Operations that can fail return a HostStatus and write their result through the last argument.
#ifndef DYCL_RUNTIME_HOST_OPS_H_
#define DYCL_RUNTIME_HOST_OPS_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#define DYCL_INLINE inline __attribute__((always_inline))

namespace dycl {

enum class HostStatus : uint8_t {
  kOk,
  kIntOverflow,
  kIntDivideByZero,
  kIntModuloByZero,
  kDivideByZero,
  kFloatFloorDivideByZero,
  kFloatModuloByZero,
  kZeroToNegativePower,
  kNegativeExponent,
  kComplexPower,
  kFloatOverflow,
  kInfToInt,
  kNanToInt,
  kMathDomain,
  kMathRange,
};

namespace ops {

using S = HostStatus;

// ---- int arithmetic -----------------------------------------------------------------------------
DYCL_INLINE S Add(int64_t a, int64_t b, int64_t* out) {
  return __builtin_add_overflow(a, b, out) ? S::kIntOverflow : S::kOk;
}
DYCL_INLINE S Sub(int64_t a, int64_t b, int64_t* out) {
  return __builtin_sub_overflow(a, b, out) ? S::kIntOverflow : S::kOk;
}
DYCL_INLINE S Mul(int64_t a, int64_t b, int64_t* out) {
  return __builtin_mul_overflow(a, b, out) ? S::kIntOverflow : S::kOk;
}
DYCL_INLINE S Neg(int64_t a, int64_t* out) { return Sub(0, a, out); }
DYCL_INLINE S Abs(int64_t a, int64_t* out) {
  if (a < 0) return Neg(a, out);
  *out = a;
  return S::kOk;
}
// The quotient is rounded down, the remainder has the divisor's sign.
inline S FloorDiv(int64_t a, int64_t b, int64_t* out) {
  if (b == 0) return S::kIntDivideByZero;
  if (b == -1) return Neg(a, out);
  int64_t q = a / b;
  *out = (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
  return S::kOk;
}
inline S Mod(int64_t a, int64_t b, int64_t* out) {
  if (b == 0) return S::kIntModuloByZero;
  if (b == -1) {
    *out = 0;
    return S::kOk;
  }
  int64_t r = a % b;
  *out = (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
  return S::kOk;
}
inline S Pow(int64_t base, int64_t exponent, int64_t* out) {
  if (exponent < 0) return S::kNegativeExponent;
  int64_t result = 1;
  while (true) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return S::kIntOverflow;
    }
    exponent >>= 1;
    if (exponent == 0) break;
    // |base| >= 2 here whenever this overflows, and the square is used at least once more.
    if (__builtin_mul_overflow(base, base, &base)) return S::kIntOverflow;
  }
  *out = result;
  return S::kOk;
}

// ---- float arithmetic ---------------------------------------------------------------------------
DYCL_INLINE S Add(double a, double b, double* out) { return *out = a + b, S::kOk; }
DYCL_INLINE S Sub(double a, double b, double* out) { return *out = a - b, S::kOk; }
DYCL_INLINE S Mul(double a, double b, double* out) { return *out = a * b, S::kOk; }
DYCL_INLINE S Neg(double a, double* out) { return *out = -a, S::kOk; }
DYCL_INLINE S Abs(double a, double* out) { return *out = std::fabs(a), S::kOk; }
DYCL_INLINE S TrueDiv(double a, double b, double* out) {
  if (b == 0.0) return S::kDivideByZero;
  return *out = a / b, S::kOk;
}
// The quotient and the remainder together, so that a == q * b + r up to rounding.
inline void FloatDivMod(double a, double b, double* quotient, double* remainder) {
  double r = std::fmod(a, b);
  double q = (a - r) / b;
  if (r != 0.0) {
    if ((b < 0) != (r < 0)) {
      r += b;
      q -= 1.0;
    }
  } else {
    r = std::copysign(0.0, b);
  }
  if (q != 0.0) {
    double floored = std::floor(q);
    if (q - floored > 0.5) floored += 1.0;
    q = floored;
  } else {
    q = std::copysign(0.0, a / b);
  }
  *quotient = q;
  *remainder = r;
}
inline S FloorDiv(double a, double b, double* out) {
  if (b == 0.0) return S::kFloatFloorDivideByZero;
  double r;
  FloatDivMod(a, b, out, &r);
  return S::kOk;
}
inline S Mod(double a, double b, double* out) {
  if (b == 0.0) return S::kFloatModuloByZero;
  double q;
  FloatDivMod(a, b, &q, out);
  return S::kOk;
}
inline S Pow(double a, double b, double* out) {
  if (a == 0.0 && b < 0.0 && std::isfinite(b)) return S::kZeroToNegativePower;
  if (a < 0.0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    return std::isinf(std::pow(-a, b)) ? S::kFloatOverflow : S::kComplexPower;
  }
  double r = std::pow(a, b);
  if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) return S::kFloatOverflow;
  return *out = r, S::kOk;
}
// Two ints: the correctly rounded quotient, also where an int is no double.
inline S TrueDiv(int64_t a, int64_t b, double* out) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (b == 0) return S::kDivideByZero;
  if (a >= -kExact && a <= kExact && b >= -kExact && b <= kExact) {
    return *out = static_cast<double>(a) / static_cast<double>(b), S::kOk;
  }
  if (a == 0) return *out = b < 0 ? -0.0 : 0.0, S::kOk;
  uint64_t ua = a < 0 ? 0 - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
  uint64_t ub = b < 0 ? 0 - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  // A quotient of 55 or 56 bits with a sticky last bit rounds once, when it becomes a double.
  int shift = 55 + __builtin_clzll(ua) - __builtin_clzll(ub);
  unsigned __int128 n = ua;
  unsigned __int128 d = ub;
  if (shift >= 0) {
    n <<= shift;
  } else {
    d <<= -shift;
  }
  uint64_t q = static_cast<uint64_t>(n / d);
  if (n % d != 0) q |= 1;
  double r = std::ldexp(static_cast<double>(q), -shift);
  return *out = (a < 0) != (b < 0) ? -r : r, S::kOk;
}

// ---- comparison: an int and a float compare as numbers, not after rounding ---------------------
// Returns -1, 0, 1, or 2 when b is NaN.
inline int CompareMixed(int64_t a, double b) {
  if (std::isnan(b)) return 2;
  if (b >= 9223372036854775808.0) return -1;
  if (b < -9223372036854775808.0) return 1;
  double floored = std::floor(b);
  int64_t whole = static_cast<int64_t>(floored);
  if (a != whole) return a < whole ? -1 : 1;
  return b > floored ? -1 : 0;
}
DYCL_INLINE bool Eq(int64_t a, int64_t b) { return a == b; }
DYCL_INLINE bool Lt(int64_t a, int64_t b) { return a < b; }
DYCL_INLINE bool Le(int64_t a, int64_t b) { return a <= b; }
DYCL_INLINE bool Eq(double a, double b) { return a == b; }
DYCL_INLINE bool Lt(double a, double b) { return a < b; }
DYCL_INLINE bool Le(double a, double b) { return a <= b; }
inline bool Eq(int64_t a, double b) { return CompareMixed(a, b) == 0; }
inline bool Lt(int64_t a, double b) { return CompareMixed(a, b) == -1; }
inline bool Le(int64_t a, double b) { return CompareMixed(a, b) <= 0; }
inline bool Eq(double a, int64_t b) { return CompareMixed(b, a) == 0; }
inline bool Lt(double a, int64_t b) { return CompareMixed(b, a) == 1; }
inline bool Le(double a, int64_t b) {
  int c = CompareMixed(b, a);
  return c == 0 || c == 1;
}
template <class A, class B>
DYCL_INLINE bool Ne(A a, B b) {
  return !Eq(a, b);
}
template <class A, class B>
DYCL_INLINE bool Gt(A a, B b) {
  return Lt(b, a);
}
template <class A, class B>
DYCL_INLINE bool Ge(A a, B b) {
  return Le(b, a);
}
// The first of equals wins, and a NaN wins only in the first place, as in Python.
template <class R, class A, class B>
DYCL_INLINE R Min(A a, B b) {
  return Lt(b, a) ? static_cast<R>(b) : static_cast<R>(a);
}
template <class R, class A, class B>
DYCL_INLINE R Max(A a, B b) {
  return Gt(b, a) ? static_cast<R>(b) : static_cast<R>(a);
}

// ---- conversion ---------------------------------------------------------------------------------
inline S ToInt(double a, int64_t* out) {
  if (std::isnan(a)) return S::kNanToInt;
  if (std::isinf(a)) return S::kInfToInt;
  double t = std::trunc(a);
  if (t >= 9223372036854775808.0 || t < -9223372036854775808.0) return S::kIntOverflow;
  return *out = static_cast<int64_t>(t), S::kOk;
}
inline S Trunc(double a, int64_t* out) { return ToInt(a, out); }
inline S Floor(double a, int64_t* out) { return ToInt(std::floor(a), out); }
inline S Ceil(double a, int64_t* out) { return ToInt(std::ceil(a), out); }
// Half to even, whatever rounding mode the process is in.
inline S Round(double a, int64_t* out) {
  double r = std::round(a);
  if (std::fabs(a - r) == 0.5) r = 2.0 * std::round(a / 2.0);
  return ToInt(r, out);
}

// To a number of decimal digits, of which 0 is the least: the decimal nearest to the binary number,
// then the binary number nearest to that. The C library rounds both exactly.
inline double RoundTo(double a, int64_t digits) {
  constexpr int64_t kMost = 323;  // a double has no more
  if (!std::isfinite(a) || digits > kMost) return a;
  char text[2 + std::numeric_limits<double>::max_exponent10 + 1 + kMost + 1];
  snprintf(text, sizeof text, "%.*f", static_cast<int>(digits < 0 ? 0 : digits), a);
  return strtod(text, nullptr);
}

// ---- the functions of `math` --------------------------------------------------------------------
inline S Sqrt(double a, double* out) {
  if (a < 0.0) return S::kMathDomain;
  return *out = std::sqrt(a), S::kOk;
}
inline S Exp(double a, double* out) {
  double r = std::exp(a);
  if (std::isinf(r) && std::isfinite(a)) return S::kMathRange;
  return *out = r, S::kOk;
}
inline S Log(double a, double* out) {
  if (a <= 0.0) return S::kMathDomain;
  return *out = std::log(a), S::kOk;
}
inline S Sin(double a, double* out) {
  if (std::isinf(a)) return S::kMathDomain;
  return *out = std::sin(a), S::kOk;
}
inline S Cos(double a, double* out) {
  if (std::isinf(a)) return S::kMathDomain;
  return *out = std::cos(a), S::kOk;
}
inline S Tanh(double a, double* out) { return *out = std::tanh(a), S::kOk; }

}  // namespace ops

struct HostErrorText {
  const char* kind;
  const char* message;
};

// The exception type and text, as Python gives them where Python has them.
inline HostErrorText TextOf(HostStatus status) {
  switch (status) {
    case HostStatus::kOk:
      break;
    case HostStatus::kIntOverflow:
      return {"OverflowError", "an int leaves the range of 64 bits"};
    case HostStatus::kIntDivideByZero:
      return {"ZeroDivisionError", "integer division or modulo by zero"};
    case HostStatus::kIntModuloByZero:
      return {"ZeroDivisionError", "integer modulo by zero"};
    case HostStatus::kDivideByZero:
      return {"ZeroDivisionError", "division by zero"};
    case HostStatus::kFloatFloorDivideByZero:
      return {"ZeroDivisionError", "float floor division by zero"};
    case HostStatus::kFloatModuloByZero:
      return {"ZeroDivisionError", "float modulo"};
    case HostStatus::kZeroToNegativePower:
      return {"ZeroDivisionError", "0.0 cannot be raised to a negative power"};
    case HostStatus::kNegativeExponent:
      return {"ValueError", "an int to the power of a negative int would be a float"};
    case HostStatus::kComplexPower:
      return {"ValueError", "a negative number to a fractional power would be complex"};
    case HostStatus::kFloatOverflow:
      return {"OverflowError", "numerical result out of range"};
    case HostStatus::kInfToInt:
      return {"OverflowError", "cannot convert float infinity to integer"};
    case HostStatus::kNanToInt:
      return {"ValueError", "cannot convert float NaN to integer"};
    case HostStatus::kMathDomain:
      return {"ValueError", "math domain error"};
    case HostStatus::kMathRange:
      return {"OverflowError", "math range error"};
  }
  return {"RuntimeError", "unknown error"};
}

}  // namespace dycl

#endif  // DYCL_RUNTIME_HOST_OPS_H_
