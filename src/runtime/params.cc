// Licensed under the Apache License, Version 2.0; see LICENSE.
#include "params.h"

#include <cstring>
#include <string>

#include "dycl/dycl.h"
#include "error.h"
#include "json.h"
#include "program.h"
#include "sha256.h"

namespace dycl {
namespace {

std::string ShapeText(const std::string& dtype, const std::vector<int64_t>& shape) {
  std::string text = dtype + "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d != 0) text += ", ";
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

}  // namespace

int32_t Params::Open(const char* path, const DyclModelOptions& options) {
  int32_t status = bytes_.Open(path, options);
  if (status == DYCL_OK) status = Check(bytes_.name(), bytes_.begin(), bytes_.size());
  return status == DYCL_OK ? bytes_.Settle() : status;
}

int32_t Params::OpenEmbedded(const unsigned char* begin, const unsigned char* end) {
  return Check("the weights inside the library", begin, static_cast<size_t>(end - begin));
}

int32_t Params::Check(const char* name, const unsigned char* bytes, size_t size) {
  if (size < 8) {
    return ArtifactError("'%s' is not a params file: it is shorter than a header", name);
  }
  uint64_t header_size = 0;
  for (int i = 7; i >= 0; --i) header_size = header_size << 8 | bytes[i];
  Json header;
  if (header_size > size - 8 ||
      !ParseJson(reinterpret_cast<const char*>(bytes) + 8, header_size, &header) ||
      header.type != Json::kObject) {
    return ArtifactError("'%s' is not a params file, or its header is damaged", name);
  }
  const Json* meta = header.Find("__metadata__");
  if (meta == nullptr || meta->Text("format") != "dycl-params") {
    return ArtifactError("'%s' is not a params file of dycl_tvm", name);
  }
  if (meta->Text("format_version") != "1") {
    return ArtifactError("'%s' has params format version '%s'; this library reads version 1", name,
                         meta->Text("format_version").c_str());
  }
  std::string fingerprint = meta->Text("fingerprint");
  if (fingerprint != kArtifactInfo.fingerprint) {
    return ArtifactError(
        "the params file '%s' does not belong to this library: it has the fingerprint %.16s, the "
        "library of '%s' wants %.16s. Use the params file that was saved with the library.",
        name, fingerprint.c_str(), kProgram.name, kArtifactInfo.fingerprint);
  }
  const unsigned char* data = bytes + 8 + header_size;
  data_ = reinterpret_cast<const char*>(data);
  data_size_ = size - 8 - header_size;
  if (std::string want = meta->Text("data_bytes"); want != std::to_string(data_size_)) {
    return ArtifactError(
        "'%s' is cut short or too long: %s bytes of weights were written, %s are there", name,
        want.c_str(), std::to_string(data_size_).c_str());
  }
  if (Sha256Hex(data, data_size_) != meta->Text("sha256")) {
    return ArtifactError("'%s' is damaged: its checksum does not match its contents", name);
  }
  return FindWeights(name, header, data);
}

int32_t Params::FindWeights(const char* name, const Json& header, const unsigned char* data) {
  if ((reinterpret_cast<uintptr_t>(data) & (kAlign - 1)) != 0) {
    return ArtifactError("'%s': the weights are not aligned to %u bytes", name,
                         static_cast<unsigned>(kAlign));
  }
  weights_.resize(kProgram.weights.size);
  for (uint32_t k = 0; k < kProgram.weights.size; ++k) {
    const WeightDesc& want = kProgram.weights[k];
    const int64_t* dims = kProgram.dims.data + want.dims;
    uint64_t bytes = NumBytes(want.dtype, dims, want.ndim);
    const Json* entry = header.Find(want.name);
    const Json* shape = entry != nullptr ? entry->Find("shape") : nullptr;
    const Json* offsets = entry != nullptr ? entry->Find("data_offsets") : nullptr;
    if (shape == nullptr || offsets == nullptr || offsets->items.size() != 2) {
      return ArtifactError("'%s' has no tensor '%s'", name, want.name);
    }
    std::vector<int64_t> found;
    for (const Json& extent : shape->items)
      found.push_back(extent.is_integer ? extent.integer : -1);
    std::vector<int64_t> expected(dims, dims + want.ndim);
    if (entry->Text("dtype") != DTypeFileName(want.dtype) || found != expected) {
      return ArtifactError("'%s': the tensor '%s' is %s, expected %s", name, want.name,
                           ShapeText(entry->Text("dtype"), found).c_str(),
                           ShapeText(DTypeFileName(want.dtype), expected).c_str());
    }
    int64_t begin = offsets->items[0].integer;
    int64_t end = offsets->items[1].integer;
    if (begin < 0 || end < begin || static_cast<uint64_t>(end) > data_size_ ||
        static_cast<uint64_t>(end - begin) != bytes || begin % static_cast<int64_t>(kAlign) != 0) {
      return ArtifactError("'%s': the tensor '%s' lies at a wrong place", name, want.name);
    }
    weights_[k] = data + begin;
  }
  return DYCL_OK;
}

}  // namespace dycl
