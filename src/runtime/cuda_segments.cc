// Licensed under the Apache License, Version 2.0; see LICENSE.
// Segments: graphs with conditional nodes, so that the device takes branches without the host. A
// segment is captured from the stream like any stretch; each side of a branch is captured into the
// body that the driver makes for it.
#include "cuda_model.h"
#include "dispatch.h"
#include "dycl/dycl.h"
#include "error.h"

namespace dycl {
namespace cuda {

bool CudaSession::TakesBranches(uint32_t segment) {
  if (!conditionals_ || !branches_on_) return false;
  Stretch& stretch = segments_[segment];
  if (stretch.runs < kRunsBeforeGraph) {
    ++stretch.runs;
    return false;
  }
  uint64_t generation = Generation();
  if (stretch.graph != nullptr && stretch.generation == generation) return true;
  // Inputs that lie elsewhere in every run would cost a capture each time.
  if (stretch.graph != nullptr) stretch.runs = 0;
  stretch.generation = generation;
  conditionals_ = CaptureSegment(segment, &stretch);
  return conditionals_;
}

bool CudaSession::CaptureSegment(uint32_t segment, Stretch* stretch) {
  if (!BeginCapture(stretch)) return false;
  const DeviceDesc& device = model_->program();
  const StepRange& steps = device.segments[segment];
  Result built = kSuccess;
  for (uint32_t k = steps.first; k < steps.first + steps.count && built == kSuccess; ++k) {
    const StepDesc& step = device.steps[k];
    if (step.kind != StepKind::kBranch) {
      built = CaptureSteps(own_stream_, StepRange{k, 1});
    } else {
      Pointer record = records_ + step.first * sizeof(int64_t);
      built = CaptureBranch(device.branches[step.first], record);
    }
  }
  return EndCapture(stretch, built);
}

Result CudaSession::CaptureSteps(Stream stream, const StepRange& steps) {
  const DeviceDesc& device = model_->program();
  for (uint32_t k = steps.first; k < steps.first + steps.count; ++k) {
    const StepDesc& step = device.steps[k];
    Result r = kSuccess;
    if (step.kind == StepKind::kCalls) {
      // Libraries may do more than put work on the stream: then the host takes the branches.
      if (CallsLibrary(step.first, step.second)) return kUnknown;
      r = LaunchEach(step.first, step.second, stream);
    } else {
      Pointer to = ToPointer(frame_->tensors[step.first].data);
      Pointer from = ToPointer(frame_->tensors[step.second].data);
      if (to != from) r = driver_.MemcpyDtoDAsync(to, from, step.bytes, stream);
    }
    if (r != kSuccess) return r;
  }
  return kSuccess;
}

Result CudaSession::CaptureBranch(const DeviceBranchDesc& branch, Pointer record) {
  const DeviceDesc& device = model_->program();
  const StepRange* sides = device.sides.data + branch.first_side;
  bool is_switch = kProgram.decisions[branch.decision].is_switch;
  Graph graph = nullptr;
  const GraphNode* last = nullptr;
  size_t count = 0;
  int status = 0;
  Result r = driver_.StreamGetCaptureInfo(own_stream_, &status, nullptr, &graph, nullptr, nullptr,
                                          nullptr);
  if (r != kSuccess) return r;

  ConditionalNode node;
  node.context = model_->context();
  r = driver_.GraphConditionalHandleCreate(&node.handle, graph, node.context, 0, 0);
  if (r != kSuccess) return r;
  // A node of two ways runs its first body where the condition is not 0. A way in which nothing is
  // done comes second, and has no body.
  bool flip = !is_switch && sides[1].count == 0;
  uint64_t num_sides = branch.num_sides, flipped = (flip ? 1 : 0) ^ branch.negated;
  Pointer item = ToPointer(frame_->tensors[branch.item].data);
  void* args[] = {&node.handle, &item, &record, &num_sides, &flipped};
  DType type = kProgram.tensors[branch.item].dtype;
  r = driver_.LaunchKernel(model_->condition(type), 1, 1, 1, 1, 1, 1, 0, own_stream_, args,
                           nullptr);
  if (r != kSuccess) return r;

  const StepRange* bodies[2] = {&sides[flip ? 0 : 1], &sides[flip ? 1 : 0]};
  node.kind = is_switch ? kConditionalSwitch : kConditionalIf;
  node.size = is_switch ? branch.num_sides : bodies[1]->count != 0 ? 2 : 1;
  r = driver_.StreamGetCaptureInfo(own_stream_, &status, nullptr, &graph, &last, nullptr, &count);
  if (r != kSuccess) return r;
  GraphNode added = nullptr;
  r = driver_.GraphAddNode(&added, graph, last, nullptr, count, &node);
  if (r != kSuccess) return r;
  r = driver_.StreamUpdateCaptureDependencies(own_stream_, &added, nullptr, 1,
                                              kSetCaptureDependencies);
  for (unsigned k = 0; k < node.size && r == kSuccess; ++k) {
    Graph body = node.bodies[k], same = nullptr;
    r = driver_.StreamBeginCaptureToGraph(body_stream_, body, nullptr, nullptr, 0,
                                          kCaptureThreadLocal);
    if (r != kSuccess) break;
    r = CaptureSteps(body_stream_, is_switch ? sides[k] : *bodies[k]);
    Result ended = driver_.StreamEndCapture(body_stream_, &same);
    if (r == kSuccess) r = ended;
  }
  return r;
}

// The branches of a segment have numbers that follow each other.
uint32_t CudaSession::FirstBranch(uint32_t segment) const {
  const DeviceDesc& device = model_->program();
  for (uint32_t k = device.segments[segment].first;; ++k) {
    if (device.steps[k].kind == StepKind::kBranch) return device.steps[k].first;
  }
}

bool CudaSession::Branches(Frame& frame, uint32_t segment) {
  running_ = &frame;
  for (const Started& s : started_) {
    // Its choices of the time before would be written over.
    if (s.segment == segment) {
      if (!Wait()) return false;
      break;
    }
  }
  if (!Check(driver_.GraphLaunch(segments_[segment].graph, stream_), "cannot launch a graph")) {
    return false;
  }
  started_.push_back(Started{segment, frame.path_count});
  const DeviceDesc& device = model_->program();
  const StepRange& steps = device.segments[segment];
  uint32_t first = FirstBranch(segment), count = 0;
  for (uint32_t k = steps.first; k < steps.first + steps.count; ++k) {
    const StepDesc& step = device.steps[k];
    if (step.kind == StepKind::kCalls) {
      CountCalls(frame, step.first, step.second);
    } else if (step.kind == StepKind::kBranch) {
      RecordDecision(frame, device.branches[step.first].decision, 0);
      ++count;
    }
  }
  return Download(pinned_ + kFetchSlots * kItemBytes + first * sizeof(int64_t),
                  ToAddress(records_ + first * sizeof(int64_t)), count * sizeof(int64_t));
}

bool CudaSession::Settle() {
  const DeviceDesc& device = model_->program();
  for (const Started& s : started_) {
    const StepRange& steps = device.segments[s.segment];
    for (uint32_t k = steps.first; k < steps.first + steps.count; ++k) {
      if (device.steps[k].kind != StepKind::kBranch) continue;
      uint32_t decision = device.branches[device.steps[k].first].decision;
      if (kProgram.decisions[decision].is_switch) return Wait();
    }
  }
  return true;
}

// Fills in what the device has decided. False, with the error of the run, where a branch had no
// side for its index.
bool CudaSession::TakeDecisions() {
  if (started_.empty()) return true;
  const DeviceDesc& device = model_->program();
  Frame& frame = *running_;
  bool good = true;
  for (const Started& s : started_) {
    const StepRange& steps = device.segments[s.segment];
    uint64_t at = s.path;
    for (uint32_t k = steps.first; k < steps.first + steps.count && good; ++k) {
      if (device.steps[k].kind != StepKind::kBranch) continue;
      const DeviceBranchDesc& branch = device.branches[device.steps[k].first];
      int64_t choice = choices()[device.steps[k].first];
      if (choice < 0 || choice >= branch.num_sides) {
        frame.path_count = at;
        FailIndex(choice, branch.num_sides, kProgram.decisions[branch.decision].origin);
        good = false;
        break;
      }
      choice ^= branch.negated;
      // The path is a ring: what is older than its size is gone.
      if (at + kPathCapacity >= frame.path_count) {
        frame.path[at & (kPathCapacity - 1)] |= static_cast<uint64_t>(choice);
      }
      ++at;
      const StepRange& side = device.sides[branch.first_side + static_cast<uint32_t>(choice)];
      for (uint32_t j = side.first; j < side.first + side.count; ++j) {
        const StepDesc& step = device.steps[j];
        if (step.kind == StepKind::kCalls) CountCalls(frame, step.first, step.second);
      }
    }
    if (!good) break;
  }
  started_.clear();
  return good;
}

}  // namespace cuda
}  // namespace dycl
