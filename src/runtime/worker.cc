// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "worker.h"

#include <signal.h>
#include <unistd.h>

#include <initializer_list>
#include <new>

namespace dycl {

bool StartThread(pthread_t* thread, void* (*main)(void*), void* argument) {
  sigset_t all, before;
  sigfillset(&all);
  // Blocked, a fault would end the process without asking the program's handler.
  for (int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = pthread_create(thread, nullptr, main, argument) == 0;
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

std::unique_ptr<Worker> Worker::Start() {
  std::unique_ptr<Worker> worker(new (std::nothrow) Worker);
  if (worker == nullptr) return nullptr;
  worker->state_ = std::make_shared<State>();
  std::unique_ptr<std::shared_ptr<State>> shared(new std::shared_ptr<State>(worker->state_));
  worker->process_ = getpid();
  if (!StartThread(&worker->thread_, Main, shared.get())) {
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
    if (pthread_equal(thread_, pthread_self()) != 0) {
      pthread_detach(thread_);
    } else {
      pthread_join(thread_, nullptr);
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
