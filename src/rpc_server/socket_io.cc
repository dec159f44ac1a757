// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "socket_io.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace dycl {
namespace rpc {
namespace {

// Calls use(fd, address) on each address that a name has, until one succeeds.
template <class F>
int Open(const Address& at, bool passive, std::string* why, F use) {
  addrinfo hints;
  memset(&hints, 0, sizeof(hints));
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  std::string port = std::to_string(at.port);
  if (int code = getaddrinfo(at.host.c_str(), port.c_str(), &hints, &found)) {
    *why = at.host + ": " + gai_strerror(code);
    return -1;
  }
  int result = -1;
  for (addrinfo* info = found; info != nullptr && result < 0; info = info->ai_next) {
    int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, info->ai_protocol);
    if (fd >= 0 && use(fd, info)) {
      result = fd;
    } else {
      *why = at.host + ":" + port + ": " + strerror(errno);
      if (fd >= 0) close(fd);
    }
  }
  freeaddrinfo(found);
  return result;
}

int PortOf(int fd) {
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

bool ParseAddress(const std::string& text, Address* out) {
  size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return false;
  char* end = nullptr;
  long port = strtol(text.c_str() + colon + 1, &end, 10);
  if (*end != '\0' || port < 0 || port > 65535) return false;
  out->host = text.substr(0, colon);
  if (out->host.size() > 2 && out->host.front() == '[' && out->host.back() == ']') {
    out->host = out->host.substr(1, out->host.size() - 2);
  }
  out->port = static_cast<int>(port);
  return true;
}

bool ReadAll(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    ssize_t n = recv(fd, at, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

void SetTimeout(int fd, int seconds) {
  timeval limit = {seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

int Listen(const Address& at, int* port, std::string* why) {
  int fd = Open(at, true, why, [](int s, const addrinfo* info) {
    int on = 1;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    return bind(s, info->ai_addr, info->ai_addrlen) == 0 && listen(s, 16) == 0;
  });
  if (fd >= 0) *port = PortOf(fd);
  return fd;
}

bool IsLoopback(int fd) {
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(&address)->sin6_addr);
  }
  return ntohl(reinterpret_cast<sockaddr_in*>(&address)->sin_addr.s_addr) >> 24 == 127;
}

int Connect(const Address& to, int timeout_seconds, std::string* why) {
  return Open(to, false, why, [timeout_seconds](int s, const addrinfo* info) {
    SetTimeout(s, timeout_seconds);
    return connect(s, info->ai_addr, info->ai_addrlen) == 0;
  });
}

}  // namespace rpc
}  // namespace dycl
