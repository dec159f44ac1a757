// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "session.h"

#include <dycl/module.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "socket_io.h"
#include "work_folder.h"

namespace dycl {
namespace rpc {
namespace {

constexpr int kHandshakeSeconds = 10;
constexpr int32_t kLongestKey = 1024;

// The functions below are called by TVM, which hands over no state of ours.
const TVMRuntime* g_tvm = nullptr;
std::string* g_folder = nullptr;

// The path of a file of this session by the name that the client gave; an error if it is no plain
// name.
int PathOf(const TVMFFIAny* args, int32_t count, std::string* path) {
  std::string name;
  if (count != 1 || !TVMRuntime::AsText(args[0], &name)) {
    return g_tvm->Raise("TypeError", "a file name is expected");
  }
  if (!IsPlainFileName(name)) {
    return g_tvm->Raise(
        "ValueError",
        "'" + name + "' is not a plain file name: files of a session lie in one folder");
  }
  *path = *g_folder + "/" + name;
  return 0;
}

int WorkPath(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  std::string path;
  return PathOf(args, count, &path) != 0 ? -1 : g_tvm->ReturnString(path, result);
}

// Loads an uploaded library, after the checks that need no code of it to run.
int LoadModule(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  std::string path;
  if (PathOf(args, count, &path) != 0) return -1;
  Result<std::string> metadata = CheckLibrary(path);
  if (!metadata.ok()) return g_tvm->Raise("RuntimeError", metadata.status().message());
  TVMFFIAny name = TVMRuntime::Text(path.c_str());
  return g_tvm->Call(g_tvm->Global("ffi.ModuleLoadFromFile"), &name, 1, result);
}

// Reads the client's key. Options that it sends after it come back in *options.
bool HearKey(int socket, const SessionOptions& session, std::string* options) {
  int32_t magic, size;
  if (!ReadInt(socket, &magic) || magic != kMagic) return false;
  if (!ReadInt(socket, &size) || size < 0 || size > kLongestKey) return false;
  std::string text(static_cast<size_t>(size), '\0');
  if (!ReadAll(socket, &text[0], text.size())) return false;
  size_t space = text.find(' ');
  if (text.substr(0, space) != "client:" + session.match_key) {
    WriteInt(socket, kMismatch);
    fprintf(stderr, "a client with another key was refused\n");
    return false;
  }
  if (space != std::string::npos) *options = text.substr(space + 1);
  return true;
}

// Tells the server that the client has the key, and waits until there is a place for it.
bool WaitForPlace(int report) {
  char answer = 0;
  return write(report, &kMatched, 1) == 1 && ReadAll(report, &answer, 1) && answer == kAdmitted;
}

// Tells the client that its session begins.
bool Welcome(int socket, const SessionOptions& session) {
  std::string reply = "server:" + session.key;
  return WriteInt(socket, kMagic) && WriteInt(socket, static_cast<int32_t>(reply.size())) &&
         WriteAll(socket, reply.data(), reply.size());
}

// A client whose cable was pulled says nothing any more; the kernel finds out within a minute.
void KeepAlive(int socket) {
  int on = 1, idle = 30, interval = 10, count = 3;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void Bound(const SessionOptions& session, const std::string& options) {
  if (session.memory != 0) {
    rlimit data = {session.memory, session.memory};
    setrlimit(RLIMIT_DATA, &data);
    setrlimit(RLIMIT_FSIZE, &data);
  }
  rlimit core = {0, 0};
  setrlimit(RLIMIT_CORE, &core);
  double asked = 0;
  size_t at = options.find("-timeout=");
  if (at != std::string::npos) asked = atof(options.c_str() + at + 9);
  int seconds = session.max_timeout;
  if (asked >= 1 && asked < 1e6 && (seconds == 0 || asked < seconds))
    seconds = static_cast<int>(asked);
  // The signal ends the process; the server tells the client.
  alarm(static_cast<unsigned>(seconds));
}

}  // namespace

void ServeSession(const TVMRuntime& tvm, const SessionOptions& session, int socket, int report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is a failed write
  g_tvm = &tvm;
  g_folder = new std::string(session.folder);
  std::string options;
  // For the handshake as a whole: one that sends a byte now and then must not keep the place
  // either.
  alarm(kHandshakeSeconds);
  if (chdir(session.folder.c_str()) != 0 || !HearKey(socket, session, &options)) _exit(2);
  alarm(0);
  KeepAlive(socket);
  if (!WaitForPlace(report) || !Welcome(socket, session)) _exit(2);
  Bound(session, options);
  if (!tvm.Define("tvm.rpc.server.workpath", WorkPath) ||
      !tvm.Define("tvm.rpc.server.load_module", LoadModule)) {
    _exit(3);
  }
  TVMFFIAny fd = TVMRuntime::Int(socket), result;
  if (tvm.Call(tvm.Global("rpc.ServerLoop"), &fd, 1, &result) != 0) {
    fprintf(stderr, "a session ended early: %s\n", tvm.TakeError().c_str());
  }
  // Not exit(): the libraries of the client may have threads and handlers of their own.
  _exit(0);
}

}  // namespace rpc
}  // namespace dycl
