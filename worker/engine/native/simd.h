// Vectors of float through GCC's and Clang's vector extensions, so that one source serves
// AVX2, AVX-512 and NEON.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#define PREFILLQ_INLINE inline __attribute__((always_inline))

namespace prefillq {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr bool kManyRegisters = true;  // 32 of them; else 16
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr bool kManyRegisters = false;
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr bool kManyRegisters = true;
#else
#error "prefillq kernels need AVX2, AVX-512 or 64-bit ARM"
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t Bits __attribute__((vector_size(kLanes * sizeof(uint32_t))));

// Register tile of every matrix product here: kTileRows x (kTileVecs * kLanes) accumulators.
constexpr int kTileVecs = 3;
constexpr int kTileWidth = kTileVecs * kLanes;
constexpr int kTileRows = kManyRegisters ? 8 : 4;

PREFILLQ_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

PREFILLQ_INLINE Ints load(const int32_t* p) {
  Ints v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

PREFILLQ_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// Subtracting zero, unlike adding it, changes no value, so the compiler leaves a plain broadcast.
PREFILLQ_INLINE Vec splat(float x) { return x - Vec{}; }

// Keeps a loaded vector in a register. Without it GCC reloads the vector in every product that uses
// it, and the load ports, not the multipliers, set the pace.
PREFILLQ_INLINE void pin(Vec& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#else
  asm("" : "+w"(v));
#endif
}

PREFILLQ_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

PREFILLQ_INLINE float sum(Vec v) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

// 2^t for t <= 0, 0 below -126, NaN for NaN. Relative error under 2e-7: t is split into an integer
// and a rest in [-1/2, 1/2], whose power is a polynomial through the Chebyshev nodes.
PREFILLQ_INLINE Vec exp2_nonpositive(Vec t) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = t + magic;
  const Vec f = t - (shifted - magic);
  Vec p = splat(0.00015461444854736328f);
  p = p * f + 0.0013400427997112274f;
  p = p * f + 0.009618056938052177f;
  p = p * f + 0.05550327152013779f;
  p = p * f + 0.24022650718688965f;
  p = p * f + 0.6931471824645996f;
  p = p * f + 1.0f;
  const Vec power = (Vec)(((Bits)shifted << 23) + 0x3f800000u);
  return t < -126.0f ? Vec{} : p * power;
}

constexpr float kLog2E = 1.44269504088896340736f;

}  // namespace prefillq
