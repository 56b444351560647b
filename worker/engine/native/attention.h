// Attention of many query rows over a prefix that they share and a suffix of their own, as one
// softmax, in float32.
//
// Query rows are vector lanes: a tile is up to kTileWidth rows (token x head of one KV head), its
// queries stand as [D][kTileWidth], and keys and values are read as they lie, one broadcast
// element at a time. So nothing is transposed per key, and maximum and sum run down the lanes.
//
// Keys come in blocks of kBlock positions. A block yields a partial result (maximum, sum, values);
// partials are folded in the order of the positions, prefix first. A row's numbers are thus the
// same whatever rows share its tile and whichever threads computed its blocks.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include <c10/util/Exception.h>

#include "simd.h"
#include "threads.h"

namespace prefillq {

constexpr int kBlock = 128;
constexpr int kPadding = 8;  // key pointers past a block's end that a register tile may read
constexpr float kLowest = std::numeric_limits<float>::lowest();

struct Prefix {
  const float* keys;    // [kv_heads, length, dim]
  const float* values;
  int64_t length;
  int64_t first, last;  // its tokens
};

struct Pool {
  const float* keys;  // [blocks, kv_heads, block_size, dim]
  const float* values;
  int64_t blocks, block_size;
};

struct Span {
  int32_t a, b, c;  // positions [0, a) and [b, c) are seen
  int32_t end() const { return std::max(a, b < c ? c : 0); }
  bool sees(int32_t p) const { return p < a || (p >= b && p < c); }
};

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

// Calls f with the number of vectors that hold so many lanes.
template <typename F>
inline void with_vecs(int lanes, F f) {
  const int vecs = (lanes + kLanes - 1) / kLanes;
  if (vecs == 1) return f(std::integral_constant<int, 1>{});
  if (vecs == 2) return f(std::integral_constant<int, 2>{});
  f(std::integral_constant<int, 3>{});
}

struct Attention {
  const float* qkv;
  int64_t qkv_stride;
  const Prefix* prefixes;
  int64_t groups;
  Pool pool;
  const int32_t* tables;
  int64_t table_width;
  const int32_t* row;
  const Span* spans;
  float scale;
  int64_t heads, kv_heads, dim;
  float* out;

  void run() const;

 private:
  // One block of keys for some lanes of a tile: a prefix block for all of them, or a suffix block
  // for neighbouring lanes whose tokens have the same table row.
  struct Step {
    int32_t lane, lanes;
    int32_t block;
    int32_t end;  // positions that any of the lanes sees; -1: the prefix
    bool prefix() const { return end < 0; }
    // The first of the whole vectors that hold the lanes, within the tile.
    int window() const { return std::min<int>(lane, kTileWidth - width()); }
    int width() const { return (lanes + kLanes - 1) / kLanes * kLanes; }
  };
  struct Tile {
    int64_t group;
    int64_t first;  // row: token * (heads / kv_heads) + head within the KV head
    int lanes;
    size_t begin, end;  // its steps
    int64_t cost;
  };
  struct Task {
    const Tile* tile;
    int64_t kv_head;
    size_t begin, end;  // steps
    int64_t cost;
    size_t split;  // which of the tiles that several tasks share; kWhole: none
  };
  struct Split {
    int64_t tasks;
    size_t slot;  // the partial of its first step
  };
  static constexpr size_t kWhole = -1;

  struct Space {
    float *queries, *scores;
    Partial state, partial;
    int32_t *own, *a, *b, *c;
    Keys blocks[2];
    Keys *keys = &blocks[0], *coming = &blocks[1];
    std::vector<float> floats;
    std::vector<int32_t> ints;
    explicit Space(int64_t dim);
  };

