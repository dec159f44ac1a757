// Licensed under the Apache License, Version 2.0; see LICENSE.
// A region of operators that oneDNN computes. Generated code describes the region once for each
// session; then primitives are chosen for this CPU and the session's threads, constant weights are
// packed, and tensors inside of the region keep the layout that the primitives like. A run after
// that executes the primitives and allocates nothing. For oneDNN 2.x and 3.x, by their C API.
#ifndef DYCL_RUNTIME_ONEDNN_REGION_H_
#define DYCL_RUNTIME_ONEDNN_REGION_H_

#include <dnnl.h>
#include <tvm/ffi/c_api.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "error.h"
#include "program.h"
#include "thread_pool.h"

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);
#elif DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error \
    "this oneDNN has threads of its own; one that was built for OpenMP or without threads is needed"
#endif

namespace dycl::onednn {

struct Error : std::exception {
  std::string text;
  explicit Error(std::string what) : text(std::move(what)) {}
  const char* what() const noexcept override { return text.c_str(); }
};

inline void Check(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) {
    throw Error(std::string("oneDNN: ") + what + " failed with status " + std::to_string(status));
  }
}

using Dims = std::vector<int64_t>;

// ---- what differs between the versions ----------------------------------------------------------
#if DNNL_VERSION_MAJOR >= 3
using ConstDesc = const_dnnl_memory_desc_t;
#else
using ConstDesc = const dnnl_memory_desc_t*;
#endif

// The shape and layout of a tensor.
class Desc {
 public:
#if DNNL_VERSION_MAJOR >= 3
  explicit Desc(ConstDesc from) { Check(dnnl_memory_desc_clone(&desc_, from), "a descriptor"); }
  Desc(const Dims& dims, dnnl_format_tag_t tag) {
    Check(dnnl_memory_desc_create_with_tag(&desc_, static_cast<int>(dims.size()), dims.data(),
                                           dnnl_f32, tag),
          "a descriptor");
  }
  Desc(const Desc& other) : Desc(other.get()) {}
  ~Desc() { dnnl_memory_desc_destroy(desc_); }
  ConstDesc get() const { return desc_; }
#else
  explicit Desc(ConstDesc from) : desc_(*from) {}
  Desc(const Dims& dims, dnnl_format_tag_t tag) {
    Check(dnnl_memory_desc_init_by_tag(&desc_, static_cast<int>(dims.size()), dims.data(), dnnl_f32,
                                       tag),
          "a descriptor");
  }
  Desc(const Desc& other) = default;
  ConstDesc get() const { return &desc_; }
#endif
  Desc& operator=(const Desc&) = delete;
  size_t bytes() const { return dnnl_memory_desc_get_size(get()); }
  bool operator==(const Desc& other) const {
    return dnnl_memory_desc_equal(get(), other.get()) != 0;
  }

 private:
  dnnl_memory_desc_t desc_;
};

inline void AppendEltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha, float beta) {
#if DNNL_VERSION_MAJOR >= 3
  Check(dnnl_post_ops_append_eltwise(ops, kind, alpha, beta), "an activation");
#else
  Check(dnnl_post_ops_append_eltwise(ops, 1.0F, kind, alpha, beta), "an activation");
#endif
}

inline void AppendSum(dnnl_post_ops_t ops) {
#if DNNL_VERSION_MAJOR >= 3
  Check(dnnl_post_ops_append_sum(ops, 1.0F, 0, dnnl_data_type_undef), "an addition");
#else
  Check(dnnl_post_ops_append_sum(ops, 1.0F), "an addition");
#endif
}

struct Window {
  Dims strides, dilates, before, after;
};

inline dnnl_primitive_desc_t ConvolutionDesc(dnnl_engine_t engine, const Desc& x, const Desc& w,
                                             ConstDesc bias, const Desc& y, const Window& at,
                                             dnnl_primitive_attr_t attr) {
  dnnl_primitive_desc_t made = nullptr;
#if DNNL_VERSION_MAJOR >= 3
  Check(dnnl_convolution_forward_primitive_desc_create(
            &made, engine, dnnl_forward_inference, dnnl_convolution_direct, x.get(), w.get(), bias,
            y.get(), at.strides.data(), at.dilates.data(), at.before.data(), at.after.data(), attr),
        "a convolution");
#else
  dnnl_convolution_desc_t op;
  Check(dnnl_dilated_convolution_forward_desc_init(
            &op, dnnl_forward_inference, dnnl_convolution_direct, x.get(), w.get(), bias, y.get(),
            at.strides.data(), at.dilates.data(), at.before.data(), at.after.data()),
        "a convolution");
  Check(dnnl_primitive_desc_create(&made, &op, attr, engine, nullptr), "a convolution");
#endif
  return made;
}

