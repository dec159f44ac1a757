// Licensed under the Apache License, Version 2.0; see LICENSE.
// The results of a run: views of them, and the tensors of the caller that they go to. A tensor of
// the caller stands for the place of the result where the plan allows it, so that the kernel which
// makes the result writes there; other results are copied once the run has ended. Inputs that lie
// in such a tensor are copied before the run, so that nothing is written before it is read.
#include <cinttypes>
#include <cstring>

#include "error.h"
#include "session.h"
#include "tensor_copy.h"

using dycl::kAlign;
using dycl::Kind;
using dycl::kProgram;
using dycl::LeafDesc;
using dycl::Target;
using dycl::TensorDesc;

namespace {

uint64_t BytesOf(const TensorDesc& t) {
  return dycl::NumBytes(t.dtype, kProgram.dims.data + t.dims, t.ndim);
}

bool Overlap(const char* a, uint64_t a_bytes, const char* b, uint64_t b_bytes) {
  return a_bytes != 0 && b_bytes != 0 && a < b + b_bytes && b < a + a_bytes;
}

bool IsLike(const DLTensor& t, const LeafDesc& leaf) {
  const DLDataType want = dycl::ToDLDataType(leaf.dtype);
  if (t.dtype.code != want.code || t.dtype.bits != want.bits || t.dtype.lanes != 1 ||
      t.ndim != leaf.ndim || (t.ndim != 0 && t.shape == nullptr)) {
    return false;
  }
  for (int d = 0; d < t.ndim; ++d) {
    if (t.shape[d] != kProgram.dims[leaf.dims + static_cast<uint32_t>(d)]) return false;
  }
  return true;
}

// Whether a tensor can take a leaf on all paths on which that is a tensor; returns a DyclStatus.
int32_t CheckTarget(uint32_t k, const DLTensor& to) {
  bool taken = false;
  for (uint32_t s = 0; s < kProgram.sites.size; ++s) {
    const dycl::SiteDesc& site = kProgram.sites[s];
    if (k >= site.num_leaves) continue;
    const LeafDesc& leaf = kProgram.leaves[site.first_leaf + k];
    if (leaf.kind != Kind::kTensor) continue;
    taken = true;
    if (!IsLike(to, leaf)) {
      return dycl::UsageError("output %" PRIu32
                              ": the given tensor is of another type or shape than the largest "
                              "result at return site %" PRIu32 ", a %s of %u dimensions",
                              k, s, dycl::DTypeName(leaf.dtype), static_cast<unsigned>(leaf.ndim));
    }
  }
  if (!taken) return dycl::UsageError("output %" PRIu32 " is a tensor on no path", k);
  if (!dycl::IsContiguous(to)) {
    return dycl::UsageError("output %" PRIu32 ": the given tensor must be contiguous", k);
  }
  if (to.data == nullptr && dycl::TensorBytes(to) != 0) {
    return dycl::UsageError("output %" PRIu32 ": the given tensor has no memory", k);
  }
  return DYCL_OK;
}

}  // namespace

bool DyclSession::IsOwn(const char* data, uint64_t bytes) const {
  // Outputs of a run on a device come to the host in memory of their own.
  return Overlap(data, bytes, block_, block_bytes_) ||
         (device_ == nullptr
              ? Overlap(data, bytes, arena_, sizes_.arena_bytes())
              : Overlap(data, bytes, device_->host_outputs(), kProgram.device->output_bytes));
}

bool DyclSession::IsTarget(const char* data, uint64_t bytes) const {
  for (uint32_t k = 0; k < num_targets_; ++k) {
    if (Overlap(data, bytes, targets_[k].data, targets_[k].bytes)) return true;
  }
  return false;
}

int32_t DyclSession::BindOutputs(const DLTensor* const* outputs, size_t count) {
  num_targets_ = 0;
  for (uint32_t k = 0; k < count; ++k) {
    targets_[k] = Target{nullptr, 0, DLDevice{kDLCPU, 0}, false};
    if (outputs[k] != nullptr) {
      if (int32_t status = AddTarget(k, *outputs[k])) {
        num_targets_ = 0;
        return status;
      }
    }
    num_targets_ = k + 1;
  }
  for (uint32_t k = 0; k < kProgram.direct.size; ++k) {
    const dycl::DirectDesc& direct = kProgram.direct[k];
    char* data = direct.leaf < count ? targets_[direct.leaf].data : nullptr;
    bool aligned = (reinterpret_cast<uintptr_t>(data) & (kAlign - 1)) == 0;
    PlaceHome(direct, aligned ? data : nullptr);
  }
  return DYCL_OK;
}

