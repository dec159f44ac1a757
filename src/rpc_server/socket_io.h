// Licensed under the Apache License, Version 2.0; see LICENSE.
// Whole messages over sockets, and addresses written HOST:PORT.
#ifndef DYCL_RPC_SERVER_SOCKET_IO_H_
#define DYCL_RPC_SERVER_SOCKET_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace dycl {
namespace rpc {

struct Address {
  std::string host;
  int port = 0;
};

// Reads "host:port" and "[host]:port"; false if it is neither.
bool ParseAddress(const std::string& text, Address* out);

// All bytes or false: the other side has left, or said nothing for the socket's timeout.
bool ReadAll(int fd, void* data, size_t size);
bool WriteAll(int fd, const void* data, size_t size);

// Numbers go over the wire as they lie in memory, little-endian on all machines that TVM's RPC is
// used on.
inline bool ReadInt(int fd, int32_t* out) { return ReadAll(fd, out, sizeof(*out)); }
inline bool WriteInt(int fd, int32_t value) { return WriteAll(fd, &value, sizeof(value)); }

// Ends reads and writes that wait for longer; 0 lets them wait for good.
void SetTimeout(int fd, int seconds);

// Sockets, or -1 with *why.
int Listen(const Address& at, int* port, std::string* why);
int Connect(const Address& to, int timeout_seconds, std::string* why);

// Whether a socket that listens can be reached from this machine alone.
bool IsLoopback(int fd);

}  // namespace rpc
}  // namespace dycl

#endif  // DYCL_RPC_SERVER_SOCKET_IO_H_
