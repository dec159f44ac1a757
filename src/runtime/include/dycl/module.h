// Licensed under the Apache License, Version 2.0; see LICENSE.
/*!
 * \file dycl/module.h
 * \brief Compiled models for C++ programs (C++11 and later).
 *
 * \code
 *   auto module = dycl::Module::Load("model.so", "model.params");
 *   if (!module.ok()) return Fail(module.status().message());
 *   auto session = module.value().NewSession();
 *   auto site = session.value().Run({dycl::Tensor(image)});
 *   float* scores = static_cast<float*>(session.value().Output(0).value().u.tensor->data);
 * \endcode
 *
 * No function throws: a call that can fail returns a Status or a Result, also where memory is
 * short. Run(), Output() and CopyOutput() allocate nothing unless they fail. Before any code of a
 * library is loaded its checksum, interface version, architecture and CPU features are checked.
 * Link with the CMake target dycl_tvm::host.
 */
#ifndef DYCL_MODULE_H_
#define DYCL_MODULE_H_

#include <dycl/dycl.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>
#include <vector>

// What is returned must be looked at; from C++17 on the compiler says so.
#if __cplusplus >= 201703L
#define DYCL_NODISCARD [[nodiscard]]
#else
#define DYCL_NODISCARD
#endif

namespace dycl {

/*! \brief Success, or a kind of error and a message. */
class DYCL_NODISCARD Status {
 public:
  Status() = default;
  Status(std::string kind, std::string message)
      : ok_(false), kind_(std::move(kind)), message_(std::move(message)) {}

  bool ok() const { return ok_; }
  /*! \brief InputError, ArtifactError, ..., or the exception type that the network raised. */
  const std::string& kind() const { return kind_; }
  const std::string& message() const { return message_; }

 private:
  bool ok_ = true;
  std::string kind_;
  std::string message_;
};

/*! \brief A value or the reason why there is none. value() must be called only if ok(). */
template <class T>
class DYCL_NODISCARD Result {
 public:
  Result(T value) { new (&value_) T(std::move(value)); }                 // NOLINT(runtime/explicit)
  Result(Status status) : status_(std::move(status)) {}                  // NOLINT(runtime/explicit)
  Result(Result&& other) noexcept : status_(std::move(other.status_)) {  // the other keeps its kind
    if (ok()) new (&value_) T(std::move(other.value_));
  }
  Result& operator=(Result&& other) noexcept {
    if (this != &other) {
      this->~Result();
      new (this) Result(std::move(other));
    }
    return *this;
  }
  ~Result() {
    if (ok()) value_.~T();
  }

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return value_; }
  const T& value() const { return value_; }

 private:
  Status status_;
  // Alive if ok(): nothing is allocated for it.
  union {
    T value_;
  };
};

/*! \brief Inputs of a run. The tensor must live until the run is over. */
inline DyclValue Tensor(const DLTensor& tensor) {
  DyclValue value = {DYCL_TENSOR, 0, {nullptr}};
  value.u.tensor = &tensor;
  return value;
}
inline DyclValue Int(int64_t number) {
  DyclValue value = {DYCL_INT, 0, {nullptr}};
  value.u.v_int = number;
  return value;
}
inline DyclValue Float(double number) {
  DyclValue value = {DYCL_FLOAT, 0, {nullptr}};
  value.u.v_float = number;
  return value;
}
inline DyclValue Bool(bool truth) {
  DyclValue value = {DYCL_BOOL, 0, {nullptr}};
  value.u.v_bool = truth ? 1 : 0;
  return value;
}

/*! \brief What a model expects of one input. For numbers `shape` is empty. */
struct InputSpec {
  std::string name;
  DyclType type;
  DLDataType dtype;
  std::vector<int64_t> shape;
  /*! \brief The bounds of each dimension; `shape` is the largest. */
  std::vector<DyclExtent> extents;

  /*! \brief Size of the tensor's data, at its largest. */
  size_t bytes() const {
    size_t n = dtype.bits / 8;
    for (int64_t extent : shape) n *= static_cast<size_t>(extent);
    return n;
  }
};

/*!
 * \brief One execution state. Sessions are independent; one session is used by one thread at a
 * time. It keeps the model alive.
 */
class Session {
 public:
  Session(Session&& other) noexcept
      : api_(other.api_), session_(other.session_), num_kernels_(other.num_kernels_) {
    other.session_ = nullptr;
  }
  Session& operator=(Session&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(session_, other.session_);
    std::swap(num_kernels_, other.num_kernels_);
    return *this;
  }
  ~Session();

