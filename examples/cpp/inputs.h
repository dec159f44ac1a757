// Licensed under the Apache License, Version 2.0; see LICENSE.
// The inputs of a run: from files, or random.
#ifndef DYCL_EXAMPLES_CPP_INPUTS_H_
#define DYCL_EXAMPLES_CPP_INPUTS_H_

#include <dycl/module.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// One input: what the model expects, and its bytes.
struct Input {
  dycl::InputSpec spec;
  std::vector<char> data;
  mutable DLTensor tensor;

  DyclValue value() const {
    switch (spec.type) {
      case DYCL_INT:
        return dycl::Int(Read<int64_t>());
      case DYCL_FLOAT:
        return dycl::Float(Read<double>());
      case DYCL_BOOL:
        return dycl::Bool(data[0] != 0);
      default:
        break;
    }
    tensor = DLTensor();
    tensor.data = const_cast<char*>(data.data());
    tensor.device.device_type = kDLCPU;
    tensor.ndim = static_cast<int32_t>(spec.shape.size());
    tensor.dtype = spec.dtype;
    tensor.shape = const_cast<int64_t*>(spec.shape.data());
    return dycl::Tensor(tensor);
  }

 private:
  template <class T>
  T Read() const {
    T number;
    std::memcpy(&number, data.data(), sizeof(T));
    return number;
  }
};

// Numbers for one input: normally distributed floats, small ints.
inline void FillRandom(const dycl::InputSpec& spec, std::mt19937* engine, std::vector<char>* data) {
  std::normal_distribution<double> normal;
  size_t item = spec.dtype.bits / 8;
  for (size_t at = 0; at + item <= data->size(); at += item) {
    double number = normal(*engine);
    float single = static_cast<float>(number);
    int64_t whole = static_cast<int64_t>(number * 4);
    if (spec.type == DYCL_FLOAT || (spec.dtype.code == kDLFloat && item == 8)) {
      std::memcpy(data->data() + at, &number, 8);
    } else if (spec.dtype.code == kDLFloat && item == 4) {
      std::memcpy(data->data() + at, &single, 4);
    } else if (spec.dtype.code == kDLBfloat) {
      // The upper half of a float, little-endian.
      std::memcpy(data->data() + at, reinterpret_cast<const char*>(&single) + 2, 2);
    } else if (spec.dtype.code == kDLFloat) {
      // Half precision between 1 and 2: the exponent of 1, a random fraction.
      uint16_t half = static_cast<uint16_t>(0x3c00 | ((*engine)() & 0x3ff));
      std::memcpy(data->data() + at, &half, 2);
    } else if (spec.dtype.code == kDLBool || spec.type == DYCL_BOOL) {
      (*data)[at] = static_cast<char>((*engine)() & 1);
    } else {
      std::memcpy(data->data() + at, &whole, item);
    }
  }
}

// Makes the inputs of a model; returns what is wrong with a file, or "".
inline std::string MakeInputs(const dycl::Module& module, const std::vector<std::string>& files,
                              unsigned seed, std::vector<Input>* inputs) {
  std::mt19937 engine(seed);
  std::vector<dycl::InputSpec> specs = module.Inputs();
  if (files.size() > specs.size()) {
    return "the model has " + std::to_string(specs.size()) + " inputs, got " +
           std::to_string(files.size()) + " files";
  }
  for (size_t k = 0; k < specs.size(); ++k) {
    Input input;
    input.spec = specs[k];
    if (input.spec.type != DYCL_TENSOR) input.spec.dtype.bits = 64;
    size_t bytes = input.spec.bytes();
    if (k < files.size()) {
      std::ifstream file(files[k], std::ios::binary);
      input.data.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      if (input.data.size() != bytes) {
        return "input '" + input.spec.name + "' takes " + std::to_string(bytes) + " bytes, '" +
               files[k] + "' has " + std::to_string(input.data.size());
      }
    } else {
      input.data.resize(bytes);
      FillRandom(input.spec, &engine, &input.data);
    }
    inputs->push_back(input);
  }
  return "";
}

// An element of an output as a number, for printing.
inline double ElementOf(const DLTensor& t, int64_t index) {
  const char* at = static_cast<const char*>(t.data) + t.byte_offset + index * (t.dtype.bits / 8);
  if (t.dtype.code == kDLFloat && t.dtype.bits == 64) {
    double number;
    std::memcpy(&number, at, 8);
    return number;
  }
  if (t.dtype.code == kDLFloat && t.dtype.bits == 32) {
    float number;
    std::memcpy(&number, at, 4);
    return number;
  }
  if (t.dtype.code == kDLInt && t.dtype.bits == 64) {
    int64_t number;
    std::memcpy(&number, at, 8);
    return static_cast<double>(number);
  }
  if (t.dtype.code == kDLInt && t.dtype.bits == 32) {
    int32_t number;
    std::memcpy(&number, at, 4);
    return number;
  }
  if (t.dtype.code == kDLBfloat) {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, at, 2);
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
  }
  return t.dtype.bits == 8 ? static_cast<double>(*reinterpret_cast<const uint8_t*>(at)) : 0.0;
}

#endif  // DYCL_EXAMPLES_CPP_INPUTS_H_