  int64_t share() const { return heads / kv_heads; }
  int64_t token(const Tile& t, int lane) const { return (t.first + lane) / share(); }
  int64_t cost(const Step& step) const;
  void add_steps(const Tile& tile, std::vector<Step>& steps) const;
  void load_tile(const Task& task, Space& space) const;
  void find_keys(const Task& task, const Step& step, Keys& keys) const;
  void prefix_keys(const Task& task, const Step& step, Keys& keys) const;
  void suffix_keys(const Task& task, const Step& step, Keys& keys) const;
  void compute(const Step& step, Space& space, const Partial& to) const;
  void fold_step(const Step& step, Space& space, const Partial& later) const;
  void write(const Task& task, Space& space) const;
};

inline Attention::Space::Space(int64_t dim)
    : floats((3 * dim + 4 + kBlock + kPadding) * kTileWidth + 16), ints(4 * kTileWidth) {
  float* p = aligned(floats.data());
  queries = p;
  p += dim * kTileWidth;
  scores = p;
  p += (kBlock + kPadding) * kTileWidth;
  state = Partial::at(p);
  partial = Partial::at(p + Partial::size(dim));
  own = ints.data();
  a = own + kTileWidth;
  b = a + kTileWidth;
  c = b + kTileWidth;
}

inline int64_t Attention::cost(const Step& step) const {
  return (step.prefix() ? kBlock : std::min(kBlock, step.end - step.block * kBlock)) *
         step.width();
}

inline void Attention::add_steps(const Tile& tile, std::vector<Step>& steps) const {
  const int32_t length = static_cast<int32_t>(prefixes[tile.group].length);
  for (int32_t b = 0; b * kBlock < length; ++b) steps.push_back({0, tile.lanes, b, -1});
  for (int lane = 0; lane < tile.lanes;) {
    const int32_t mine = row[token(tile, lane)];
    Step step{lane, 0, 0, 0};
    for (; lane < tile.lanes && row[token(tile, lane)] == mine; ++lane, ++step.lanes) {
      step.end = std::max(step.end, spans[token(tile, lane)].end());
    }
    for (; step.block * kBlock < step.end; ++step.block) steps.push_back(step);
  }
}

inline void Attention::load_tile(const Task& task, Space& space) const {
  const Tile& tile = *task.tile;
  std::fill_n(space.queries, dim * kTileWidth, 0.0f);
  for (int lane = 0; lane < tile.lanes; ++lane) {
    const int64_t t = token(tile, lane), head = (tile.first + lane) % share();
    const float* q = qkv + t * qkv_stride + (task.kv_head * share() + head) * dim;
    for (int64_t d = 0; d < dim; ++d) {
      space.queries[d * kTileWidth + lane] = q[d] * (scale * kLog2E);
    }
    space.a[lane] = spans[t].a;
    space.b[lane] = spans[t].b;
    space.c[lane] = spans[t].c;
  }
}

inline void Attention::find_keys(const Task& task, const Step& step, Keys& keys) const {
  keys.clear();
  step.prefix() ? prefix_keys(task, step, keys) : suffix_keys(task, step, keys);
  keys.pad();
}

inline void Attention::prefix_keys(const Task& task, const Step& step, Keys& keys) const {
  const Prefix& prefix = prefixes[task.tile->group];
  const int64_t from = step.block * kBlock;
  const int64_t to = std::min<int64_t>(from + kBlock, prefix.length);
  for (int64_t p = from; p < to; ++p) {
    const int64_t at = (task.kv_head * prefix.length + p) * dim;
    keys.add(prefix.keys + at, prefix.values + at, static_cast<int32_t>(p));
  }
}

inline void Attention::suffix_keys(const Task& task, const Step& step, Keys& keys) const {
  const int64_t first = token(*task.tile, step.lane);
  const int64_t last = token(*task.tile, step.lane + step.lanes - 1);
  const int32_t from = step.block * kBlock, to = std::min(from + kBlock, step.end);
  const int32_t* table = tables + row[first] * table_width;
  for (int32_t p = from; p < to; ++p) {
    int64_t seen = 0;
    for (int64_t t = first; t <= last; ++t) seen += spans[t].sees(p);
    if (seen <= last - first) keys.masked = true;
    if (seen == 0) continue;
    const int64_t id = table[p / pool.block_size];
    TORCH_CHECK(id >= 0 && id < pool.blocks, "shared_attention: block id ", id,
                " in tables; expected: 0 to ", pool.blocks - 1);
    const int64_t at =
        ((id * kv_heads + task.kv_head) * pool.block_size + p % pool.block_size) * dim;
    keys.add(pool.keys + at, pool.values + at, p);
  }
}

// The partial of the step's keys, into its lanes of `to`.
inline void Attention::compute(const Step& step, Space& space, const Partial& to) const {
  const Keys& keys = *space.keys;
  const int at = step.window();
  const Partial part = to.shifted(at);
  with_vecs(step.lanes, [&](auto vecs) {
    constexpr int kVecs = vecs;
    score_keys<kVecs>(space.queries + at, keys, *space.coming, dim, space.scores);
    if (keys.masked) {
      hide<kVecs>(space.scores, keys, space.a + at, space.b + at, space.c + at);
    }
    soften<kVecs>(space.scores, keys.count, part);
    weigh_values<kVecs>(space.scores, keys, *space.coming, dim, part.values);
  });
}

inline void Attention::fold_step(const Step& step, Space& space, const Partial& later) const {
  const int at = step.window();
  std::fill_n(space.own, kTileWidth, 0);
  std::fill_n(space.own + step.lane, step.lanes, 1);
  with_vecs(step.lanes, [&](auto vecs) {
    fold<vecs>(space.state.shifted(at), later.shifted(at), space.own + at, dim);
  });
}

inline void Attention::write(const Task& task, Space& space) const {
  const Tile& tile = *task.tile;
  for (int lane = 0; lane < tile.lanes; ++lane) {
    const int64_t head = task.kv_head * share() + (tile.first + lane) % share();
    float* to = out + (token(tile, lane) * heads + head) * dim;
    const float total = space.state.total[lane];
    for (int64_t d = 0; d < dim; ++d) to[d] = space.state.values[d * kTileWidth + lane] / total;
  }
}

inline void Attention::run() const {
  std::vector<Tile> tiles;
  std::vector<Step> steps;
  int64_t work = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t last = prefixes[g].last * share();
    for (int64_t r = prefixes[g].first * share(); r < last; r += kTileWidth) {
      const int lanes = static_cast<int>(std::min<int64_t>(kTileWidth, last - r));
      Tile tile{g, r, lanes, steps.size(), 0, 0};
      add_steps(tile, steps);
      tile.end = steps.size();
      for (size_t s = tile.begin; s < tile.end; ++s) tile.cost += cost(steps[s]);
      tiles.push_back(tile);
      work += tile.cost * kv_heads;
    }
  }

