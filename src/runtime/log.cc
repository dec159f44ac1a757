// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "log.h"

#include <pthread.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace dycl {
namespace {

// Recursive: the function may run a session that prints.
pthread_mutex_t g_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
DyclLog g_function = nullptr;
void* g_user = nullptr;
int32_t g_level = DYCL_LOG_PRINT;

void Write(int32_t level, const char* text, size_t size) {
  if (level > g_level || size == 0) return;
  if (g_function != nullptr) {
    g_function(g_user, level, text, size);
  } else if (level == DYCL_LOG_PRINT) {
    fwrite(text, 1, size, stdout);
  }
}

}  // namespace

void ForkedLog() { g_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; }

void SetLog(DyclLog function, void* user, int32_t level) {
  pthread_mutex_lock(&g_mutex);
  g_function = function;
  g_user = user;
  g_level = level;
  pthread_mutex_unlock(&g_mutex);
}

void Warn(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  int size = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (size < 0) return;
  const auto whole = static_cast<size_t>(size);
  LogText log(DYCL_LOG_WARNING);
  log.Add(text, whole < sizeof(text) ? whole : sizeof(text) - 1);
}

LogText::LogText(int32_t level) : level_(level) {
  pthread_mutex_lock(&g_mutex);
  to_stdout_ = g_function == nullptr && level == DYCL_LOG_PRINT;
  // Nor does the program come between the pieces.
  if (to_stdout_) flockfile(stdout);
}

LogText::~LogText() {
  Flush();
  if (to_stdout_) {
    fflush(stdout);
    funlockfile(stdout);
  }
  pthread_mutex_unlock(&g_mutex);
}

void LogText::Add(const char* text, size_t size) {
  if (size > sizeof(piece_) - used_) Flush();
  if (size > sizeof(piece_)) {
    Write(level_, text, size);
    return;
  }
  memcpy(piece_ + used_, text, size);
  used_ += size;
}

void LogText::Flush() {
  Write(level_, piece_, used_);
  used_ = 0;
}

}  // namespace dycl
