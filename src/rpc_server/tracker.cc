// Licensed under the Apache License, Version 2.0; see LICENSE.
// The protocol: four bytes of magic each way, then messages of a size (int32) and a JSON text, each
// answered by one.
#include "tracker.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

namespace dycl {
namespace rpc {
namespace {

constexpr int32_t kTrackerMagic = 0x2f271;
constexpr int32_t kLongestMessage = 1 << 20;
constexpr int kPut = 3, kUpdateInfo = 5, kGetPendingMatchKeys = 7;
constexpr int kTimeoutSeconds = 5;
// Updates after which a ticket that was taken is given up.
constexpr int kGiveUp = 3;

bool IsSuccess(const Json& reply) { return reply.type == Json::kNumber && reply.integer == 0; }

}  // namespace

Tracker::Tracker(const Address& tracker, const std::string& key, int port,
                 const std::string& custom_address)
    : address_(tracker),
      key_(key),
      port_(std::to_string(port)),
      custom_address_(custom_address.empty() ? "null" : "\"" + custom_address + "\"") {}

void Tracker::Update(bool free_place) {
  if (fd_ < 0 && !Join()) {
    if (!complained_) {
      fprintf(stderr, "the tracker %s:%d cannot be reached; trying on\n", address_.host.c_str(),
              address_.port);
    }
    complained_ = true;
    return;
  }
  complained_ = false;
  bool alive = true;
  if (!ticket_.empty()) {
    alive = CheckPending();
  } else if (free_place) {
    alive = Put();
  } else {
    Json reply;
    alive = Ask("[" + std::to_string(kGetPendingMatchKeys) + "]", &reply);
  }
  if (!alive) Drop();
}

bool Tracker::Join() {
  std::string why;
  fd_ = Connect(address_, kTimeoutSeconds, &why);
  int32_t magic = 0;
  if (fd_ < 0 || !WriteInt(fd_, kTrackerMagic) || !ReadInt(fd_, &magic) || magic != kTrackerMagic) {
    Drop();
    return false;
  }
  std::string info =
      "{\"key\":\"server:" + key_ + "\",\"addr\":[" + custom_address_ + "," + port_ + "]}";
  Json reply;
  if (!Ask("[" + std::to_string(kUpdateInfo) + "," + info + "]", &reply) || !IsSuccess(reply)) {
    Drop();
    return false;
  }
  return true;
}

bool Tracker::Put() {
  uint64_t random = 0;
  // glibc has a function for it since 2.25 only.
  if (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random)) return false;
  char text[32];
  snprintf(text, sizeof(text), ":%016" PRIx64, random);
  std::string ticket = key_ + text;
  Json reply;
  if (!Ask("[" + std::to_string(kPut) + ",\"" + key_ + "\",[" + port_ + ",\"" + ticket + "\"]," +
               custom_address_ + "]",
           &reply) ||
      !IsSuccess(reply)) {
    return false;
  }
  ticket_ = ticket;
  unused_ = 0;
  return true;
}

// A ticket that is no longer pending was given to a client. One that does not come must not block
// this place.
bool Tracker::CheckPending() {
  Json reply;
  if (!Ask("[" + std::to_string(kGetPendingMatchKeys) + "]", &reply)) return false;
  for (const Json& pending : reply.items) {
    if (pending.string == ticket_) {
      unused_ = 0;
      return true;
    }
  }
  if (++unused_ > kGiveUp) return Put();
  return true;
}

bool Tracker::Ask(const std::string& message, Json* reply) {
  int32_t size = static_cast<int32_t>(message.size());
  // In one piece: the tracker's system would wait for the rest of a small one.
  std::string packet(reinterpret_cast<const char*>(&size), sizeof(size));
  packet += message;
  if (!WriteAll(fd_, packet.data(), packet.size()) || !ReadInt(fd_, &size) || size <= 0 ||
      size > kLongestMessage) {
    return false;
  }
  std::string text(static_cast<size_t>(size), '\0');
  return ReadAll(fd_, &text[0], text.size()) && ParseJson(text.data(), text.size(), reply);
}

void Tracker::Drop() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  ticket_.clear();
}

}  // namespace rpc
}  // namespace dycl
