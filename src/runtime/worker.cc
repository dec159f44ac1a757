// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "worker.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <initializer_list>
#include <new>
#include <utility>

#include "forks.h"

namespace dycl {

bool StartThread(pthread_t* thread, void* (*main)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  // Blocked, a fault would end the process without asking the program's handler.
  for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = false;
  {
    // The new thread has the stack of one that has ended. What is freed of that one just now would
    // be freed again in a child.
    NoForks none;
    started = pthread_create(thread, nullptr, main, argument) == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

// Of pthread, because the C++ library's condition variables are not in its headers, and nothing of
// that library is linked that is not.
struct Worker::State {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  Job job = nullptr;
  void* of = nullptr;
  bool stop = false;

  ~State() {
    pthread_cond_destroy(&changed);
    pthread_mutex_destroy(&mutex);
  }
};

struct Worker::Ended {
  pthread_t thread{};
  Ended* next = nullptr;

  static pthread_mutex_t mutex;
  static Ended* first;
  static bool joins_at_end;

  // Forgets those of which `gone` is true.
  template <typename Gone>
  static void Forget(Gone gone) {
    for (Ended** at = &first; *at != nullptr;) {
      Ended* one = *at;
      if (!gone(one->thread)) {
        at = &one->next;
        continue;
      }
      *at = one->next;
      delete one;
    }
  }

  static bool AreNone() {
    pthread_mutex_lock(&mutex);
    const bool none = first == nullptr;
    pthread_mutex_unlock(&mutex);
    return none;
  }

  static bool IsThis() {
    for (const Ended* one = first; one != nullptr; one = one->next) {
      if (pthread_equal(one->thread, pthread_self()) != 0) return true;
    }
    return false;
  }

  // At the end of the process, for those who count threads that nobody has joined. One may still be
  // in the program's function: it is not waited for.
  static void JoinAtEnd() {
    for (int tries = 0; tries < 100 && !AreNone(); ++tries) {
      usleep(50);
      JoinReturned();
    }
  }

  static void Add(std::unique_ptr<Ended> one) {
    pthread_mutex_lock(&mutex);
    if (!joins_at_end) joins_at_end = atexit(JoinAtEnd) == 0;
    one->next = first;
    first = one.release();
    pthread_mutex_unlock(&mutex);
  }

  // A thread that has returned keeps its stack until it is joined.
  static void JoinReturned() {
    pthread_mutex_lock(&mutex);
    Forget([](pthread_t thread) { return pthread_tryjoin_np(thread, nullptr) == 0; });
    pthread_mutex_unlock(&mutex);
  }
};

pthread_mutex_t Worker::Ended::mutex = PTHREAD_MUTEX_INITIALIZER;
Worker::Ended* Worker::Ended::first = nullptr;
bool Worker::Ended::joins_at_end = false;

void ForkedWorkers() {
  Worker::Ended::mutex = PTHREAD_MUTEX_INITIALIZER;
  Worker::Ended::Forget(
      [](pthread_t thread) { return pthread_equal(thread, pthread_self()) == 0; });
}

bool JoinEndedWorkers() {
  while (true) {
    // Not with the mutex, for which such a thread may wait before it returns.
    Worker::Ended::JoinReturned();
    pthread_mutex_lock(&Worker::Ended::mutex);
    const bool is_one = Worker::Ended::IsThis();
    pthread_mutex_unlock(&Worker::Ended::mutex);
    const bool none = Worker::Ended::AreNone();
    if (none || is_one) return none;
    usleep(50);
  }
}

Worker::Worker() = default;
Worker::~Worker() { End(); }

std::unique_ptr<Worker> Worker::Start() {
  Ended::JoinReturned();
  std::unique_ptr<Worker> worker(new (std::nothrow) Worker);
  if (worker == nullptr) return nullptr;
  worker->ended_.reset(new (std::nothrow) Ended);
  if (worker->ended_ == nullptr) return nullptr;
  worker->state_ = std::make_shared<State>();
  std::unique_ptr<std::shared_ptr<State>> shared(new std::shared_ptr<State>(worker->state_));
  worker->process_ = getpid();
  if (!StartThread(&worker->ended_->thread, Main, shared.get())) {
    worker->state_.reset();
    return nullptr;
  }
  shared.release();
  return worker;
}

void Worker::Stop() {
  if (!alive()) return;
  pthread_mutex_lock(&state_->mutex);
  state_->stop = true;
  pthread_cond_signal(&state_->changed);
  pthread_mutex_unlock(&state_->mutex);
}

void Worker::End() {
  if (state_ == nullptr) return;
  if (!alive()) {
    // Left behind: the parent's thread may have held the mutex.
    static_cast<void>(new std::shared_ptr<State>(state_));
  } else {
    Stop();
    if (pthread_equal(ended_->thread, pthread_self()) != 0) {
      Ended::Add(std::move(ended_));
    } else {
      pthread_join(ended_->thread, nullptr);
    }
  }
  state_.reset();
}

bool Worker::Give(Job job, void* of) {
  pthread_mutex_lock(&state_->mutex);
  bool taken = !state_->stop;
  if (taken) {
    state_->job = job;
    state_->of = of;
    pthread_cond_signal(&state_->changed);
  }
  pthread_mutex_unlock(&state_->mutex);
  return taken;
}

bool Worker::alive() const { return process_ == getpid(); }

void* Worker::Main(void* shared) {
  std::shared_ptr<State> state = *static_cast<std::shared_ptr<State>*>(shared);
  delete static_cast<std::shared_ptr<State>*>(shared);
  pthread_mutex_lock(&state->mutex);
  while (true) {
    while (state->job == nullptr && !state->stop) {
      pthread_cond_wait(&state->changed, &state->mutex);
    }
    Job job = state->job;
    if (job == nullptr) break;
    state->job = nullptr;
    pthread_mutex_unlock(&state->mutex);
    job(state->of);
    pthread_mutex_lock(&state->mutex);
  }
  pthread_mutex_unlock(&state->mutex);
  return nullptr;
}

}  // namespace dycl
