// Licensed under the Apache License, Version 2.0; see LICENSE.
// The threads of a block are fibers of one thread: each has a stack, and gives way at barriers and
// shuffles.
#include "blocks.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

extern "C" {
EmulatedIndex threadIdx, blockIdx;
}

namespace emulated {
namespace {

constexpr size_t kStackBytes = 64 * 1024;

enum class State { kReady, kBarrier, kWarp, kDone };

struct Fiber {
  jmp_buf at;
  bool started = false;
  State state = State::kReady;
  EmulatedIndex index;
  unsigned mask = 0;     // of the shuffle that it waits in
  uint64_t offered = 0;  // its value in the shuffle
};

std::vector<Fiber> g_fibers;
std::vector<char*> g_stacks;
jmp_buf g_scheduler;
unsigned g_current = 0;
unsigned g_count = 0;
const EmulatedKernel* g_kernel = nullptr;
void** g_args = nullptr;

// A fiber runs one thread of one block after the other; it never returns.
void FiberMain() {
  for (;;) {
    g_kernel->call(g_args);
    g_fibers[g_current].state = State::kDone;
    if (_setjmp(g_fibers[g_current].at) == 0) _longjmp(g_scheduler, 1);
  }
}

void GiveWay(State state) {
  Fiber& fiber = g_fibers[g_current];
  fiber.state = state;
  if (_setjmp(fiber.at) == 0) _longjmp(g_scheduler, 1);
}

void Resume(unsigned k) {
  g_current = k;
  Fiber& fiber = g_fibers[k];
  threadIdx = fiber.index;
  if (_setjmp(g_scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = g_stacks[k];
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, FiberMain, 0);
  setcontext(&context);
}

// Lets those go on whose partners have all arrived; false where nobody can.
bool Release() {
  bool released = false;
  bool all = true;  // who has ended has passed all barriers
  for (unsigned k = 0; k < g_count; ++k) {
    all = all && (g_fibers[k].state == State::kBarrier || g_fibers[k].state == State::kDone);
  }
  for (unsigned k = 0; k < g_count; ++k) {
    Fiber& fiber = g_fibers[k];
    if (fiber.state == State::kBarrier && all) {
      fiber.state = State::kReady;
      released = true;
    }
  }
  for (unsigned warp = 0; warp < g_count; warp += 32) {
    unsigned arrived = 0, wanted = 0;
    for (unsigned lane = 0; lane < 32 && warp + lane < g_count; ++lane) {
      const Fiber& fiber = g_fibers[warp + lane];
      if (fiber.state == State::kWarp) arrived |= 1u << lane, wanted |= fiber.mask;
      if (fiber.state == State::kDone) arrived |= 1u << lane;
    }
    if (wanted == 0 || (wanted & ~arrived) != 0) continue;
    for (unsigned lane = 0; lane < 32 && warp + lane < g_count; ++lane) {
      if (g_fibers[warp + lane].state == State::kWarp) g_fibers[warp + lane].state = State::kReady;
    }
    released = true;
  }
  return released;
}

bool RunBlock() {
  for (unsigned k = 0; k < g_count; ++k) g_fibers[k].state = State::kReady;
  for (;;) {
    bool waits = false;
    for (unsigned k = 0; k < g_count; ++k) {
      if (g_fibers[k].state == State::kReady) Resume(k);
      waits = waits || g_fibers[k].state != State::kDone;
    }
    if (!waits) return true;
    if (!Release()) return false;
  }
}

void NeedFibers(EmulatedIndex block) {
  g_count = block.x * block.y * block.z;
  if (g_fibers.size() < g_count) g_fibers.resize(g_count);
  while (g_stacks.size() < g_count) {
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    g_stacks.push_back(static_cast<char*>(stack));
  }
  unsigned k = 0;
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x) g_fibers[k++].index = EmulatedIndex{x, y, z};
    }
  }
}

void RunAlone(const EmulatedKernel& kernel, EmulatedIndex block, void** args) {
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x) {
        threadIdx = EmulatedIndex{x, y, z};
        kernel.call(args);
      }
    }
  }
}

}  // namespace

bool RunGrid(const EmulatedKernel& kernel, EmulatedIndex grid, EmulatedIndex block, void** args) {
  g_kernel = &kernel;
  g_args = args;
  if (kernel.cooperates) NeedFibers(block);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = EmulatedIndex{x, y, z};
        if (!kernel.cooperates) {
          RunAlone(kernel, block, args);
        } else if (!RunBlock()) {
          for (Fiber& fiber : g_fibers) fiber.started = false;  // their stacks begin anew
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace emulated

extern "C" {

void emulated_syncthreads() { emulated::GiveWay(emulated::State::kBarrier); }

unsigned emulated_lane() { return emulated::g_current % 32; }

unsigned emulated_activemask() {
  unsigned warp = emulated::g_current / 32 * 32, mask = 0;
  for (unsigned lane = 0; lane < 32 && warp + lane < emulated::g_count; ++lane) {
    if (emulated::g_fibers[warp + lane].state != emulated::State::kDone) mask |= 1u << lane;
  }
  return mask;
}

uint64_t emulated_shuffle(unsigned mask, uint64_t value, unsigned lane) {
  unsigned self = emulated::g_current;
  unsigned from = self / 32 * 32 + lane;
  emulated::Fiber& fiber = emulated::g_fibers[self];
  fiber.offered = value;
  fiber.mask = mask;
  emulated::GiveWay(emulated::State::kWarp);  // all have offered
  uint64_t got = from < emulated::g_count ? emulated::g_fibers[from].offered : value;
  emulated::GiveWay(emulated::State::kWarp);  // all have taken
  return got;
}

}  // extern "C"
