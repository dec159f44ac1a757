// Licensed under the Apache License, Version 2.0; see LICENSE.
// What tests of the runtime in C++ demand: the process ends at the first line that does not hold.
#ifndef DYCL_TESTS_CHECK_H_
#define DYCL_TESTS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                 \
  do {                                                                   \
    if (!(condition)) {                                                  \
      std::fprintf(stderr, "line %d: %s fails\n", __LINE__, #condition); \
      std::abort();                                                      \
    }                                                                    \
  } while (0)

#endif  // DYCL_TESTS_CHECK_H_
