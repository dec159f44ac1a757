// Licensed under the Apache License, Version 2.0; see LICENSE.
// The recorder beside a list of all events: runs of random paths into rings of every size, read in
// pieces. Every event is read or counted as lost, in order, and the newest are there.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "../../src/runtime/dispatch.h"
#include "../../src/runtime/recorder.h"
#include "check.h"

namespace dycl {

bool MayGoOn(const Frame&) { return true; }
bool FailCall(uint32_t) { return false; }

}  // namespace dycl

namespace {

using dycl::Frame;
using dycl::Recorder;

std::mt19937 random_number(1);

uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_number() % bound); }

// Few decisions have numbers or choices that are large.
uint64_t AnyDecision() {
  const uint64_t decision = Below(9) == 0 ? random_number() : Below(1000);
  return decision << 32 | (Below(9) == 0 ? random_number() : Below(4));
}

struct Told {
  std::vector<DyclEvent> events;
  void Add(uint32_t kind, uint32_t index, uint32_t choice) {
    events.push_back(DyclEvent{0, 0, kind, index, choice, 0});
  }
};

void Run(Frame& f, std::vector<uint64_t>& path, Told& told) {
  Recorder& recorder = *f.recorder;
  recorder.BeginRun();
  const bool timed = recorder.timed();
  dycl::RecordedRun run(f);
  run.Started();
  told.Add(DYCL_EVENT_START, recorder.every(), timed ? 0 : 1);
  f.path_count = Below(4) == 0 ? 0 : Below(30);
  for (uint64_t k = 0; k < f.path_count; ++k) {
    path[k] = AnyDecision();
    const auto decision = static_cast<uint32_t>(path[k] >> 32);
    const auto choice = static_cast<uint32_t>(path[k]);
    if (timed) dycl::DecidedWatched(f, decision, choice);
    told.Add(DYCL_EVENT_DECISION, decision, choice);
  }
  const int32_t site = Below(5) == 0 ? dycl::kRunFailed : static_cast<int32_t>(Below(3));
  run.Ended(site);
  told.Add(DYCL_EVENT_RUN, static_cast<uint32_t>(site), 0);
}

void Story(size_t capacity) {
  std::vector<DyclEvent> ring(capacity), read(50);
  std::vector<uint64_t> path(dycl::kPathCapacity);
  Recorder recorder;
  recorder.Begin(ring.data(), capacity, 1 + Below(4));
  Frame f = {};
  f.recorder = &recorder;
  f.path = path.data();
  Told told;
  uint64_t taken = 0;
  // Of the run that is read, maybe in pieces.
  bool timed = true;
  uint64_t decided = 0;
  for (int turn = 0; turn < 60; ++turn) {
    const uint64_t lost = recorder.lost();
    for (uint32_t runs = Below(6); runs > 0; --runs) Run(f, path, told);
    const uint64_t all = told.events.size();
    CHECK(taken + recorder.lost() <= all);
    const uint64_t there = all - taken - recorder.lost();
    CHECK(there >= std::min<uint64_t>(all - taken - lost, capacity));
    uint64_t end = 0;
    if (recorder.lost() != lost) {
      timed = true;
      decided = 0;
    }
    for (uint32_t reads = Below(8); reads > 0; --reads) {
      const size_t most = Below(12);
      const size_t some = recorder.Take(read.data(), most);
      CHECK(some <= most);
      for (size_t k = 0; k < some; ++k) {
        const DyclEvent& expected = told.events[taken + recorder.lost() + k];
        CHECK(read[k].kind == expected.kind && read[k].index == expected.index &&
              read[k].choice == expected.choice && read[k].reserved == 0);
        CHECK(read[k].begin_ns <= read[k].end_ns);
        if (read[k].kind == DYCL_EVENT_START) {
          CHECK(read[k].begin_ns >= end);
          timed = read[k].choice == 0;
          decided = 0;
        } else if (read[k].kind == DYCL_EVENT_DECISION && !timed) {
          CHECK(decided == 0 || read[k].end_ns == decided);
          decided = read[k].end_ns;
        } else if (read[k].kind == DYCL_EVENT_RUN) {
          CHECK(decided == 0 || read[k].end_ns == decided);
          timed = true;
          decided = 0;
        }
        end = read[k].end_ns;
      }
      taken += some;
      CHECK(some == most || taken + recorder.lost() == all);
    }
  }
}

}  // namespace

int main() {
  for (int k = 0; k < 20; ++k) {
    for (size_t capacity = 1; capacity < 60; ++capacity) Story(capacity);
  }
  std::puts("done");
  return 0;
}