inline dnnl_primitive_desc_t ProductDesc(dnnl_engine_t engine, const Desc& x, const Desc& w,
                                         ConstDesc bias, const Desc& y,
                                         dnnl_primitive_attr_t attr) {
  dnnl_primitive_desc_t made = nullptr;
#if DNNL_VERSION_MAJOR >= 3
  Check(dnnl_matmul_primitive_desc_create(&made, engine, x.get(), w.get(), bias, y.get(), attr),
        "a product");
#else
  dnnl_matmul_desc_t op;
  Check(dnnl_matmul_desc_init(&op, x.get(), w.get(), bias, y.get()), "a product");
  Check(dnnl_primitive_desc_create(&made, &op, attr, engine, nullptr), "a product");
#endif
  return made;
}

// ---- owners -------------------------------------------------------------------------------------
template <class T, dnnl_status_t (*Destroy)(T)>
struct Deleter {
  using pointer = T;
  void operator()(T handle) const { Destroy(handle); }
};
using Memory = std::unique_ptr<void, Deleter<dnnl_memory_t, dnnl_memory_destroy>>;
using Primitive = std::unique_ptr<void, Deleter<dnnl_primitive_t, dnnl_primitive_destroy>>;
using PrimitiveDesc =
    std::unique_ptr<void, Deleter<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>>;
using PostOps = std::unique_ptr<void, Deleter<dnnl_post_ops_t, dnnl_post_ops_destroy>>;
using Attr = std::unique_ptr<void, Deleter<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>>;
using Stream = std::unique_ptr<void, Deleter<dnnl_stream_t, dnnl_stream_destroy>>;
struct Free {
  void operator()(void* memory) const { free(memory); }
};
using Buffer = std::unique_ptr<void, Free>;

inline Buffer Allocate(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, bytes == 0 ? 64 : bytes) != 0) throw std::bad_alloc();
  return Buffer(memory);
}

// One for the process; never destroyed, because threads may run kernels until its very end.
inline dnnl_engine_t CpuEngine() {
  static dnnl_engine_t engine = [] {
    dnnl_engine_t made = nullptr;
    Check(dnnl_engine_create(&made, dnnl_cpu, 0), "the CPU engine");
    return made;
  }();
  return engine;
}

// oneDNN takes the number of threads from OpenMP, which has one for each calling thread.
class ScopedThreads {
 public:
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
  explicit ScopedThreads(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
    changed_ = threads != before_;
  }
  ~ScopedThreads() {
    if (changed_) omp_set_num_threads(before_);
  }

 private:
  int before_;
  bool changed_ = false;
#else
  explicit ScopedThreads(int) {}
#endif
};

// ---- the region ---------------------------------------------------------------------------------
struct Tensor {
  Tensor(const Dims& shape, const Desc& layout) : dims(shape), desc(layout) {}
  Dims dims;
  Desc desc;
  Memory memory;
  Buffer buffer;  // null for an argument of the call
  int argument = -1;
  bool constant = false;
  Tensor* root = nullptr;       // whose memory it is, seen with another shape
  std::vector<Tensor*> views;   // and the other way round
  std::vector<Tensor*> copies;  // the same in other layouts
};

// What follows a product while its results are in registers.
struct PostOp {
  dnnl_alg_kind_t kind;
  float alpha = 0, beta = 0;
  Tensor* operand = nullptr;
};
inline PostOp Add(Tensor* operand) { return PostOp{dnnl_alg_kind_undef, 0, 0, operand}; }
inline PostOp Eltwise(dnnl_alg_kind_t kind, float alpha = 0, float beta = 0) {
  return PostOp{kind, alpha, beta, nullptr};
}

class Region {
 public:
  Region(const TVMFFIAny* args, int threads) : threads_(threads), args_(args) {
    dnnl_stream_t made = nullptr;
    Check(dnnl_stream_create(&made, CpuEngine(), dnnl_stream_default_flags), "a stream");
    stream_.reset(made);
  }
  int threads() const { return threads_; }

