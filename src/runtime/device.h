// Licensed under the Apache License, Version 2.0; see LICENSE.
// A device: where the tensors of a program may live instead of in CPU memory. One stream of work
// for each session, its own or the caller's; nothing waits for the device but what needs a value of
// it on the host.
#ifndef DYCL_RUNTIME_DEVICE_H_
#define DYCL_RUNTIME_DEVICE_H_

#include <cstdint>
#include <memory>

#include "program.h"
#include "session_sizes.h"

namespace dycl {

class Params;

// Items that one wait can bring to the host.
constexpr uint32_t kFetchSlots = 64;

// The memory and the work of one session. Functions that return bool put the reason into the
// thread's error; those that return int32_t return a DyclStatus.
class DeviceSession {
 public:
  virtual ~DeviceSession() = default;

  virtual DLDevice device() const = 0;
  // Where a tensor lies; for an input the place of its copy.
  virtual void* Place(const TensorDesc& tensor) const = 0;
  // Whether bytes on the device belong to this session.
  virtual bool Owns(const void* address, uint64_t bytes) const = 0;
  // Memory of the host that the device copies to quickly: for the outputs of a run.
  virtual char* host_outputs() const = 0;
  // Prepares the calls of the program; `frame` stays where it is.
  [[nodiscard]] virtual int32_t Bind(const Frame& frame) = 0;

  // From the next Begin on work goes to the caller's stream, or to the session's own.
  virtual void SetStream(bool given, void* stream) = 0;

  // Everything below stands between a Begin and an End of the same thread. On the session's own
  // stream End waits for the device and reports what failed there. On the caller's it does so where
  // something was brought to the host, or for kAlways.
  enum class Waits { kAlways, kIfNeeded };
  [[nodiscard]] virtual int32_t Begin() = 0;
  [[nodiscard]] virtual int32_t End(Waits waits = Waits::kAlways) = 0;

  virtual bool Upload(void* to, const void* from, uint64_t bytes) = 0;
  virtual bool Download(void* to, const void* from, uint64_t bytes) = 0;
  virtual bool Copy(void* to, const void* from, uint64_t bytes) = 0;
  // Copies rows of bytes on the device, which lie `to_pitch` and `from_pitch` bytes apart.
  virtual bool CopyRows(void* to, uint64_t to_pitch, const void* from, uint64_t from_pitch,
                        uint64_t row_bytes, uint64_t rows) = 0;
  virtual bool Zero(void* to, uint64_t bytes) = 0;
  // Writes a value of 1, 2, 4 or 8 bytes.
  virtual bool Store(void* to, const void* item, uint32_t bytes) = 0;
  // Begins to bring an item to the host; after Wait it is at Fetched(slot).
  virtual bool Fetch(uint32_t slot, const void* from, uint32_t bytes) = 0;
  virtual bool Wait() = 0;
  virtual const void* Fetched(uint32_t slot) const = 0;
  // Runs the launches of the calls first, ..., first + count - 1.
  virtual bool Launch(uint32_t first, uint32_t count) = 0;

  // Whether the device takes the branches of a segment now; where not, the host does.
  virtual bool TakesBranches(uint32_t segment) = 0;
  // Starts such a segment. Its decisions have places in the path at once, and are filled in by the
  // next Wait, Settle or End.
  virtual bool Branches(Frame& frame, uint32_t segment) = 0;
  // Waits where a branch may turn out to have had no side: what follows cannot be taken back.
  virtual bool Settle() = 0;
  virtual void SetDeviceBranches(bool on) = 0;
};

// The code and the weights of a program on a device, shared by its sessions.
class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  [[nodiscard]] virtual int32_t CreateSession(const SessionSizes& sizes,
                                              std::unique_ptr<DeviceSession>* out) = 0;
  // The weight in the device's memory.
  virtual void* weight(uint32_t k) const = 0;
  // Memory of the device for a tensor that is no part of a session.
  [[nodiscard]] virtual int32_t Take(uint64_t bytes, void** out) = 0;
  virtual void GiveBack(void* memory) = 0;
};

// DeviceDesc::open of CUDA GPUs.
int32_t OpenCuda(const Params& params, std::unique_ptr<DeviceModel>* out);

}  // namespace dycl

#endif  // DYCL_RUNTIME_DEVICE_H_
