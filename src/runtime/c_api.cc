// Licensed under the Apache License, Version 2.0; see LICENSE.
// The C API of dycl/dycl.h over the session. No exception leaves it.
#include <cinttypes>
#include <cstring>

#include "amx.h"
#include "dycl/dycl.h"
#include "error.h"
#include "library.h"
#include "log.h"
#include "path_text.h"
#include "process_pool.h"
#include "session.h"

using dycl::Guard;
using dycl::kArtifactInfo;
using dycl::kProgram;

namespace {

// The options of a caller whose structure may be older (shorter) or newer (longer) than ours.
template <class Options>
int32_t ReadOptions(const Options* given, Options* out) {
  memset(out, 0, sizeof(*out));
  if (given == nullptr) return DYCL_OK;
  if (given->struct_size < sizeof(size_t)) return dycl::UsageError("'struct_size' is not set");
  memcpy(out, given, given->struct_size < sizeof(*out) ? given->struct_size : sizeof(*out));
  return DYCL_OK;
}

int32_t NullArgument(const char* name) { return dycl::UsageError("'%s' must not be NULL", name); }

int32_t ReadRunOptions(const DyclRunOptions* given, DyclRunOptions* out) {
  if (int32_t status = ReadOptions(given, out)) return status;
  if (out->deadline_ms != out->deadline_ms)
    return dycl::UsageError("'deadline_ms' is not a number");
  if (out->budget_ms != out->budget_ms) return dycl::UsageError("'budget_ms' is not a number");
  if (out->budget_ms == 0) return DYCL_OK;
  if (kProgram.device != nullptr) {
    return dycl::UsageError("a budget is for networks that run on the CPU");
  }
  if (out->num_needed != kProgram.decisions.size) {
    return dycl::UsageError("'%s' has %" PRIu32 " decisions, 'needed_ns' is of %zu", kProgram.name,
                            kProgram.decisions.size, out->num_needed);
  }
  return out->num_needed != 0 && out->needed_ns == nullptr ? NullArgument("needed_ns") : DYCL_OK;
}

}  // namespace

