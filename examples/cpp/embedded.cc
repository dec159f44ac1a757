// Licensed under the Apache License, Version 2.0; see LICENSE.
// A program with the model inside, made by art.export_library("model.a", embed_params=True). It
// reads no file at run time.
#include <dycl/module.h>

#include <cstdio>
#include <string>
#include <vector>

#include "inputs.h"

int main() {
  const DyclApi* api = dycl_api(DYCL_ABI_VERSION);
  dycl::Result<dycl::Module> module = dycl::Module::FromApi(api);
  if (!module.ok()) {
    std::fprintf(stderr, "%s\n", module.status().message().c_str());
    return 1;
  }
  dycl::Result<dycl::Session> session = module.value().NewSession();
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().message().c_str());
    return 1;
  }
  std::vector<Input> inputs;
  MakeInputs(module.value(), {}, 0, &inputs);
  std::vector<DyclValue> values;
  for (const Input& input : inputs) values.push_back(input.value());
  dycl::Result<int32_t> site = session.value().Run(values);
  if (!site.ok()) {
    std::fprintf(stderr, "%s\n", site.status().message().c_str());
    return 1;
  }
  std::printf("return site %d\n%s", site.value(), session.value().PathText().c_str());
  return 0;
}