  /*! \brief Runs the network; the result is the return site. */
  Result<int32_t> Run(const DyclValue* inputs, size_t count);
  Result<int32_t> Run(std::initializer_list<DyclValue> inputs) {
    return Run(inputs.begin(), inputs.size());
  }
  Result<int32_t> Run(const std::vector<DyclValue>& inputs) {
    return Run(inputs.data(), inputs.size());
  }
  /*!
   * \brief Runs the network for so many milliseconds at most: then the run ends before its next
   * kernel, with a DeadlineError; at once if they are 0 or less.
   */
  Result<int32_t> RunWithin(double deadline_ms, const DyclValue* inputs, size_t count);
  Result<int32_t> RunWithin(double deadline_ms, std::initializer_list<DyclValue> inputs) {
    return RunWithin(deadline_ms, inputs.begin(), inputs.size());
  }
  /*!
   * \brief Runs the network and puts its results into tensors of the caller, as dycl_run_into()
   * does: nullptr stands for results that stay in the session.
   */
  Result<int32_t> RunInto(const DLTensor* const* outputs, size_t num_outputs,
                          const DyclValue* inputs, size_t count,
                          const DyclRunOptions* options = nullptr);
  Result<int32_t> RunInto(std::initializer_list<const DLTensor*> outputs,
                          std::initializer_list<DyclValue> inputs,
                          const DyclRunOptions* options = nullptr) {
    return RunInto(outputs.begin(), outputs.size(), inputs.begin(), inputs.size(), options);
  }
  /*!
   * \brief Begins a run in a thread of the session's own, as dycl_run_async() does: `done` is
   * called there with what Run() would have returned, once, unless an error is returned here. Until
   * then the tensors must live, and nothing may be done with the session but Cancel() and its
   * destruction, which ends the run and waits. `done` must not throw.
   */
  Status RunAsync(const DyclValue* inputs, size_t count, std::function<void(Result<int32_t>)> done,
                  const DLTensor* const* outputs = nullptr, size_t num_outputs = 0,
                  const DyclRunOptions* options = nullptr);
  Status RunAsync(std::initializer_list<DyclValue> inputs,
                  std::function<void(Result<int32_t>)> done) {
    return RunAsync(inputs.begin(), inputs.size(), std::move(done));
  }
  /*!
   * \brief Ends the run that goes on in another thread: before its next kernel, with a
   * CancelledError there. The session can be used again at once. For signal handlers too.
   */
  void Cancel();
  /*! \brief The number of leaves that the last run returned. */
  Result<size_t> NumOutputs() const;
  /*! \brief The k-th leaf of the last run. A tensor is a view that is valid until the next run. */
  Result<DyclValue> Output(size_t k) const;
  /*! \brief Copies the k-th leaf of the last run to a compact tensor of its type and size. */
  Status CopyOutput(size_t k, const DLTensor& to);
  /*! \brief The last decisions of the last run, in order. */
  std::vector<DyclPathEntry> Path() const;
  /*! \brief The path of the last run, with the files and lines of the model's source. */
  std::string PathText() const;
  /*! \brief How often each kernel ran in the last run. */
  std::vector<uint64_t> KernelRuns() const;
  /*! \brief The bounds of each dimension of an input, for this session. */
  Result<std::vector<DyclExtent>> InputBounds(size_t input) const;
  /*! \brief Threads of this session alone; 0 goes back to those that the process shares. */
  Status SetNumThreads(int32_t num_threads);
  /*! \brief While runs of a higher priority go on, kernels run on the thread that calls alone. */
  Status SetPriority(DyclPriority priority);
  /*! \brief Whether the GPU may take branches by itself, in a model for one. */
  Status SetDeviceBranches(bool on);
  /*!
   * \brief Has runs put their work on a CUDA stream of the caller's (nullptr: the default stream),
   * as dycl_session_set_cuda_stream() does: they wait for the GPU only where the host needs a
   * value.
   */
  Status SetCudaStream(void* stream);
  /*! \brief Has runs go to the session's own stream, as at first, and wait for the GPU. */
  Status SetOwnStream();
  /*! \brief Puts the state variables back to their initial values. */
  Status ResetState();
  /*! \brief The state variables, for SetState() of a session of the same model. */
  Result<std::string> GetState() const;
  Status SetState(const std::string& state);
  /*!
   * \brief Records runs from now on in a ring of events that lives until StopProfile(): see
   * dycl_profile_start(). For models that run on the CPU. `every`: of so many runs one is timed
   * inside; 0: as many are as cost little.
   */
  Status StartProfile(DyclEvent* events, size_t capacity, uint32_t every = 0);
  /*! \brief Takes the oldest events out of the ring; the result is how many. `lost`: how many have
   * had to make room for others. */
  Result<size_t> ReadProfile(DyclEvent* events, size_t capacity, uint64_t* lost = nullptr);
  Status StopProfile();
  /*! \brief Gives the random numbers of this session a seed, as torch.manual_seed does. */
  Status ManualSeed(uint64_t seed);

