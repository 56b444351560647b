// y = x W^T + bias + residual for float32, from weights packed into panels.
//
// A panel holds kTileWidth output columns as [in][kTileWidth]. A thread walks one panel in blocks
// of kDepth inputs that stay in its first-level cache while all rows pass over them, and meanwhile
// prefetches the block that follows: memory and arithmetic overlap, which matters because with few
// rows both take about equally long. Every output is one accumulator that runs over the inputs in
// their order, whatever the number of rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "simd.h"
#include "threads.h"

namespace prefillq {

constexpr int64_t kDepth = 192;
constexpr int64_t kUnroll = 8;

inline int64_t panels_of(int64_t out) { return (out + kTileWidth - 1) / kTileWidth; }

inline void pack_panels(const float* weight, int64_t out, int64_t in, float* packed) {
  at::parallel_for(0, panels_of(out), 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      float* to = packed + panel * in * kTileWidth;
      for (int64_t column = 0; column < kTileWidth; ++column) {
        const int64_t o = panel * kTileWidth + column;
        for (int64_t k = 0; k < in; ++k) {
          to[k * kTileWidth + column] = o < out ? weight[o * in + k] : 0.0f;
        }
      }
    }
  });
}

struct Prefetch {
  const char* at;
  const char* end;
  int lines;  // cache lines to ask for in kUnroll steps
};

// acc[rows][kTileWidth] (+)= x[rows][depth] * panel[depth][kTileWidth]
template <int Rows>
inline void multiply_tile(const float* x, int64_t x_stride, const float* panel, int64_t depth,
                          float* acc, bool first, Prefetch& prefetch) {
  Vec c[Rows][kTileVecs];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kTileVecs; ++v)
      c[r][v] = first ? Vec{} : load(acc + r * kTileWidth + v * kLanes);
  const auto step = [&](const float* b, int64_t k) {
    Vec w[kTileVecs];
    for (int v = 0; v < kTileVecs; ++v) pin(w[v] = load(b + v * kLanes));
    for (int r = 0; r < Rows; ++r) {
      const Vec a = splat(x[r * x_stride + k]);
      for (int v = 0; v < kTileVecs; ++v) c[r][v] += a * w[v];
    }
  };
  const char* ahead = prefetch.at;
  int64_t k = 0;
  for (; k + kUnroll <= depth; k += kUnroll) {
    for (int line = 0; line < prefetch.lines; ++line, ahead += 64) __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u) step(panel + u * kTileWidth, k + u);
    panel += kUnroll * kTileWidth;
  }
  for (; k < depth; ++k, panel += kTileWidth) step(panel, k);
  prefetch.at = ahead;
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kTileVecs; ++v) store(acc + r * kTileWidth + v * kLanes, c[r][v]);
}

template <int Rows = kTileRows>
inline void multiply_rows(int64_t rows, const float* x, int64_t x_stride, const float* panel,
                          int64_t depth, float* acc, bool first, Prefetch& prefetch) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      return multiply_rows<Rows - 1>(rows, x, x_stride, panel, depth, acc, first, prefetch);
    }
  }
  multiply_tile<Rows>(x, x_stride, panel, depth, acc, first, prefetch);
}

struct Linear {
  const float* x;
  const float* packed;
  const float* bias;      // or null
  const float* residual;  // or null
  float* y;
  int64_t rows, in, out;

  void run() const {
    // Rows whose inputs fit in half of a 512 KiB second-level cache.
    const int64_t fit = (256 * 1024 / 4 / in) / kTileRows * kTileRows;
    const int64_t block = std::min<int64_t>(rows, std::clamp<int64_t>(fit, 4 * kTileRows, 128));
    const int64_t panels = panels_of(out);
    const int64_t tasks = (rows + block - 1) / block * panels;
    std::atomic<int64_t> next{0};
    on_all_threads(rows * in * out, [&] {
      std::vector<float> space(block * kTileWidth + 16);
      float* acc = aligned(space.data());
      int64_t task = next++;
      while (task < tasks) {
        const int64_t following = next++;
        const float* ahead =
            following < tasks ? packed + following % panels * in * kTileWidth : nullptr;
        const int64_t begin = task / panels * block;
        one_panel(task % panels, begin, std::min(block, rows - begin), acc, ahead);
        task = following;
      }
    });
  }

 private:
  void one_panel(int64_t panel, int64_t begin, int64_t count, float* acc,
                 const float* ahead) const {
    const float* weights = packed + panel * in * kTileWidth;
    const int64_t passes = (count + kTileRows - 1) / kTileRows;
    for (int64_t k = 0; k < in || k == 0; k += kDepth) {
      const int64_t depth = std::min(kDepth, in - k);
      const bool last = k + depth >= in;
      const float* coming = last ? ahead : weights + (k + depth) * kTileWidth;
      const int64_t coming_depth = last ? std::min(kDepth, in) : std::min(kDepth, in - k - depth);
      const int64_t bytes = coming == nullptr ? 0 : coming_depth * kTileWidth * sizeof(float);
      const int64_t slots = std::max<int64_t>(1, depth / kUnroll) * passes;
      const int lines = static_cast<int>((bytes / 64 + slots - 1) / slots);
      const char* start = reinterpret_cast<const char*>(coming);
      Prefetch prefetch{start, start + bytes, lines};
      for (int64_t r = 0; r < count; r += kTileRows) {
        if (prefetch.at >= prefetch.end) prefetch.lines = 0;
        multiply_rows(count - r, x + (begin + r) * in + k, in, weights + k * kTileWidth, depth,
                      acc + r * kTileWidth, k == 0, prefetch);
      }
    }
    finish(panel, begin, count, acc);
  }

  void finish(int64_t panel, int64_t begin, int64_t count, const float* acc) const {
    const int64_t column = panel * kTileWidth;
    const int64_t width = std::min<int64_t>(kTileWidth, out - column);
    for (int64_t r = 0; r < count; ++r) {
      float* to = y + (begin + r) * out + column;
      const float* from = acc + r * kTileWidth;
      const float* add = residual == nullptr ? nullptr : residual + (begin + r) * out + column;
      const float* b = bias == nullptr ? nullptr : bias + column;
      for (int64_t c = 0; c < width; ++c) {
        float value = from[c];
        if (b != nullptr) value += b[c];
        if (add != nullptr) value += add[c];
        to[c] = value;
      }
    }
  }
};

}  // namespace prefillq