  // A few tasks per thread even the load; a tile is split only where there are too few of them.
  const int64_t target = work / (4 * at::get_num_threads()) + 1;
  std::vector<Task> tasks;
  std::vector<Split> splits;
  size_t slots = 0;
  for (const Tile& tile : tiles) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      if (tile.cost <= target) {
        tasks.push_back({&tile, h, tile.begin, tile.end, tile.cost, kWhole});
        continue;
      }
      splits.push_back({0, slots});
      slots += tile.end - tile.begin;
      for (size_t s = tile.begin; s < tile.end; ++splits.back().tasks) {
        Task task{&tile, h, s, s, 0, splits.size() - 1};
        while (task.end < tile.end && task.cost < target) task.cost += cost(steps[task.end++]);
        s = task.end;
        tasks.push_back(task);
      }
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& x, const Task& y) { return x.cost > y.cost; });
  std::vector<float> partials(slots * Partial::size(dim) + 16);
  const auto slot = [&](const Task& task, size_t step) {
    const size_t i = splits[task.split].slot + step - task.tile->begin;
    return Partial::at(aligned(partials.data()) + i * Partial::size(dim));
  };
  std::vector<std::atomic<int64_t>> done(splits.size());
  std::atomic<size_t> next{0};

  on_all_threads(work * dim, [&] {
    const auto space = std::make_unique<Space>(dim);
    size_t i = next++;
    if (i < tasks.size()) find_keys(tasks[i], steps[tasks[i].begin], *space->coming);
    while (i < tasks.size()) {
      const Task& task = tasks[i];
      const size_t following = next++;
      const bool whole = task.split == kWhole;
      load_tile(task, *space);
      if (whole) space->state.clear(dim);
      for (size_t s = task.begin; s < task.end; ++s) {
        std::swap(space->keys, space->coming);
        if (s + 1 < task.end) {
          find_keys(task, steps[s + 1], *space->coming);
        } else if (following < tasks.size()) {
          find_keys(tasks[following], steps[tasks[following].begin], *space->coming);
        } else {
          space->coming->clear();
        }
        compute(steps[s], *space, whole ? space->partial : slot(task, s));
        if (whole) fold_step(steps[s], *space, space->partial);
      }
      i = following;
      if (!whole) {
        // The last to come folds everyone's partials, in the order of their keys.
        if (done[task.split].fetch_add(1) + 1 < splits[task.split].tasks) continue;
        space->state.clear(dim);
        for (size_t s = task.tile->begin; s < task.tile->end; ++s) {
          fold_step(steps[s], *space, slot(task, s));
        }
      }
      write(task, *space);
    }
  });
}

}  // namespace prefillq
