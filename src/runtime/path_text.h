// Licensed under the Apache License, Version 2.0; see LICENSE.
#ifndef DYCL_RUNTIME_PATH_TEXT_H_
#define DYCL_RUNTIME_PATH_TEXT_H_

#include <cstddef>
#include <string>

#include "program.h"

namespace dycl {

// The path of a run in words, one line a decision, with the user's files and lines.
std::string PathText(const Frame& frame, int32_t site);

}  // namespace dycl

#endif  // DYCL_RUNTIME_PATH_TEXT_H_
