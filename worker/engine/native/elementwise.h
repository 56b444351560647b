// The steps between the matrix products, one pass over memory each, float32.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"
#include "threads.h"

namespace prefillq {

// Rows per thread, so that a thread gets some 32 thousand numbers.
inline int64_t grain(int64_t width) {
  return std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, width));
}

inline void rms_norm_rows(const float* x, const float* weight, float eps, int64_t rows,
                          int64_t width, float* y) {
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = x + r * width;
      float* to = y + r * width;
      Vec squares{};
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        const Vec v = load(from + i);
        squares += v * v;
      }
      float total = sum(squares);
      for (; i < width; ++i) total += from[i] * from[i];
      const float factor = 1.0f / std::sqrt(total / width + eps);
      for (i = 0; i < width; ++i) to[i] = weight[i] * (from[i] * factor);
    }
  });
}

inline Vec silu(Vec x) {
  const Vec size = x < 0.0f ? x : -x;  // -|x|, NaN for NaN
  const Vec e = exp2_nonpositive(size * kLog2E);
  return x * ((x < 0.0f ? e : splat(1.0f)) / (1.0f + e));
}

inline void silu_mul_rows(const float* gate_up, int64_t rows, int64_t width, float* y) {
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = gate_up + r * 2 * width;
      const float* up = gate + width;
      float* to = y + r * width;
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) store(to + i, silu(load(gate + i)) * load(up + i));
      for (; i < width; ++i) to[i] = silu(splat(gate[i]))[0] * up[i];
    }
  });
}

struct RopeStore {
  float* qkv;
  const float* cos;
  const float* sin;
  float* pool_keys;  // [blocks, kv_heads, block_size, dim]
  float* pool_values;
  const int64_t* dest;
  int64_t rows, heads, kv_heads, block_size, dim;

  void run() const {
    const int64_t width = (heads + 2 * kv_heads) * dim;
    at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* mine = qkv + r * width;
        for (int64_t h = 0; h < heads + kv_heads; ++h) {
          rotate(mine + h * dim, cos + r * dim, sin + r * dim);
        }
        const int64_t block = dest[r] / block_size, offset = dest[r] % block_size;
        for (int64_t h = 0; h < kv_heads; ++h) {
          const int64_t to = ((block * kv_heads + h) * block_size + offset) * dim;
          std::memcpy(pool_keys + to, mine + (heads + h) * dim, dim * sizeof(float));
          std::memcpy(pool_values + to, mine + (heads + kv_heads + h) * dim, dim * sizeof(float));
        }
      }
    });
  }

 private:
  void rotate(float* x, const float* c, const float* s) const {
    const int64_t half = dim / 2;
    for (int64_t d = 0; d < half; ++d) {
      const float low = x[d], high = x[d + half];
      x[d] = low * c[d] - high * s[d];
      x[d + half] = high * c[d + half] + low * s[d + half];
    }
  }
};

}  // namespace prefillq
