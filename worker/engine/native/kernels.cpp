// Checks what comes from Python and hands plain pointers to the kernels.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"

namespace prefillq {
namespace {

using at::Tensor;

void check(const Tensor& t, const char* name, int64_t dims, at::ScalarType type = at::kFloat) {
  TORCH_CHECK(t.device().is_cpu() && t.scalar_type() == type && t.is_contiguous() &&
                  t.dim() == dims,
              name, ": given ", t.scalar_type(), " ", t.sizes(), " on ", t.device(),
              t.is_contiguous() ? "" : " (not contiguous)", "; expected: contiguous ", type,
              " with ", dims, " dimensions on the CPU");
}

void check_size(const Tensor& t, const char* name, at::IntArrayRef expected) {
  TORCH_CHECK(t.sizes() == expected, name, ": given ", t.sizes(), "; expected: ", expected);
}

void check_heads(int64_t heads, int64_t kv_heads, int64_t dim) {
  TORCH_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "heads: given ", heads, " over ",
              kv_heads, " KV heads; expected: a positive multiple");
  TORCH_CHECK(dim > 0 && dim % 8 == 0, "head size: given ", dim, "; expected: a multiple of 8");
}

void check_pool(const Tensor& keys, const Tensor& values, int64_t kv_heads, int64_t dim) {
  check(keys, "pool_k", 4);
  check(values, "pool_v", 4);
  TORCH_CHECK(keys.size(2) > 0, "pool_k: blocks hold no positions");
  check_size(keys, "pool_k", {keys.size(0), kv_heads, keys.size(2), dim});
  check_size(values, "pool_v", keys.sizes());
}

int64_t head_size(const Tensor& qkv, int64_t heads, int64_t kv_heads) {
  check(qkv, "qkv", 2);
  TORCH_CHECK(heads > 0 && kv_heads > 0 && qkv.size(1) % (heads + 2 * kv_heads) == 0, "qkv: given ",
              qkv.sizes(), "; expected: [tokens, (", heads, " + 2 * ", kv_heads, ") * head size]");
  const int64_t dim = qkv.size(1) / (heads + 2 * kv_heads);
  check_heads(heads, kv_heads, dim);
  return dim;
}

Tensor pack_linear(const Tensor& weight) {
  check(weight, "weight", 2);
  const int64_t out = weight.size(0), in = weight.size(1);
  TORCH_CHECK(out > 0 && in > 0, "weight: given ", weight.sizes(), "; expected: no empty side");
  Tensor packed = at::empty({panels_of(out) * in * kTileWidth}, weight.options());
  pack_panels(weight.data_ptr<float>(), out, in, packed.data_ptr<float>());
  return packed;
}

Tensor linear(const Tensor& x, const Tensor& packed, int64_t out, const std::optional<Tensor>& bias,
              const std::optional<Tensor>& residual) {
  check(x, "x", 2);
  check(packed, "packed", 1);
  const int64_t rows = x.size(0), in = x.size(1);
  TORCH_CHECK(out > 0 && in > 0, "linear: no inputs or no outputs");
  check_size(packed, "packed", {panels_of(out) * in * kTileWidth});
  if (bias) {
    check(*bias, "bias", 1);
    check_size(*bias, "bias", {out});
  }
  if (residual) {
    check(*residual, "residual", 2);
    check_size(*residual, "residual", {rows, out});
  }
  Tensor y = at::empty({rows, out}, x.options());
  if (rows > 0) {
    Linear{x.data_ptr<float>(), packed.data_ptr<float>(), bias ? bias->data_ptr<float>() : nullptr,
           residual ? residual->data_ptr<float>() : nullptr, y.data_ptr<float>(), rows, in, out}
        .run();
  }
  return y;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check(x, "x", 2);
  check(weight, "weight", 1);
  check_size(weight, "weight", {x.size(1)});
  Tensor y = at::empty(x.sizes(), x.options());
  rms_norm_rows(x.data_ptr<float>(), weight.data_ptr<float>(), static_cast<float>(eps), x.size(0),
                x.size(1), y.data_ptr<float>());
  return y;
}

Tensor silu_mul(const Tensor& gate_up) {
  check(gate_up, "gate_up", 2);
  TORCH_CHECK(gate_up.size(1) % 2 == 0, "gate_up: given ", gate_up.sizes(),
              "; expected: two halves of one width");
  const int64_t width = gate_up.size(1) / 2;
  Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
  silu_mul_rows(gate_up.data_ptr<float>(), gate_up.size(0), width, y.data_ptr<float>());
  return y;
}

void rope_store_(Tensor qkv, const Tensor& cos, const Tensor& sin, Tensor pool_k, Tensor pool_v,
                 const Tensor& dest, int64_t heads, int64_t kv_heads) {
  const int64_t dim = head_size(qkv, heads, kv_heads), rows = qkv.size(0);
  check(cos, "cos", 2);
  check(sin, "sin", 2);
  check_size(cos, "cos", {rows, dim});
  check_size(sin, "sin", {rows, dim});
  check_pool(pool_k, pool_v, kv_heads, dim);
  check(dest, "dest", 1, at::kLong);
  check_size(dest, "dest", {rows});
  const int64_t places = pool_k.size(0) * pool_k.size(2);
  const int64_t* to = dest.data_ptr<int64_t>();
  for (int64_t r = 0; r < rows; ++r) {
    TORCH_CHECK(to[r] >= 0 && to[r] < places, "dest: given ", to[r], " for token ", r,
                "; expected: 0 to ", places - 1);
  }
  RopeStore{qkv.data_ptr<float>(), cos.data_ptr<float>(), sin.data_ptr<float>(),
            pool_k.data_ptr<float>(), pool_v.data_ptr<float>(), to, rows, heads, kv_heads,
            pool_k.size(2), dim}
      .run();
}

Tensor shared_attention(const Tensor& qkv, const std::vector<Tensor>& prefix_k,
                        const std::vector<Tensor>& prefix_v, const Tensor& group_start,
                        const Tensor& pool_k, const Tensor& pool_v, const Tensor& tables,
                        const Tensor& row, const Tensor& spans, double scale, int64_t heads,
                        int64_t kv_heads) {
  const int64_t dim = head_size(qkv, heads, kv_heads), tokens = qkv.size(0);
  const int64_t groups = static_cast<int64_t>(prefix_k.size());
  TORCH_CHECK(prefix_v.size() == prefix_k.size(), "prefix_v: given ", prefix_v.size(),
              " prefixes; expected: ", groups);
  check(group_start, "group_start", 1, at::kLong);
  check_size(group_start, "group_start", {groups + 1});
  check_pool(pool_k, pool_v, kv_heads, dim);
  check(tables, "tables", 2, at::kInt);
  check(row, "row", 1, at::kInt);
  check_size(row, "row", {tokens});
  check(spans, "spans", 2, at::kInt);
  check_size(spans, "spans", {tokens, 3});

  const int64_t* start = group_start.data_ptr<int64_t>();
  TORCH_CHECK(start[0] == 0 && start[groups] == tokens, "group_start: given ", start[0], " to ",
              start[groups], "; expected: 0 to ", tokens);
  const int32_t* rows = row.data_ptr<int32_t>();
  const Span* seen = reinterpret_cast<const Span*>(spans.data_ptr<int32_t>());
  const int64_t reach = tables.size(1) * pool_k.size(2);
  std::vector<Prefix> prefixes;
  for (int64_t g = 0; g < groups; ++g) {
    check(prefix_k[g], "prefix_k", 3);
    check(prefix_v[g], "prefix_v", 3);
    const int64_t length = prefix_k[g].size(1);
    check_size(prefix_k[g], "prefix_k", {kv_heads, length, dim});
    check_size(prefix_v[g], "prefix_v", {kv_heads, length, dim});
    TORCH_CHECK(start[g] <= start[g + 1], "group_start: falls after group ", g);
    prefixes.push_back({prefix_k[g].data_ptr<float>(), prefix_v[g].data_ptr<float>(), length,
                        start[g], start[g + 1]});
    for (int64_t t = start[g]; t < start[g + 1]; ++t) {
      const Span& s = seen[t];
      TORCH_CHECK(rows[t] >= 0 && rows[t] < tables.size(0), "row: given ", rows[t], " for token ",
                  t, "; expected: 0 to ", tables.size(0) - 1);
      TORCH_CHECK(s.a >= 0 && s.b >= 0 && s.end() <= reach, "spans: given (", s.a, ", ", s.b, ", ",
                  s.c, ") for token ", t, "; expected: within 0 to ", reach);
      TORCH_CHECK(length > 0 || s.end() > 0, "spans: token ", t, " sees no key");
    }
  }

  Tensor out = at::empty({tokens, heads * dim}, qkv.options());
  Attention{qkv.data_ptr<float>(), qkv.size(1), prefixes.data(), groups,
            {pool_k.data_ptr<float>(), pool_v.data_ptr<float>(), pool_k.size(0), pool_k.size(2)},
            tables.data_ptr<int32_t>(), tables.size(1), rows, seen, static_cast<float>(scale),
            heads, kv_heads, dim, out.data_ptr<float>()}
      .run();
  return out;
}

// Several decoder layers of the Llama family, one after the other. A call from Python for each part
// of each layer takes as long as a small batch's arithmetic.
Tensor decoder_layers(Tensor x, const Tensor& cos, const Tensor& sin,
                      const std::vector<Tensor>& weights, double eps,
                      const std::vector<Tensor>& prefix_k, const std::vector<Tensor>& prefix_v,
                      const Tensor& group_start, const std::vector<Tensor>& pool_k,
                      const std::vector<Tensor>& pool_v, const Tensor& dest, const Tensor& tables,
                      const Tensor& row, const Tensor& spans, double scale, int64_t heads,
                      int64_t kv_heads, int64_t inner) {
  constexpr size_t kParts = 7;
  check(x, "x", 2);
  check(cos, "cos", 2);
  const size_t layers = pool_k.size();
  const int64_t hidden = x.size(1), dim = cos.size(1);
  const size_t groups = layers == 0 ? 0 : prefix_k.size() / layers;
  TORCH_CHECK(weights.size() == kParts * layers && pool_v.size() == layers &&
                  prefix_k.size() == groups * layers && prefix_v.size() == prefix_k.size(),
              "decoder_layers: given ", weights.size(), " weights, ", pool_k.size(), " and ",
              pool_v.size(), " pools, ", prefix_k.size(), " and ", prefix_v.size(),
              " prefixes; expected: ", kParts, " weights and one pool a layer");
  for (size_t layer = 0; layer < layers; ++layer) {
    const Tensor* w = &weights[kParts * layer];
    const std::optional<Tensor> bias = w[2].numel() > 0 ? std::make_optional(w[2]) : std::nullopt;
    Tensor qkv = linear(rms_norm(x, w[0], eps), w[1], (heads + 2 * kv_heads) * dim, bias, {});
    rope_store_(qkv, cos, sin, pool_k[layer], pool_v[layer], dest, heads, kv_heads);
    const auto from = static_cast<std::ptrdiff_t>(layer * groups);
    const auto to = from + static_cast<std::ptrdiff_t>(groups);
    const std::vector<Tensor> keys(prefix_k.begin() + from, prefix_k.begin() + to);
    const std::vector<Tensor> values(prefix_v.begin() + from, prefix_v.begin() + to);
    const Tensor mixed = shared_attention(qkv, keys, values, group_start, pool_k[layer],
                                          pool_v[layer], tables, row, spans, scale, heads, kv_heads);
    x = linear(mixed, w[3], hidden, {}, x);
    const Tensor gate_up = linear(rms_norm(x, w[4], eps), w[5], 2 * inner, {}, {});
    x = linear(silu_mul(gate_up), w[6], hidden, {}, x);
  }
  return x;
}

}  // namespace

