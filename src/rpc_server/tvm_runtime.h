// Licensed under the Apache License, Version 2.0; see LICENSE.
// TVM's runtime, loaded from libtvm_ffi.so and libtvm_runtime.so beside this program: only its C
// ABI is used.
#ifndef DYCL_RPC_SERVER_TVM_RUNTIME_H_
#define DYCL_RPC_SERVER_TVM_RUNTIME_H_

#include <tvm/ffi/c_api.h>

#include <string>

namespace dycl {
namespace rpc {

class TVMRuntime {
 public:
  // Loads the libraries from a folder. Returns what is wrong, or "".
  std::string Load(const std::string& folder);

  // A global function of TVM; null if there is none of that name.
  TVMFFIObjectHandle Global(const char* name) const;
  // Defines a global function that clients can call.
  bool Define(const char* name, TVMFFISafeCallType function) const;
  int Call(TVMFFIObjectHandle function, TVMFFIAny* args, int32_t count, TVMFFIAny* result) const;
  // The message of the error that the last call left, which is cleared.
  std::string TakeError() const;
  // Raises an error in a function that TVM called; returns what such a function returns then.
  int Raise(const char* kind, const std::string& message) const;
  int ReturnString(const std::string& text, TVMFFIAny* result) const;

  static TVMFFIAny Int(int64_t value);
  static TVMFFIAny Text(const char* value);
  // The text of an argument; false if it is something else.
  static bool AsText(const TVMFFIAny& value, std::string* out);

 private:
  decltype(&TVMFFIFunctionGetGlobal) get_global_ = nullptr;
  decltype(&TVMFFIFunctionCreate) create_ = nullptr;
  decltype(&TVMFFIFunctionSetGlobal) set_global_ = nullptr;
  decltype(&TVMFFIFunctionCall) call_ = nullptr;
  decltype(&TVMFFIErrorSetRaisedFromCStr) set_raised_ = nullptr;
  decltype(&TVMFFIErrorMoveFromRaised) move_raised_ = nullptr;
  decltype(&TVMFFIStringFromByteArray) string_ = nullptr;
  decltype(&TVMFFIObjectDecRef) dec_ref_ = nullptr;
};

}  // namespace rpc
}  // namespace dycl

#endif  // DYCL_RPC_SERVER_TVM_RUNTIME_H_
