// Licensed under the Apache License, Version 2.0; see LICENSE.
// AMX for CPUs that have none, for tests: SIGILL at an AMX instruction decodes it, does what
// Intel's manual (SDM, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TILERELEASE,
// TDPBF16PS, TDPBUSD) says it does, and goes on behind it. Tiles are a state of the thread, as on
// a CPU. What a CPU would refuse (#UD, #GP) ends the process with a message. Loaded by LD_PRELOAD
// it also answers the process's question for the registers, which Linux refuses on such a CPU.
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <initializer_list>

namespace {

constexpr int kTiles = 8, kMaxRows = 16, kMaxBytes = 64;
constexpr long kRequestPermission = 0x1023, kTileData = 18;

struct State {
  bool configured = false;
  uint16_t row_bytes[kTiles] = {};
  uint8_t rows[kTiles] = {};
  uint8_t data[kTiles][kMaxRows][kMaxBytes] = {};
};

thread_local State t_state;
std::atomic<uint64_t> g_products{0};
std::atomic<uint64_t> g_permissions{0};
std::atomic<int> g_threads{0}, g_configured{0};
struct sigaction g_before;

[[noreturn]] void Refuse(const char* instruction, const char* why) {
  fprintf(stderr, "AMX emulator: %s: %s\n", instruction, why);
  fflush(stderr);
  abort();
}

void Check(bool good, const char* instruction, const char* why) {
  if (!good) Refuse(instruction, why);
}

float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

uint32_t ToBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// Denormal numbers are zeros of their sign.
float Flush(float value) {
  uint32_t bits = ToBits(value);
  return (bits & 0x7f800000) == 0 ? FromBits(bits & 0x80000000) : value;
}

float MultiplyAdd(float a, float b, float c) {
  return Flush(std::fma(Flush(a), Flush(b), Flush(c)));
}
float Add(float a, float b) { return Flush(Flush(a) + Flush(b)); }

void Release() {
  if (t_state.configured) g_configured.fetch_sub(1);
  t_state = State();
}

void Configure(const uint8_t* operand) {
  const char* name = "ldtilecfg";
  Release();
  State& s = t_state;
  if (operand[0] == 0) return;  // as tilerelease
  Check(operand[0] == 1, name, "no such palette");
  Check(operand[1] == 0, name, "start_row is not 0: instructions were interrupted");
  for (int i = 2; i < 16; ++i) Check(operand[i] == 0, name, "a reserved byte is not 0");
  for (int t = 0; t < 16; ++t) {
    uint16_t bytes;
    memcpy(&bytes, operand + 16 + 2 * t, 2);
    uint8_t rows = operand[48 + t];
    if (t >= kTiles) {
      Check(bytes == 0 && rows == 0, name, "there are only eight tiles");
      continue;
    }
    Check(bytes <= kMaxBytes, name, "a row of more than 64 bytes");
    Check(rows <= kMaxRows, name, "more than 16 rows");
    Check((rows == 0) == (bytes == 0), name, "a tile without rows or without columns");
    s.row_bytes[t] = bytes;
    s.rows[t] = rows;
  }
  s.configured = true;
  g_configured.fetch_add(1);
  static thread_local const int once = g_threads.fetch_add(1);
  (void)once;
}

void CheckTile(int t, const char* name) {
  Check(t_state.configured, name, "tiles are not configured on this thread");
  Check(t < kTiles, name, "no such tile");
  Check(t_state.rows[t] != 0, name, "the tile is not configured");
}

void Zero(int t) {
  CheckTile(t, "tilezero");
  memset(t_state.data[t], 0, sizeof(t_state.data[t]));
}

void Load(int t, const uint8_t* base, int64_t stride) {
  CheckTile(t, "tileloadd");
  State& s = t_state;
  memset(s.data[t], 0, sizeof(s.data[t]));
  for (int r = 0; r < s.rows[t]; ++r) memcpy(s.data[t][r], base + r * stride, s.row_bytes[t]);
}

void Store(int t, uint8_t* base, int64_t stride) {
  CheckTile(t, "tilestored");
  const State& s = t_state;
  for (int r = 0; r < s.rows[t]; ++r) memcpy(base + r * stride, s.data[t][r], s.row_bytes[t]);
}

// sums (m x n) += left (m x words) right (words x n), where a word is a pair of bfloat16 ...
void AddPairs(uint8_t* sums, const uint8_t* left, int right, int words, int columns) {
  float first[kMaxBytes / 4] = {}, second[kMaxBytes / 4] = {};
  for (int k = 0; k < words; ++k) {
    uint32_t a;
    memcpy(&a, left + 4 * k, 4);
    for (int n = 0; n < columns; ++n) {
      uint32_t b;
      memcpy(&b, t_state.data[right][k] + 4 * n, 4);
      first[n] = MultiplyAdd(FromBits(a << 16), FromBits(b << 16), first[n]);
      second[n] = MultiplyAdd(FromBits(a & 0xffff0000), FromBits(b & 0xffff0000), second[n]);
    }
  }
  for (int n = 0; n < columns; ++n) {
    float sum;
    memcpy(&sum, sums + 4 * n, 4);
    sum = Add(sum, Add(first[n], second[n]));
    memcpy(sums + 4 * n, &sum, 4);
  }
}

// ... or a quad of bytes, those of the left tile without a sign and those of the right one with it.
void AddQuads(uint8_t* sums, const uint8_t* left, int right, int words, int columns) {
  for (int n = 0; n < columns; ++n) {
    uint32_t sum;
    memcpy(&sum, sums + 4 * n, 4);
    for (int k = 0; k < 4 * words; ++k) {
      const int8_t weight = static_cast<int8_t>(t_state.data[right][k / 4][4 * n + k % 4]);
      sum += static_cast<uint32_t>(int32_t{left[k]} * int32_t{weight});
    }
    memcpy(sums + 4 * n, &sum, 4);
  }
}

void Product(const char* name, decltype(AddPairs) add, int sums, int left, int right) {
  for (int t : {sums, left, right}) {
    CheckTile(t, name);
    Check(t_state.row_bytes[t] % 4 == 0, name, "a row is not of whole words");
  }
  Check(sums != left && sums != right && left != right, name, "the three tiles are not different");
  State& s = t_state;
  Check(s.rows[sums] == s.rows[left], name, "the sums have not the rows of the left tile");
  Check(s.row_bytes[sums] == s.row_bytes[right], name,
        "the sums have not the columns of the right tile");
  Check(s.row_bytes[left] == 4 * s.rows[right], name,
        "the left tile has not as many words as the right one has rows");
  for (int m = 0; m < s.rows[sums]; ++m) {
    add(s.data[sums][m], s.data[left][m], right, s.rows[right], s.row_bytes[sums] / 4);
    memset(s.data[sums][m] + s.row_bytes[sums], 0, kMaxBytes - s.row_bytes[sums]);
  }
  for (int m = s.rows[sums]; m < kMaxRows; ++m) memset(s.data[sums][m], 0, kMaxBytes);
  g_products.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Register(const ucontext_t* context, int number) {
  static const int kPlace[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(context->uc_mcontext.gregs[kPlace[number]]);
}

// An operand in memory: address without the index, and the index times its scale.
struct Operand {
  uint64_t base;
  int64_t scaled_index;
  bool has_sib;
  const uint8_t* next;  // the first byte behind it, which is that behind the instruction
};

Operand Decode(const ucontext_t* context, const uint8_t* modrm, bool rex_x, bool rex_b) {
  int mod = *modrm >> 6, rm = *modrm & 7;
  const uint8_t* p = modrm + 1;
  Operand o{0, 0, rm == 4, nullptr};
  int base = rm + 8 * rex_b;
  bool no_base = mod == 0 && rm == 5;
  if (o.has_sib) {
    uint8_t sib = *p++;
    int index = (sib >> 3 & 7) + 8 * rex_x;
    if (index != 4) {
      o.scaled_index = static_cast<int64_t>(Register(context, index) << (sib >> 6));
    }
    base = (sib & 7) + 8 * rex_b;
    no_base = mod == 0 && (sib & 7) == 5;
  }
  int32_t displacement = 0;
  if (mod == 1) {
    displacement = static_cast<int8_t>(*p++);
  } else if (mod == 2 || no_base) {
    memcpy(&displacement, p, 4);
    p += 4;
  }
  o.next = p;
  if (!no_base) {
    o.base = Register(context, base);
  } else if (!o.has_sib) {
    o.base = reinterpret_cast<uint64_t>(p);  // relative to the next instruction
  }
  o.base += static_cast<uint64_t>(static_cast<int64_t>(displacement));
  return o;
}

// Does the instruction at `code` if it is one of AMX; returns the first byte behind it, or null.
const uint8_t* Execute(const uint8_t* code, const ucontext_t* context) {
  if (code[0] != 0xc4) return nullptr;
  const bool rex_r = !(code[1] & 0x80), rex_x = !(code[1] & 0x40), rex_b = !(code[1] & 0x20);
  if ((code[1] & 0x1f) != 2) return nullptr;                        // the map 0F38
  if ((code[2] & 0x80) != 0 || (code[2] & 4) != 0) return nullptr;  // W0, 128 bits
  const int prefix = code[2] & 3;                                   // none, 66, F3, F2
  const int source = ~(code[2] >> 3) & 15;
  const uint8_t opcode = code[3], modrm = code[4];
  const bool registers = modrm >> 6 == 3;
  const int reg = (modrm >> 3 & 7) + 8 * rex_r, rm = (modrm & 7) + 8 * rex_b;
  if (opcode == 0x5c && prefix == 2 && registers) {
    Product("tdpbf16ps", AddPairs, reg, rm, source);
    return code + 5;
  }
  if (opcode == 0x5e && prefix == 1 && registers) {
    Product("tdpbusd", AddQuads, reg, rm, source);
    return code + 5;
  }
  if (source != 0) return nullptr;
  if (opcode == 0x49 && registers) {
    if (prefix == 0 && modrm == 0xc0) {
      Release();
      return code + 5;
    }
    if (prefix == 3 && (modrm & 7) == 0) {
      Zero(reg);
      return code + 5;
    }
    return nullptr;
  }
  if (registers || (opcode != 0x49 && opcode != 0x4b)) return nullptr;
  const Operand o = Decode(context, code + 4, rex_x, rex_b);
  uint8_t* const base = reinterpret_cast<uint8_t*>(o.base);
  if (opcode == 0x49) {
    if (prefix != 0 || (modrm & 0x38) != 0) return nullptr;
    Configure(base + o.scaled_index);
    return o.next;
  }
  if (!o.has_sib) return nullptr;
  if (prefix == 2) {
    Store(reg, base, o.scaled_index);
  } else if (prefix == 1 || prefix == 3) {
    Load(reg, base, o.scaled_index);
  } else {
    return nullptr;
  }
  return o.next;
}

void OnIllegalInstruction(int number, siginfo_t* info, void* context) {
  ucontext_t* at = static_cast<ucontext_t*>(context);
  const uint8_t* code = reinterpret_cast<const uint8_t*>(at->uc_mcontext.gregs[REG_RIP]);
  if (const uint8_t* next = Execute(code, at)) {
    at->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(next);
    return;
  }
  fprintf(stderr, "AMX emulator: an illegal instruction that is none of AMX:");
  for (int i = 0; i < 8; ++i) fprintf(stderr, " %02x", code[i]);
  fprintf(stderr, "\n");
  signal(number, SIG_DFL);  // the instruction is met again, and ends the process
  (void)info;
}

}  // namespace

extern "C" {

// Takes SIGILL; true on a CPU that has AMX: it does the work itself then.
bool amx_emulator_install() {
  using Function = long (*)(long, ...);
  static const Function kSyscall = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "syscall"));
  const Function call = kSyscall != nullptr ? kSyscall : &syscall;
  if (call(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return true;
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, &g_before);
  return false;
}

void amx_emulator_remove() { sigaction(SIGILL, &g_before, nullptr); }

// How many products were emulated, on all threads.
uint64_t amx_emulator_products() { return g_products.load(); }

// How many threads have configured tiles so far, and how many have them configured now.
int amx_emulator_threads() { return g_threads.load(); }
int amx_emulator_configured() { return g_configured.load(); }

// How often the process asked for the registers.
uint64_t amx_emulator_permissions() { return g_permissions.load(); }

#ifdef AMX_EMULATOR_PRELOAD

long syscall(long number, ...) {
  using Function = long (*)(long, ...);
  static const Function next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& value : a) value = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && a[0] == kRequestPermission && a[1] == kTileData) {
    g_permissions.fetch_add(1);
    return 0;
  }
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

__attribute__((constructor)) static void AtLoad() { amx_emulator_install(); }

#endif

}  // extern "C"
