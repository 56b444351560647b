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

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>
#include <vector>

#include "attention_block.h"
#include "threads.h"

namespace prefillq {

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
    if (kVecs == 1 && weigh_few(step.lanes, space.scores, step.lane - at, keys, *space.coming, dim,
                                part.values)) {
      return;
    }
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
  // Tiles of one KV head follow each other: they read the same keys, which stay in the cache.
  for (int64_t h = 0; h < kv_heads; ++h) {
    for (const Tile& tile : tiles) {
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
