// One block of keys against one tile of query rows: scores, weights, weighed values, and how the
// results of blocks are put together. See attention.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace prefillq {

constexpr int kBlock = 128;
constexpr int kPadding = 8;  // key pointers past a block's end that a register tile may read
constexpr float kLowest = std::numeric_limits<float>::lowest();

// The keys of one block that some lane sees, and whether some lane does not see them all.
struct Keys {
  const float* key[kBlock + kPadding];
  const float* value[kBlock + kPadding];
  int32_t position[kBlock];
  int count = 0;
  bool masked = false;

  void clear() {
    count = 0;
    masked = false;
  }
  void add(const float* k, const float* v, int32_t p) {
    key[count] = k;
    value[count] = v;
    position[count++] = p;
  }
  void pad() {
    for (int i = 0; count > 0 && i < kPadding; ++i) key[count + i] = key[count - 1];
  }
};

// Asks for some vectors of the coming block, spread over the steps of the present one: what a
// block waits for in memory is then fetched while the one before it is computed.
struct Ahead {
  const float* const* vectors;
  int left, per_step;

  Ahead(const float* const* v, int count, int64_t steps)
      : vectors(v),
        left(count),
        per_step(static_cast<int>((count + steps - 1) / std::max<int64_t>(1, steps))) {}

  void step(int64_t dim) {
    const int now = std::min(left, per_step);
    for (int i = 0; i < now; ++i)
      for (int64_t d = 0; d < dim; d += 16) __builtin_prefetch(vectors[i] + d, 0, 3);
    vectors += now;
    left -= now;
  }
};

// scores[keys][kTileWidth] = keys . queries; the count is rounded up to the register tile.
template <int Vecs>
inline void score_keys(const float* queries, const Keys& keys, const Keys& coming, int64_t dim,
                       float* scores) {
  constexpr int kKeys = kManyRegisters ? 8 : (Vecs == 3 ? 4 : Vecs == 2 ? 6 : 8);
  Ahead ahead(coming.key, coming.count, (keys.count + kKeys - 1) / kKeys);
  for (int j = 0; j < keys.count; j += kKeys) {
    ahead.step(dim);
    const float* key[kKeys];
    for (int i = 0; i < kKeys; ++i) key[i] = keys.key[j + i];
    Vec s[kKeys][Vecs] = {};
    for (int64_t d = 0; d < dim; ++d) {
      Vec q[Vecs];
      for (int v = 0; v < Vecs; ++v) pin(q[v] = load(queries + d * kTileWidth + v * kLanes));
      for (int i = 0; i < kKeys; ++i) {
        const Vec k = splat(key[i][d]);
        for (int v = 0; v < Vecs; ++v) s[i][v] += k * q[v];
      }
    }
    for (int i = 0; i < kKeys; ++i)
      for (int v = 0; v < Vecs; ++v) store(scores + (j + i) * kTileWidth + v * kLanes, s[i][v]);
  }
}

// result[dim][kTileWidth] = weights[keys][kTileWidth] x values
template <int Vecs>
inline void weigh_values(const float* weights, const Keys& keys, const Keys& coming, int64_t dim,
                         float* result) {
  constexpr int kDims = (kManyRegisters || Vecs == 1) ? 8 : 4;
  Ahead ahead(coming.value, coming.count, dim / kDims);
  for (int64_t d = 0; d < dim; d += kDims) {
    ahead.step(dim);
    Vec o[kDims][Vecs] = {};
    for (int j = 0; j < keys.count; ++j) {
      const float* value = keys.value[j] + d;
      Vec p[Vecs];
      for (int v = 0; v < Vecs; ++v) pin(p[v] = load(weights + j * kTileWidth + v * kLanes));
      for (int i = 0; i < kDims; ++i) {
        const Vec x = splat(value[i]);
        for (int v = 0; v < Vecs; ++v) o[i][v] += x * p[v];
      }
    }
    for (int i = 0; i < kDims; ++i)
      for (int v = 0; v < Vecs; ++v) store(result + (d + i) * kTileWidth + v * kLanes, o[i][v]);
  }
}

// The same for a few lanes, with vectors along the head instead of the lanes: each value vector is
// then read once and in one go. Every sum still runs over the keys in their order.
template <int Lanes>
inline void weigh_lanes(const float* weights, const Keys& keys, const Keys& coming, int64_t dim,
                        float* result) {
  constexpr int kDimVecs = 12 / Lanes;
  constexpr int64_t kDims = kDimVecs * kLanes;
  Ahead ahead(coming.value, coming.count, keys.count);
  for (int64_t d = 0; d < dim; d += kDims) {
    const int vecs = static_cast<int>(std::min<int64_t>(kDimVecs, (dim - d) / kLanes));
    Vec o[Lanes][kDimVecs] = {};
    const auto sum_keys = [&](auto count) {
      for (int j = 0; j < keys.count; ++j) {
        if (d == 0) ahead.step(dim);
        const float* value = keys.value[j] + d;
        Vec x[kDimVecs];
        for (int v = 0; v < count; ++v) x[v] = load(value + v * kLanes);
        for (int l = 0; l < Lanes; ++l) {
          const Vec p = splat(weights[j * kTileWidth + l]);
          for (int v = 0; v < count; ++v) o[l][v] += x[v] * p;
        }
      }
    };
    if (vecs == kDimVecs) {
      sum_keys(std::integral_constant<int, kDimVecs>{});
    } else {
      sum_keys(vecs);
    }
    for (int l = 0; l < Lanes; ++l)
      for (int v = 0; v < vecs; ++v)
        for (int i = 0; i < kLanes; ++i)
          result[(d + v * kLanes + i) * kTileWidth + l] = o[l][v][i];
  }
}

