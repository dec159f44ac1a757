// Licensed under the Apache License, Version 2.0; see LICENSE.
//
// dycl_tvm.runtime._calls: the usual call from Python without ctypes. A Caller takes the positional
// inputs of a call, fills the structures of the C API, runs, and makes the results. What is not
// usual (another type, dtype, layout, device) it leaves to runtime/module.py, which knows all cases
// and all errors. CPython's limited API: one file for all versions from 3.10 on.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <dlpack/dlpack.h>
#include <string.h>

#include <memory>
#include <new>
#include <vector>

#include "dycl/dycl.h"

namespace {

// Which arguments a Caller takes; it changes together with `_TAKES` of runtime/calls.py.
constexpr int kTakes = 2;

// PyArrayObject_fields of NumPy, whose layout is the same in all its versions: NumPy's own macros
// compile it into every extension.
struct ArrayFields {
  PyObject base;
  char* data;
  int nd;
  Py_ssize_t* dimensions;
  Py_ssize_t* strides;
  PyObject* owner;
  PyObject* descr;
  int flags;
};
constexpr int kContiguous = 0x1;

// A reference that is given back.
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(other.Release()) {}
  Ref& operator=(Ref&& other) noexcept {
    Py_XDECREF(object_);
    object_ = other.Release();
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref New(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }
  PyObject* get() const { return object_; }
  PyObject* Release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// A dtype, with NumPy's object for it: of bfloat16 an array holds the bits, as uint16.
struct Dtype {
  DLDataType type;
  Ref array;
};

bool Same(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

// What an input is expected to be, and what this call gives.
struct Input {
  bool tensor = false;
  DLDataType type{};
  PyObject* array = nullptr;  // NumPy's dtype, of the table; none: arrays are not usual here
  std::vector<int64_t> shape;
  std::vector<char> sized;  // whether the caller decides a dimension
  std::vector<int64_t> given;
  DLTensor view{};

  template <typename Extent>
  bool TakesShape(int rank, const Extent* extents) {
    if (rank != static_cast<int>(shape.size())) return false;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (extents[d] != shape[d] && sized[d] == 0) return false;
      given[d] = extents[d];
    }
    return true;
  }
};

// A shape, as C and as Python have it.
struct Shape {
  std::vector<int64_t> extents;
  Ref tuple;
};

// A dimension of which a result has the first elements only, as many as another leaf says.
struct Cut {
  size_t along;
  size_t length;
};

// A leaf of a result: its cuts, the extents of the last run with them, and the shape it had last.
struct Leaf {
  std::vector<Cut> cuts;
  std::vector<int64_t> extents;
  Shape last;
};

// The results of a return site; without leaves they are not made here.
struct Site {
  bool elsewhere = true;
  Py_ssize_t single = -1;  // the leaf that is the result itself; less than 0: there is none
  std::vector<Leaf> leaves;
};

using Run = decltype(&dycl_run_with);
using Output = decltype(&dycl_output);
using CopyOutput = decltype(&dycl_copy_output);

struct Caller {
  DyclSession* session = nullptr;
  Run run = nullptr;
  Output output = nullptr;
  CopyOutput copy_output = nullptr;
  Ref ndarray, empty, torch_tensor, strided, is_neg;
  const DLPackExchangeAPI* torch = nullptr;
  std::vector<Dtype> dtypes;
  std::vector<Input> inputs;
  std::vector<DyclValue> values;
  std::vector<Site> sites;
};

struct CallerObject {
  PyObject base;
  Caller* caller;
};

Ref g_layout;

bool TakesArray(Input& input, PyObject* leaf) {
  const auto* array = reinterpret_cast<const ArrayFields*>(leaf);
  if (input.array == nullptr || array->descr != input.array || (array->flags & kContiguous) == 0) {
    return false;
  }
  input.view.data = array->data;
  return input.TakesShape(array->nd, array->dimensions);
}

bool IsCompact(const DLTensor& t) {
  if (t.strides == nullptr) return true;
  int64_t stride = 1;
  for (int d = t.ndim; d-- > 0;) {
    if (t.shape[d] == 0) return true;
  }
  for (int d = t.ndim; d-- > 0;) {
    if (t.shape[d] != 1 && t.strides[d] != stride) return false;
    stride *= t.shape[d];
  }
  return true;
}

bool TakesTorch(const Caller& c, Input& input, PyObject* leaf) {
  // Memory of a conjugated or negated view is not what the tensor says.
  if (input.type.code == kDLComplex) return false;
  Ref layout(PyObject_GetAttr(leaf, g_layout.get()));
  if (layout.get() != c.strided.get()) return false;
  Ref negated(PyObject_CallFunctionObjArgs(c.is_neg.get(), leaf, nullptr));
  if (negated.get() != Py_False) return false;
  DLTensor t{};
  if (c.torch->dltensor_from_py_object_no_sync(leaf, &t) != 0) return false;
  if (t.device.device_type != kDLCPU || !Same(t.dtype, input.type) || !IsCompact(t)) return false;
  input.view.data = static_cast<char*>(t.data) + t.byte_offset;
  return input.TakesShape(t.ndim, t.shape);
}

bool TakesNumber(PyObject* leaf, DyclValue* value) {
  if (PyBool_Check(leaf)) {
    value->type = DYCL_BOOL;
    value->u.v_bool = leaf == Py_True;
    return true;
  }
  if (PyLong_CheckExact(leaf)) {
    int overflow = 0;
    value->type = DYCL_INT;
    value->u.v_int = PyLong_AsLongLongAndOverflow(leaf, &overflow);
    return overflow == 0;
  }
  if (!PyFloat_CheckExact(leaf)) return false;
  value->type = DYCL_FLOAT;
  value->u.v_float = PyFloat_AsDouble(leaf);
  return true;
}

// Fills the values of a call; false if an input is not usual.
bool Fill(Caller& c, PyObject* args, bool* of_torch) {
  if (PyTuple_Size(args) != static_cast<Py_ssize_t>(c.inputs.size())) return false;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    PyObject* leaf = PyTuple_GetItem(args, static_cast<Py_ssize_t>(k));
    Input& input = c.inputs[k];
    DyclValue& value = c.values[k];
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(leaf));
    if (!input.tensor) {
      if (!TakesNumber(leaf, &value)) return false;
      continue;
    }
    if (type == c.ndarray.get()) {
      if (!TakesArray(input, leaf)) return false;
    } else if (c.torch != nullptr && type == c.torch_tensor.get()) {
      if (!TakesTorch(c, input, leaf)) return false;
      *of_torch = true;
    } else {
      return false;
    }
    value.type = DYCL_TENSOR;
    value.u.tensor = &input.view;
  }
  return true;
}