#define CHECK_NOT_NULL(argument) \
  if ((argument) == nullptr) return NullArgument(#argument)

extern "C" {

int32_t dycl_abi_version(void) { return DYCL_ABI_VERSION; }

const char* dycl_metadata(void) { return kArtifactInfo.metadata; }

const char* dycl_user_metadata(const char* key) {
  // Keys and texts take turns.
  for (const char* const* at = kArtifactInfo.user_metadata; key != nullptr && *at != nullptr;) {
    if (strcmp(*at, key) == 0) return at[1];
    at += 2;
  }
  return nullptr;
}

void dycl_set_log(DyclLog function, void* user, int32_t level) {
  dycl::SetLog(function, user, level);
}

const char* dycl_last_error(void) { return dycl::LastErrorMessage(); }

const char* dycl_last_error_kind(void) { return dycl::LastErrorKind(); }

int32_t dycl_model_create(const char* params_path, DyclModel** out) {
  return dycl_model_create_with(params_path, nullptr, out);
}

int32_t dycl_model_create_with(const char* params_path, const DyclModelOptions* options,
                               DyclModel** out) {
  CHECK_NOT_NULL(out);
  *out = nullptr;
  DyclModelOptions how;
  if (int32_t status = ReadOptions(options, &how)) return status;
  return Guard([&]() -> int32_t {
    std::unique_ptr<DyclModel> model(new DyclModel);
    // Before the library is held: one that is refused leaves memory, and is loaded anew.
    int32_t status = kArtifactInfo.check_cpu != nullptr ? kArtifactInfo.check_cpu() : DYCL_OK;
    if (status == DYCL_OK) status = dycl::HoldLibrary();
    if (status == DYCL_OK && kProgram.amx) status = dycl::RequestAmx();
    if (status != DYCL_OK) return status;
    if (params_path != nullptr && how.params_from != DYCL_PARAMS_FROM_PATH) {
      return dycl::UsageError("'params_path' and 'params_from' name two places of the params");
    }
    if (params_path != nullptr || how.params_from != DYCL_PARAMS_FROM_PATH) {
      status = model->params.Open(params_path, how);
    } else if (kArtifactInfo.params_begin != nullptr) {
      status = model->params.OpenEmbedded(kArtifactInfo.params_begin, kArtifactInfo.params_end);
    } else if (kProgram.weights.size != 0) {
      return dycl::ArtifactError(
          "'%s' has its weights in a params file; give the path of the file that was saved with it",
          kProgram.name);
    }
    if (status == DYCL_OK && kProgram.device != nullptr) {
      status = kProgram.device->open(model->params, &model->device);
    }
    if (status == DYCL_OK) *out = model.release();
    return status;
  });
}

int32_t dycl_params_fd(const DyclModel* model) {
  return model != nullptr ? model->params.sealed_fd() : -1;
}

void dycl_model_destroy(DyclModel* model) {
  if (model != nullptr) model->Release();
}

int32_t dycl_unload(DyclModel* model) {
  return Guard([&] { return dycl::Unload(model); });
}

int32_t dycl_set_thread_options(const DyclThreadOptions* options) {
  DyclThreadOptions how;
  if (int32_t status = ReadOptions(options, &how)) return status;
  if (how.num_cpus != 0 && how.cpus == nullptr) return NullArgument("cpus");
  if (how.nice < -20 || how.nice > 19) return dycl::UsageError("'nice' is from -20 to 19");
  dycl::ThreadSettings settings{};
  settings.said = options != nullptr;
  settings.nice = how.nice;
  for (size_t k = 0; k < how.num_cpus; ++k) {
    const auto cpu = static_cast<uint32_t>(how.cpus[k]);
    if (cpu >= dycl::ThreadSettings::kMostCpus) {
      return dycl::UsageError("there is no CPU %" PRId32, how.cpus[k]);
    }
    settings.AddCpu(cpu);
  }
  if (!dycl::KeepUsableCpus(&settings))
    return dycl::UsageError("none of these CPUs is the process's");
  // The library may be in use by nothing yet: then it is kept for those that will be.
  return Guard([&]() -> int32_t {
    if (int32_t status = dycl::HoldLibrary()) return status;
    dycl::ConfigureThreads(settings);
    return DYCL_OK;
  });
}

int32_t dycl_set_parallel(DyclParallelFor function, void* user, int32_t num_threads) {
  constexpr int32_t most = dycl::CallersThreads::kMost;
  if (function != nullptr && (num_threads < 1 || num_threads > most)) {
    return dycl::UsageError("'num_threads' is from 1 to %" PRId32, most);
  }
  if (dycl::ScopedTask::Any()) {
    return dycl::UsageError("a task of a kernel cannot say by what its kernel is run");
  }
  return Guard([&]() -> int32_t {
    if (int32_t status = dycl::HoldLibrary()) return status;
    if (dycl::UseCallersThreads({function, user, num_threads})) return DYCL_OK;
    return dycl::NoMemory("there is no memory for the function of parallel loops");
  });
}

int32_t dycl_session_needs(const DyclModel* model, const DyclSessionOptions* options,
                           DyclModelInfo* info) {
  CHECK_NOT_NULL(model);
  CHECK_NOT_NULL(info);
  DyclSessionOptions how;
  if (int32_t status = ReadOptions(options, &how)) return status;
  if (info->struct_size < sizeof(size_t)) return dycl::UsageError("'struct_size' is not set");
  return Guard([&]() -> int32_t {
    dycl::SessionSizes sizes;
    if (int32_t status = sizes.Read(how)) return status;
    DyclModelInfo full;
    memset(&full, 0, sizeof(full));
    full.struct_size = info->struct_size;
    full.arena_bytes = sizes.arena_bytes();
    full.weight_bytes = model->params.bytes();
    full.session_bytes = DyclSession::BlockBytes(true, sizes);
    full.num_inputs = kProgram.num_given();
    full.num_sites = kProgram.sites.size;
    full.num_decisions = kProgram.decisions.size;
    full.num_kernels = kProgram.kernels.size;
    full.num_calls = kProgram.calls.size;
    full.num_state = kProgram.state.size;
    // An older host has a shorter structure, a newer one a longer: what both know is filled.
    memcpy(info, &full, info->struct_size < sizeof(full) ? info->struct_size : sizeof(full));
    return DYCL_OK;
  });
}

int32_t dycl_model_info(const DyclModel* model, DyclModelInfo* info) {
  return dycl_session_needs(model, nullptr, info);
}

int32_t dycl_input_bounds(size_t input, DyclExtent* extents, size_t capacity, size_t* ndim) {
  if (capacity != 0) CHECK_NOT_NULL(extents);
  return dycl::SessionSizes().InputBounds(input, extents, capacity, ndim);
}

int32_t dycl_session_input_bounds(const DyclSession* session, size_t input, DyclExtent* extents,
                                  size_t capacity, size_t* ndim) {
  CHECK_NOT_NULL(session);
  if (capacity != 0) CHECK_NOT_NULL(extents);
  return session->sizes().InputBounds(input, extents, capacity, ndim);
}

int32_t dycl_session_create(DyclModel* model, DyclSession** out) {
  return dycl_session_create_with(model, nullptr, out);
}

int32_t dycl_session_create_with(DyclModel* model, const DyclSessionOptions* options,
                                 DyclSession** out) {
  CHECK_NOT_NULL(model);
  CHECK_NOT_NULL(out);
  *out = nullptr;
  DyclSessionOptions how;
  if (int32_t status = ReadOptions(options, &how)) return status;
  return Guard([&] { return DyclSession::Create(model, how, out); });
}

void dycl_session_destroy(DyclSession* session) { delete session; }

int32_t dycl_session_set_num_threads(DyclSession* session, int32_t num_threads) {
  CHECK_NOT_NULL(session);
  return Guard([&] { return session->SetNumThreads(num_threads); });
}

int32_t dycl_session_set_priority(DyclSession* session, int32_t priority) {
  CHECK_NOT_NULL(session);
  return session->SetPriority(priority);
}

int32_t dycl_session_set_device_branches(DyclSession* session, int32_t on) {
  CHECK_NOT_NULL(session);
  return session->SetDeviceBranches(on != 0);
}

int32_t dycl_session_set_cuda_stream(DyclSession* session, int32_t on, void* stream) {
  CHECK_NOT_NULL(session);
  return session->SetCudaStream(on != 0, stream);
}

int32_t dycl_run(DyclSession* session, const DyclValue* inputs, size_t num_inputs, int32_t* site) {
  return dycl_run_with(session, inputs, num_inputs, nullptr, site);
}

int32_t dycl_run_with(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                      const DyclRunOptions* options, int32_t* site) {
  return dycl_run_into(session, inputs, num_inputs, nullptr, 0, options, site);
}

int32_t dycl_run_into(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                      const DLTensor* const* outputs, size_t num_outputs,
                      const DyclRunOptions* options, int32_t* site) {
  CHECK_NOT_NULL(session);
  if (num_inputs != 0) CHECK_NOT_NULL(inputs);
  if (num_outputs != 0) CHECK_NOT_NULL(outputs);
  DyclRunOptions how;
  if (int32_t status = ReadRunOptions(options, &how)) return status;
  return Guard([&] { return session->Run(inputs, num_inputs, outputs, num_outputs, how, site); });
}

int32_t dycl_run_async(DyclSession* session, const DyclValue* inputs, size_t num_inputs,
                       const DLTensor* const* outputs, size_t num_outputs,
                       const DyclRunOptions* options, DyclDone done, void* user) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(done);
  if (num_inputs != 0) CHECK_NOT_NULL(inputs);
  if (num_outputs != 0) CHECK_NOT_NULL(outputs);
  DyclRunOptions how;
  if (int32_t status = ReadRunOptions(options, &how)) return status;
  return Guard(
      [&] { return session->RunAsync(inputs, num_inputs, outputs, num_outputs, how, done, user); });
}

void dycl_cancel(DyclSession* session) {
  if (session != nullptr) session->Cancel();
}

int32_t dycl_run_tensors(DyclSession* session, const DLTensor* const* inputs, size_t num_inputs,
                         int32_t* site) {
  CHECK_NOT_NULL(session);
  if (num_inputs != 0) CHECK_NOT_NULL(inputs);
  constexpr size_t kMost = 64;
  if (num_inputs > kMost) return dycl::UsageError("more than %zu inputs: use dycl_run", kMost);
  DyclValue values[kMost];
  for (size_t k = 0; k < num_inputs; ++k) {
    memset(&values[k], 0, sizeof(values[k]));
    values[k].type = DYCL_TENSOR;
    values[k].u.tensor = inputs[k];
  }
  return dycl_run_with(session, values, num_inputs, nullptr, site);
}

int32_t dycl_num_outputs(const DyclSession* session, size_t* count) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(count);
  if (session->site() == dycl::kRunFailed) {
    return dycl::UsageError("there is no output: no run has succeeded");
  }
  *count = kProgram.sites[static_cast<uint32_t>(session->site())].num_leaves;
  return DYCL_OK;
}

