// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs the threads of one block of a kernel.
#ifndef DYCL_TESTS_CUDA_BLOCKS_H_
#define DYCL_TESTS_CUDA_BLOCKS_H_

#include "cuda_on_cpu.h"

namespace emulated {

// Runs a whole grid. Returns false where the threads of a block wait for each other for ever: a
// barrier or a shuffle that not all of them reach.
bool RunGrid(const EmulatedKernel& kernel, EmulatedIndex grid, EmulatedIndex block, void** args);

}  // namespace emulated

#endif  // DYCL_TESTS_CUDA_BLOCKS_H_
