"""Copying, measuring and fingerprinting a cache object, whatever its layers are made of.

Transformers has a dozen layer classes (growing, sliding, indexed, convolution and recurrent
states, and their mixtures), and gains more. Nothing here knows their attributes: the object
is walked, and every tensor and plain value found in it counts.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def leaves(value: object) -> Iterator[tuple[str, Tensor | str]]:
    """Yield (path, leaf) for all tensors, and plain values as text, in a fixed order."""
    yield from _walk(value, "", frozenset())


def _walk(value: object, path: str, above: frozenset[int]) -> Iterator[tuple[str, Tensor | str]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    if id(value) in above:
        yield path, "(cycle)"
        return
    above = above | {id(value)}
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}[{key!r}]", above)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]", above)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for name, item in vars(value).items():
            yield from _walk(item, f"{path}.{name}", above)
    else:  # numbers, text, dtypes, devices, classes: all that can differ is how they print
        yield path, repr(value)


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors inside an object."""
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor))


def own_copy(value: _T) -> _T:
    """A deep copy whose tensors share no memory with the original's.

    Unlike `copy.deepcopy` alone it works for tensors that belong to an autograd graph or were
    made in inference mode, and it leaves behind what a view does not show: a sliding-window
    layer keeps a slice of the whole prefill, and a plain deep copy would copy all of it.
    """
    with torch.no_grad():
        memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in tensors(value)}
    return copy.deepcopy(value, memo)


def nbytes(value: object) -> int:
    """Bytes of memory that the tensors inside an object keep alive, each storage once."""
    storages = {
        (str(tensor.device), storage.data_ptr()): storage.nbytes()
        for tensor in tensors(value)
        for storage in [tensor.untyped_storage()]
    }
    return sum(storages.values())


def checksum(value: object) -> str:
    """A hex digest of every tensor's shape, type and bits, and of every plain value.

    The bits are summed on the tensor's own device with weights that differ by position, so
    that nothing but one number per tensor is copied to the host. It finds accidents (any one
    changed element, a swap, a length), and is not meant against an adversary.
    """
    found = list(leaves(value))
    sums = [_weighted_sum(leaf) for _, leaf in found if isinstance(leaf, Tensor)]
    digest = hashlib.sha256()
    totals = iter(torch.stack(sums).tolist() if sums else [])
    for path, leaf in found:
        if isinstance(leaf, Tensor):
            text = f"{tuple(leaf.shape)} {leaf.dtype} {next(totals)}"
        else:
            text = leaf
        digest.update(f"{path}={text}\n".encode())
    return digest.hexdigest()


def _weighted_sum(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.device.type == "mps":  # unified memory: the copy is cheap, 64-bit maths is not
        tensor = tensor.cpu()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits = tensor.reshape(-1).view(_BITS[tensor.element_size()]).to(torch.int64)
    # Odd weights: no single difference is lost when the sum wraps at 64 bits.
    weights = torch.arange(1, 2 * bits.numel(), 2, dtype=torch.int64, device=bits.device)
    return (bits * weights).sum().cpu()


def capacity(kv: Any) -> int | None:
    """How many tokens a cache of fixed size can hold; None when it grows.

    Source: `get_max_length` of `transformers.cache_utils` layers (-1 is "no limit"; a sliding
    layer reports its window, which limits what it keeps and not what it takes).
    """
    limits = [
        layer.get_max_length()
        for layer in getattr(kv, "layers", ())
        if not getattr(layer, "is_sliding", False)
    ]
    return min((limit for limit in limits if limit >= 0), default=None)
