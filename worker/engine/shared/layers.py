"""What a model's attention layers keep of a token, found by letting it read two."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from worker.engine.base import PrefixUnsupported
from worker.engine.rotary import rotary_types
from worker.engine.shared.pool import LayerShape

# Past a length all angles are others, also those of tokens that came before and of other rows; see
# `dynamic_rope_update` in `transformers.modeling_rope_utils`.
_LENGTH_DEPENDENT = frozenset({"dynamic", "longrope"})


def layer_shapes(module: Any) -> list[LayerShape]:
    """The shape of each layer's cache.

    Raises PrefixUnsupported for any but keys and values, and where they depend on more than the
    tokens before them.
    """
    if not module._supports_default_dynamic_cache():  # noqa: SLF001 - no public name
        raise PrefixUnsupported(
            "the model has a cache of its own kind", given=type(module).__name__
        )
    if changing := sorted(_LENGTH_DEPENDENT & rotary_types(module)):
        raise PrefixUnsupported(
            "the model's rotary angles depend on the longest text in the batch",
            given=", ".join(changing),
        )
    if "chunked_attention" in (getattr(module.config, "layer_types", None) or ()):
        # Its cache looks like a sliding window's, and only its mask differs.
        raise PrefixUnsupported(
            "the model attends in chunks of the text, which shared-prefix attention does not"
        )
    kv = DynamicCache(config=module.config)
    with torch.no_grad():
        module(input_ids=torch.tensor([[0, 1]], device=module.device), cache=kv, use_cache=True)
    return [_shape(layer) for layer in kv.layers]


def _shape(layer: Any) -> LayerShape:
    # Their subclasses keep something else besides, so the types must be exactly these.
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
        raise PrefixUnsupported(
            "the model keeps a state that rows cannot share",
            given=type(layer).__name__,
            expected="layers of keys and values, with or without a sliding window",
        )
    return LayerShape(
        kv_heads=layer.keys.shape[1],
        key_dim=layer.keys.shape[3],
        value_dim=layer.values.shape[3],
        window=getattr(layer, "sliding_window", None),
    )
