// Licensed under the Apache License, Version 2.0; see LICENSE.
// Runs a compiled model from C++: no Python, no framework.
//
//   run_model model.so [model.params] [--input file.bin]... [--seed n] [--repeat n]
//
// Each --input is the raw little-endian data of one input, in order; inputs without a file get
// random numbers. The shapes and dtypes come from the model's metadata.
#include <dycl/module.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "inputs.h"

namespace {

int Fail(const dycl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", status.kind().c_str(), status.message().c_str());
  return 1;
}

int Usage(const char* program) {
  std::fprintf(stderr,
               "usage: %s model.so [model.params] [--input file.bin]... [--seed n] [--repeat n]\n",
               program);
  return 2;
}

void PrintTensor(const DLTensor& t) {
  int64_t count = 1;
  std::printf("tensor [");
  for (int d = 0; d < t.ndim; ++d) {
    std::printf("%s%lld", d != 0 ? ", " : "", static_cast<long long>(t.shape[d]));
    count *= t.shape[d];
  }
  std::printf("]");
  const int64_t kShown = 10;
  for (int64_t i = 0; i < count && i < kShown; ++i) std::printf(" %g", ElementOf(t, i));
  std::printf(count > kShown ? " ...\n" : "\n");
}

void PrintOutput(size_t k, const DyclValue& value) {
  std::printf("output %zu: ", k);
  switch (value.type) {
    case DYCL_TENSOR:
      PrintTensor(*value.u.tensor);
      break;
    case DYCL_INT:
      std::printf("int %lld\n", static_cast<long long>(value.u.v_int));
      break;
    case DYCL_FLOAT:
      std::printf("float %.9g\n", value.u.v_float);
      break;
    default:
      std::printf("bool %s\n", value.u.v_bool != 0 ? "true" : "false");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string library, params;
  std::vector<std::string> files;
  unsigned seed = 0;
  int repeat = 1;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    bool option = word == "--input" || word == "--seed" || word == "--repeat";
    if (option && i + 1 == argc) return Usage(argv[0]);
    if (word == "--input") {
      files.push_back(argv[++i]);
    } else if (word == "--seed") {
      seed = static_cast<unsigned>(std::atoi(argv[++i]));
    } else if (word == "--repeat") {
      repeat = std::atoi(argv[++i]);
    } else if (library.empty()) {
      library = word;
    } else if (params.empty()) {
      params = word;
    } else {
      return Usage(argv[0]);
    }
  }
  if (library.empty() || repeat < 1) return Usage(argv[0]);

  dycl::Result<dycl::Module> module = dycl::Module::Load(library, params);
  if (!module.ok()) return Fail(module.status());
  dycl::Result<dycl::Session> session = module.value().NewSession();
  if (!session.ok()) return Fail(session.status());

  std::vector<Input> inputs;
  std::string problem = MakeInputs(module.value(), files, seed, &inputs);
  if (!problem.empty()) return Fail(dycl::Status("InputError", problem));
  std::vector<DyclValue> values;
  for (const Input& input : inputs) values.push_back(input.value());

  dycl::Result<int32_t> site = session.value().Run(values);
  auto start = std::chrono::steady_clock::now();
  for (int i = 1; i < repeat && site.ok(); ++i) site = session.value().Run(values);
  std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (!site.ok()) return Fail(site.status());

  std::printf("return site %d\n", site.value());
  size_t count = session.value().NumOutputs().value();
  for (size_t k = 0; k < count; ++k) PrintOutput(k, session.value().Output(k).value());
  std::printf("path:\n%s", session.value().PathText().c_str());
  if (repeat > 1) std::printf("%.3f ms a run\n", took.count() / (repeat - 1));
  return 0;
}