size_t BytesOf(const DLTensor& t) {
  size_t bytes = (static_cast<size_t>(t.dtype.bits) * t.dtype.lanes + 7) / 8;
  for (int d = 0; d < t.ndim; ++d) bytes *= static_cast<size_t>(t.shape[d]);
  return bytes;
}

void SetError(void*, const char* kind, const char* message) {
  PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

Ref NewTorch(const Caller& c, const DLTensor& from, size_t bytes) {
  DLTensor like = from;
  like.data = nullptr;
  like.strides = nullptr;
  like.byte_offset = 0;
  DLManagedTensorVersioned* made = nullptr;
  if (c.torch->managed_tensor_allocator(&like, &made, nullptr, SetError) != 0) return Ref();
  if (bytes != 0) {
    memcpy(static_cast<char*>(made->dl_tensor.data) + made->dl_tensor.byte_offset,
           static_cast<const char*>(from.data) + from.byte_offset, bytes);
  }
  void* object = nullptr;
  if (c.torch->managed_tensor_to_py_object_no_sync(made, &object) != 0) return Ref();
  return Ref(static_cast<PyObject*>(object));
}

// Returns a shape as a tuple, that of the last call where it is the same.
PyObject* TupleOf(const DLTensor& t, Shape* last) {
  const size_t rank = static_cast<size_t>(t.ndim);
  bool same = static_cast<bool>(last->tuple) && last->extents.size() == rank;
  for (size_t d = 0; same && d < rank; ++d) same = last->extents[d] == t.shape[d];
  if (same) return last->tuple.get();
  Ref tuple(PyTuple_New(t.ndim));
  if (!tuple) return nullptr;
  for (int d = 0; d < t.ndim; ++d) {
    PyObject* extent = PyLong_FromLongLong(t.shape[d]);
    if (extent == nullptr || PyTuple_SetItem(tuple.get(), d, extent) != 0) return nullptr;
  }
  last->extents.assign(t.shape, t.shape + t.ndim);
  last->tuple = static_cast<Ref&&>(tuple);
  return last->tuple.get();
}

Ref NewArray(const Caller& c, const DLTensor& from, size_t bytes, Shape* last) {
  for (const Dtype& dtype : c.dtypes) {
    if (!Same(dtype.type, from.dtype)) continue;
    PyObject* shape = TupleOf(from, last);
    if (shape == nullptr) return Ref();
    Ref made(PyObject_CallFunctionObjArgs(c.empty.get(), shape, dtype.array.get(), nullptr));
    if (made && bytes != 0) {
      memcpy(reinterpret_cast<ArrayFields*>(made.get())->data,
             static_cast<const char*>(from.data) + from.byte_offset, bytes);
    }
    return made;
  }
  PyErr_SetString(PyExc_TypeError, "an output has a dtype that is not known");
  return Ref();
}

// Makes the k-th leaf of the last run; none and no exception: it lies on another device, or is not
// as long as it should be.
Ref NewLeaf(const Caller& c, size_t k, bool of_torch, Leaf* leaf) {
  DyclValue value{};
  if (c.output(c.session, k, &value) != DYCL_OK) return Ref();
  switch (value.type) {
    case DYCL_INT:
      return Ref(PyLong_FromLongLong(value.u.v_int));
    case DYCL_FLOAT:
      return Ref(PyFloat_FromDouble(value.u.v_float));
    case DYCL_BOOL:
      return Ref(PyBool_FromLong(value.u.v_bool != 0));
    default:
      break;
  }
  DLTensor t = *value.u.tensor;
  if (t.device.device_type != kDLCPU) return Ref();
  if (!leaf->cuts.empty()) {  // the elements that there are lie side by side
    leaf->extents.assign(t.shape, t.shape + t.ndim);
    for (const Cut& cut : leaf->cuts) {
      int64_t* extent = &leaf->extents[cut.along];
      if (c.output(c.session, cut.length, &value) != DYCL_OK || value.type != DYCL_INT ||
          value.u.v_int < 0 || value.u.v_int > *extent) {
        return Ref();
      }
      *extent = value.u.v_int;
    }
    t.shape = leaf->extents.data();
  }
  return of_torch ? NewTorch(c, t, BytesOf(t)) : NewArray(c, t, BytesOf(t), &leaf->last);
}

const DLTensor* Target(PyObject* into, Py_ssize_t k) {
  return static_cast<const DLTensor*>(PyLong_AsVoidPtr(PyTuple_GetItem(into, k)));
}

// Whether the k-th leaf of the last run, an input that the network returns, lies where it or one
// before it is to go.
bool WrittenBeforeRead(const Caller& c, PyObject* into, Py_ssize_t k) {
  DyclValue value{};
  if (c.output(c.session, static_cast<size_t>(k), &value) != DYCL_OK) return true;
  const DLTensor& from = *value.u.tensor;
  const auto begin = reinterpret_cast<uintptr_t>(from.data) + from.byte_offset;
  const uintptr_t end = begin + BytesOf(from);
  for (Py_ssize_t j = 0; j <= k; ++j) {
    const DLTensor* to = Target(into, j);
    const auto start = reinterpret_cast<uintptr_t>(to->data);
    if (begin < start + BytesOf(*to) && start < end) return true;
  }
  return false;
}

// Copies the leaves of the last run into the tensors of the caller: addresses of DLTensors. Does
// nothing where the order of the copies would matter.
int32_t CopyAll(const Caller& c, PyObject* into, bool* done) {
  for (Py_ssize_t k = 0; k < PyTuple_Size(into); ++k) {
    if (WrittenBeforeRead(c, into, k)) return DYCL_OK;
  }
  for (Py_ssize_t k = 0; k < PyTuple_Size(into); ++k) {
    int32_t status = c.copy_output(c.session, static_cast<size_t>(k), Target(into, k));
    if (status != DYCL_OK) return status;
  }
  *done = true;
  return DYCL_OK;
}

// Returns (site, what), whose reference is taken.
PyObject* Pair(int32_t site, Ref what) {
  Ref pair(PyTuple_New(2));
  PyObject* number = PyLong_FromLong(site);
  if (!pair || number == nullptr || PyTuple_SetItem(pair.get(), 0, number) != 0 ||
      PyTuple_SetItem(pair.get(), 1, what.Release()) != 0) {
    return nullptr;
  }
  return pair.Release();
}

// Makes the leaves of the last run: a list, or the one leaf that is the result itself.
PyObject* Results(Caller& c, int32_t number, bool of_torch) {
  Site& site = c.sites[static_cast<size_t>(number)];
  auto leaf = [&](size_t k) { return NewLeaf(c, k, of_torch, &site.leaves[k]); };
  auto elsewhere = [&] {
    return PyErr_Occurred() != nullptr ? nullptr : Pair(number, Ref::New(Py_None));
  };
  if (site.single >= 0) {
    Ref only = leaf(static_cast<size_t>(site.single));
    return only ? Pair(number, static_cast<Ref&&>(only)) : elsewhere();
  }
  Ref leaves(PyList_New(static_cast<Py_ssize_t>(site.leaves.size())));
  if (!leaves) return nullptr;
  for (size_t k = 0; k < site.leaves.size(); ++k) {
    Ref made = leaf(k);
    if (!made) return elsewhere();
    PyList_SetItem(leaves.get(), static_cast<Py_ssize_t>(k), made.Release());
  }
  return Pair(number, static_cast<Ref&&>(leaves));
}

// call(args, deadline_ms, signal, into): None if an input is not usual, and nothing was done; a
// status if the run failed; otherwise (site, results), where None stands for results that were not
// made here, and `into` for those that were written there.
PyObject* Call(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  Caller& c = *reinterpret_cast<CallerObject*>(self)->caller;
  if (count != 4 || !PyTuple_Check(given[0])) {
    PyErr_SetString(PyExc_TypeError, "call(args, deadline_ms, signal, into)");
    return nullptr;
  }
  DyclRunOptions options{};
  options.struct_size = sizeof(options);
  options.deadline_ms = PyFloat_AsDouble(given[1]);
  options.cancel_on_signal = static_cast<int32_t>(PyLong_AsLong(given[2]));
  if (PyErr_Occurred() != nullptr) return nullptr;
  bool of_torch = false;
  if (!Fill(c, given[0], &of_torch)) {
    PyErr_Clear();  // the long way finds out what is wrong, and says it
    Py_RETURN_NONE;
  }
  int32_t site = 0;
  PyThreadState* state = PyEval_SaveThread();
  int32_t status = c.run(c.session, c.values.data(), c.values.size(), &options, &site);
  PyEval_RestoreThread(state);
  const bool bound = given[3] != Py_None;
  bool written = false;
  if (status == DYCL_OK && bound) status = CopyAll(c, given[3], &written);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (status != DYCL_OK) return PyLong_FromLong(status);
  if (bound) return Pair(site, Ref::New(written ? given[3] : Py_None));
  if (c.sites[static_cast<size_t>(site)].elsewhere) return Pair(site, Ref::New(Py_None));
  try {
    return Results(c, site, of_torch);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

// use_torch(torch.Tensor, torch.strided): tensors of PyTorch's are usual from now on, if this
// PyTorch hands them out in C.
PyObject* UseTorch(PyObject* self, PyObject* given) {
  Caller& c = *reinterpret_cast<CallerObject*>(self)->caller;
  PyObject *type = nullptr, *strided = nullptr;
  if (PyArg_ParseTuple(given, "OO", &type, &strided) == 0) return nullptr;
  c.torch_tensor = Ref::New(type);
  c.strided = Ref::New(strided);
  c.is_neg = Ref(PyObject_GetAttrString(type, "is_neg"));
  Ref capsule(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
  if (c.is_neg && capsule) {
    auto* api = static_cast<const DLPackExchangeAPI*>(
        PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    bool fits = api != nullptr && api->header.version.major == DLPACK_MAJOR_VERSION &&
                api->dltensor_from_py_object_no_sync != nullptr &&
                api->managed_tensor_allocator != nullptr &&
                api->managed_tensor_to_py_object_no_sync != nullptr;
    if (fits) c.torch = api;
  }
  PyErr_Clear();  // an older PyTorch: its tensors go the long way
  Py_RETURN_NONE;
}

bool ReadDtype(PyObject* item, Dtype* dtype) {
  unsigned char code = 0, bits = 0;
  PyObject* array = nullptr;
  if (PyArg_ParseTuple(item, "bbO", &code, &bits, &array) == 0) return false;
  dtype->type = DLDataType{code, bits, 1};
  dtype->array = Ref::New(array);
  return true;
}

bool ReadInput(const Caller& c, PyObject* item, Input* input) {
  if (item == Py_None) return true;
  unsigned char code = 0, bits = 0;
  int arrays = 0;
  PyObject *shape = nullptr, *sized = nullptr;
  if (PyArg_ParseTuple(item, "bbpO!O!", &code, &bits, &arrays, &PyTuple_Type, &shape, &PyTuple_Type,
                       &sized) == 0) {
    return false;
  }
  input->tensor = true;
  input->type = DLDataType{code, bits, 1};
  for (const Dtype& dtype : c.dtypes) {
    if (arrays != 0 && Same(dtype.type, input->type)) input->array = dtype.array.get();
  }
  for (Py_ssize_t d = 0; d < PyTuple_Size(shape); ++d) {
    input->shape.push_back(PyLong_AsLongLong(PyTuple_GetItem(shape, d)));
    input->sized.push_back(PyObject_IsTrue(PyTuple_GetItem(sized, d)) == 1);
  }
  input->given = input->shape;
  DLTensor& view = input->view;
  view.device = DLDevice{kDLCPU, 0};
  view.ndim = static_cast<int32_t>(input->shape.size());
  view.dtype = input->type;
  view.shape = input->given.data();
  return PyErr_Occurred() == nullptr;
}

// Reads None, or (the single leaf, of each leaf its cuts).
bool ReadSite(PyObject* item, Site* site) {
  if (item == Py_None) return true;
  PyObject* leaves = nullptr;
  if (PyArg_ParseTuple(item, "nO!", &site->single, &PyTuple_Type, &leaves) == 0) return false;
  site->elsewhere = false;
  for (Py_ssize_t k = 0; k < PyTuple_Size(leaves); ++k) {
    site->leaves.emplace_back();
    PyObject* cuts = PyTuple_GetItem(leaves, k);
    if (!PyTuple_Check(cuts)) return false;
    for (Py_ssize_t j = 0; j < PyTuple_Size(cuts); ++j) {
      Py_ssize_t along = 0, length = 0;
      if (PyArg_ParseTuple(PyTuple_GetItem(cuts, j), "nn", &along, &length) == 0) return false;
      site->leaves.back().cuts.push_back({static_cast<size_t>(along), static_cast<size_t>(length)});
    }
  }
  return true;
}

bool Read(Caller& c, PyObject* args) {
  PyObject *session = nullptr, *run = nullptr, *output = nullptr, *copy = nullptr;
  PyObject *ndarray = nullptr, *empty = nullptr;
  PyObject *dtypes = nullptr, *inputs = nullptr, *sites = nullptr;
  if (PyArg_ParseTuple(args, "OOOOOOO!O!O!", &session, &run, &output, &copy, &ndarray, &empty,
                       &PyTuple_Type, &dtypes, &PyTuple_Type, &inputs, &PyTuple_Type,
                       &sites) == 0) {
    return false;
  }
  c.session = static_cast<DyclSession*>(PyLong_AsVoidPtr(session));
  c.run = reinterpret_cast<Run>(PyLong_AsVoidPtr(run));
  c.output = reinterpret_cast<Output>(PyLong_AsVoidPtr(output));
  c.copy_output = reinterpret_cast<CopyOutput>(PyLong_AsVoidPtr(copy));
  c.ndarray = Ref::New(ndarray);
  c.empty = Ref::New(empty);
  c.dtypes = std::vector<Dtype>(static_cast<size_t>(PyTuple_Size(dtypes)));
  for (size_t k = 0; k < c.dtypes.size(); ++k) {
    if (!ReadDtype(PyTuple_GetItem(dtypes, static_cast<Py_ssize_t>(k)), &c.dtypes[k])) return false;
  }
  c.inputs = std::vector<Input>(static_cast<size_t>(PyTuple_Size(inputs)));
  c.values = std::vector<DyclValue>(c.inputs.size());
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    PyObject* item = PyTuple_GetItem(inputs, static_cast<Py_ssize_t>(k));
    if (!ReadInput(c, item, &c.inputs[k])) return false;
  }
  c.sites = std::vector<Site>(static_cast<size_t>(PyTuple_Size(sites)));
  for (size_t k = 0; k < c.sites.size(); ++k) {
    PyObject* item = PyTuple_GetItem(sites, static_cast<Py_ssize_t>(k));
    if (!ReadSite(item, &c.sites[k])) return false;
  }
  return PyErr_Occurred() == nullptr;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  std::unique_ptr<Caller> caller(new (std::nothrow) Caller);
  if (caller == nullptr) return PyErr_NoMemory();
  try {
    if (!Read(*caller, args)) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (self != nullptr) reinterpret_cast<CallerObject*>(self)->caller = caller.release();
  return self;
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<CallerObject*>(self)->caller;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMethodDef g_methods[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Call)), METH_FASTCALL,
     "Run on positional inputs, if they are usual."},
    {"use_torch", UseTorch, METH_VARARGS, "Take tensors of PyTorch's too."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot g_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(New)},
    {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
    {Py_tp_methods, g_methods},
    {0, nullptr},
};

PyType_Spec g_spec = {"dycl_tvm.runtime._calls.Caller", sizeof(CallerObject), 0, Py_TPFLAGS_DEFAULT,
                      g_slots};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "_calls",
                        "The usual call of a network without ctypes.",
                        -1,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__calls() {
  g_layout = Ref(PyUnicode_InternFromString("layout"));
  Ref module(PyModule_Create(&g_module));
  Ref type(PyType_FromSpec(&g_spec));
  if (!g_layout || !module || !type) return nullptr;
  if (PyModule_AddObject(module.get(), "Caller", type.get()) != 0) return nullptr;
  if (PyModule_AddIntConstant(module.get(), "TAKES", kTakes) != 0) return nullptr;
  type.Release();
  return module.Release();
}