  /*! \brief The session and the functions of the C API. The object still owns it. */
  DyclSession* handle() const { return session_; }
  const DyclApi* api() const { return api_; }

 private:
  friend class Module;
  Session(const DyclApi* api, DyclSession* session, uint32_t num_kernels)
      : api_(api), session_(session), num_kernels_(num_kernels) {}
  const DyclApi* api_;
  DyclSession* session_;
  uint32_t num_kernels_;
};

/*! \brief The weights and code of one model. */
class Module {
 public:
  /*! \brief Checks and loads a library and its params file ("" where the weights are inside). */
  static Result<Module> Load(const std::string& library, const std::string& params = "",
                             const DyclModelOptions* options = nullptr);
  /*! \brief A model that is linked into the program: FromApi(dycl_api(DYCL_ABI_VERSION), params).
   */
  static Result<Module> FromApi(const DyclApi* api, const std::string& params = "",
                                const DyclModelOptions* options = nullptr);

  Module(Module&& other) noexcept
      : api_(other.api_), model_(other.model_), library_(other.library_) {
    other.model_ = nullptr;
    other.library_ = nullptr;
  }
  Module& operator=(Module&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(model_, other.model_);
    std::swap(library_, other.library_);
    return *this;
  }
  ~Module();

  /*!
   * \brief Takes the library out of memory, as dycl_unload() does: code, weights, and what its
   * threads keep. An error, and nothing is done, while it has a session or there is another Module
   * of it. Afterwards the object can only be destroyed or assigned to.
   */
  Status Unload();

  /*! \brief Names, inputs, return sites, kernels, target: a JSON text. */
  std::string Metadata() const;
  /*! \brief What build(user_metadata=...) was given under a key; nullptr for another key. */
  const char* UserMetadata(const char* key) const;
  /*! \brief Sends the texts of the library to a function, as dycl_set_log() does. */
  Status SetLog(DyclLog function, void* user, DyclLogLevel level) const;
  /*! \brief The inputs of a run, in order. */
  std::vector<InputSpec> Inputs() const;
  /*! \brief Sizes of the model. */
  DyclModelInfo Info() const;
  Result<Session> NewSession(const DyclSessionOptions* options = nullptr) const;
  /*!
   * \brief A session whose calls have no larger sizes than these, which takes less memory where the
   * library has a path for such: NewSessionUpTo({{"T", 64}}).
   */
  Result<Session> NewSessionUpTo(std::initializer_list<DyclLargestSize> sizes) const;
  /*! \brief What Info() tells, for a session that is made with these options. */
  Result<DyclModelInfo> SessionNeeds(const DyclSessionOptions& options) const;

  /*! \brief The model and the functions of the C API. The object still owns it. */
  DyclModel* handle() const { return model_; }
  const DyclApi* api() const { return api_; }

 private:
  Module(const DyclApi* api, DyclModel* model) : api_(api), model_(model) {}
  const DyclApi* api_;
  DyclModel* model_;
  void* library_ = nullptr;  // of the system's loader
};

/*!
 * \brief Says how the threads run that the libraries of the process share, as
 * dycl_set_thread_options() does; nullptr: as the environment says.
 */
Status SetThreadOptions(const Module& module, const DyclThreadOptions* options);

/*!
 * \brief A parallel loop of the program's: calls task(k) once for each k from 0 to n - 1, in any
 * threads, and returns when all of them have returned. Where it throws, the run ends in an error;
 * also then no task may be running or be begun any more.
 */
typedef std::function<void(int32_t n, const std::function<void(int32_t k)>& task)> ParallelFor;

/*!
 * \brief Has all libraries of the process run parallel kernels by a function of the program, as
 * dycl_set_parallel() does; an empty one: by their own threads again. When it returns, the function
 * that was there before is gone.
 */
Status SetParallel(const Module& module, ParallelFor function, int32_t num_threads);

/*!
 * \brief Checks a library without loading it: checksum, version, and that this machine can run it.
 * The result is its metadata, a JSON text.
 */
Result<std::string> CheckLibrary(const std::string& library);

}  // namespace dycl

#endif  // DYCL_MODULE_H_