  // An argument of the call, row-major. A constant one never changes in the life of a session.
  Tensor* Argument(int k, const Dims& dims, bool constant = false) {
    Tensor* made = New(dims, Plain(dims));
    made->argument = k;
    made->constant = constant;
    made->memory = MemoryOf(made->desc, DataOf(args_[k]));
    if (!constant) arguments_.push_back(made);
    return made;
  }

  // A convolution with two spatial dimensions; w is (out, in / groups, kh, kw), bias is (out).
  Tensor* Convolution(Tensor* x, Tensor* w, Tensor* bias, const Dims& y, const Window& at,
                      int64_t groups, const std::vector<PostOp>& after = {}) {
    if (groups != 1) {
      const Dims& d = w->dims;
      w = Reshaped(w, {groups, d[0] / groups, d[1], d[2], d[3]});
    }
    if (bias != nullptr) bias = Reshaped(bias, {y[1]});
    return Compute(x, w, bias, y, Any(y), after, [&](const Desc& out, auto* attr) {
      return ConvolutionDesc(CpuEngine(), Any(x->dims), Any(w->dims),
                             bias == nullptr ? nullptr : bias->desc.get(), out, at, attr);
    });
  }

  // (m, k) times (k, n), leading dimensions of x as rows; bias is (n).
  Tensor* Product(Tensor* x, Tensor* w, Tensor* bias, const Dims& y,
                  const std::vector<PostOp>& after = {}) {
    int64_t k = w->dims[0], n = w->dims[1], m = 1;
    for (size_t d = 0; d + 1 < y.size(); ++d) m *= y[d];
    x = Reshaped(x, {m, k});
    if (bias != nullptr) bias = Reshaped(bias, {1, n});
    std::vector<PostOp> flat = after;
    for (PostOp& op : flat) {
      if (op.operand != nullptr) op.operand = Reshaped(op.operand, {m, n});
    }
    Tensor* out = Compute(x, w, bias, {m, n}, Plain({m, n}), flat, [&](const Desc& to, auto* attr) {
      return ProductDesc(CpuEngine(), Plain(x->dims), Any(w->dims),
                         bias == nullptr ? nullptr : bias->desc.get(), to, attr);
    });
    return Reshaped(out, y);
  }

  // max(x, 0) in place; x is the result of one step and read by nothing else. It is no post-op,
  // because oneDNN's turns NaN into 0. What is added to fill up blocks of channels stays 0.
  Tensor* Relu(Tensor* x) {
    Step step;
    step.relu = (x->root != nullptr ? x->root : x)->memory.get();
    step.count = x->desc.bytes() / sizeof(float);
    steps_.push_back(std::move(step));
    return x;
  }

  // Leaves a tensor in argument k, row-major.
  void Output(int k, Tensor* from) {
    Tensor* root = from->root != nullptr ? from->root : from;
    if (root->argument < 0 && root->desc == Plain(root->dims)) {
      Bind(root, k);
      for (Tensor* view : root->views) Bind(view, k);
      return;
    }
    Tensor* to = Argument(k, from->dims);
    Reorder(from, to);
  }

  // Nothing is added any more.
  void Finish() {
    size_t most = 0;
    for (const Step& step : steps_) most = step.scratch > most ? step.scratch : most;
    scratch_ = Allocate(most);
    for (Step& step : steps_) {
      if (step.relu != nullptr) continue;
      Check(dnnl_memory_set_data_handle(step.scratchpad.get(), scratch_.get()), "scratch memory");
    }
    args_ = nullptr;
  }

  void Run(const TVMFFIAny* args) {
    for (Tensor* t : arguments_) {
      Check(dnnl_memory_set_data_handle(t->memory.get(), DataOf(args[t->argument])), "an argument");
    }
    for (const Step& step : steps_) Execute(step);
    Check(dnnl_stream_wait(stream_.get()), "the stream");
  }

 private:
  struct Step {
    Primitive primitive;
    std::vector<dnnl_exec_arg_t> args;
    Memory scratchpad;
    size_t scratch = 0;
    dnnl_memory_t relu = nullptr;  // instead of a primitive
    size_t count = 0;
  };

