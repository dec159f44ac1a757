// Licensed under the Apache License, Version 2.0; see LICENSE.
// The error of a thread: a kind and a text in fixed thread-local memory, so that failing allocates
// nothing and a text lives until the thread's next error.
#ifndef DYCL_RUNTIME_ERROR_H_
#define DYCL_RUNTIME_ERROR_H_

#include <cstdint>
#include <exception>
#include <new>

namespace dycl {

const char* LastErrorKind();
const char* LastErrorMessage();

// Forgets the error, before what is to say whether there is one.
void ClearError();

// Begins a new error, an exception that the network raises (printf-like message; cut where it is
// too long).
__attribute__((format(printf, 2, 3))) void SetError(const char* kind, const char* format, ...);
// Adds to the message.
__attribute__((format(printf, 1, 2))) void AppendError(const char* format, ...);

// Begins an error of another status, whose kind goes with it. Returns the status, so that a check
// is one line.
__attribute__((format(printf, 1, 2))) int32_t InputError(const char* format, ...);
__attribute__((format(printf, 1, 2))) int32_t ArtifactError(const char* format, ...);
__attribute__((format(printf, 1, 2))) int32_t UsageError(const char* format, ...);
__attribute__((format(printf, 1, 2))) int32_t DeviceError(const char* format, ...);
__attribute__((format(printf, 1, 2))) int32_t CancelledError(const char* format, ...);
__attribute__((format(printf, 1, 2))) int32_t DeadlineError(const char* format, ...);
__attribute__((format(printf, 1, 2))) int32_t NoMemory(const char* format, ...);
int32_t MemoryError(uint64_t bytes);

// The DyclStatus of this thread's error, which a run may have ended in.
[[nodiscard]] int32_t LastStatus();

// Runs `body` (which returns a DyclStatus). A lack of memory is the exception to expect; no other
// may cross the border to C, or end a thread, either.
template <class Body>
int32_t Guard(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return NoMemory("there is not enough memory");
  } catch (const std::exception& error) {
    return UsageError("%s", error.what());
  }
}

}  // namespace dycl

#endif  // DYCL_RUNTIME_ERROR_H_
