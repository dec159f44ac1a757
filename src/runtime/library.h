// Licensed under the Apache License, Version 2.0; see LICENSE.
// The library as a whole: what of it is alive, and how it leaves memory. While there is anything
// that its code or its threads may be asked for the library holds itself in memory, whoever closes
// it; Unload() ends all of it, and then the system's loader may take the library out.
#ifndef DYCL_RUNTIME_LIBRARY_H_
#define DYCL_RUNTIME_LIBRARY_H_

#include <atomic>
#include <cstdint>

struct DyclModel;

namespace dycl {

// How many there are.
struct Living {
  std::atomic<int32_t> models;
  std::atomic<int32_t> sessions;
  std::atomic<int32_t> tensors;  // that packed functions gave to their callers
};
extern Living g_living;

// Counts the object of which it is a part.
class Alive {
 public:
  explicit Alive(std::atomic<int32_t>* count) : count_(count) { count_->fetch_add(1); }
  ~Alive() { count_->fetch_sub(1); }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;

 private:
  std::atomic<int32_t>* count_;
};

// Holds the library in memory from now on. Called for each model, before anything else is done.
[[nodiscard]] int32_t HoldLibrary();
// Whether the library holds itself.
bool LibraryIsHeld();
// Releases a model (may be null), ends all that goes on, and lets go. Refuses, and does nothing,
// while there is anything else alive.
[[nodiscard]] int32_t Unload(DyclModel* model);

}  // namespace dycl

#endif  // DYCL_RUNTIME_LIBRARY_H_
