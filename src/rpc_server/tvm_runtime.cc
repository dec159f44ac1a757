// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "tvm_runtime.h"

#include <dlfcn.h>

#include <cstring>

namespace dycl {
namespace rpc {
namespace {

template <class F>
bool Look(void* library, const char* name, F* out) {
  void* symbol = dlsym(library, name);
  memcpy(out, &symbol, sizeof(symbol));
  return symbol != nullptr;
}

TVMFFIByteArray Bytes(const char* text) { return TVMFFIByteArray{text, strlen(text)}; }

}  // namespace

std::string TVMRuntime::Load(const std::string& folder) {
  void* ffi = nullptr;
  // In this order: the second needs the first, and finds it by its name because it is loaded.
  for (const char* name : {"libtvm_ffi.so", "libtvm_runtime.so"}) {
    void* library = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return dlerror();
    if (ffi == nullptr) ffi = library;
  }
  bool found = Look(ffi, "TVMFFIFunctionGetGlobal", &get_global_) &&
               Look(ffi, "TVMFFIFunctionCreate", &create_) &&
               Look(ffi, "TVMFFIFunctionSetGlobal", &set_global_) &&
               Look(ffi, "TVMFFIFunctionCall", &call_) &&
               Look(ffi, "TVMFFIErrorSetRaisedFromCStr", &set_raised_) &&
               Look(ffi, "TVMFFIErrorMoveFromRaised", &move_raised_) &&
               Look(ffi, "TVMFFIStringFromByteArray", &string_) &&
               Look(ffi, "TVMFFIObjectDecRef", &dec_ref_);
  if (!found) return folder + "/libtvm_ffi.so is of another version than this server";
  for (const char* name : {"rpc.ServerLoop", "rpc.ReturnException", "ffi.ModuleLoadFromFile"}) {
    if (Global(name) == nullptr) return folder + "/libtvm_runtime.so has no function " + name;
  }
  return "";
}

TVMFFIObjectHandle TVMRuntime::Global(const char* name) const {
  TVMFFIByteArray bytes = Bytes(name);
  TVMFFIObjectHandle function = nullptr;
  return get_global_(&bytes, &function) == 0 ? function : nullptr;
}

bool TVMRuntime::Define(const char* name, TVMFFISafeCallType function) const {
  TVMFFIByteArray bytes = Bytes(name);
  TVMFFIObjectHandle handle = nullptr;
  return create_(nullptr, function, nullptr, &handle) == 0 && set_global_(&bytes, handle, 1) == 0;
}

int TVMRuntime::Call(TVMFFIObjectHandle function, TVMFFIAny* args, int32_t count,
                     TVMFFIAny* result) const {
  memset(result, 0, sizeof(*result));
  return call_(function, args, count, result);
}

std::string TVMRuntime::TakeError() const {
  TVMFFIObjectHandle error = nullptr;
  move_raised_(&error);
  if (error == nullptr) return "unknown error";
  const auto* cell = reinterpret_cast<const TVMFFIErrorCell*>(static_cast<const char*>(error) +
                                                              sizeof(TVMFFIObject));
  std::string text(cell->message.data, cell->message.size);
  dec_ref_(error);
  return text;
}

int TVMRuntime::Raise(const char* kind, const std::string& message) const {
  set_raised_(kind, message.c_str());
  return -1;
}

int TVMRuntime::ReturnString(const std::string& text, TVMFFIAny* result) const {
  TVMFFIByteArray bytes{text.data(), text.size()};
  return string_(&bytes, result);
}

TVMFFIAny TVMRuntime::Int(int64_t value) {
  TVMFFIAny any;
  memset(&any, 0, sizeof(any));
  any.type_index = kTVMFFIInt;
  any.v_int64 = value;
  return any;
}

TVMFFIAny TVMRuntime::Text(const char* value) {
  TVMFFIAny any;
  memset(&any, 0, sizeof(any));
  any.type_index = kTVMFFIRawStr;
  any.v_c_str = value;
  return any;
}

bool TVMRuntime::AsText(const TVMFFIAny& value, std::string* out) {
  if (value.type_index == kTVMFFIRawStr) {
    *out = value.v_c_str;
  } else if (value.type_index == kTVMFFISmallStr) {
    out->assign(value.v_bytes, value.small_str_len);
  } else if (value.type_index == kTVMFFIStr) {
    const auto* bytes = reinterpret_cast<const TVMFFIByteArray*>(
        reinterpret_cast<const char*>(value.v_obj) + sizeof(TVMFFIObject));
    out->assign(bytes->data, bytes->size);
  } else {
    return false;
  }
  return true;
}

}  // namespace rpc
}  // namespace dycl
