// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "ptx.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace emulated {
namespace {

// Cuts a text at characters that separate words: brackets and commas too.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t\n,[]()", at)) != std::string::npos) {
    size_t end = text.find_first_of(" \t\n,[]()", at);
    words.push_back(text.substr(at, end - at));
    if (end == std::string::npos) break;
    at = end;
  }
  return words;
}

class Thread {
 public:
  explicit Thread(const PtxFunction& function, const std::vector<uint64_t>& arguments) {
    for (size_t k = 0; k < arguments.size(); ++k) values_[function.parameters[k]] = arguments[k];
  }

  uint64_t Value(const std::string& word) {
    if (word[0] != '%' && values_.count(word) == 0) return strtoull(word.c_str(), nullptr, 0);
    return values_[word];
  }
  void Set(const std::string& word, uint64_t value) { values_[word] = value; }

  // Returns false where the instruction is unknown.
  bool Step(const std::vector<std::string>& w) {
    const std::string& op = w[0];
    if (op == "ld.param.u64" || op == "cvta.to.global.u64") {
      Set(w[1], Value(w[2]));
    } else if (op == "ld.global.u8") {
      Set(w[1], Load<uint8_t>(Value(w[2])));
    } else if (op == "ld.global.s32") {
      Set(w[1], static_cast<uint64_t>(int64_t{Load<int32_t>(Value(w[2]))}));
    } else if (op == "ld.global.s64") {
      Set(w[1], Load<uint64_t>(Value(w[2])));
    } else if (op == "st.global.u64") {
      uint64_t value = Value(w[2]);
      memcpy(reinterpret_cast<void*>(Value(w[1])), &value, sizeof(value));
    } else if (op == "st.param.b64") {
      Set(w[1], Value(w[2]));
    } else if (op == "st.param.b32" || op == "cvt.u32.u64") {
      Set(w[1], static_cast<uint32_t>(Value(w[2])));
    } else if (op == "min.u64") {
      Set(w[1], std::min(Value(w[2]), Value(w[3])));
    } else if (op == "xor.b64") {
      Set(w[1], Value(w[2]) ^ Value(w[3]));
    } else if (op == "setp.ge.u64") {
      Set(w[1], Value(w[2]) >= Value(w[3]));
    } else if (op == "selp.b64") {
      Set(w[1], Value(w[4]) != 0 ? Value(w[2]) : Value(w[3]));
    } else {
      return false;
    }
    return true;
  }

 private:
  template <class T>
  static T Load(uint64_t address) {
    T value;
    memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
    return value;
  }
  std::map<std::string, uint64_t> values_;
};

}  // namespace

bool ReadPtx(const std::string& text, const std::string& name, PtxFunction* out) {
  size_t at = text.find(".entry " + name + "(");
  if (at == std::string::npos) return false;
  size_t open = text.find('(', at), close = text.find(')', open);
  std::vector<std::string> words = Words(text.substr(open, close - open));
  for (size_t k = 2; k < words.size(); k += 3) out->parameters.push_back(words[k]);
  size_t end = text.find(".entry ", close);
  std::string body = text.substr(close + 1, end == std::string::npos ? end : end - close - 1);
  for (size_t line = 0, next; line < body.size(); line = next + 1) {
    next = body.find_first_of(";{}", line);
    if (next == std::string::npos) break;
    std::vector<std::string> w = Words(body.substr(line, next - line));
    if (!w.empty() && w[0] != ".reg" && w[0] != ".param" && w[0] != ".visible") {
      out->code.push_back(w);
    }
  }
  return true;
}

bool RunPtx(const PtxFunction& function, const std::vector<uint64_t>& arguments,
            const std::function<void(uint64_t, uint32_t)>& set_conditional) {
  if (arguments.size() != function.parameters.size()) return false;
  Thread thread(function, arguments);
  for (const auto& w : function.code) {
    if (w[0] == "ret") return true;
    if (w[0] == "call.uni" && w[1] == "cudaGraphSetConditional") {
      set_conditional(thread.Value(w[2]), static_cast<uint32_t>(thread.Value(w[3])));
    } else if (!thread.Step(w)) {
      fprintf(stderr, "emulated driver: unknown PTX instruction %s\n", w[0].c_str());
      return false;
    }
  }
  return false;
}

}  // namespace emulated