  static void* DataOf(const TVMFFIAny& arg) {
    const auto* t = static_cast<const DLTensor*>(arg.v_ptr);
    return static_cast<char*>(t->data) + t->byte_offset;
  }
  static Desc Plain(const Dims& dims) {
    constexpr dnnl_format_tag_t kTags[] = {dnnl_a, dnnl_ab, dnnl_abc, dnnl_abcd, dnnl_abcde};
    return Desc(dims, kTags[dims.size() - 1]);
  }
  static Desc Any(const Dims& dims) { return Desc(dims, dnnl_format_tag_any); }
  static Memory MemoryOf(const Desc& desc, void* data) {
    dnnl_memory_t made = nullptr;
    Check(dnnl_memory_create(&made, desc.get(), CpuEngine(), data), "a tensor");
    return Memory(made);
  }

  Tensor* New(const Dims& dims, const Desc& desc) {
    tensors_.emplace_back(dims, desc);
    return &tensors_.back();
  }
  // A tensor of the region in a layout, with memory of its own.
  Tensor* Allocated(const Dims& dims, const Desc& desc) {
    Tensor* made = New(dims, desc);
    made->buffer = Allocate(desc.bytes());
    made->memory = MemoryOf(desc, made->buffer.get());
    return made;
  }

  // The same elements in row-major order with another shape.
  Tensor* Reshaped(Tensor* from, const Dims& dims) {
    if (from->dims == dims) return from;
    Tensor* plain = InLayout(from, Plain(from->dims));
    Tensor* made = New(dims, Plain(dims));
    void* data = nullptr;
    Check(dnnl_memory_get_data_handle(plain->memory.get(), &data), "a tensor");
    made->memory = MemoryOf(made->desc, data);
    made->constant = plain->constant;
    made->root = plain->root != nullptr ? plain->root : plain;
    made->root->views.push_back(made);
    if (plain->argument >= 0) Bind(made, plain->argument);
    return made;
  }

  // Makes an argument of the call the memory of a tensor.
  void Bind(Tensor* tensor, int argument) {
    tensor->argument = argument;
    if (!tensor->constant) arguments_.push_back(tensor);
  }

  // A tensor that lies as `desc` says, if there is one by now, to copy from.
  static Tensor* Nearest(Tensor* from, const Desc& desc) {
    for (Tensor* copy : from->copies) {
      if (copy->desc == desc) return copy;
    }
    return from;
  }

  Tensor* InLayout(Tensor* from, const Desc& desc) {
    Tensor* near = Nearest(from, desc);
    if (near->desc == desc) return near;
    Tensor* to = Allocated(from->dims, desc);
    to->constant = from->constant;
    from->copies.push_back(to);
    Reorder(from, to);
    if (!to->constant) return to;
    // Packed now, and never again.
    Step& step = steps_.back();
    Buffer scratch = Allocate(step.scratch);
    Check(dnnl_memory_set_data_handle(step.scratchpad.get(), scratch.get()), "scratch memory");
    Execute(step);
    Check(dnnl_stream_wait(stream_.get()), "the stream");
    steps_.pop_back();
    return to;
  }

  void Reorder(Tensor* from, Tensor* to) {
    Attr attr = NewAttr();
    dnnl_primitive_desc_t made = nullptr;
    Check(dnnl_reorder_primitive_desc_create(&made, from->desc.get(), CpuEngine(), to->desc.get(),
                                             CpuEngine(), attr.get()),
          "a change of layout");
    PrimitiveDesc desc(made);
    AddStep(desc.get(), {{DNNL_ARG_FROM, from->memory.get()}, {DNNL_ARG_TO, to->memory.get()}});
  }

