// Licensed under the Apache License, Version 2.0; see LICENSE.
// Programs of AMX instructions with known results, for the emulator's test: `amx_instructions CASE`
// is 0 if the results are right. Which program is run the argument says.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <vector>

extern "C" bool amx_emulator_install();
extern "C" uint64_t amx_emulator_products();

namespace {

// The operand of ldtilecfg; tiles 0, 1, 2 are sums, left and right.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  Config(int m, int pairs, int n) {
    Set(0, m, 4 * n);
    Set(1, m, 4 * pairs);
    Set(2, pairs, 4 * n);
  }
  void Set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
  void Load() const { asm volatile("ldtilecfg %0" : : "m"(*this) : "memory"); }
};
static_assert(sizeof(Config) == 64, "as the instruction reads it");

uint16_t Bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

void Release() { asm volatile("tilerelease"); }
void Zero() { asm volatile("tilezero %tmm0"); }
void Dot() { asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }
void DotBytes() { asm volatile("tdpbusd %tmm2, %tmm1, %tmm0"); }
void LoadLeft(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm1" : : "r"(p), "r"(stride) : "memory");
}
void LoadRight(const void* p, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm2" : : "r"(p), "r"(stride) : "memory");
}
void LoadSums(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm0" : : "r"(p), "r"(stride) : "memory");
}
void StoreSums(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(p), "r"(stride) : "memory");
}

bool Same(double expected, double found, const char* what) {
  if (expected == found || (isnan(expected) && isnan(found))) return true;
  fprintf(stderr, "%s: %.17g is not %.17g\n", what, found, expected);
  return false;
}

// One sum of eight products: left * 1 + start.
float SumOf(const float (&left)[4], float right, float start) {
  Config(1, 2, 1).Load();
  uint16_t a[4], b[4];
  for (int i = 0; i < 4; ++i) a[i] = Bfloat(left[i]), b[i] = Bfloat(right);
  LoadLeft(a, 8);
  LoadRight(b, 4);
  LoadSums(&start, 4);
  Dot();
  float result = 0;
  StoreSums(&result, 4);
  Release();
  return result;
}

// Small integers: all sums are exact, so the order does not matter.
bool Integers() {
  bool good = true;
  const int shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {16, 16, 16}, {16, 1, 16}, {2, 16, 3}};
  for (const auto& shape : shapes) {
    const int m = shape[0], pairs = shape[1], n = shape[2], wide = 20;
    std::vector<uint16_t> a(static_cast<size_t>(m * 2 * wide)),
        b(static_cast<size_t>(pairs * 2 * wide));
    std::vector<float> sums(static_cast<size_t>(m * wide), -1.0f);
    auto left = [](int i, int k) { return (3 * i + 5 * k) % 17 - 8; };
    auto right = [](int k, int j) { return (7 * k + 2 * j) % 13 - 6; };
    for (int i = 0; i < m; ++i)
      for (int k = 0; k < 2 * pairs; ++k)
        a[static_cast<size_t>(i * 2 * wide + k)] = Bfloat(static_cast<float>(left(i, k)));
    for (int k = 0; k < 2 * pairs; ++k)
      for (int j = 0; j < n; ++j)
        b[static_cast<size_t>(k / 2 * 2 * wide + 2 * j + k % 2)] =
            Bfloat(static_cast<float>(right(k, j)));
    Config(m, pairs, n).Load();
    Zero();
    LoadLeft(a.data(), 4 * wide);
    LoadRight(b.data(), 4 * wide);
    Dot();
    Dot();
    StoreSums(sums.data(), 4 * wide);
    Release();
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < wide; ++j) {
        int expected = 0;
        for (int k = 0; k < 2 * pairs; ++k) expected += 2 * left(i, k) * right(k, j);
        good &= Same(j < n ? expected : -1, sums[static_cast<size_t>(i * wide + j)], "integers");
      }
    }
  }
  return good;
}

// Bytes without and with a sign, the largest products among them; sums wrap around.
bool Quads() {
  const int m = 5, words = 7, n = 6;
  std::vector<uint8_t> a(4 * m * words);
  std::vector<int8_t> b(4 * words * n);
  std::vector<uint32_t> sums(m * n);
  auto left = [](int i, int k) { return static_cast<uint8_t>(k == 3 ? 255 : 31 * i + 57 * k); };
  auto right = [](int k, int j) { return static_cast<int8_t>(k == 3 ? -128 : 43 * k + 91 * j); };
  auto start = [](int i) { return i == 0 ? 0x80000000u : 1000u * static_cast<uint32_t>(i); };
  for (int i = 0; i < m; ++i)
    for (int k = 0; k < 4 * words; ++k) a[static_cast<size_t>(i * 4 * words + k)] = left(i, k);
  for (int k = 0; k < 4 * words; ++k)
    for (int j = 0; j < n; ++j) b[static_cast<size_t>(k / 4 * 4 * n + 4 * j + k % 4)] = right(k, j);
  for (int i = 0; i < m * n; ++i) sums[static_cast<size_t>(i)] = start(i / n);
  Config(m, words, n).Load();
  LoadSums(sums.data(), 4 * n);
  LoadLeft(a.data(), 4 * words);
  LoadRight(b.data(), 4 * n);
  DotBytes();
  StoreSums(sums.data(), 4 * n);
  Release();
  bool good = true;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      uint32_t expected = start(i);
      for (int k = 0; k < 4 * words; ++k)
        expected += static_cast<uint32_t>(int{left(i, k)} * int{right(k, j)});
      good &= Same(expected, sums[static_cast<size_t>(i * n + j)], "quads");
    }
  }
  return good;
}

