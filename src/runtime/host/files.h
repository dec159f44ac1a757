// Licensed under the Apache License, Version 2.0; see LICENSE.
// Files as strings. Not streams: those take a lack of memory for a file that cannot be read.
#ifndef DYCL_RUNTIME_HOST_FILES_H_
#define DYCL_RUNTIME_HOST_FILES_H_

#include <string>

namespace dycl {

// Both return "" or what the system says is wrong. A lack of memory is std::bad_alloc.
std::string ReadFile(const std::string& path, std::string* out);
std::string WriteFile(int file, const std::string& data);

}  // namespace dycl

#endif  // DYCL_RUNTIME_HOST_FILES_H_
