"""The packed linear layer against plain PyTorch in float64."""

import pytest
import torch
from torch import Tensor

from worker.engine.native import ops


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7, 8, 31, 33, 130])
@pytest.mark.parametrize(("out", "inputs"), [(7, 3), (24, 8), (100, 50), (49, 193), (192, 576)])
@pytest.mark.parametrize("extras", [(), ("bias",), ("residual",), ("bias", "residual")])
def test_equals_a_plain_linear_layer(
    tokens: int, out: int, inputs: int, extras: tuple[str, ...]
) -> None:
    """Rows, outputs and inputs need not be multiples of anything."""
    x, weight = normal(tokens, inputs), normal(out, inputs)
    bias = normal(out) if "bias" in extras else None
    residual = normal(tokens, out) if "residual" in extras else None
    expected = x.double() @ weight.double().T
    for extra in (bias, residual):
        if extra is not None:
            expected += extra
    got = ops.linear(x, ops.pack_linear(weight), out, bias, residual)
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=inputs * 3e-7)


def test_a_token_has_the_same_bits_alone_and_in_any_company() -> None:
    """The number of rows changes no row's numbers."""
    x, packed = normal(300, 576), ops.pack_linear(normal(100, 576))
    whole = ops.linear(x, packed, 100)
    for start, end in [(0, 1), (5, 7), (8, 12), (100, 137), (299, 300)]:
        assert torch.equal(ops.linear(x[start:end].contiguous(), packed, 100), whole[start:end])


def test_a_nan_stays_in_its_row() -> None:
    """A NaN input gives a NaN output row and leaves the others alone."""
    x, packed = normal(6, 40), ops.pack_linear(normal(30, 40))
    clean = ops.linear(x, packed, 30)
    x[2, 5] = torch.nan
    out = ops.linear(x, packed, 30)
    assert out[2].isnan().all()
    assert torch.equal(out[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


def test_no_tokens_give_no_rows() -> None:
    """An empty batch is no error."""
    assert ops.linear(torch.empty(0, 8), ops.pack_linear(normal(5, 8)), 5).shape == (0, 5)


def test_wrong_shapes_are_refused() -> None:
    """A weight packed for other sizes, a wrong bias or residual, another dtype raise."""
    x, packed = normal(2, 8), ops.pack_linear(normal(5, 8))
    with pytest.raises(RuntimeError, match="packed: given"):
        ops.linear(x, packed, 50)
    with pytest.raises(RuntimeError, match="bias: given"):
        ops.linear(x, packed, 5, bias=normal(4))
    with pytest.raises(RuntimeError, match="residual: given"):
        ops.linear(x, packed, 5, residual=normal(1, 5))
    with pytest.raises(RuntimeError, match="x: given Double"):
        ops.linear(x.double(), packed, 5)
    with pytest.raises(RuntimeError, match="not contiguous"):
        ops.linear(normal(8, 2).T, packed, 5)
