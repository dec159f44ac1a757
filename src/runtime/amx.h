// Licensed under the Apache License, Version 2.0; see LICENSE.
// The tiles of AMX: registers that Linux gives only to processes that ask for them.
#ifndef DYCL_RUNTIME_AMX_H_
#define DYCL_RUNTIME_AMX_H_

#include <cstdint>

namespace dycl {

// Asks for the tiles, for all threads of the process, those of later too; asking again does no
// harm. Returns a DyclStatus.
int32_t RequestAmx();
// Asks too, and says only whether Linux gives them.
bool AmxIsGranted();

}  // namespace dycl

#endif  // DYCL_RUNTIME_AMX_H_
