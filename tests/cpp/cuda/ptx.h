// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs the few instructions of PTX that the runtime's own device functions are made of, as they
// stand in its text.
#ifndef DYCL_TESTS_CUDA_PTX_H_
#define DYCL_TESTS_CUDA_PTX_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace emulated {

struct PtxFunction {
  std::vector<std::string> parameters;
  std::vector<std::vector<std::string>> code;  // each instruction: its name and its operands
};

// Reads one entry function; false where the text has none of that name.
bool ReadPtx(const std::string& text, const std::string& name, PtxFunction* out);

// Runs it as one thread; false, with a message, at an instruction that is not known here.
bool RunPtx(const PtxFunction& function, const std::vector<uint64_t>& arguments,
            const std::function<void(uint64_t handle, uint32_t value)>& set_conditional);

}  // namespace emulated

#endif  // DYCL_TESTS_CUDA_PTX_H_
