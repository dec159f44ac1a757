// Licensed under the Apache License, Version 2.0; see LICENSE.
// What a library says of itself. It includes nothing: one file of every model is compiled for this
// alone.
#ifndef DYCL_RUNTIME_ARTIFACT_INFO_H_
#define DYCL_RUNTIME_ARTIFACT_INFO_H_

namespace dycl {

// What is known only once the dispatcher's text is: kept apart so that the text can be hashed.
struct ArtifactInfo {
  const char* metadata;     // JSON
  const char* fingerprint;  // ties the params file to this library
  const unsigned char* params_begin;
  const unsigned char* params_end;   // both null when the weights are in a file
  const char* const* user_metadata;  // a key, its text, the next key ..., null
  // Of code that was chosen among that for several CPUs: whether it may be used. Else null.
  int (*check_cpu)();
};

extern const ArtifactInfo kArtifactInfo;

}  // namespace dycl

#endif  // DYCL_RUNTIME_ARTIFACT_INFO_H_
