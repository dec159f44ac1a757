// Licensed under the Apache License, Version 2.0; see LICENSE.
#ifndef DYCL_RUNTIME_SHA256_H_
#define DYCL_RUNTIME_SHA256_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace dycl {

// SHA-256 (FIPS 180-4) of one piece of memory, as 64 lower-case hexadecimal digits.
std::string Sha256Hex(const void* data, size_t size);

// The same as 32 bytes.
void Sha256(const void* data, size_t size, uint8_t digest[32]);

}  // namespace dycl

#endif  // DYCL_RUNTIME_SHA256_H_
