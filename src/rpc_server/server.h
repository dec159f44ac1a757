// Licensed under the Apache License, Version 2.0; see LICENSE.
// Waits for clients, gives each a process and a folder, and cleans up after it however it ends.
#ifndef DYCL_RPC_SERVER_SERVER_H_
#define DYCL_RPC_SERVER_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "socket_io.h"
#include "tracker.h"
#include "tvm_runtime.h"
#include "work_folder.h"

namespace dycl {
namespace rpc {

struct ServerOptions {
  Address listen = {"127.0.0.1", 9090};
  std::string key;
  Address tracker;  // no port: none
  std::string custom_address;
  std::string libraries;  // where TVM's are
  std::string work = "/tmp";
  uint64_t memory = 0;
  int sessions = 2;
  int max_timeout = 0;
};

class Server {
 public:
  explicit Server(const ServerOptions& options) : options_(options) {}

  // Serves until a signal ends it; returns the exit code of the program.
  int Run();

 private:
  struct Child {
    pid_t pid;
    int socket;
    int report;
    std::string folder;
    bool matched;
  };

  void Loop();
  void Accept();
  // Hears from a session, or sees that it has ended.
  void Hear(size_t index);
  void Finish(const Child& child);
  void EndAll();
  bool HasPlace() const { return children_.size() < static_cast<size_t>(options_.sessions); }

  ServerOptions options_;
  TVMRuntime tvm_;
  WorkFolder work_;
  std::unique_ptr<Tracker> tracker_;
  std::vector<Child> children_;
  int listen_ = -1;
};

}  // namespace rpc
}  // namespace dycl

#endif  // DYCL_RPC_SERVER_SERVER_H_
