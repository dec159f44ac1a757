// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "error.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "dycl/dycl.h"

namespace dycl {
namespace {

struct ErrorText {
  char kind[64];
  char message[4096];
};

thread_local ErrorText t_error;

void SetErrorV(const char* kind, const char* format, va_list args) {
  // The message may quote the previous one, so it is written to one side first.
  char text[sizeof(t_error.message)];
  vsnprintf(text, sizeof(text), format, args);
  snprintf(t_error.kind, sizeof(t_error.kind), "%s", kind);
  memcpy(t_error.message, text, sizeof(text));
}

}  // namespace

const char* LastErrorKind() { return t_error.kind; }
const char* LastErrorMessage() { return t_error.message; }

void SetError(const char* kind, const char* format, ...) {
  va_list args;
  va_start(args, format);
  SetErrorV(kind, format, args);
  va_end(args);
}

void AppendError(const char* format, ...) {
  size_t used = strlen(t_error.message);
  va_list args;
  va_start(args, format);
  vsnprintf(t_error.message + used, sizeof(t_error.message) - used, format, args);
  va_end(args);
}

int32_t InputError(const char* format, ...) {
  va_list args;
  va_start(args, format);
  SetErrorV("InputError", format, args);
  va_end(args);
  return DYCL_ERROR_INPUT;
}

int32_t ArtifactError(const char* format, ...) {
  va_list args;
  va_start(args, format);
  SetErrorV("ArtifactError", format, args);
  va_end(args);
  return DYCL_ERROR_ARTIFACT;
}

int32_t UsageError(const char* format, ...) {
  va_list args;
  va_start(args, format);
  SetErrorV("UsageError", format, args);
  va_end(args);
  return DYCL_ERROR_USAGE;
}

int32_t DeviceStatus() {
  if (strcmp(t_error.kind, "DeviceError") == 0) return DYCL_ERROR_DEVICE;
  return strcmp(t_error.kind, "MemoryError") == 0 ? DYCL_ERROR_MEMORY : DYCL_ERROR_RUN;
}

int32_t MemoryError(uint64_t bytes) {
  SetError("MemoryError", "could not allocate %" PRIu64 " bytes", bytes);
  return DYCL_ERROR_MEMORY;
}

}  // namespace dycl
