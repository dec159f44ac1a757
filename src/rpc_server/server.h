// Licensed under the Apache License, Version 2.0; see LICENSE.
// Waits for clients, gives each a process and a folder, and cleans up after it however it ends.
//
// Three kinds of clients are counted apart: guests, of which nobody knows yet whether they have the
// key; those that have it and wait for a place; and those whose session runs. So strangers cannot
// take the places of clients. The socket of each is watched: a run that nobody waits for any more
// is ended.
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
  enum class Stage { kGuest, kWaiting, kRunning };
  struct Child {
    pid_t pid;
    int socket;
    int report;
    std::string folder;
    Stage stage;
    int64_t end_at;  // when it is ended because its client has left; 0: the client is there
  };

  void Loop();
  void Accept();
  // Hears from a session, or sees that it has ended.
  void Hear(size_t index);
  // Lets those that wait begin where places are free.
  void Admit();
  // Makes room for one more guest.
  void EndOldestGuest();
  // Ends the sessions whose clients have left.
  void EndAbandoned();
  void Finish(const Child& child);
  void EndAll();
  int Count(Stage stage) const;
  bool HasPlace() const { return Count(Stage::kRunning) < options_.sessions; }

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
