// Licensed under the Apache License, Version 2.0; see LICENSE.
// The weights: a params file, or the same bytes in memory or inside the library.
//
// Layout (that of safetensors): 8 bytes little-endian header size, a JSON header, then the tensors,
// each at a multiple of 64 bytes. `__metadata__` in the header holds the format version, the
// fingerprint of the library that the file belongs to, and the SHA-256 of all tensor bytes.
#ifndef DYCL_RUNTIME_PARAMS_H_
#define DYCL_RUNTIME_PARAMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "params_bytes.h"

namespace dycl {

struct Json;

class Params {
 public:
  Params() = default;
  Params(const Params&) = delete;
  Params& operator=(const Params&) = delete;

  // From a file or from memory, as the options say; or from the library itself. Both return a
  // DyclStatus. Everything is checked before they return: size, header, fingerprint, checksum, and
  // name, dtype, shape and place of every weight.
  [[nodiscard]] int32_t Open(const char* path, const DyclModelOptions& options);
  [[nodiscard]] int32_t OpenEmbedded(const unsigned char* begin, const unsigned char* end);

  const void* weight(uint32_t k) const { return weights_[k]; }
  uint64_t bytes() const { return data_size_; }
  // Whether memory of the process holds weights.
  bool Holds(const char* data, uint64_t bytes) const {
    return data_size_ != 0 && bytes != 0 && data < data_ + data_size_ && data_ < data + bytes;
  }
  int sealed_fd() const { return bytes_.sealed_fd(); }

 private:
  [[nodiscard]] int32_t Check(const char* name, const unsigned char* bytes, size_t size);
  [[nodiscard]] int32_t FindWeights(const char* name, const Json& header,
                                    const unsigned char* data);

  ParamsBytes bytes_;
  const char* data_ = nullptr;
  uint64_t data_size_ = 0;
  std::vector<const void*> weights_;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_PARAMS_H_
