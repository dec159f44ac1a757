// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs a model on recorded inputs and writes all that it returns, for a test to compare.
//
//   replay model.so model.params inputs.bin outputs.bin [threads]
//
// inputs.bin holds the inputs of one call after the other: each leaf as raw little-endian bytes,
// numbers in 8. For each call outputs.bin gets the return site (int32), the number of leaves
// (uint32), each leaf (int32 type, then a number in 8 bytes, or uint32 rank, the sizes as int64 and
// the data), and the text of the path (uint32 size, bytes).
#include <dycl/module.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

int Fail(const std::string& kind, const std::string& message) {
  std::fprintf(stderr, "%s: %s\n", kind.c_str(), message.c_str());
  return 1;
}

template <class T>
void Write(std::ofstream& out, T value) {
  out.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

void WriteLeaf(std::ofstream& out, const DyclValue& value) {
  Write<int32_t>(out, value.type);
  if (value.type != DYCL_TENSOR) {
    Write<int64_t>(out, value.u.v_int);
    return;
  }
  const DLTensor& t = *value.u.tensor;
  size_t bytes = t.dtype.bits / 8;
  Write<uint32_t>(out, static_cast<uint32_t>(t.ndim));
  for (int d = 0; d < t.ndim; ++d) {
    Write<int64_t>(out, t.shape[d]);
    bytes *= static_cast<size_t>(t.shape[d]);
  }
  out.write(static_cast<const char*>(t.data) + t.byte_offset, static_cast<std::streamsize>(bytes));
}

// The inputs of the next call; their memory is that of the file.
struct Call {
  std::vector<DLTensor> tensors;
  std::vector<DyclValue> values;
};

bool NextCall(const std::vector<dycl::InputSpec>& specs, std::vector<char>& data, size_t* at,
              Call* call) {
  call->tensors.assign(specs.size(), DLTensor());
  call->values.clear();
  for (size_t k = 0; k < specs.size(); ++k) {
    size_t bytes = specs[k].type == DYCL_TENSOR ? specs[k].bytes() : 8;
    if (*at + bytes > data.size()) return false;
    char* from = data.data() + *at;
    *at += bytes;
    if (specs[k].type != DYCL_TENSOR) {
      DyclValue value = {specs[k].type, 0, {nullptr}};
      std::memcpy(&value.u, from, 8);
      call->values.push_back(value);
      continue;
    }
    DLTensor& t = call->tensors[k];
    t.data = from;
    t.device.device_type = kDLCPU;
    t.ndim = static_cast<int32_t>(specs[k].shape.size());
    t.dtype = specs[k].dtype;
    t.shape = const_cast<int64_t*>(specs[k].shape.data());
    call->values.push_back(dycl::Tensor(t));
  }
  return true;
}

bool LoadedAny(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return Fail("usage", "replay model.so model.params inputs.bin outputs.bin");
  dycl::Result<dycl::Module> module = dycl::Module::Load(argv[1], argv[2]);
  if (!module.ok()) return Fail(module.status().kind(), module.status().message());
  dycl::Result<dycl::Session> session = module.value().NewSession();
  if (!session.ok()) return Fail(session.status().kind(), session.status().message());
  if (argc > 5 && !session.value().SetNumThreads(std::atoi(argv[5])).ok()) return 1;

  std::ifstream file(argv[3], std::ios::binary);
  std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::ofstream out(argv[4], std::ios::binary);
  std::vector<dycl::InputSpec> specs = module.value().Inputs();
  size_t at = 0;
  while (at < data.size()) {
    Call call;
    if (!NextCall(specs, data, &at, &call)) return Fail("InputError", "inputs.bin is cut short");
    dycl::Result<int32_t> site = session.value().Run(call.values);
    if (!site.ok()) return Fail(site.status().kind(), site.status().message());
    Write<int32_t>(out, site.value());
    size_t count = session.value().NumOutputs().value();
    Write<uint32_t>(out, static_cast<uint32_t>(count));
    for (size_t k = 0; k < count; ++k) WriteLeaf(out, session.value().Output(k).value());
    std::string path = session.value().PathText();
    Write<uint32_t>(out, static_cast<uint32_t>(path.size()));
    out << path;
  }
  if (LoadedAny("libtvm") || LoadedAny("libpython")) return Fail("error", "this process has TVM");
  return out.good() ? 0 : Fail("error", "cannot write the outputs");
}
