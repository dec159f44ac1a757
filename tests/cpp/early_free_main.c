/* Licensed under the Apache License, Version 2.0; see LICENSE. */
/* A program with a mistake: it frees an input before the run. With an argument it does not. */
#include <dycl/dycl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char* what) {
  printf("%s: %s\n", what, dycl_last_error());
  return 1;
}

int main(int argc, char** argv) {
  DyclModel* model = NULL;
  DyclSession* session = NULL;
  if (dycl_model_create(argv[1], &model) != DYCL_OK) return failed("model");
  if (dycl_session_create(model, &session) != DYCL_OK) return failed("session");
  float* x = aligned_alloc(64, 64);
  int64_t shape[] = {4};
  DLTensor tensor = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, NULL, 0};
  const DLTensor* inputs[] = {&tensor};
  int32_t site = -1;
  memset(x, 0, 64);
  if (argc < 3) free(x);
  if (dycl_run_tensors(session, inputs, 1, &site) != DYCL_OK) return failed("run");
  if (argc >= 3) free(x);
  dycl_session_destroy(session);
  dycl_model_destroy(model);
  printf("site %d\n", site);
  return 0;
}
