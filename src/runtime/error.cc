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
  int32_t status;
  char kind[64];
  char message[4096];
};

thread_local ErrorText t_error;

int32_t SetErrorV(int32_t status, const char* kind, const char* format, va_list args) {
  // The message may quote the previous one, so it is written to one side first.
  char text[sizeof(t_error.message)];
  vsnprintf(text, sizeof(text), format, args);
  snprintf(t_error.kind, sizeof(t_error.kind), "%s", kind);
  memcpy(t_error.message, text, strlen(text) + 1);
  t_error.status = status;
  return status;
}

}  // namespace

const char* LastErrorKind() { return t_error.kind; }
const char* LastErrorMessage() { return t_error.message; }
int32_t LastStatus() { return t_error.status; }

void ClearError() { t_error.kind[0] = t_error.message[0] = '\0'; }

void SetError(const char* kind, const char* format, ...) {
  va_list args;
  va_start(args, format);
  SetErrorV(DYCL_ERROR_RUN, kind, format, args);
  va_end(args);
}

void AppendError(const char* format, ...) {
  size_t used = strlen(t_error.message);
  va_list args;
  va_start(args, format);
  vsnprintf(t_error.message + used, sizeof(t_error.message) - used, format, args);
  va_end(args);
}

#define DEFINE_ERROR(name, status)                           \
  int32_t name(const char* format, ...) {                    \
    va_list args;                                            \
    va_start(args, format);                                  \
    int32_t result = SetErrorV(status, #name, format, args); \
    va_end(args);                                            \
    return result;                                           \
  }

DEFINE_ERROR(InputError, DYCL_ERROR_INPUT)
DEFINE_ERROR(ArtifactError, DYCL_ERROR_ARTIFACT)
DEFINE_ERROR(UsageError, DYCL_ERROR_USAGE)
DEFINE_ERROR(DeviceError, DYCL_ERROR_DEVICE)
DEFINE_ERROR(CancelledError, DYCL_ERROR_CANCELLED)
DEFINE_ERROR(DeadlineError, DYCL_ERROR_DEADLINE)

int32_t NoMemory(const char* format, ...) {
  va_list args;
  va_start(args, format);
  int32_t result = SetErrorV(DYCL_ERROR_MEMORY, "MemoryError", format, args);
  va_end(args);
  return result;
}

int32_t MemoryError(uint64_t bytes) {
  return NoMemory("could not allocate %" PRIu64 " bytes", bytes);
}

}  // namespace dycl
