// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "json.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace dycl {
namespace {

const int kMaxDepth = 200;

class Parser {
 public:
  Parser(const char* begin, const char* end) : p_(begin), end_(end) {}

  bool ParseAll(Json* out) {
    if (!Value(out, 0)) return false;
    Space();
    return p_ == end_;
  }

 private:
  void Space() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\t' || *p_ == '\r')) ++p_;
  }

  bool Take(char c) {
    Space();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }

  bool Word(const char* word) {
    size_t n = strlen(word);
    if (static_cast<size_t>(end_ - p_) < n || memcmp(p_, word, n) != 0) return false;
    p_ += n;
    return true;
  }

  bool Value(Json* out, int depth) {
    Space();
    if (p_ == end_ || depth > kMaxDepth) return false;
    switch (*p_) {
      case '{':
        return Object(out, depth);
      case '[':
        return Array(out, depth);
      case '"':
        out->type = Json::kString;
        return String(&out->string);
      case 't':
        out->type = Json::kBool;
        out->boolean = true;
        return Word("true");
      case 'f':
        out->type = Json::kBool;
        return Word("false");
      case 'n':
        return Word("null");
      default:
        return Number(out);
    }
  }

  bool Object(Json* out, int depth) {
    out->type = Json::kObject;
    ++p_;
    if (Take('}')) return true;
    do {
      Space();
      std::pair<std::string, Json> member;
      if (p_ == end_ || *p_ != '"' || !String(&member.first) || !Take(':')) return false;
      if (!Value(&member.second, depth + 1)) return false;
      out->members.push_back(std::move(member));
    } while (Take(','));
    return Take('}');
  }

  bool Array(Json* out, int depth) {
    out->type = Json::kArray;
    ++p_;
    if (Take(']')) return true;
    do {
      out->items.emplace_back();
      if (!Value(&out->items.back(), depth + 1)) return false;
    } while (Take(','));
    return Take(']');
  }

  bool Hex4(uint32_t* out) {
    if (end_ - p_ < 4) return false;
    *out = 0;
    for (int i = 0; i < 4; ++i, ++p_) {
      char c = *p_;
      int digit = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
      if (digit < 0) return false;
      *out = *out * 16 + static_cast<uint32_t>(digit);
    }
    return true;
  }

  static void Utf8(uint32_t c, std::string* out) {
    if (c < 0x80) {
      *out += static_cast<char>(c);
    } else if (c < 0x800) {
      *out += static_cast<char>(0xc0 | (c >> 6));
      *out += static_cast<char>(0x80 | (c & 63));
    } else if (c < 0x10000) {
      *out += static_cast<char>(0xe0 | (c >> 12));
      *out += static_cast<char>(0x80 | ((c >> 6) & 63));
      *out += static_cast<char>(0x80 | (c & 63));
    } else {
      *out += static_cast<char>(0xf0 | (c >> 18));
      *out += static_cast<char>(0x80 | ((c >> 12) & 63));
      *out += static_cast<char>(0x80 | ((c >> 6) & 63));
      *out += static_cast<char>(0x80 | (c & 63));
    }
  }

  bool Escape(std::string* out) {
    if (p_ == end_) return false;
    char c = *p_++;
    const char* from = "\"\\/bfnrt";
    const char* to = "\"\\/\b\f\n\r\t";
    if (c != '\0') {
      if (const char* at = strchr(from, c)) {
        *out += to[at - from];
        return true;
      }
    }
    uint32_t code;
    if (c != 'u' || !Hex4(&code)) return false;
    if (code >= 0xd800 && code < 0xdc00 && end_ - p_ >= 6 && p_[0] == '\\' && p_[1] == 'u') {
      uint32_t low;
      p_ += 2;
      if (!Hex4(&low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    Utf8(code, out);
    return true;
  }

  bool String(std::string* out) {
    ++p_;
    while (p_ < end_ && *p_ != '"') {
      char c = *p_++;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        *out += c;
      } else if (!Escape(out)) {
        return false;
      }
    }
    if (p_ == end_) return false;
    ++p_;
    return true;
  }

  // NaN and infinities too, which Python writes and reads.
  bool Number(Json* out) {
    out->type = Json::kNumber;
    if (Word("NaN")) return out->number = NAN, true;
    if (Word("Infinity")) return out->number = INFINITY, true;
    if (Word("-Infinity")) return out->number = -INFINITY, true;
    std::string text;
    while (p_ < end_ && *p_ != '\0' && strchr("+-.0123456789eE", *p_) != nullptr) text += *p_++;
    if (text.empty()) return false;
    char* stop = nullptr;
    out->number = strtod(text.c_str(), &stop);
    if (*stop != '\0') return false;
    if (text.find_first_of(".eE") == std::string::npos) {
      errno = 0;
      out->integer = strtoll(text.c_str(), &stop, 10);
      out->is_integer = errno == 0;
    }
    return true;
  }

  const char* p_;
  const char* end_;
};

}  // namespace

const Json* Json::Find(const char* name) const {
  for (const auto& member : members) {
    if (member.first == name) return &member.second;
  }
  return nullptr;
}

std::string Json::Text(const char* name) const {
  const Json* member = Find(name);
  return member != nullptr && member->type == kString ? member->string : std::string();
}

bool ParseJson(const char* begin, size_t size, Json* out) {
  return Parser(begin, begin + size).ParseAll(out);
}

}  // namespace dycl