// The first and the second products of the pairs are summed apart: 2^24 + 1 is 2^24, and 1 + 1
// is 2.
bool Order() {
  return Same(16777218, SumOf({16777216, 1, 1, 1}, 1, 0), "order") &
         Same(16777220, SumOf({16777216, 1, 1, 1}, 1, 1), "order with a start");
}

bool Specials() {
  const float tiny = 0x1p-127f, small = 0x1p-100f, huge = 0x1p127f, inf = INFINITY;
  return Same(0, SumOf({tiny, 0, 0, 0}, huge, 0), "a denormal factor") &
         Same(0, SumOf({small, 0, 0, 0}, 0x1p-30f, 0), "a denormal product") &
         Same(0, SumOf({0, 0, 0, 0}, 1, 0x1p-130f), "a denormal sum") &
         Same(0x1p-126, SumOf({small, 0, 0, 0}, 0x1p-26f, 0), "the smallest normal product") &
         Same(inf, SumOf({huge, huge, 0, 0}, 1, 0), "overflow") &
         Same(NAN, SumOf({inf, 0, 0, 0}, 0, 0), "infinity times zero") &
         Same(NAN, SumOf({inf, -inf, 0, 0}, 1, 0), "infinities of both signs") &
         Same(-inf, SumOf({-inf, 0, 0, 0}, 2, 5), "infinity");
}

// All forms of an operand in memory, by rows of one word.
bool Addresses() {
  static Config config(4, 1, 1);
  static uint32_t data[2048];
  uint32_t out[64] = {};
  for (uint32_t i = 0; i < 2048; ++i) data[i] = i;
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");  // relative to the instruction
  bool good = true;
  auto check = [&](uint32_t first, uint32_t step, const char* what) {
    memset(out, 0, sizeof(out));
    StoreSums(out, 4);
    for (uint32_t r = 0; r < 4; ++r) good &= Same(first + r * step, out[r], what);
    good &= Same(0, out[4], "behind the tile");
  };
  int64_t stride = 8, scaled = 3;
  asm volatile("tileloadd 12(%0,%1,1), %%tmm0" : : "r"(data), "r"(stride) : "memory");
  check(3, 2, "8 bits of displacement");
  asm volatile("tileloadd -4096(%0,%1,1), %%tmm0" : : "r"(data + 1024), "r"(stride) : "memory");
  check(0, 2, "32 bits of displacement");
  asm volatile("tileloadd (%0,%1,4), %%tmm0" : : "r"(data), "r"(scaled) : "memory");
  check(0, 3, "a scale");
  asm volatile("tileloadd (%0), %%tmm0" : : "r"(data + 9) : "memory");
  check(9, 0, "no index");
  asm volatile(
      "mov %0, %%r12\n mov %1, %%r14\n tileloadd 4(%%r12,%%r14,2), %%tmm0\n"
      "mov %0, %%r13\n mov %1, %%r9\n tileloadd (%%r13,%%r9,1), %%tmm0"
      :
      : "r"(data), "r"(stride)
      : "memory", "r12", "r13", "r14", "r9");
  check(0, 2, "registers 8 to 15");
  asm volatile("tileloadd (%0,%1,1), %%tmm0" : : "r"(data + 60), "r"(int64_t{-40}) : "memory");
  check(60, static_cast<uint32_t>(-10), "a negative stride");
  Release();
  return good;
}

bool WithConfig(void (*change)(Config*)) {
  Config config(2, 2, 2);
  change(&config);
  config.Load();
  Zero();
  LoadLeft(&config, 8);
  LoadRight(&config, 8);
  Dot();
  return true;
}

const std::map<std::string, bool (*)()> kCases = {
    {"integers", Integers},
    {"order", Order},
    {"quads", Quads},
    {"specials", Specials},
    {"addresses", Addresses},
    {"good", [] { return WithConfig([](Config*) {}); }},
    {"palette", [] { return WithConfig([](Config* c) { c->palette = 2; }); }},
    {"reserved", [] { return WithConfig([](Config* c) { c->reserved[3] = 1; }); }},
    {"rows", [] { return WithConfig([](Config* c) { c->rows[0] = 17; }); }},
    {"bytes", [] { return WithConfig([](Config* c) { c->row_bytes[1] = 68; }); }},
    {"half", [] { return WithConfig([](Config* c) { c->rows[5] = 3; }); }},
    {"ninth", [] { return WithConfig([](Config* c) { c->Set(8, 1, 4); }); }},
    {"unused", [] { return WithConfig([](Config* c) { c->Set(2, 0, 0); }); }},
    {"left", [] { return WithConfig([](Config* c) { c->Set(1, 3, 8); }); }},
    {"right", [] { return WithConfig([](Config* c) { c->Set(2, 2, 12); }); }},
    {"pairs", [] { return WithConfig([](Config* c) { c->Set(2, 3, 8); }); }},
    {"same",
     [] {
       Config(1, 1, 1).Load();
       asm volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1");  // no assembler takes tmm1 twice
       return true;
     }},
    {"released",
     [] {
       Config(1, 1, 1).Load();
       Release();
       Zero();
       return true;
     }},
    {"thread",
     [] {
       Config(1, 1, 1).Load();
       pthread_t other;
       auto run = [](void*) -> void* {
         Zero();
         return nullptr;
       };
       pthread_create(&other, nullptr, run, nullptr);
       pthread_join(other, nullptr);
       return true;
     }},
    {"illegal",
     [] {
       asm volatile("ud2");
       return true;
     }},
};

}  // namespace

int main(int argc, char** argv) {
  auto found = kCases.find(argc == 2 ? argv[1] : "");
  if (found == kCases.end()) return 2;
  amx_emulator_install();
  return found->second() ? 0 : 1;
}