int32_t DyclSession::AddTarget(uint32_t k, const DLTensor& to) {
  if (int32_t status = CheckTarget(k, to)) return status;
  bool host = to.device.device_type == kDLCPU || to.device.device_type == kDLCUDAHost;
  if (!host && (device_ == nullptr || to.device.device_type != device_->device().device_type ||
                to.device.device_id != device_->device().device_id)) {
    return dycl::UsageError("output %" PRIu32 ": a result cannot go to device type %d, number %d",
                            k, static_cast<int>(to.device.device_type), to.device.device_id);
  }
  Target target{static_cast<char*>(to.data) + to.byte_offset, dycl::TensorBytes(to),
                host ? DLDevice{kDLCPU, 0} : to.device, true};
  const char* where = nullptr;
  if (IsTarget(target.data, target.bytes)) where = "that of another output";
  if (IsOwn(target.data, target.bytes)) where = "the session's memory";
  if (device_ != nullptr && !host && device_->Owns(target.data, target.bytes)) {
    where = "the session's memory";
  }
  if (model_->params.Holds(target.data, target.bytes)) where = "the weights";
  if (where != nullptr) {
    return dycl::UsageError("output %" PRIu32 ": the given tensor lies in %s", k, where);
  }
  targets_[k] = target;
  return DYCL_OK;
}

// Puts the tensors of a home, which move together, to memory of the caller, or back into the arena.
void DyclSession::PlaceHome(const dycl::DirectDesc& direct, char* data) {
  const TensorDesc* tensors = &kProgram.tensors[direct.first];
  if (frame_.tensors[direct.first].data == (data != nullptr ? data : ArenaPlace(*tensors))) return;
  for (uint32_t t = 0; t < direct.count; ++t) {
    frame_.tensors[direct.first + t].data = data != nullptr ? data : ArenaPlace(tensors[t]);
  }
}

int32_t DyclSession::CopyToTargets() {
  uint32_t leaves = kProgram.sites[static_cast<uint32_t>(site_)].num_leaves;
  for (uint32_t k = 0; k < num_targets_ && k < leaves; ++k) {
    if (!targets_[k].given || frame_.outputs[k].kind != Kind::kTensor) continue;
    DyclValue value;
    if (int32_t status = GetOutput(k, &value)) return status;
    DLTensor to = *value.u.tensor;
    if (to.data == targets_[k].data) continue;
    to.data = targets_[k].data;
    to.byte_offset = 0;
    to.device = targets_[k].device;
    if (int32_t status = CopyOutput(k, to)) return status;
  }
  return DYCL_OK;
}

int32_t DyclSession::PlaceOutputs() {
  uint32_t leaves = kProgram.sites[static_cast<uint32_t>(site_)].num_leaves;
  char* host = device_->host_outputs();
  for (uint32_t k = 0; k < leaves; ++k) {
    if (frame_.outputs[k].kind != Kind::kTensor) continue;
    const DLTensor& tensor = frame_.tensors[frame_.outputs[k].tensor];
    output_data_[k] = device_outputs_ ? static_cast<char*>(tensor.data) : host;
    if (device_outputs_) continue;
    uint64_t bytes = BytesOf(kProgram.tensors[frame_.outputs[k].tensor]);
    if (!device_->Download(host, tensor.data, bytes)) return dycl::LastStatus();
    host += (bytes + kAlign - 1) / kAlign * kAlign;
  }
  return DYCL_OK;
}

int32_t DyclSession::GetOutput(size_t k, DyclValue* out) {
  if (site_ == dycl::kRunFailed)
    return dycl::UsageError("there is no output: no run has succeeded");
  uint32_t leaves = kProgram.sites[static_cast<uint32_t>(site_)].num_leaves;
  if (k >= leaves) return dycl::UsageError("output %zu was asked for, the run gave %u", k, leaves);
  const dycl::Output& output = frame_.outputs[k];
  memset(out, 0, sizeof(*out));
  out->type = static_cast<int32_t>(output.kind);
  switch (output.kind) {
    case Kind::kTensor: {
      // Unlike for kernels, strides are given: DLPack 1.2 wants them.
      DLTensor& view = views_[k];
      view = frame_.tensors[output.tensor];
      if (device_ != nullptr) {
        view.data = output_data_[k];
        if (!device_outputs_) view.device = DLDevice{kDLCPU, 0};
      }
      view.strides = view_strides_ + k * frame_.max_rank;
      if (output.along != dycl::kNone) {
        int64_t* shape = view_shapes_ + k * frame_.max_rank;
        bool several = (output.along & dycl::kSeveral) != 0;
        for (int d = 0; d < view.ndim; ++d) {
          if (!several || (output.along >> d & 1) == 0) shape[d] = view.shape[d];
        }
        if (!several) shape[output.along] = output.scalar.i;
        view.shape = shape;
      }
      int64_t stride = 1;
      for (int d = view.ndim - 1; d >= 0; --d) {
        view.strides[d] = stride;
        stride *= view.shape[d];
      }
      out->u.tensor = &view;
      break;
    }
    case Kind::kInt:
      out->u.v_int = output.scalar.i;
      break;
    case Kind::kFloat:
      out->u.v_float = output.scalar.f;
      break;
    case Kind::kBool:
      out->u.v_bool = output.scalar.b ? 1 : 0;
      break;
  }
  return DYCL_OK;
}