int32_t dycl_output(const DyclSession* session, size_t k, DyclValue* out) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(out);
  // The view lies in memory of the session; to the caller that is a read.
  return const_cast<DyclSession*>(session)->GetOutput(k, out);
}

int32_t dycl_copy_output(DyclSession* session, size_t k, const DLTensor* to) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(to);
  return session->CopyOutput(k, *to);
}

int32_t dycl_path(const DyclSession* session, DyclPathEntry* entries, size_t capacity,
                  size_t* written, uint64_t* total) {
  CHECK_NOT_NULL(session);
  if (capacity != 0) CHECK_NOT_NULL(entries);
  const dycl::Frame& frame = session->frame();
  uint64_t kept = frame.path_count < dycl::kPathCapacity ? frame.path_count : dycl::kPathCapacity;
  uint64_t count = kept < capacity ? kept : capacity;
  for (uint64_t k = 0; k < count; ++k) {
    uint64_t entry = frame.path[(frame.path_count - count + k) & (dycl::kPathCapacity - 1)];
    entries[k].decision = static_cast<uint32_t>(entry >> 32);
    entries[k].choice = static_cast<uint32_t>(entry);
  }
  if (written != nullptr) *written = static_cast<size_t>(count);
  if (total != nullptr) *total = frame.path_count;
  return DYCL_OK;
}

