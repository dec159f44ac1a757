// Licensed under the Apache License, Version 2.0; see LICENSE.
// One client: the handshake, and then TVM's own server loop, in a process of its own.
#ifndef DYCL_RPC_SERVER_SESSION_H_
#define DYCL_RPC_SERVER_SESSION_H_

#include <cstdint>
#include <string>

#include "tvm_runtime.h"

namespace dycl {
namespace rpc {

constexpr int32_t kMagic = 0xff271;
constexpr int32_t kMismatch = kMagic + 2;

struct SessionOptions {
  std::string key;        // what clients ask for
  std::string match_key;  // what this client must say: the key, or the tracker's ticket
  std::string folder;     // the files of this session
  uint64_t memory = 0;    // bytes that the process may have; 0: no bound
  int max_timeout = 0;    // seconds that a session may last; 0: no bound
};

// What a session's process tells the server by one byte, once the client has shown the right key.
constexpr char kMatched = 'm';
// What the server answers once there is a place.
constexpr char kAdmitted = 'a';

// Serves the client on `socket` and ends the process. `report` is a socket to the server.
[[noreturn]] void ServeSession(const TVMRuntime& tvm, const SessionOptions& options, int socket,
                               int report);

}  // namespace rpc
}  // namespace dycl

#endif  // DYCL_RPC_SERVER_SESSION_H_
