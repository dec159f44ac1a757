// Licensed under the Apache License, Version 2.0; see LICENSE.
// What fork() gives to a child is the memory as it is. What another thread has begun in the
// system's libraries, with their locks or without any, is then never ended there.
#ifndef DYCL_RUNTIME_FORKS_H_
#define DYCL_RUNTIME_FORKS_H_

namespace dycl {

// While one lives, nobody forks. For a moment only, without calls of the program's functions and
// of others that may fork; not one within another.
class NoForks {
 public:
  NoForks();
  ~NoForks();
  NoForks(const NoForks&) = delete;
  NoForks& operator=(const NoForks&) = delete;
};

// Around a fork(), in the parent and in the child; called by library.cc.
void BeforeFork();
void AfterFork();
void ForkedForks();

}  // namespace dycl

#endif  // DYCL_RUNTIME_FORKS_H_