  static Attr NewAttr() {
    dnnl_primitive_attr_t made = nullptr;
    Check(dnnl_primitive_attr_create(&made), "attributes");
    Attr attr(made);
    // The library's own scratch memory belongs to the thread that makes a primitive.
    Check(dnnl_primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user), "attributes");
    return attr;
  }

  // What is added lies in the result's memory before. As oneDNN's addition of another tensor it
  // would be no copy, but then many versions have reference code only.
  static Attr WithPostOps(const std::vector<PostOp>& after) {
    Attr attr = NewAttr();
    dnnl_post_ops_t made = nullptr;
    Check(dnnl_post_ops_create(&made), "post-ops");
    PostOps ops(made);
    for (const PostOp& op : after) {
      if (op.operand != nullptr) {
        AppendSum(made);
      } else {
        AppendEltwise(made, op.kind, op.alpha, op.beta);
      }
    }
    Check(dnnl_primitive_attr_set_post_ops(attr.get(), made), "post-ops");
    return attr;
  }

  template <class Make>
  Tensor* Compute(Tensor* x, Tensor* w, Tensor* bias, const Dims& dims, const Desc& out,
                  const std::vector<PostOp>& after, Make make) {
    Attr attr = WithPostOps(after);
    PrimitiveDesc desc(make(out, attr.get()));
    auto layout = [&](dnnl_query_t what) {
      return Desc(dnnl_primitive_desc_query_md(desc.get(), what, 0));
    };
    Tensor* y = Allocated(dims, layout(dnnl_query_dst_md));
    std::vector<dnnl_exec_arg_t> args{
        {DNNL_ARG_SRC, InLayout(x, layout(dnnl_query_src_md))->memory.get()},
        {DNNL_ARG_WEIGHTS, InLayout(w, layout(dnnl_query_weights_md))->memory.get()},
        {DNNL_ARG_DST, y->memory.get()}};
    if (bias != nullptr) args.push_back({DNNL_ARG_BIAS, bias->memory.get()});
    for (const PostOp& op : after) {
      if (op.operand != nullptr) Reorder(Nearest(op.operand, y->desc), y);
    }
    AddStep(desc.get(), std::move(args));
    return y;
  }

  void AddStep(const_dnnl_primitive_desc_t desc, std::vector<dnnl_exec_arg_t> args) {
    Step step;
    dnnl_primitive_t made = nullptr;
    Check(dnnl_primitive_create(&made, desc), "a primitive");
    step.primitive.reset(made);
    Desc scratch(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    step.scratch = scratch.bytes();
    step.scratchpad = MemoryOf(scratch, nullptr);
    args.push_back({DNNL_ARG_SCRATCHPAD, step.scratchpad.get()});
    step.args = std::move(args);
    steps_.push_back(std::move(step));
  }

  // In vectors that every compiler knows: branches on the signs of images are mispredicted.
  static void ReluInPlace(float* at, size_t count) {
    using Vector = float __attribute__((vector_size(64)));
    constexpr size_t kLanes = sizeof(Vector) / sizeof(float);
    const Vector zero{};
    for (; count >= kLanes; at += kLanes, count -= kLanes) {
      Vector v;
      memcpy(&v, at, sizeof(v));
      v = v < zero ? zero : v;
      memcpy(at, &v, sizeof(v));
    }
    for (size_t k = 0; k < count; ++k) at[k] = at[k] < 0 ? 0 : at[k];
  }

  void Execute(const Step& step) {
    if (step.relu != nullptr) {
      void* data = nullptr;
      Check(dnnl_memory_get_data_handle(step.relu, &data), "a tensor");
      ReluInPlace(static_cast<float*>(data), step.count);
      return;
    }
    Check(dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                                 static_cast<int>(step.args.size()), step.args.data()),
          "a primitive");
  }

  int threads_;
  const TVMFFIAny* args_;
  Stream stream_;
  std::deque<Tensor> tensors_;
  std::vector<Tensor*> arguments_;
  std::vector<Step> steps_;
  Buffer scratch_;
};

using Describe = void (*)(Region&);

// A call of a region. `self` is the KernelState of the call in its session.
inline int Run(void* self, Describe describe, const TVMFFIAny* args) {
  auto* state = static_cast<KernelState*>(self);
  int threads = ThreadPool::CurrentThreads();
  try {
    ScopedThreads scope(threads);
    auto* region = static_cast<Region*>(state->data);
    if (region == nullptr || region->threads() != threads) {
      auto made = std::make_unique<Region>(args, threads);
      describe(*made);
      made->Finish();
      state->Release();
      region = made.get();
      *state = KernelState{made.release(), [](void* data) { delete static_cast<Region*>(data); }};
    }
    region->Run(args);
    return 0;
  } catch (const std::bad_alloc&) {
    NoMemory("no memory for a region that oneDNN computes");
  } catch (const std::exception& error) {
    SetError("RuntimeError", "%s", error.what());
  }
  return -1;
}

}  // namespace dycl::onednn

#endif  // DYCL_RUNTIME_ONEDNN_REGION_H_