// False, and nothing is done, where there are too many lanes for it to pay.
inline bool weigh_few(int lanes, const float* weights, int first, const Keys& keys,
                      const Keys& coming, int64_t dim, float* result) {
  if (dim % kLanes != 0) return false;
  weights += first;
  result += first;
  switch (lanes) {
    case 1: weigh_lanes<1>(weights, keys, coming, dim, result); return true;
    case 2: weigh_lanes<2>(weights, keys, coming, dim, result); return true;
    case 3: weigh_lanes<3>(weights, keys, coming, dim, result); return true;
    case 4: weigh_lanes<4>(weights, keys, coming, dim, result); return true;
    default: return false;
  }
}

// Maximum, sum and unnormalized values of some keys, for the rows of a tile.
struct Partial {
  float* maximum;  // [kTileWidth]
  float* total;    // [kTileWidth]
  float* values;   // [dim][kTileWidth]

  static int64_t size(int64_t dim) { return (dim + 2) * kTileWidth; }
  static Partial at(float* p) { return {p, p + kTileWidth, p + 2 * kTileWidth}; }
  Partial shifted(int lane) const { return {maximum + lane, total + lane, values + lane}; }

  void clear(int64_t dim) const {
    std::fill_n(maximum, kTileWidth, kLowest);
    std::fill_n(total, kTileWidth, 0.0f);
    std::fill_n(values, dim * kTileWidth, 0.0f);
  }
};

// Scores become weights 2^(score - maximum).
template <int Vecs>
inline void soften(float* scores, int count, const Partial& to) {
  for (int v = 0; v < Vecs; ++v) {
    Vec top = splat(kLowest);
    float* s = scores + v * kLanes;
    for (int j = 0; j < count; ++j) top = max(load(s + j * kTileWidth), top);
    Vec total{};
    for (int j = 0; j < count; ++j) {
      const Vec weight = exp2_nonpositive(load(s + j * kTileWidth) - top);
      store(s + j * kTileWidth, weight);
      total += weight;
    }
    store(to.maximum + v * kLanes, top);
    store(to.total + v * kLanes, total);
  }
}

// kept * keep + taken * take. The second product is rounded by itself wherever this is compiled in:
// left to itself the compiler fuses now the one, now the other, and rows in tiles of different
// widths get different last bits.
PREFILLQ_INLINE Vec blend(Vec kept, Vec keep, Vec taken, Vec take) {
  Vec added = taken * take;
  pin(added);
  return kept * keep + added;
}

// Adds a later partial to the state, in the lanes that own it; others keep theirs bit by bit, so
// that a NaN of one row cannot reach its neighbour.
template <int Vecs>
inline void fold(const Partial& state, const Partial& later, const int32_t* own, int64_t dim) {
  for (int v = 0; v < Vecs; ++v) {
    const int at = v * kLanes;
    const Ints mine = load(own + at) != 0;
    const Vec old_top = load(state.maximum + at), new_top = load(later.maximum + at);
    const Vec top = max(old_top, new_top);
    const Vec keep = exp2_nonpositive(old_top - top), take = exp2_nonpositive(new_top - top);
    const Vec total = load(state.total + at);
    store(state.maximum + at, mine ? top : old_top);
    store(state.total + at, mine ? blend(total, keep, load(later.total + at), take) : total);
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t i = d * kTileWidth + at;
      const Vec value = load(state.values + i);
      store(state.values + i, mine ? blend(value, keep, load(later.values + i), take) : value);
    }
  }
}

template <int Vecs>
inline void hide(float* scores, const Keys& keys, const int32_t* a, const int32_t* b,
                 const int32_t* c) {
  const Vec hidden = splat(-std::numeric_limits<float>::infinity());
  for (int v = 0; v < Vecs; ++v) {
    const int at = v * kLanes;
    const Ints va = load(a + at), vb = load(b + at), vc = load(c + at);
    for (int j = 0; j < keys.count; ++j) {
      const Ints p = keys.position[j] - Ints{};
      float* s = scores + j * kTileWidth + at;
      store(s, ((p < va) | ((p >= vb) & (p < vc))) != 0 ? load(s) : hidden);
    }
  }
}

}  // namespace prefillq
