// Licensed under the Apache License, Version 2.0; see LICENSE.
// The bytes of a params file: where they come from, and who keeps them.
#ifndef DYCL_RUNTIME_PARAMS_BYTES_H_
#define DYCL_RUNTIME_PARAMS_BYTES_H_

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "dycl/dycl.h"

namespace dycl {

class ParamsBytes {
 public:
  ParamsBytes() = default;
  ~ParamsBytes();
  ParamsBytes(const ParamsBytes&) = delete;
  ParamsBytes& operator=(const ParamsBytes&) = delete;

  // Gets the bytes as a host says. `path` is for the options that name no other place. The names of
  // the places in messages are kept. Returns a DyclStatus.
  [[nodiscard]] int32_t Open(const char* path, const DyclModelOptions& options);
  // Whether the file is still as it was when it was opened; closes it.
  [[nodiscard]] int32_t Settle();

  const char* name() const { return name_.c_str(); }
  const unsigned char* begin() const { return begin_; }
  size_t size() const { return size_; }
  // The sealed memory that holds the bytes, for other processes; -1 where they lie elsewhere.
  int sealed_fd() const { return sealed_; }

 private:
  [[nodiscard]] int32_t OpenFile(uint64_t offset, uint64_t size, int32_t copy);
  [[nodiscard]] int32_t OpenMemory(const void* data, size_t size, int32_t copy);
  // Maps `size` bytes of the file, of which the first is at a multiple of 64 bytes.
  [[nodiscard]] int32_t Map(uint64_t offset);
  // Memory of the process, and one that nobody can write to again: filled with the bytes at `data`,
  // or, if that is null, with those of the file at `offset`.
  [[nodiscard]] int32_t Copy(const unsigned char* data, uint64_t offset);
  [[nodiscard]] int32_t Seal(const unsigned char* data, uint64_t offset);
  void Keep(void* mapping, size_t mapped);

  std::string name_;
  int fd_ = -1;
  bool fd_is_ours_ = false;
  struct stat info_{};
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  int sealed_ = -1;
  const unsigned char* begin_ = nullptr;
  size_t size_ = 0;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_PARAMS_BYTES_H_
