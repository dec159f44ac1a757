// Licensed under the Apache License, Version 2.0; see LICENSE.
// Scratch memory of kernels.
#ifndef DYCL_RUNTIME_WORKSPACE_H_
#define DYCL_RUNTIME_WORKSPACE_H_

#include <cstdint>

namespace dycl {

// How often a kernel has got none, in whichever thread.
uint32_t WorkspaceShortages();
// Frees what threads keep that have ended.
void FreeUnusedWorkspaces();
// Frees what all threads keep; none may be in a kernel.
void FreeWorkspaces();
// In a child of fork(), called by library.cc.
void ForkedWorkspaces();

}  // namespace dycl

#endif  // DYCL_RUNTIME_WORKSPACE_H_
