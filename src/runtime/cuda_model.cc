// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "cuda_model.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>

#include "cuda_condition.h"
#include "dycl/dycl.h"
#include "error.h"
#include "params.h"

namespace dycl {
namespace cuda {
namespace {

// The GPU is chosen by the environment: 0 is the first that CUDA_VISIBLE_DEVICES leaves.
int32_t ChosenOrdinal(const Driver& driver, int* out) {
  int count = 0;
  if (Result r = driver.DeviceGetCount(&count)) return Fail(r, "cannot count the GPUs");
  const char* text = getenv("DYCL_CUDA_DEVICE");
  char* end = nullptr;
  long chosen = text != nullptr && *text != '\0' ? strtol(text, &end, 10) : 0;
  if ((end != nullptr && *end != '\0') || chosen < 0 || chosen >= count) {
    return DeviceError("DYCL_CUDA_DEVICE is '%s', but the GPUs here are 0 to %d", text, count - 1);
  }
  *out = static_cast<int>(chosen);
  return DYCL_OK;
}

const char* NameOf(const Driver& driver, Result result) {
  const char* name = nullptr;
  driver.GetErrorName(result, &name);
  return name != nullptr ? name : "unknown error";
}

}  // namespace

CudaModel::~CudaModel() {
  if (context_ == nullptr) return;
  {
    ScopedContext current(driver_, context_);
    if (weights_block_ != 0) driver_.MemFree(weights_block_);
    if (module_ != nullptr) driver_.ModuleUnload(module_);
    if (conditions_module_ != nullptr) driver_.ModuleUnload(conditions_module_);
  }
  driver_.PrimaryRelease(device_);
}

int32_t CudaModel::Open(const Params& params) {
  if (int32_t status = ChosenOrdinal(driver_, &ordinal_)) return status;
  int major = 0, minor = 0;
  char name[128] = "";
  Result r = driver_.DeviceGet(&device_, ordinal_);
  if (r == kSuccess) r = driver_.DeviceGetName(name, sizeof(name), device_);
  if (r == kSuccess) r = driver_.DeviceGetAttribute(&major, kComputeMajor, device_);
  if (r == kSuccess) r = driver_.DeviceGetAttribute(&minor, kComputeMinor, device_);
  if (r != kSuccess) return Fail(r, "cannot ask for the properties of GPU %d", ordinal_);
  int number = major * 10 + minor;
  if (number < program_.arch_number) {
    return DeviceError(
        "the library of '%s' was built for %s, but GPU %d (%s) is sm_%d, which is older; "
        "build it with -arch=sm_%d",
        kProgram.name, program_.arch, ordinal_, name, number, number);
  }
  r = driver_.PrimaryRetain(&context_, device_);
  if (r != kSuccess) {
    context_ = nullptr;
    return Fail(r, "cannot use GPU %d (%s)", ordinal_, name);
  }
  ScopedContext current(driver_, context_);
  if (current.result() != kSuccess) return Fail(current.result(), "cannot use GPU %d", ordinal_);
  if (int32_t status = LoadCode(number)) return status;
  if (int32_t status = FindFunctions()) return status;
  if (int32_t status = TellThreads()) return status;
  LoadConditions();
  return CopyWeights(params);
}

int32_t CudaModel::LoadCode(int number) {
  Result cubin = driver_.ModuleLoadDataEx(&module_, program_.cubin, 0, nullptr, nullptr);
  if (cubin == kSuccess) return DYCL_OK;
  if (cubin == kOutOfMemory) return Fail(cubin, "cannot load the code of '%s'", kProgram.name);
  // Of another architecture, or from a compiler that this driver does not know: the driver
  // compiles.
  char log[512] = "";
  int options[] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  Result ptx = driver_.ModuleLoadDataEx(&module_, program_.ptx, 2, options, values);
  if (ptx == kSuccess) return DYCL_OK;
  module_ = nullptr;
  return Fail(ptx,
              "the GPU (sm_%d, driver of CUDA %d.%d) takes neither the machine code for %s of '%s' "
              "(%s) nor its PTX %s%s%s",
              number, driver_.version / 1000, driver_.version % 1000 / 10, program_.arch,
              kProgram.name, NameOf(driver_, cubin), program_.ptx_version,
              log[0] != '\0' ? ": " : "", log);
}

int32_t CudaModel::TellThreads() {
  Pointer place = 0;
  size_t bytes = 0;
  if (driver_.ModuleGetGlobal(&place, &bytes, module_, "dycl_resident_threads") != kSuccess) {
    return DYCL_OK;  // no kernel asks
  }
  constexpr int kBlock = 256;  // of PyTorch's kernels that draw
  int processors = 0, threads = 0;
  Result r = driver_.DeviceGetAttribute(&processors, kMultiprocessors, device_);
  if (r == kSuccess) r = driver_.DeviceGetAttribute(&threads, kThreadsOfMultiprocessor, device_);
  int64_t resident = static_cast<int64_t>(processors) * (threads / kBlock) * kBlock;
  if (r == kSuccess) r = Write(place, &resident, sizeof(resident));
  return r == kSuccess ? DYCL_OK
                       : Fail(r, "cannot tell the kernels of '%s' of the GPU", kProgram.name);
}

Result CudaModel::Write(Pointer to, const void* from, uint64_t bytes) const {
  Stream stream = nullptr;
  Result r = driver_.StreamCreate(&stream, 0);
  if (r == kSuccess) r = driver_.MemcpyHtoDAsync(to, from, bytes, stream);
  if (r == kSuccess) r = driver_.StreamSynchronize(stream);
  if (stream != nullptr) driver_.StreamDestroy(stream);
  return r;
}

// Where this fails the host takes all branches.
void CudaModel::LoadConditions() {
  if (!driver_.has_conditionals || program_.segments.size == 0) return;
  Result r = driver_.ModuleLoadDataEx(&conditions_module_, kConditionPtx, 0, nullptr, nullptr);
  if (r != kSuccess) {
    conditions_module_ = nullptr;
    return;
  }
  for (int k = 0; k < 3; ++k) {
    if (driver_.ModuleGetFunction(&conditions_[k], conditions_module_, kConditionFunctions[k])) {
      conditions_[0] = nullptr;
      return;
    }
  }
}

Function CudaModel::condition(DType item) const {
  if (conditions_[0] == nullptr) return nullptr;
  return conditions_[item == DType::kBool ? 0 : item == DType::kInt32 ? 1 : 2];
}

int32_t CudaModel::FindFunctions() {
  functions_.resize(program_.launches.size);
  std::map<std::string, int> shared;  // the most dynamic shared memory of each function
  for (uint32_t k = 0; k < program_.launches.size; ++k) {
    const LaunchDesc& launch = program_.launches[k];
    if (launch.library != nullptr) {
      LibraryCall call{};
      call.step = LibraryStep::kFind;
      call.cuda_version = driver_.version;
      if (int32_t status = launch.library(call)) return status;
      continue;
    }
    if (Result r = driver_.ModuleGetFunction(&functions_[k], module_, launch.function)) {
      return Fail(r, "the code of '%s' has no kernel %s", kProgram.name, launch.function);
    }
    int bytes = static_cast<int>(launch.shared_bytes);
    int& most = shared[launch.function];
    if (bytes <= most) continue;
    most = bytes;
    if (Result r = driver_.FuncSetAttribute(functions_[k], kMaxDynamicShared, bytes)) {
      return Fail(r, "the kernel %s needs %d bytes of shared memory", launch.function, bytes);
    }
  }
  return DYCL_OK;
}

int32_t CudaModel::Allocate(uint64_t bytes, const char* what, Pointer* out) const {
  Result r = driver_.MemAlloc(out, bytes != 0 ? bytes : 1);
  if (r == kSuccess) return DYCL_OK;
  *out = 0;
  size_t free_bytes = 0, total = 0;
  driver_.MemGetInfo(&free_bytes, &total);
  return Fail(
      r, "the GPU has no room for the %s of '%s': %" PRIu64 " bytes, of %zu bytes %zu are free",
      what, kProgram.name, bytes, total, free_bytes);
}

int32_t CudaModel::Take(uint64_t bytes, void** out) {
  ScopedContext current(driver_, context_);
  if (current.result() != kSuccess) return Fail(current.result(), "cannot use GPU %d", ordinal_);
  Pointer memory = 0;
  int32_t status = Allocate(bytes, "tensor", &memory);
  *out = ToAddress(memory);
  return status;
}

void CudaModel::GiveBack(void* memory) {
  ScopedContext current(driver_, context_);
  driver_.MemFree(ToPointer(memory));
}

int32_t CudaModel::CopyWeights(const Params& params) {
  uint32_t count = kProgram.weights.size;
  weights_.assign(count, nullptr);
  if (count == 0) return DYCL_OK;
  const char* begin = nullptr;
  const char* end = nullptr;
  for (uint32_t k = 0; k < count; ++k) {
    const WeightDesc& w = kProgram.weights[k];
    const char* data = static_cast<const char*>(params.weight(k));
    const char* after = data + NumBytes(w.dtype, kProgram.dims.data + w.dims, w.ndim);
    if (begin == nullptr || data < begin) begin = data;
    if (end == nullptr || after > end) end = after;
  }
  // One copy: the weights stand in the file as they will stand on the GPU.
  uint64_t bytes = static_cast<uint64_t>(end - begin);
  if (int32_t status = Allocate(bytes, "weights", &weights_block_)) return status;
  Result r = Write(weights_block_, begin, bytes);
  if (r != kSuccess) return Fail(r, "cannot copy the weights of '%s' to the GPU", kProgram.name);
  for (uint32_t k = 0; k < count; ++k) {
    uint64_t at = static_cast<uint64_t>(static_cast<const char*>(params.weight(k)) - begin);
    weights_[k] = ToAddress(weights_block_ + at);
  }
  return DYCL_OK;
}

int32_t CudaModel::CreateSession(const SessionSizes& sizes, std::unique_ptr<DeviceSession>* out) {
  ScopedContext current(driver_, context_);
  if (current.result() != kSuccess) return Fail(current.result(), "cannot use GPU %d", ordinal_);
  std::unique_ptr<CudaSession> session(new (std::nothrow) CudaSession(this));
  if (session == nullptr) return MemoryError(sizeof(CudaSession));
  if (int32_t status = session->Allocate(sizes)) return status;
  *out = std::move(session);
  return DYCL_OK;
}

}  // namespace cuda

int32_t OpenCuda(const Params& params, std::unique_ptr<DeviceModel>* out) {
  const cuda::Driver* driver = cuda::GetDriver();
  if (driver == nullptr) return DYCL_ERROR_DEVICE;
  std::unique_ptr<cuda::CudaModel> model(new (std::nothrow)
                                             cuda::CudaModel(*driver, *kProgram.device));
  if (model == nullptr) return MemoryError(sizeof(cuda::CudaModel));
  if (int32_t status = model->Open(params)) return status;
  *out = std::move(model);
  return DYCL_OK;
}

}  // namespace dycl
