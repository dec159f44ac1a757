// Licensed under the Apache License, Version 2.0; see LICENSE.
// A thread of the library's own that runs one job after the other.
#ifndef DYCL_RUNTIME_WORKER_H_
#define DYCL_RUNTIME_WORKER_H_

#include <pthread.h>
#include <sys/types.h>

#include <memory>

namespace dycl {

// Makes a thread that takes no signals: those belong to the threads of the host program, but a
// fault to the thread that makes it. False where the system refuses.
bool StartThread(pthread_t* thread, void* (*main)(void*), void* argument);

// Waits until the threads that have ended their own workers are out of the library's code, which
// they return through. False, without waiting, on such a thread.
bool JoinEndedWorkers();
// In a child of fork(), called by library.cc.
void ForkedWorkers();

class Worker {
 public:
  using Job = void (*)(void* of);

  // Makes the thread; null where there is no memory for it, or no thread.
  static std::unique_ptr<Worker> Start();
  // Takes no more jobs. The one that it has been given is still done.
  void Stop();
  // Stops, and ends the thread. Waits for it, but on the thread itself, whose last job this is then
  // (JoinEndedWorkers), and in a child of fork(), where the thread does not exist.
  void End();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Has the thread run a job, once the job before has returned; there is none but that one. False
  // where it takes no more.
  bool Give(Job job, void* of);
  // False in a child of fork().
  bool alive() const;

 private:
  struct State;  // outlives this object where a job ends it
  struct Ended;  // a thread that has ended its own worker, and that nobody has joined yet
  friend bool JoinEndedWorkers();
  friend void ForkedWorkers();
  Worker();
  static void* Main(void* state);

  std::shared_ptr<State> state_;
  std::unique_ptr<Ended> ended_;  // made early: a worker ends where memory is short too
  pid_t process_ = 0;
};

}  // namespace dycl

#endif  // DYCL_RUNTIME_WORKER_H_
