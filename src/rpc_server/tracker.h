// Licensed under the Apache License, Version 2.0; see LICENSE.
// The server's side of TVM's tracker: it reports a free place by a ticket that one client gets.
#ifndef DYCL_RPC_SERVER_TRACKER_H_
#define DYCL_RPC_SERVER_TRACKER_H_

#include <string>

#include "json.h"
#include "socket_io.h"

namespace dycl {
namespace rpc {

class Tracker {
 public:
  // `custom_address` is what clients are told, where they see this machine by another name than the
  // tracker does.
  Tracker(const Address& tracker, const std::string& key, int port,
          const std::string& custom_address);
  ~Tracker() { Drop(); }
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  // Keeps a ticket with the tracker while there is a free place; call it every other second. The
  // tracker may come and go.
  void Update(bool free_place);
  // The ticket was used.
  void Used() { ticket_.clear(); }
  // What the next client must say; a text that nobody can say where there is no ticket.
  std::string ticket() const { return ticket_.empty() ? "\n" : ticket_; }

 private:
  bool Join();
  bool Put();
  bool CheckPending();
  bool Ask(const std::string& message, Json* reply);
  void Drop();

  Address address_;
  std::string key_, port_, custom_address_, ticket_;
  int fd_ = -1;
  int unused_ = 0;  // updates since a client took the ticket and did not come
  bool complained_ = false;
};

}  // namespace rpc
}  // namespace dycl

#endif  // DYCL_RPC_SERVER_TRACKER_H_
