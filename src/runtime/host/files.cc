// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dycl {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

std::string ReadFile(const std::string& path, std::string* out) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (file.number() < 0 || fstat(file.number(), &info) != 0) return strerror(errno);
  size_t done = 0;
  // Files of /proc have no size until they are read.
  out->resize(info.st_size > 0 ? static_cast<size_t>(info.st_size) : 1 << 16);
  while (true) {
    if (done == out->size()) out->resize(2 * done);
    ssize_t n = read(file.number(), &(*out)[done], out->size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return strerror(errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
    if (info.st_size > 0 && done == static_cast<size_t>(info.st_size)) break;
  }
  out->resize(done);
  return "";
}

std::string WriteFile(int file, const std::string& data) {
  for (size_t done = 0; done < data.size();) {
    ssize_t n = write(file, data.data() + done, data.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return strerror(errno);
    done += static_cast<size_t>(n);
  }
  return "";
}

}  // namespace dycl
