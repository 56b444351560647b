"""What a look at many versions reads of each: the same as the whole says, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from contract.codec import pack
from contract.errors import CodecError
from templates.version import PublishedVersion, VersionKind
from tests.support.published import MODEL, make_version

VERSION = make_version()


def stored(version: PublishedVersion = VERSION, **changes: Any) -> bytes:
    return pack(version.to_plain() | changes)


def test_it_is_what_the_version_says() -> None:
    """Of the model and the prefix."""
    kind = VersionKind.read(VERSION.ref, stored())
    assert kind == VersionKind(model=MODEL.name, model_digest=MODEL.model_digest, has_prefix=True)
    compiled = VERSION.compiled.to_plain() | {"prefix_ids": []}
    assert not VersionKind.read(VERSION.ref, stored(compiled=compiled)).has_prefix


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack([1]),
        pack({}),
        stored(make_version(number=2)),
        stored(tenant="globex"),
        stored(model_digest="a b"),
        stored(model_digest=7),
        stored(spec={"model": None}),
        stored(spec="text"),
        stored(compiled={"prefix_ids": "ids"}),
        stored(compiled=None),
    ],
    ids=range(12),
)
def test_anything_else_is_refused(data: bytes) -> None:
    """A tenant's admin may have written it, also under another's name."""
    with pytest.raises(CodecError):
        VersionKind.read(VERSION.ref, data)
