// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "forks.h"

#include <pthread.h>

namespace dycl {
namespace {

pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;

}  // namespace

NoForks::NoForks() { pthread_mutex_lock(&g_mutex); }
NoForks::~NoForks() { pthread_mutex_unlock(&g_mutex); }

void BeforeFork() { pthread_mutex_lock(&g_mutex); }
void AfterFork() { pthread_mutex_unlock(&g_mutex); }
void ForkedForks() { g_mutex = PTHREAD_MUTEX_INITIALIZER; }

}  // namespace dycl
