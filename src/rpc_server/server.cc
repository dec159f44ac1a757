// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "session.h"

namespace dycl {
namespace rpc {
namespace {

constexpr int kTrackerSeconds = 2;
// More guests than this at once are strangers: the oldest must go. One with the key is no guest any
// more after a few milliseconds.
constexpr int kMostGuests = 16;
// More than this wait in the kernel's queue.
constexpr int kMostWaiting = 64;
// What a session may still take when its client has left, to free what it holds.
constexpr int kGraceSeconds = 2;

volatile sig_atomic_t g_end = 0;
void OnSignal(int) { g_end = 1; }

int64_t Seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

const int kSignals[] = {SIGTERM, SIGINT, SIGHUP};

}  // namespace

int Server::Run() {
  std::string why = tvm_.Load(options_.libraries);
  if (why.empty()) why = work_.Create(options_.work);
  int port = 0;
  if (why.empty()) listen_ = Listen(options_.listen, &port, &why);
  if (listen_ < 0) {
    fprintf(stderr, "dycl-rpc-server: %s\n", why.c_str());
    work_.Destroy();
    return 1;
  }
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_handler = OnSignal;
  for (int number : kSignals) sigaction(number, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  if (options_.tracker.port != 0) {
    tracker_.reset(new Tracker(options_.tracker, options_.key, port, options_.custom_address));
  }
  if (options_.key.empty() && !IsLoopback(listen_)) {
    fprintf(stderr, "without --key everybody in this network can run code here\n");
  }
  printf("listening on %s:%d\n", options_.listen.host.c_str(), port);
  fflush(stdout);
  Loop();
  EndAll();
  close(listen_);
  work_.Destroy();
  return 0;
}

void Server::Loop() {
  // The signals interrupt ppoll() and nothing else, so that none is missed.
  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (int number : kSignals) sigaddset(&blocked, number);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  int64_t next_update = 0;
  while (!g_end) {
    if (tracker_ && Seconds() >= next_update) {
      tracker_->Update(HasPlace());
      next_update = Seconds() + kTrackerSeconds;
    }
    EndAbandoned();
    std::vector<pollfd> fds;
    bool hurry = tracker_ != nullptr;
    for (const Child& child : children_) {
      fds.push_back({child.report, POLLIN, 0});
      // poll() passes over negative numbers.
      fds.push_back({child.end_at == 0 ? child.socket : -1, POLLRDHUP, 0});
      hurry = hurry || child.end_at != 0;
    }
    if (Count(Stage::kWaiting) < kMostWaiting) fds.push_back({listen_, POLLIN, 0});
    timespec wait = {1, 0};
    if (ppoll(fds.data(), fds.size(), hurry ? &wait : nullptr, &before) <= 0) continue;
    size_t count = children_.size();
    bool next = fds.size() > 2 * count && fds.back().revents != 0;
    for (size_t k = count; k-- > 0;) {
      if (fds[2 * k + 1].revents != 0) children_[k].end_at = Seconds() + kGraceSeconds;
      if (fds[2 * k].revents != 0) Hear(k);
    }
    Admit();
    if (next) Accept();
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

int Server::Count(Stage stage) const {
  int count = 0;
  for (const Child& child : children_) count += child.stage == stage ? 1 : 0;
  return count;
}

void Server::Admit() {
  for (Child& child : children_) {
    if (child.stage != Stage::kWaiting || child.end_at != 0) continue;
    if (!HasPlace()) return;
    child.stage = Stage::kRunning;
    // Where it has ended meanwhile, the next look at its report tells.
    if (send(child.report, &kAdmitted, 1, MSG_NOSIGNAL) != 1) continue;
  }
}

void Server::EndOldestGuest() {
  for (size_t k = 0; k < children_.size(); ++k) {
    if (children_[k].stage != Stage::kGuest) continue;
    Child child = children_[k];
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(k));
    kill(child.pid, SIGKILL);
    Finish(child);
    return;
  }
}

void Server::EndAbandoned() {
  for (const Child& child : children_) {
    if (child.end_at == 0 || Seconds() < child.end_at) continue;
    // Its end is heard like any other.
    if (kill(child.pid, SIGKILL) == 0 && child.stage == Stage::kRunning) {
      fprintf(stderr, "a run was ended whose client has left\n");
    }
  }
}

void Server::Accept() {
  if (Count(Stage::kGuest) >= kMostGuests) EndOldestGuest();
  int socket = accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  int report[2];
  std::string folder = work_.CreateSession();
  if (folder.empty() || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, report) != 0) {
    fprintf(stderr, "a client was turned away: %s\n", strerror(errno));
    close(socket);
    return;
  }
  SessionOptions session;
  session.key = options_.key;
  session.match_key = tracker_ ? tracker_->ticket() : options_.key;
  session.folder = folder;
  session.memory = options_.memory;
  session.max_timeout = options_.max_timeout;
  pid_t pid = fork();
  if (pid == 0) {
    for (int number : kSignals) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // A child must not keep the port, or other clients' connections, open.
    close(listen_);
    close(report[0]);
    for (const Child& other : children_) close(other.socket), close(other.report);
    ServeSession(tvm_, session, socket, report[1]);
  }
  close(report[1]);
  if (pid < 0) {
    fprintf(stderr, "a client was turned away: %s\n", strerror(errno));
    close(socket);
    close(report[0]);
    WorkFolder::Remove(folder);
    return;
  }
  children_.push_back({pid, socket, report[0], folder, Stage::kGuest, 0});
}

void Server::Hear(size_t index) {
  char byte;
  ssize_t n = read(children_[index].report, &byte, 1);
  if (n == 1) {
    children_[index].stage = Stage::kWaiting;
    if (tracker_) tracker_->Used();
    return;
  }
  if (n < 0 && errno == EINTR) return;
  Child child = children_[index];
  children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(index));
  Finish(child);
}

void Server::Finish(const Child& child) {
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (child.stage == Stage::kRunning && child.end_at == 0 && WIFSIGNALED(status)) {
    // The client waits for an answer: it gets this one.
    int number = WTERMSIG(status);
    std::string text =
        number == SIGALRM
            ? "RPCSessionTimeoutError: the time of the session is over"
            : std::string("RPCError: the session on the server died: ") + strsignal(number);
    fprintf(stderr, "%s\n", text.c_str());
    SetTimeout(child.socket, 1);
    TVMFFIAny args[] = {TVMRuntime::Int(child.socket), TVMRuntime::Text(text.c_str())}, result;
    if (tvm_.Call(tvm_.Global("rpc.ReturnException"), args, 2, &result) != 0) tvm_.TakeError();
  }
  shutdown(child.socket, SHUT_RDWR);
  close(child.socket);
  close(child.report);
  WorkFolder::Remove(child.folder);
}

void Server::EndAll() {
  for (const Child& child : children_) kill(child.pid, SIGKILL);
  for (Child& child : children_) {
    child.stage = Stage::kGuest;  // the closed connection says enough
    Finish(child);
  }
  children_.clear();
}

}  // namespace rpc
}  // namespace dycl
