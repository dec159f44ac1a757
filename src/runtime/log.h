// Licensed under the Apache License, Version 2.0; see LICENSE.
// Where the texts of a library go: to the program that has asked for them, or what the network
// prints to the standard output and the rest nowhere.
#ifndef DYCL_RUNTIME_LOG_H_
#define DYCL_RUNTIME_LOG_H_

#include <cstddef>
#include <cstdint>

#include "dycl/dycl.h"

namespace dycl {

// Sets where texts go. When it returns no other thread is in the function of before.
void SetLog(DyclLog function, void* user, int32_t level);
// In a child of fork(), called by library.cc.
void ForkedLog();

// Something that a host may want to know, and that is no error.
__attribute__((format(printf, 1, 2))) void Warn(const char* format, ...);

// Keeps the texts of other threads out while it lives, and puts pieces into one text.
class LogText {
 public:
  explicit LogText(int32_t level);
  ~LogText();
  LogText(const LogText&) = delete;
  LogText& operator=(const LogText&) = delete;
  void Add(const char* text, size_t size);

 private:
  void Flush();

  int32_t level_;
  bool to_stdout_;
  size_t used_ = 0;
  char piece_[512];
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_LOG_H_
