// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs kernels that are linked to it on arrays of a file, on an emulated ARM CPU: arm_emulation.py.
// Nobody may touch the memory before an array, the next time that behind it (from the next multiple
// of 64 bytes on). The last array is the result, which must be the same both times.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tvm/ffi/c_api.h>

#include "kernels.h"  // KERNELS: their functions

enum { kMost = 8, kPage = 4096 };

typedef struct {
  void* sync;
  int32_t tasks;
} Group;
typedef int (*Task)(int, Group*, void*);

static int Launch(Task task, void* data, int tasks) {
  Group group = {NULL, tasks > 0 ? tasks : 3};
  int wrong = 0;
  for (int k = 0; k < group.tasks && !wrong; ++k) {
    wrong = task(k, &group, data);
  }
  return wrong;
}

static void* Allocate(int type, int id, uint64_t size, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return aligned_alloc(128, (size + 127) / 128 * 128);
}

static int Free(int type, int id, void* data) {
  (void)type, (void)id;
  free(data);
  return 0;
}

extern int (*__TVMBackendParallelLaunch)(Task, void*, int) __attribute__((weak));
extern void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int)__attribute__((weak));
extern int (*__TVMBackendFreeWorkspace)(int, int, void*) __attribute__((weak));

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: %s\n", kind, count ? parts[0] : "");
}

static void* Guarded(size_t size, int at_end) {
  size_t inner = (size + kPage) / kPage * kPage;
  char* memory =
      mmap(NULL, inner + 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) ||
      mprotect(memory + kPage + inner, kPage, PROT_NONE)) {
    abort();
  }
  return memory + kPage + (at_end ? inner - (size + 63) / 64 * 64 : 0);
}

static int64_t Number(FILE* file) {
  int64_t value = 0;
  if (fread(&value, sizeof(value), 1, file) != 1) {
    abort();
  }
  return value;
}

int main(int argc, char** argv) {
  static const TVMFFISafeCallType kernels[] = {KERNELS};
  FILE* in = fopen(argv[argc - 2], "rb");
  FILE* out = fopen(argv[argc - 1], "wb");
  if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = Launch;
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = Allocate;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = Free;
  for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); ++k) {
    int count = (int)Number(in);
    TVMFFIAny args[kMost], result;
    DLTensor tensors[kMost];
    int64_t shapes[kMost][kMost];
    size_t sizes[kMost];
    void* places[kMost][2];
    for (int a = 0; a < count; ++a) {
      DLTensor* t = &tensors[a];
      memset(t, 0, sizeof(*t));
      t->device.device_type = kDLCPU;
      t->dtype.code = (uint8_t)Number(in);
      t->dtype.bits = (uint8_t)Number(in);
      t->dtype.lanes = 1;
      t->ndim = (int32_t)Number(in);
      for (int d = 0; d < t->ndim; ++d) {
        shapes[a][d] = Number(in);
      }
      t->shape = shapes[a];
      sizes[a] = (size_t)Number(in);
      places[a][0] = Guarded(sizes[a], 0);
      places[a][1] = Guarded(sizes[a], 1);
      if (fread(places[a][0], 1, sizes[a], in) != sizes[a]) abort();
      memcpy(places[a][1], places[a][0], sizes[a]);
      memset(&args[a], 0, sizeof(args[a]));
      args[a].type_index = kTVMFFIDLTensorPtr;
      args[a].v_ptr = t;
    }
    for (int at_end = 0; at_end < 2; ++at_end) {
      for (int a = 0; a < count; ++a) {
        tensors[a].data = places[a][at_end];
      }
      if (kernels[k](NULL, args, count, &result) != 0) {
        fprintf(stderr, "kernel %d failed\n", (int)k);
        return 1;
      }
    }
    if (memcmp(places[count - 1][0], places[count - 1][1], sizes[count - 1]) != 0) {
      fprintf(stderr, "kernel %d gives two results\n", (int)k);
      return 1;
    }
    fwrite(places[count - 1][0], 1, sizes[count - 1], out);
  }
  return fclose(out);
}
