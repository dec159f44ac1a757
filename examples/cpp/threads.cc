// Licensed under the Apache License, Version 2.0; see LICENSE.
// Several threads run one model: each has a session of its own, all share the weights.
//
//   threads model.so [model.params] [--threads n] [--runs n]
#include <dycl/module.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "inputs.h"

namespace {

struct Result {
  dycl::Status status;
  std::string path;
};

void Work(const dycl::Module* module, unsigned seed, int runs, Result* result) {
  dycl::Result<dycl::Session> session = module->NewSession();
  if (!session.ok()) {
    result->status = session.status();
    return;
  }
  // The threads are the parallelism: none of them starts more.
  result->status = session.value().SetNumThreads(1);
  if (!result->status.ok()) return;
  std::vector<Input> inputs;
  MakeInputs(*module, {}, seed, &inputs);
  std::vector<DyclValue> values;
  for (const Input& input : inputs) values.push_back(input.value());
  for (int i = 0; i < runs; ++i) {
    dycl::Result<int32_t> site = session.value().Run(values);
    if (!site.ok()) {
      result->status = site.status();
      return;
    }
  }
  result->path = session.value().PathText();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> files;
  int threads = 4, runs = 10;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--threads" && i + 1 < argc) {
      threads = std::atoi(argv[++i]);
    } else if (word == "--runs" && i + 1 < argc) {
      runs = std::atoi(argv[++i]);
    } else {
      files.push_back(word);
    }
  }
  if (files.empty() || files.size() > 2 || threads < 1) {
    std::fprintf(stderr, "usage: %s model.so [model.params] [--threads n] [--runs n]\n", argv[0]);
    return 2;
  }
  dycl::Result<dycl::Module> module =
      dycl::Module::Load(files[0], files.size() > 1 ? files[1] : "");
  if (!module.ok()) {
    std::fprintf(stderr, "%s\n", module.status().message().c_str());
    return 1;
  }
  std::vector<Result> results(static_cast<size_t>(threads));
  std::vector<std::thread> workers;
  auto start = std::chrono::steady_clock::now();
  for (size_t k = 0; k < results.size(); ++k) {
    workers.emplace_back(Work, &module.value(), static_cast<unsigned>(k), runs, &results[k]);
  }
  for (std::thread& worker : workers) worker.join();
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  int code = 0;
  for (size_t k = 0; k < results.size(); ++k) {
    if (!results[k].status.ok()) code = 1;
    std::printf(
        "thread %zu: %s\n", k,
        results[k].status.ok() ? results[k].path.c_str() : results[k].status.message().c_str());
  }
  std::printf("%.1f runs a second\n", threads * runs / took.count());
  return code;
}