TORCH_LIBRARY(prefillq, m) {
  m.def("pack_linear(Tensor weight) -> Tensor");
  m.def(
      "linear(Tensor x, Tensor packed, int out, Tensor? bias=None, Tensor? residual=None)"
      " -> Tensor");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("silu_mul(Tensor gate_up) -> Tensor");
  m.def(
      "rope_store_(Tensor(a!) qkv, Tensor cos, Tensor sin, Tensor(k!) pool_k, Tensor(v!) pool_v,"
      " Tensor dest, int heads, int kv_heads) -> ()");
  m.def(
      "shared_attention(Tensor qkv, Tensor[] prefix_k, Tensor[] prefix_v, Tensor group_start,"
      " Tensor pool_k, Tensor pool_v, Tensor tables, Tensor row, Tensor spans, float scale,"
      " int heads, int kv_heads) -> Tensor");
  m.def(
      "decoder_layers(Tensor x, Tensor cos, Tensor sin, Tensor[] weights, float eps,"
      " Tensor[] prefix_k, Tensor[] prefix_v, Tensor group_start, Tensor[] pool_k,"
      " Tensor[] pool_v, Tensor dest, Tensor tables, Tensor row, Tensor spans, float scale,"
      " int heads, int kv_heads, int inner) -> Tensor");
}

TORCH_LIBRARY_IMPL(prefillq, CPU, m) {
  m.impl("pack_linear", &pack_linear);
  m.impl("linear", &linear);
  m.impl("rms_norm", &rms_norm);
  m.impl("silu_mul", &silu_mul);
  m.impl("rope_store_", &rope_store_);
  m.impl("shared_attention", &shared_attention);
  m.impl("decoder_layers", &decoder_layers);
}

}  // namespace prefillq
