// One worker on each of PyTorch's threads; the caller hands out work by an atomic counter, so that
// a core which others also use does not hold the rest up.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

namespace prefillq {

constexpr int64_t kWorthThreads = 1 << 15;  // multiply-adds; below, waking a thread costs more

template <typename Worker>
inline void on_all_threads(int64_t work, const Worker& worker) {
  if (work < kWorthThreads) return worker();
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) { worker(); });
}

// The first 64-byte border in a buffer that has 16 floats to spare.
inline float* aligned(float* p) {
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(p) + 63) & ~uintptr_t{63});
}

}  // namespace prefillq
