// Licensed under the Apache License, Version 2.0; see LICENSE.
// Scratch memory of kernels.
#ifndef DYCL_RUNTIME_WORKSPACE_H_
#define DYCL_RUNTIME_WORKSPACE_H_

namespace dycl {

// Frees what threads keep that have ended.
void FreeUnusedWorkspaces();
// Frees what all threads keep; none may be in a kernel.
void FreeWorkspaces();
// In a child of fork(), called by library.cc.
void ForkedWorkspaces();

}  // namespace dycl

#endif  // DYCL_RUNTIME_WORKSPACE_H_