int32_t dycl_path_cut(const DyclSession* session, uint64_t* at) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(at);
  *at = session->frame().cut_at;
  return DYCL_OK;
}

int32_t dycl_path_text(const DyclSession* session, char* buffer, size_t capacity, size_t* needed) {
  CHECK_NOT_NULL(session);
  if (capacity != 0) CHECK_NOT_NULL(buffer);
  return Guard([&]() -> int32_t {
    std::string text = dycl::PathText(session->frame(), session->site());
    if (needed != nullptr) *needed = text.size() + 1;
    if (capacity != 0) {
      size_t n = text.size() < capacity - 1 ? text.size() : capacity - 1;
      memcpy(buffer, text.data(), n);
      buffer[n] = '\0';
    }
    return DYCL_OK;
  });
}

int32_t dycl_kernel_runs(const DyclSession* session, uint64_t* counts, size_t capacity) {
  CHECK_NOT_NULL(session);
  if (capacity != 0) CHECK_NOT_NULL(counts);
  if (capacity != 0) memset(counts, 0, capacity * sizeof(*counts));
  for (uint32_t c = 0; c < kProgram.calls.size; ++c) {
    uint32_t kernel = kProgram.calls[c].kernel;
    if (kernel < capacity) counts[kernel] += session->frame().call_runs[c];
  }
  return DYCL_OK;
}

