// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "params_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error.h"
#include "program.h"

namespace dycl {
namespace {

constexpr size_t kPiece = size_t{1} << 30;  // what the kernel moves in one call at most

// Linux has it from 3.17 on; the C library of an older system has no name for it.
int MakeSealable() {
#ifdef SYS_memfd_create
  constexpr unsigned kCloseOnExec = 1, kAllowSealing = 2;
  return static_cast<int>(syscall(SYS_memfd_create, "dycl-params", kCloseOnExec | kAllowSealing));
#else
  errno = ENOSYS;
  return -1;
#endif
}

bool SealAll(int fd) {
  constexpr int kAddSeals = 1033, kSeal = 1, kShrink = 2, kGrow = 4, kWrite = 8;
  return fcntl(fd, kAddSeals, kSeal | kShrink | kGrow | kWrite) == 0;
}

}  // namespace

ParamsBytes::~ParamsBytes() {
  if (fd_is_ours_) close(fd_);
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
  if (sealed_ >= 0) close(sealed_);
}

int32_t ParamsBytes::Open(const char* path, const DyclModelOptions& options) {
  switch (options.params_from) {
    case DYCL_PARAMS_FROM_PATH:
      name_ = path;
      fd_ = open(path, O_RDONLY | O_CLOEXEC);
      if (fd_ < 0) {
        return ArtifactError("cannot open the params file '%s': %s", path, strerror(errno));
      }
      fd_is_ours_ = true;
      return OpenFile(0, 0, options.copy_params);
    case DYCL_PARAMS_FROM_MEMORY:
      name_ = "the given memory";
      return OpenMemory(options.params_data, static_cast<size_t>(options.params_size),
                        options.copy_params);
    case DYCL_PARAMS_FROM_DESCRIPTOR:
      name_ = "descriptor " + std::to_string(options.params_fd);
      fd_ = options.params_fd;
      return OpenFile(options.params_offset, options.params_size, options.copy_params);
    default:
      return UsageError("'params_from' is %d; this library knows of no such place",
                        options.params_from);
  }
}

int32_t ParamsBytes::OpenFile(uint64_t offset, uint64_t size, int32_t copy) {
  if (fstat(fd_, &info_) != 0) {
    return ArtifactError("'%s' is not a params file: %s", name(), strerror(errno));
  }
  if (!S_ISREG(info_.st_mode)) {
    return ArtifactError("'%s' is not a params file, but a folder, a pipe or a device", name());
  }
  const auto whole = static_cast<uint64_t>(info_.st_size);
  if (offset > whole || size > whole - offset) {
    return UsageError("'%s' has %llu bytes; it has no %llu from byte %llu on", name(),
                      static_cast<unsigned long long>(whole), static_cast<unsigned long long>(size),
                      static_cast<unsigned long long>(offset));
  }
  size_ = static_cast<size_t>(size != 0 ? size : whole - offset);
  if (size_ == 0) return DYCL_OK;  // whoever reads the header says what is wrong
  if (copy == DYCL_PARAMS_SEAL) return Seal(nullptr, offset);
  return copy != 0 ? Copy(nullptr, offset) : Map(offset);
}

int32_t ParamsBytes::OpenMemory(const void* data, size_t size, int32_t copy) {
  if (data == nullptr) return UsageError("'params_data' must not be NULL");
  size_ = size;
  begin_ = static_cast<const unsigned char*>(data);
  if (size_ == 0) return DYCL_OK;  // as above
  if (copy == DYCL_PARAMS_SEAL) return Seal(begin_, 0);
  if (copy != 0) return Copy(begin_, 0);
  if ((reinterpret_cast<uintptr_t>(data) & (kAlign - 1)) != 0) {
    return UsageError(
        "the params in memory must begin at a multiple of %u bytes to be used where they are; or "
        "let them be copied",
        static_cast<unsigned>(kAlign));
  }
  return DYCL_OK;
}

int32_t ParamsBytes::Map(uint64_t offset) {
  if (offset % kAlign != 0) {
    return UsageError(
        "the params begin at byte %llu of '%s', which is no multiple of %u, so that they cannot be "
        "mapped; let them be copied",
        static_cast<unsigned long long>(offset), name(), static_cast<unsigned>(kAlign));
  }
  const uint64_t before = offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = size_ + static_cast<size_t>(before);
  void* memory =
      mmap(nullptr, mapped, PROT_READ, MAP_PRIVATE, fd_, static_cast<off_t>(offset - before));
  if (memory == MAP_FAILED) {
    return ArtifactError("cannot map the params file '%s': %s", name(), strerror(errno));
  }
  Keep(memory, mapped);
  begin_ += before;
  return DYCL_OK;
}

void ParamsBytes::Keep(void* mapping, size_t mapped) {
  // Large pages where the system has some to give: a file that is not in memory is then read in
  // large pieces, and what fetches memory ahead of a kernel ends at the end of a page. It is a
  // hint: where it is refused nothing is lost.
  madvise(mapping, mapped, MADV_HUGEPAGE);
  mapping_ = mapping;
  mapped_ = mapped;
  begin_ = static_cast<const unsigned char*>(mapping);
}

int32_t ParamsBytes::Copy(const unsigned char* data, uint64_t offset) {
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return MemoryError(size_);
  Keep(memory, size_);
  char* to = static_cast<char*>(memory);
  if (data != nullptr) memcpy(to, data, size_);
  for (size_t done = 0; data == nullptr && done < size_;) {
    ssize_t n = pread(fd_, to + done, size_ - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ArtifactError("cannot read the params file '%s': %s", name(), strerror(errno));
    }
    if (n == 0) {
      return ArtifactError("the params file '%s' became shorter while it was read", name());
    }
    done += static_cast<size_t>(n);
  }
  // Nothing writes weights from here on: whoever tries is seen.
  mprotect(memory, size_, PROT_READ);
  return DYCL_OK;
}

int32_t ParamsBytes::Seal(const unsigned char* data, uint64_t offset) {
  sealed_ = MakeSealable();
  if (sealed_ < 0) {
    return UsageError("this system has no memory that can be sealed (%s); let the params be copied",
                      strerror(errno));
  }
  auto at = static_cast<off_t>(offset);
  for (size_t done = 0; done < size_;) {
    size_t piece = size_ - done < kPiece ? size_ - done : kPiece;
    // Not through a mapping of it: where memory is short writing there would end the process.
    ssize_t n =
        data != nullptr ? write(sealed_, data + done, piece) : sendfile(sealed_, fd_, &at, piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == ENOSPC || errno == ENOMEM)) return MemoryError(size_);
    if (n < 0) {
      return ArtifactError("cannot read the params file '%s': %s", name(), strerror(errno));
    }
    if (n == 0) {
      return ArtifactError("the params file '%s' became shorter while it was read", name());
    }
    done += static_cast<size_t>(n);
  }
  if (!SealAll(sealed_)) return UsageError("the params cannot be sealed: %s", strerror(errno));
  void* memory = mmap(nullptr, size_, PROT_READ, MAP_SHARED, sealed_, 0);
  if (memory == MAP_FAILED) return MemoryError(size_);
  Keep(memory, size_);
  return DYCL_OK;
}

int32_t ParamsBytes::Settle() {
  if (fd_ < 0) return DYCL_OK;
  struct stat now{};
  bool same = fstat(fd_, &now) == 0 && now.st_size == info_.st_size &&
              now.st_mtim.tv_sec == info_.st_mtim.tv_sec &&
              now.st_mtim.tv_nsec == info_.st_mtim.tv_nsec;
  if (fd_is_ours_) close(fd_);
  fd_is_ours_ = false;
  fd_ = -1;
  if (!same) return ArtifactError("the params file '%s' changed while it was read", name());
  return DYCL_OK;
}

}  // namespace dycl
