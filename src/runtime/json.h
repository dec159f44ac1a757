// Licensed under the Apache License, Version 2.0; see LICENSE.
// A reader for the JSON of params headers and trailers: strict, bounded in depth, and without
// exceptions. C++11, because hosts compile it too.
#ifndef DYCL_RUNTIME_JSON_H_
#define DYCL_RUNTIME_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dycl {

struct Json {
  enum Type { kNull, kBool, kNumber, kString, kArray, kObject };
  Type type = kNull;
  bool boolean = false;
  double number = 0;
  int64_t integer = 0;  // the number, where it is written as an integer that fits
  bool is_integer = false;
  std::string string;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  // The member of that name, or null.
  const Json* Find(const char* name) const;
  // The string member of that name, or "".
  std::string Text(const char* name) const;
};

// Reads one JSON text that fills [begin, begin + size) but for white space.
bool ParseJson(const char* begin, size_t size, Json* out);

}  // namespace dycl

#endif  // DYCL_RUNTIME_JSON_H_
