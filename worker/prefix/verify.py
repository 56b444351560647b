"""The last question before cached tokens are used: are they really this job's first tokens?"""

from __future__ import annotations

from collections.abc import Sequence


def verify_prefix(prefix_ids: Sequence[int], job_ids: Sequence[int]) -> str:
    """Return "" when the prefix is exact and a token of the job lies beyond it, else the reason.

    A reason is `request_shorter_than_prefix=40<64`, `ids_differ_at=17` (counted from 0) or
    `nothing_beyond_prefix=64`. One token must lie beyond: its logits are what decoding starts
    from, and a cache does not keep those of its own last token.
    """
    length = len(prefix_ids)
    if len(job_ids) < length:
        return f"request_shorter_than_prefix={len(job_ids)}<{length}"
    # Tuples compare in C: 8k ids take some tens of microseconds.
    prefix, head = tuple(prefix_ids), tuple(job_ids[:length])
    if prefix != head:
        pairs = enumerate(zip(prefix, head, strict=True))
        return f"ids_differ_at={next(at for at, (ours, theirs) in pairs if ours != theirs)}"
    if len(job_ids) == length:
        return f"nothing_beyond_prefix={length}"
    return ""
