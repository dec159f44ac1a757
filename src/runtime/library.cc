// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "library.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include "error.h"
#include "forks.h"
#include "log.h"
#include "process_pool.h"
#include "session.h"
#include "thread_pool.h"
#include "thread_settings.h"
#include "worker.h"
#include "workspace.h"

namespace __gnu_cxx {
// What GNU's C++ library keeps for exceptions where memory is short; others have nothing of it.
__attribute__((weak)) void __freeres();
}  // namespace __gnu_cxx

namespace dycl {

Living g_living;

namespace {

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
std::atomic<bool> g_held{false};
void* g_self = nullptr;  // null where the model is a part of the program

struct Lock {
  Lock() { pthread_mutex_lock(&g_mutex); }
  ~Lock() { pthread_mutex_unlock(&g_mutex); }
};

// In a child of fork() this thread is alone: nobody is there who would give a mutex back, or goes
// on with what another thread has begun.
void AfterForkInChild() {
  g_mutex = PTHREAD_MUTEX_INITIALIZER;
  ForkedForks();
  ForkedLog();
  ForkedProcessPool();
  ForkedThreadPools();
  ForkedThreadSettings();
  ForkedWorkers();
  ForkedWorkspaces();
}

// All at once and early: a thread that enters a part at its first run may be in the middle of that
// when another one forks.
bool g_knows_forks = false;

// A reference to this library, by which the system's loader leaves it where it is.
int32_t ReferToSelf(void** self) {
  Dl_info info;
  void* found = nullptr;
  if (dladdr1(&g_held, &info, &found, RTLD_DL_LINKMAP) == 0 || found == nullptr) return DYCL_OK;
  const char* name = static_cast<link_map*>(found)->l_name;
  if (name == nullptr || name[0] == '\0') return DYCL_OK;
  // By its own name the loader finds it without a look at the file, which may be another one now.
  void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == found) {
    *self = handle;
    return DYCL_OK;
  }
  if (handle != nullptr) dlclose(handle);
  return ArtifactError("the library '%s' cannot be held in memory: the loader has another", name);
}

// Whoever calls has the library open too, so this is not the last reference.
void LetGo() {
  void* self = g_self;
  g_self = nullptr;
  if (self != nullptr) dlclose(self);
}

// When the library leaves memory. At the end of a program threads may still run, so that nothing is
// taken from them.
__attribute__((destructor)) void Leave() {
  if (!g_held.load() && __gnu_cxx::__freeres != nullptr) __gnu_cxx::__freeres();
}

}  // namespace

int32_t HoldLibrary() {
  Lock lock;
  if (g_held.load()) return DYCL_OK;
  g_knows_forks = g_knows_forks || pthread_atfork(BeforeFork, AfterFork, AfterForkInChild) == 0;
  if (!g_knows_forks) return NoMemory("there is no memory to know of fork()");
  if (int32_t status = ReferToSelf(&g_self)) return status;
  if (!JoinProcessPool()) {
    LetGo();
    return NoMemory("there is no memory to share the threads of the process");
  }
  g_held.store(true);
  return DYCL_OK;
}

bool LibraryIsHeld() { return g_held.load(); }

static int32_t CheckUnused(const DyclModel* model) {
  const int32_t models = g_living.models.load() - (model != nullptr ? 1 : 0);
  const int32_t sessions = g_living.sessions.load(), tensors = g_living.tensors.load();
  if (models == 0 && sessions == 0 && tensors == 0) return DYCL_OK;
  return UsageError(
      "the library of '%s' is in use by %d sessions, %d other models and %d tensors; destroy them "
      "before it is unloaded",
      kProgram.name, sessions, models, tensors);
}

int32_t Unload(DyclModel* model) {
  if (int32_t status = CheckUnused(model)) return status;
  if (!JoinEndedWorkers()) {
    return UsageError(
        "the library of '%s' has called the function that unloads it; unload it in another thread, "
        "or once the function has returned",
        kProgram.name);
  }
  Lock lock;
  if (int32_t status = CheckUnused(model)) return status;
  if (model != nullptr) model->Release();
  if (!g_held.load()) return DYCL_OK;
  SetLog(nullptr, nullptr, DYCL_LOG_PRINT);
  LeaveProcessPool();
  FreeWorkspaces();
  g_held.store(false);
  LetGo();
  return DYCL_OK;
}

}  // namespace dycl
