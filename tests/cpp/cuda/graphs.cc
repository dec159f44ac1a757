// Licensed under the Apache License, Version 2.0; see LICENSE.
// CUDA graphs of the emulated driver: capture, and conditional nodes.
#include <algorithm>
#include <cstring>

#include "driver.h"

using namespace emulated;  // NOLINT

namespace {

std::map<uint64_t, uint32_t> g_conditions;  // what was set since the launch of the graph
uint64_t g_handles = 0;

void* NodeOf(size_t count) { return reinterpret_cast<void*>(count); }

// CUgraphNodeParams, as far as it is of a conditional node.
struct ConditionalParams {
  int type;
  int reserved[3];
  uint64_t handle;
  int kind;
  unsigned size;
  void** bodies;
  void* context;
};

int RunConditional(uint64_t handle, int kind, const std::vector<std::shared_ptr<Graph>>& bodies) {
  auto found = g_conditions.find(handle);
  if (found == g_conditions.end()) return kLaunchFailed;  // it would be anything
  size_t chosen = found->second;
  if (kind == 0) chosen = found->second != 0 ? 0 : 1;
  if (chosen >= bodies.size()) return kSuccess;
  ++g_counts["bodies"];
  for (const Work& work : bodies[chosen]->work) {
    if (int result = work()) return result;
  }
  return kSuccess;
}

bool HasConditionals() { return g_settings.version >= 12030; }

}  // namespace

void emulated::SetConditional(uint64_t handle, uint32_t value) { g_conditions[handle] = value; }

API cuStreamBeginCapture_v2(void* stream, int) {
  Guard lock(g_mutex);
  Stream* s = StreamOf(stream);
  // What is on its way is no part of the graph.
  if (int result = Run(s)) return result;
  s->owned = std::make_unique<Graph>();
  s->capture = s->owned.get();
  s->last = 0;
  return kSuccess;
}
API cuStreamBeginCaptureToGraph(void* stream, void* graph, const void*, const void*, size_t count,
                                int) {
  Guard lock(g_mutex);
  Stream* s = StreamOf(stream);
  if (!HasConditionals()) return kNotSupported;
  if (s->capture != nullptr || count != 0) return kInvalidValue;
  s->capture = static_cast<Graph*>(graph);
  s->last = s->capture->work.size();
  return kSuccess;
}
API cuStreamEndCapture(void* stream, void** graph) {
  Guard lock(g_mutex);
  Stream* s = StreamOf(stream);
  if (s->capture == nullptr) return kInvalidValue;
  // A last node that nothing waits for was forgotten.
  bool whole = !s->capture->forked && s->last == s->capture->work.size();
  *graph = s->owned != nullptr ? s->owned.release() : s->capture;
  s->capture = nullptr;
  return whole ? kSuccess : kCaptureUnjoined;
}
API cuStreamGetCaptureInfo_v3(void* stream, int* status, uint64_t* id, void** graph, void*** nodes,
                              void***, size_t* count) {
  Guard lock(g_mutex);
  Stream* s = StreamOf(stream);
  static thread_local void* last;
  *status = s->capture != nullptr ? 1 : 0;
  if (id != nullptr) *id = 1;
  if (graph != nullptr) *graph = s->capture;
  last = NodeOf(s->last);
  if (nodes != nullptr) *nodes = &last;
  if (count != nullptr) *count = s->last != 0 ? 1 : 0;
  return kSuccess;
}
API cuStreamUpdateCaptureDependencies_v2(void* stream, void** nodes, const void*, size_t count,
                                         unsigned flags) {
  Guard lock(g_mutex);
  Stream* s = StreamOf(stream);
  if (s->capture == nullptr || count != 1 || flags != 1) return kInvalidValue;
  s->last = reinterpret_cast<size_t>(nodes[0]);
  return kSuccess;
}
API cuGraphConditionalHandleCreate(uint64_t* out, void* graph, void* context, unsigned,
                                   unsigned flags) {
  Guard lock(g_mutex);
  if (!HasConditionals()) return kNotSupported;
  if (context != &g_settings || flags != 0) return kInvalidValue;
  *out = ++g_handles;
  static_cast<Graph*>(graph)->handles.push_back(*out);
  return kSuccess;
}
API cuGraphAddNode_v2(void** out, void* handle, void** nodes, const void*, size_t count,
                      ConditionalParams* params) {
  Guard lock(g_mutex);
  Graph* graph = static_cast<Graph*>(handle);
  const auto& known = graph->handles;
  if (!HasConditionals()) return kNotSupported;
  if (params->type != 13 || params->context != &g_settings || count > 1) return kInvalidValue;
  if (std::find(known.begin(), known.end(), params->handle) == known.end()) return kInvalidValue;
  bool is_switch = params->kind == 2;
  if ((params->kind != 0 && !is_switch) || params->size == 0) return kInvalidValue;
  if (!is_switch && params->size > 2) return kInvalidValue;
  // Two sides and many came later.
  if ((is_switch || params->size == 2) && g_settings.version < 12080) return kNotSupported;
  std::vector<std::shared_ptr<Graph>> bodies;
  auto array = std::make_shared<std::vector<void*>>();
  for (unsigned k = 0; k < params->size; ++k) {
    bodies.push_back(std::make_shared<Graph>());
    bodies.back()->is_body = true;
    array->push_back(bodies.back().get());
  }
  params->bodies = array->data();
  graph->arrays.push_back(array);
  graph->with_node.push_back(params->handle);
  size_t after = count != 0 ? reinterpret_cast<size_t>(nodes[0]) : 0;
  graph->Add(after, [handle = params->handle, kind = params->kind, bodies] {
    return RunConditional(handle, kind, bodies);
  });
  *out = NodeOf(graph->work.size());
  ++g_counts["conditional_nodes"];
  return kSuccess;
}

static int Instantiate(void** out, void* handle) {
  Guard lock(g_mutex);
  ++g_counts["graphs"];
  const Graph* graph = static_cast<const Graph*>(handle);
  if (graph->handles != graph->with_node) return kInvalidValue;
  *out = new Graph(*graph);
  return kSuccess;
}
// A driver of CUDA 10 has another form of it.
#ifdef EMULATED_CUDA_10
API cuGraphInstantiate(void** out, void* graph, void**, char*, size_t) {
  return Instantiate(out, graph);
}
#else
API cuGraphInstantiateWithFlags(void** out, void* graph, unsigned long long) {
  return Instantiate(out, graph);
}
#endif
API cuGraphLaunch(void* handle, void* stream) {
  Guard lock(g_mutex);
  ++g_counts["graph_launches"];
  ++g_counts_on[{StreamOf(stream), "graph_launches"}];
  if (g_contexts == 0) return kInvalidContext;
  const Graph* graph = static_cast<const Graph*>(handle);
  auto& queue = StreamOf(stream)->queue;
  // Conditions are anything until they are set.
  queue.push_back([handles = graph->handles] {
    for (uint64_t h : handles) g_conditions.erase(h);
    return kSuccess;
  });
  queue.insert(queue.end(), graph->work.begin(), graph->work.end());
  return kSuccess;
}
API cuGraphExecDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return kSuccess;
}
API cuGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return kSuccess;
}
