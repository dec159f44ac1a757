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
 * No function throws: a call that can fail returns a Status or a Result. Before any code of a
 * library is loaded its checksum, interface version, architecture and CPU features are checked.
 * Link with the CMake target dycl_tvm::host.
 */
#ifndef DYCL_MODULE_H_
#define DYCL_MODULE_H_

#include <dycl/dycl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dycl {

/*! \brief Success, or a kind of error and a message. */
class Status {
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
class Result {
 public:
  Result(T value) : value_(new T(std::move(value))) {}   // NOLINT(runtime/explicit)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(runtime/explicit)

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::unique_ptr<T> value_;
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
  Result<int32_t> Run(const std::vector<DyclValue>& inputs);
  /*! \brief The number of leaves that the last run returned. */
  Result<size_t> NumOutputs() const;
  /*! \brief The k-th leaf of the last run. A tensor is a view that is valid until the next run. */
  Result<DyclValue> Output(size_t k) const;
  /*! \brief The last decisions of the last run, in order. */
  std::vector<DyclPathEntry> Path() const;
  /*! \brief The path of the last run, with the files and lines of the model's source. */
  std::string PathText() const;
  /*! \brief How often each kernel ran in the last run. */
  std::vector<uint64_t> KernelRuns() const;
  /*! \brief Threads of this session alone; 0 goes back to those that the process shares. */
  Status SetNumThreads(int32_t num_threads);
  /*! \brief Puts the state variables back to their initial values. */
  void ResetState();
  /*! \brief Gives the random numbers of this session a seed, as torch.manual_seed does. */
  Status ManualSeed(uint64_t seed);

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
  static Result<Module> Load(const std::string& library, const std::string& params = "");
  /*! \brief A model that is linked into the program: FromApi(dycl_api(DYCL_ABI_VERSION), params).
   */
  static Result<Module> FromApi(const DyclApi* api, const std::string& params = "");

  Module(Module&& other) noexcept : api_(other.api_), model_(other.model_) {
    other.model_ = nullptr;
  }
  Module& operator=(Module&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(model_, other.model_);
    return *this;
  }
  ~Module();

  /*! \brief Names, inputs, return sites, kernels, target: a JSON text. */
  std::string Metadata() const;
  /*! \brief The inputs of a run, in order. */
  std::vector<InputSpec> Inputs() const;
  /*! \brief Sizes of the model. */
  DyclModelInfo Info() const;
  Result<Session> NewSession() const;

 private:
  Module(const DyclApi* api, DyclModel* model) : api_(api), model_(model) {}
  const DyclApi* api_;
  DyclModel* model_;
};

/*!
 * \brief Checks a library without loading it: checksum, version, and that this machine can run it.
 * The result is its metadata, a JSON text.
 */
Result<std::string> CheckLibrary(const std::string& library);

}  // namespace dycl

#endif  // DYCL_MODULE_H_
