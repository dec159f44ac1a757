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
    std::vector<pollfd> fds;
    for (const Child& child : children_) fds.push_back({child.report, POLLIN, 0});
    // Where all places are taken, the next client waits in the kernel's queue.
    if (HasPlace()) fds.push_back({listen_, POLLIN, 0});
    timespec wait = {1, 0};
    if (ppoll(fds.data(), fds.size(), tracker_ ? &wait : nullptr, &before) <= 0) continue;
    if (fds.size() > children_.size() && fds.back().revents != 0) Accept();
    for (size_t k = children_.size(); k-- > 0;) {
      if (k < fds.size() && fds[k].fd == children_[k].report && fds[k].revents != 0) Hear(k);
    }
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

void Server::Accept() {
  int socket = accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket < 0) return;
  int report[2];
  std::string folder = work_.CreateSession();
  if (folder.empty() || pipe2(report, O_CLOEXEC) != 0) {
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
  children_.push_back({pid, socket, report[0], folder, false});
}

void Server::Hear(size_t index) {
  char byte;
  ssize_t n = read(children_[index].report, &byte, 1);
  if (n == 1) {
    children_[index].matched = true;
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
  if (child.matched && WIFSIGNALED(status)) {
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
    child.matched = false;  // the closed connection says enough
    Finish(child);
  }
  children_.clear();
}

}  // namespace rpc
}  // namespace dycl
