/* Licensed under the Apache License, Version 2.0; see LICENSE. */
/* What docs/runtime.md says of a program in C, one after the other: cancelling from a signal
 * handler, deadlines, runs in the background, outputs and memory of the caller, params from memory
 * and from a descriptor, texts, user metadata, structures of other sizes. */
#include <dycl/dycl.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define REQUIRE(condition)                                                   \
  do {                                                                       \
    if (!(condition)) {                                                      \
      printf("line %d: %s (%s)\n", __LINE__, #condition, dycl_last_error()); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

static const int64_t kEndless = (int64_t)1 << 62;
static int64_t shape[] = {4};
static float data[16] __attribute__((aligned(64))) = {0, 1, 2, 3};
static DLTensor x = {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, NULL, 0};
static DyclValue inputs[2];
static DyclSession* running;
static volatile sig_atomic_t handled;

static void take(int64_t n) {
  memset(inputs, 0, sizeof(inputs));
  inputs[0].u.tensor = &x;
  inputs[1].type = DYCL_INT;
  inputs[1].u.v_int = n;
}

static void check(DyclSession* session) {
  static const float expected[] = {20, 42, 64, 86};
  int32_t site = -1;
  DyclValue value;
  take(0);
  REQUIRE(dycl_run(session, inputs, 2, &site) == DYCL_OK && site == 0);
  REQUIRE(dycl_output(session, 0, &value) == DYCL_OK && value.type == DYCL_TENSOR);
  REQUIRE(memcmp(value.u.tensor->data, expected, sizeof(expected)) == 0);
}

static void on_alarm(int number) {
  (void)number;
  handled = 1;
  dycl_cancel(running);
}

static void on_user(int number) {
  (void)number;
  handled = 1;
}

static void alarm_in(int milliseconds) {
  struct itimerval timer = {{0, 0}, {0, milliseconds * 1000}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

static void signals_and_deadlines(DyclModel* model) {
  DyclSession* session = NULL;
  DyclRunOptions options;
  int32_t site = -1;
  REQUIRE(dycl_session_create(model, &session) == DYCL_OK);
  running = session;
  take(kEndless);
  signal(SIGALRM, on_alarm); /* dycl_cancel() in a handler */
  alarm_in(20);
  REQUIRE(dycl_run(session, inputs, 2, &site) == DYCL_ERROR_CANCELLED && handled == 1);
  REQUIRE(strcmp(dycl_last_error_kind(), "CancelledError") == 0);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.cancel_on_signal = SIGALRM;
  signal(SIGALRM, on_user); /* the program's own handler is called too */
  handled = 0;
  alarm_in(20);
  REQUIRE(dycl_run_with(session, inputs, 2, &options, &site) == DYCL_ERROR_CANCELLED);
  REQUIRE(handled == 1);
  REQUIRE(signal(SIGALRM, SIG_DFL) == on_user);
  options.cancel_on_signal = 0;
  options.deadline_ms = 10;
  REQUIRE(dycl_run_with(session, inputs, 2, &options, &site) == DYCL_ERROR_DEADLINE);
  options.deadline_ms = -1;
  REQUIRE(dycl_run_with(session, inputs, 2, &options, &site) == DYCL_ERROR_DEADLINE);
  check(session);
  /* a program that was compiled with a shorter structure, and one that forgot the size */
  options.struct_size = sizeof(size_t);
  take(0);
  REQUIRE(dycl_run_with(session, inputs, 2, &options, &site) == DYCL_OK);
  options.struct_size = 0;
  REQUIRE(dycl_run_with(session, inputs, 2, &options, &site) == DYCL_ERROR_USAGE);
  dycl_session_destroy(session);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int done_count;
static int32_t done_status;

static void done(void* user, int32_t status, int32_t site) {
  (void)site;
  pthread_mutex_lock(&mutex);
  ++*(int*)user;
  done_status = status;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&mutex);
}

static void wait_for(int count) {
  pthread_mutex_lock(&mutex);
  while (done_count < count) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

static void background(DyclModel* model) {
  DyclSession* session = NULL;
  DyclRunOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  REQUIRE(dycl_session_create(model, &session) == DYCL_OK);
  take(0);
  REQUIRE(dycl_run_async(session, inputs, 2, NULL, 0, NULL, done, &done_count) == DYCL_OK);
  wait_for(1);
  REQUIRE(done_status == DYCL_OK);
  take(kEndless);
  REQUIRE(dycl_run_async(session, inputs, 2, NULL, 0, NULL, done, &done_count) == DYCL_OK);
  REQUIRE(dycl_run_async(session, inputs, 2, NULL, 0, NULL, done, &done_count) == DYCL_ERROR_USAGE);
  REQUIRE(dycl_unload(NULL) == DYCL_ERROR_USAGE);
  dycl_cancel(session);
  wait_for(2);
  REQUIRE(done_status == DYCL_ERROR_CANCELLED);
  options.deadline_ms = 10;
  REQUIRE(dycl_run_async(session, inputs, 2, NULL, 0, &options, done, &done_count) == DYCL_OK);
  wait_for(3);
  REQUIRE(done_status == DYCL_ERROR_DEADLINE);
  REQUIRE(dycl_run_async(session, inputs, 2, NULL, 0, NULL, done, &done_count) == DYCL_OK);
  dycl_session_destroy(session); /* cancels it, and waits until `done` has returned */
  REQUIRE(done_count == 4 && done_status == DYCL_ERROR_CANCELLED);
}

static void memory_of_the_caller(DyclModel* model) {
  static float result[16] __attribute__((aligned(64)));
  DLTensor to = {result, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, NULL, 0};
  const DLTensor* outputs[] = {&to, NULL};
  DyclModelInfo info;
  DyclSessionOptions options;
  DyclSession *first = NULL, *second = NULL;
  int32_t site = -1;
  info.struct_size = sizeof(info);
  REQUIRE(dycl_model_info(model, &info) == DYCL_OK);
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.arena_bytes = info.arena_bytes;
  options.arena = aligned_alloc(64, (size_t)(info.arena_bytes + 63) / 64 * 64 + 64);
  REQUIRE(dycl_session_create_with(model, &options, &first) == DYCL_OK);
  REQUIRE(dycl_session_create_with(model, &options, &second) == DYCL_OK);
  check(first);
  check(second);
  check(first);
  dycl_session_destroy(second);
  options.arena = (char*)options.arena + 1;
  REQUIRE(dycl_session_create_with(model, &options, &second) == DYCL_ERROR_USAGE);
  options.arena = (char*)options.arena - 1;
  options.arena_bytes -= 1;
  REQUIRE(dycl_session_create_with(model, &options, &second) == DYCL_ERROR_USAGE);
  take(0);
  REQUIRE(dycl_run_into(first, inputs, 2, outputs, 2, NULL, &site) == DYCL_OK);
  REQUIRE(result[0] == 20 && result[3] == 86);
  dycl_session_destroy(first);
  free(options.arena);
}

static void params_elsewhere(const char* path) {
  struct stat info;
  int fd = open(path, O_RDONLY);
  REQUIRE(fd >= 0 && fstat(fd, &info) == 0);
  size_t size = (size_t)info.st_size;
  void* bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  for (int32_t from = DYCL_PARAMS_FROM_MEMORY; from <= DYCL_PARAMS_FROM_DESCRIPTOR; ++from) {
    for (int32_t copy = DYCL_PARAMS_MAP; copy <= DYCL_PARAMS_SEAL; ++copy) {
      DyclModelOptions options;
      DyclModel* model = NULL;
      DyclSession* session = NULL;
      memset(&options, 0, sizeof(options));
      options.struct_size = sizeof(options);
      options.copy_params = copy;
      options.params_from = from;
      options.params_fd = fd;
      options.params_data = bytes;
      options.params_size = size;
      REQUIRE(dycl_model_create_with(NULL, &options, &model) == DYCL_OK);
      REQUIRE((dycl_params_fd(model) >= 0) == (copy == DYCL_PARAMS_SEAL));
      REQUIRE(dycl_session_create(model, &session) == DYCL_OK);
      dycl_model_destroy(model);
      check(session);
      dycl_session_destroy(session);
    }
  }
  munmap(bytes, size);
  close(fd);
}

static char heard[256];

static void hear(void* user, int32_t level, const char* text, size_t size) {
  REQUIRE(user == heard && level == DYCL_LOG_WARNING && size < sizeof(heard));
  memcpy(heard, text, size);
}

static void texts(void) {
  DyclThreadOptions options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.nice = 20;
  REQUIRE(dycl_set_thread_options(&options) == DYCL_ERROR_USAGE);
  options.nice = 0;
  options.num_cpus = 1;
  REQUIRE(dycl_set_thread_options(&options) == DYCL_ERROR_USAGE);
  int32_t cpu = 1024;
  options.cpus = &cpu;
  REQUIRE(dycl_set_thread_options(&options) == DYCL_ERROR_USAGE);
  REQUIRE(dycl_set_thread_options(NULL) == DYCL_OK);
  dycl_set_log(hear, heard, DYCL_LOG_WARNING);
  REQUIRE(strcmp(dycl_user_metadata("version"), "3") == 0);
  REQUIRE(dycl_user_metadata("no such key") == NULL && dycl_user_metadata(NULL) == NULL);
  REQUIRE(dycl_api(DYCL_ABI_VERSION)->struct_size == sizeof(DyclApi));
  REQUIRE(dycl_api(DYCL_ABI_VERSION + 1) == NULL);
}

static void listen_to_threads(DyclModel* model) {
  /* of which the system refuses some: DYCL_NICE of this program is no number */
  DyclSession* session = NULL;
  REQUIRE(dycl_session_create(model, &session) == DYCL_OK);
  REQUIRE(dycl_session_set_num_threads(session, 2) == DYCL_OK);
  REQUIRE(strstr(heard, "DYCL_NICE is no number") != NULL);
  dycl_session_destroy(session);
  dycl_set_log(NULL, NULL, DYCL_LOG_PRINT);
}

int main(int argc, char** argv) {
  DyclModel* model = NULL;
  REQUIRE(argc == 2);
  setenv("DYCL_NICE", "high", 1);
  texts();
  REQUIRE(dycl_model_create(argv[1], &model) == DYCL_OK);
  listen_to_threads(model);
  signals_and_deadlines(model);
  background(model);
  memory_of_the_caller(model);
  params_elsewhere(argv[1]);
  REQUIRE(dycl_unload(model) == DYCL_OK);
  printf("all as written\n");
  return 0;
}
