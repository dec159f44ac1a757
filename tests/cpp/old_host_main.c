/* Licensed under the Apache License, Version 2.0; see LICENSE. */
/* A host of version 0.2.0, in C: compiled with the header of that version, it runs libraries that
 * are built now.
 *
 *   old_host model.so model.params
 */
#include <dlfcn.h>
#include <dycl/dycl.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "line %d: %s fails: %s\n", __LINE__, #condition, a->last_error()); \
      return 1;                                                                          \
    }                                                                                    \
  } while (0)

int main(int argc, char** argv) {
  void* library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
  const DyclApi* (*get)(int32_t) = NULL;
  void* symbol = library != NULL ? dlsym(library, "dycl_api") : NULL;
  const DyclApi* a;
  DyclModelOptions copied;
  DyclRunOptions in_time;
  /* What a library of today knows of lies behind: it must not be touched. */
  struct {
    DyclModelInfo info;
    unsigned char after[64];
  } model_info;
  DyclModel* model = NULL;
  DyclSession* session = NULL;
  float data[16 + 4], copy[4] = {0, 0, 0, 0};
  float* x = data;
  int64_t shape[1] = {4};
  DLTensor tensor, target;
  DyclValue inputs[2], output;
  DyclPathEntry path[16];
  DyclExtent extents[2];
  uint64_t counts[7], total = 0;
  size_t n = 0, state = 0;
  int32_t site = -1, k;
  char text[4096];

  memcpy(&get, &symbol, sizeof(get));
  if (get == NULL || (a = get(DYCL_ABI_VERSION)) == NULL) return 2;
  CHECK(a->abi_version == 1 && a->struct_size >= sizeof(DyclApi) && get(2) == NULL);
  CHECK(strstr(a->metadata(), "\"name\":\"Zoo\"") != NULL);

  memset(&copied, 0, sizeof(copied));
  copied.struct_size = sizeof(copied);
  copied.copy_params = 1;
  CHECK(a->model_create(NULL, &model) == DYCL_ERROR_ARTIFACT);
  CHECK(a->model_create(argv[2], &model) == DYCL_OK);
  a->model_destroy(model);
  CHECK(a->model_create_with(argv[2], &copied, &model) == DYCL_OK);
  memset(&model_info, 0x5a, sizeof(model_info));
  model_info.info.struct_size = sizeof(model_info.info);
  CHECK(a->model_info(model, &model_info.info) == DYCL_OK);
  CHECK(model_info.info.num_inputs == 2 && model_info.info.num_sites == 2);
  for (n = 0; n < sizeof(model_info.after); ++n) CHECK(model_info.after[n] == 0x5a);
  CHECK(a->input_bounds(0, extents, 2, &n) == DYCL_OK && n == 1 && extents[0].most == 4);
  CHECK(extents[0].size == -1);

  CHECK(a->session_create(model, &session) == DYCL_OK);
  CHECK(a->session_set_num_threads(session, 1) == DYCL_OK);
  CHECK(a->session_set_device_branches(session, 0) == DYCL_OK);
  for (k = 0; k < 4; ++k) x[k] = (float)k;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = x;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = 1;
  tensor.dtype.code = kDLFloat;
  tensor.dtype.bits = 32;
  tensor.dtype.lanes = 1;
  tensor.shape = shape;
  memset(inputs, 0, sizeof(inputs));
  inputs[0].type = DYCL_TENSOR;
  inputs[0].u.tensor = &tensor;
  inputs[1].type = DYCL_INT;
  inputs[1].u.v_int = 5;
  CHECK(a->run(session, inputs, 2, &site) == DYCL_OK && site == 0);
  CHECK(a->num_outputs(session, &n) == DYCL_OK && n == 3);
  CHECK(a->output(session, 0, &output) == DYCL_OK && output.type == DYCL_TENSOR);
  CHECK(((const float*)output.u.tensor->data)[3] == 2 * (3 + 5 + 40));
  CHECK(a->output(session, 1, &output) == DYCL_OK && output.type == DYCL_INT);
  CHECK(output.u.v_int == 100);
  target = tensor;
  target.data = copy;
  CHECK(a->copy_output(session, 0, &target) == DYCL_OK && copy[0] == 2 * (5 + 10));
  CHECK(a->path(session, path, 16, &n, &total) == DYCL_OK && n == 7 && total == 7);
  CHECK(path[0].choice == 1 && path[6].decision == 1 && path[6].choice == 4);
  CHECK(a->path_text(session, text, sizeof(text), &n) == DYCL_OK && n == strlen(text) + 1);
  CHECK(a->kernel_runs(session, counts, 7) == DYCL_OK && counts[0] == 5);
  CHECK(a->call_runs(session, counts, 7) == DYCL_OK && counts[0] == 5);
  CHECK(a->run_tensors(session, &inputs[0].u.tensor, 1, &site) == DYCL_ERROR_INPUT);

  CHECK(a->get_state(session, NULL, 0, &state) == DYCL_OK && state <= sizeof(text));
  CHECK(a->get_state(session, text, state, NULL) == DYCL_OK);
  memset(&in_time, 0, sizeof(in_time));
  in_time.struct_size = sizeof(in_time);
  in_time.deadline_ms = 2;
  inputs[1].u.v_int = (int64_t)1 << 62;
  CHECK(a->run_with(session, inputs, 2, &in_time, &site) == DYCL_ERROR_DEADLINE);
  CHECK(strcmp(a->last_error_kind(), "DeadlineError") == 0);
  inputs[1].u.v_int = 2;
  CHECK(a->run_with(session, inputs, 2, NULL, &site) == DYCL_ERROR_RUN);
  CHECK(strcmp(a->last_error_kind(), "KeyError") == 0);
  CHECK(a->set_state(session, text, state) == DYCL_OK && a->reset_state(session) == DYCL_OK);
  CHECK(a->manual_seed(session, 3) == DYCL_OK);
  a->cancel(session);
  inputs[1].u.v_int = 0;
  CHECK(a->run(session, inputs, 2, &site) == DYCL_OK);
  a->session_destroy(session);
  a->model_destroy(model);
  puts("the old host runs");
  return 0;
}
