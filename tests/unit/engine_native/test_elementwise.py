"""Norm, activation and rotation against plain PyTorch."""

import pytest
import torch
from torch import Tensor

from worker.engine.native import ops


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("tokens", "width"), [(1, 576), (33, 576), (5, 7), (400, 100), (0, 8)])
def test_rms_norm_equals_the_formula(tokens: int, width: int) -> None:
    """x / sqrt(mean(x^2) + eps) * weight."""
    x, weight = normal(tokens, width), normal(width)
    expected = weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize(("tokens", "width"), [(1, 1536), (33, 1536), (5, 7), (0, 8)])
def test_silu_mul_equals_the_formula(tokens: int, width: int) -> None:
    """silu(gate) * up, also far from zero."""
    x = normal(tokens, 2 * width) * 30
    gate, up = x.double().chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up).float()
    torch.testing.assert_close(ops.silu_mul(x), expected, rtol=2e-6, atol=1e-12)


def test_silu_mul_keeps_nan_and_infinity() -> None:
    """NaN gives NaN, infinity infinity, and a large negative number zero."""
    x = torch.tensor([[torch.nan, torch.inf, -1000.0, 1.0, 1.0, 1.0]])
    out = ops.silu_mul(x)[0]
    assert out[0].isnan()
    assert out[1] == torch.inf
    assert out[2] == 0


@pytest.mark.parametrize("tokens", [1, 6, 70])
def test_rope_store_rotates_and_writes_to_the_pool(tokens: int) -> None:
    """Queries and keys are rotated in place; keys and values land where `dest` says, only there."""
    heads, kv_heads, dim, block_size = 6, 2, 32, 4
    qkv = normal(tokens, (heads + 2 * kv_heads) * dim)
    cos, sin = normal(tokens, dim), normal(tokens, dim + 1)[:, :dim].contiguous()
    pool_k, pool_v = torch.zeros(2, 50, kv_heads, block_size, dim).unbind()
    dest = torch.randperm(200, generator=torch.Generator().manual_seed(1))[:tokens]

    parts = qkv.clone().view(tokens, -1, dim)
    turned = torch.cat([-parts[..., dim // 2 :], parts[..., : dim // 2]], -1)
    rotated = parts * cos[:, None] + turned * sin[:, None]
    rotated[:, heads + kv_heads :] = parts[:, heads + kv_heads :]
    expected_k, expected_v = torch.zeros(2, 50, kv_heads, block_size, dim).unbind()
    expected_k[dest // block_size, :, dest % block_size] = rotated[:, heads : heads + kv_heads]
    expected_v[dest // block_size, :, dest % block_size] = rotated[:, heads + kv_heads :]

    ops.rope_store_(qkv, cos, sin, pool_k, pool_v, dest, heads, kv_heads)
    torch.testing.assert_close(qkv.view(tokens, -1, dim), rotated, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pool_k, expected_k, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pool_v, expected_v, rtol=0, atol=0)


@pytest.mark.parametrize("place", [-1, 12])
def test_a_place_outside_the_pool_is_refused(place: int) -> None:
    """A destination beyond the pool raises before anything is written."""
    qkv, turn, pool = normal(1, 24), normal(1, 8), torch.zeros(3, 1, 4, 8)
    with pytest.raises(RuntimeError, match=f"dest: given {place}"):
        ops.rope_store_(qkv, turn, turn, pool, pool.clone(), torch.tensor([place]), 1, 1)
    assert not pool.any()
