// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "path_text.h"

namespace dycl {
namespace {

std::string Place(uint32_t origin) {
  if (origin == kNone) return "an unknown line";
  const OriginDesc& at = kProgram.origins[origin];
  std::string text = std::string(at.file) + ":" + std::to_string(at.line);
  if (at.code[0] != '\0') text += std::string(": ") + at.code;
  return text;
}

}  // namespace

std::string PathText(const Frame& frame, int32_t site) {
  std::string text;
  uint64_t first = frame.path_count > kPathCapacity ? frame.path_count - kPathCapacity : 0;
  if (first != 0) text += "(" + std::to_string(first) + " earlier decisions)\n";
  for (uint64_t k = first; k < frame.path_count; ++k) {
    uint64_t entry = frame.path[k & (kPathCapacity - 1)];
    uint32_t choice = static_cast<uint32_t>(entry);
    const DecisionDesc& decision = kProgram.decisions[static_cast<uint32_t>(entry >> 32)];
    if (decision.is_switch) {
      text += "case " + std::to_string(choice);
    } else {
      text += choice != 0 ? "true  " : "false ";
    }
    text += " " + Place(decision.origin) + (k == frame.cut_at ? " (forced by the budget)\n" : "\n");
  }
  if (site == kRunFailed) return text + "no return: the run failed\n";
  return text + "return " + Place(kProgram.sites[static_cast<uint32_t>(site)].origin) + "\n";
}

}  // namespace dycl