int32_t dycl_call_runs(const DyclSession* session, uint64_t* counts, size_t capacity) {
  CHECK_NOT_NULL(session);
  if (capacity != 0) CHECK_NOT_NULL(counts);
  for (size_t c = 0; c < capacity; ++c) {
    counts[c] = c < kProgram.calls.size ? session->frame().call_runs[c] : 0;
  }
  return DYCL_OK;
}

int32_t dycl_reset_state(DyclSession* session) {
  CHECK_NOT_NULL(session);
  return session->ResetState();
}

int32_t dycl_get_state(DyclSession* session, void* buffer, size_t capacity, size_t* needed) {
  CHECK_NOT_NULL(session);
  if (capacity != 0) CHECK_NOT_NULL(buffer);
  uint64_t bytes = DyclSession::StateBytes();
  if (needed != nullptr) *needed = bytes;
  return capacity < bytes ? DYCL_OK : session->GetState(static_cast<char*>(buffer));
}

int32_t dycl_set_state(DyclSession* session, const void* buffer, size_t size) {
  CHECK_NOT_NULL(session);
  if (size != 0) CHECK_NOT_NULL(buffer);
  if (size != DyclSession::StateBytes()) {
    return dycl::UsageError("the state has %zu bytes, that of '%s' has %" PRIu64, size,
                            kProgram.name, DyclSession::StateBytes());
  }
  return session->SetState(static_cast<const char*>(buffer));
}

int32_t dycl_manual_seed(DyclSession* session, uint64_t seed) {
  CHECK_NOT_NULL(session);
  return session->ManualSeed(seed);
}

int32_t dycl_profile_start(DyclSession* session, const DyclProfileOptions* options) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(options);
  DyclProfileOptions how;
  if (int32_t status = ReadOptions(options, &how)) return status;
  if (how.capacity != 0 && how.events == nullptr) return NullArgument("events");
  return session->StartProfile(how.events, how.capacity, how.every);
}

int32_t dycl_profile_read(DyclSession* session, DyclEvent* events, size_t capacity, size_t* written,
                          uint64_t* lost) {
  CHECK_NOT_NULL(session);
  CHECK_NOT_NULL(written);
  if (capacity != 0) CHECK_NOT_NULL(events);
  return session->ReadProfile(events, capacity, written, lost);
}

int32_t dycl_profile_stop(DyclSession* session) {
  CHECK_NOT_NULL(session);
  return session->StopProfile();
}

const DyclApi* dycl_api(int32_t abi_version) {
  static const DyclApi api = {
      sizeof(DyclApi),
      DYCL_ABI_VERSION,
      dycl_metadata,
      dycl_model_create,
      dycl_model_destroy,
      dycl_model_info,
      dycl_session_create,
      dycl_session_destroy,
      dycl_session_set_num_threads,
      dycl_run,
      dycl_num_outputs,
      dycl_output,
      dycl_path,
      dycl_path_text,
      dycl_kernel_runs,
      dycl_call_runs,
      dycl_reset_state,
      dycl_last_error,
      dycl_last_error_kind,
      dycl_copy_output,
      dycl_manual_seed,
      dycl_session_set_device_branches,
      dycl_run_tensors,
      dycl_model_create_with,
      dycl_run_with,
      dycl_cancel,
      dycl_get_state,
      dycl_set_state,
      dycl_input_bounds,
      dycl_profile_start,
      dycl_profile_read,
      dycl_profile_stop,
      dycl_path_cut,
      dycl_params_fd,
      dycl_run_into,
      dycl_session_create_with,
      dycl_run_async,
      dycl_set_log,
      dycl_user_metadata,
      dycl_session_set_cuda_stream,
      dycl_unload,
      dycl_set_thread_options,
      dycl_set_parallel,
      dycl_session_set_priority,
      dycl_session_needs,
      dycl_session_input_bounds,
  };
  return abi_version == DYCL_ABI_VERSION ? &api : nullptr;
}

}  // extern "C"
