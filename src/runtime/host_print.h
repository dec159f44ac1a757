// Licensed under the Apache License, Version 2.0; see LICENSE.
// Python's print: the text of host scalars, on the standard output or where the program wants it.
#ifndef DYCL_RUNTIME_HOST_PRINT_H_
#define DYCL_RUNTIME_HOST_PRINT_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "log.h"

namespace dycl {
namespace ops {

// The fewest decimal digits that read back as `x`, which is finite and positive: d.ddd *
// 10^exponent.
struct ShortestDigits {
  char digits[18];
  int count = 0;
  int exponent = 0;

  explicit ShortestDigits(double x) {
    // printf and strtod agree on the decimal point, whatever the locale: only digits are looked at.
    char text[48];
    for (int wanted = 1;; ++wanted) {
      std::snprintf(text, sizeof(text), "%.*e", wanted - 1, x);
      if (wanted == 17 || std::strtod(text, nullptr) == x) break;
      // Just above a power of two the floats lie wider apart than below: the next decimal up may
      // read back as x where the nearest one, below x, does not.
      if (NextUp(text) && std::strtod(text, nullptr) == x) break;
    }
    const char* end = std::strchr(text, 'e');
    for (const char* c = text; c != end; ++c) {
      if (IsDigit(*c)) digits[count++] = *c;
    }
    exponent = std::atoi(end + 1);
  }

 private:
  static bool IsDigit(char c) { return c >= '0' && c <= '9'; }

  // Adds one to the last digit before the exponent; false if all digits are nines.
  static bool NextUp(char* text) {
    for (char* c = std::strchr(text, 'e'); c-- != text;) {
      if (!IsDigit(*c)) continue;
      if (*c != '9') {
        ++*c;
        return true;
      }
      *c = '0';
    }
    return false;
  }
};

// Writes the pieces of one print in their order; other threads do not come between them.
class Printer {
 public:
  Printer& Text(const char* text, size_t size) {
    log_.Add(text, size);
    return *this;
  }
  Printer& Bool(bool value) { return value ? Text("True", 4) : Text("False", 5); }
  Printer& Int(int64_t value) {
    char text[24];
    int size = std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(value));
    return Text(text, static_cast<size_t>(size));
  }
  // As repr() has it: digits with a point from 1e-4 to below 1e16, an exponent beyond.
  Printer& Float(double value) {
    if (std::isnan(value)) return Text("nan", 3);
    if (std::signbit(value)) Text("-", 1);
    if (std::isinf(value)) return Text("inf", 3);
    if (value == 0) return Text("0.0", 3);
    const ShortestDigits s(std::fabs(value));
    if (s.exponent < -4 || s.exponent >= 16) {
      Text(s.digits, 1);
      if (s.count > 1) Text(".", 1).Text(s.digits + 1, s.count - 1);
      char text[24];
      int size = std::snprintf(text, sizeof(text), "e%c%02d", s.exponent < 0 ? '-' : '+',
                               std::abs(s.exponent));
      return Text(text, static_cast<size_t>(size));
    }
    const int whole = s.exponent + 1;
    if (whole <= 0) return Text("0.", 2).Zeros(-whole).Text(s.digits, s.count);
    if (whole >= s.count) return Text(s.digits, s.count).Zeros(whole - s.count).Text(".0", 2);
    return Text(s.digits, whole).Text(".", 1).Text(s.digits + whole, s.count - whole);
  }
  // The result of the operation.
  int64_t Done() const { return 0; }

 private:
  Printer& Zeros(int count) { return Text("0000000000000000", count); }

  LogText log_{DYCL_LOG_PRINT};
};

}  // namespace ops
}  // namespace dycl

#endif  // DYCL_RUNTIME_HOST_PRINT_H_
