"""What comes out of Redis: job records, published versions, labels, reports of workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner
from hypothesis import strategies as st

from contract.codec import pack, unpack
from contract.console import json_line
from contract.record_hash import Hash, asked, view_of
from contract.settings import Settings
from contract.types import CacheInfo, CacheState, Job, JobError, JobState, Result, Usage
from contract.worker_reports import REVISION, read_reports
from templates.fill import filled_text
from templates.rollouts.journal import applied, read_entry
from templates.rollouts.moves import TemplateState
from templates.rollouts.plain import parse_text, to_plain, to_text
from templates.stored import read_refs, version_number
from templates.version import PublishedVersion
from tests.fuzz.judge import Found, bounded, judged
from tests.fuzz.mutations import BYTES, PLAIN, TEXTS, edited, edited_plain
from tests.fuzz.targets import Target
from tests.support.published import make_version
from tests.support.rollouts import make_rollout
from worker.cli import list_command

_ID = "acme." + "0" * 32
_VERSION = make_version()
_JOB = Job(id=_ID, ref=_VERSION.ref, queue="acme/triage/0", variables={"ticket": "x"})
_RESULT = Result(
    job_id=_ID,
    ref=_VERSION.ref,
    status=JobState.SUCCEEDED,
    text="yes",
    choice="yes",
    probabilities={"yes": 0.75, "no": 0.25},
    token_ids=(1, 2),
    finish_reason="stop",
    usage=Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1),
    cache=CacheInfo(state=CacheState.HIT),
    error=JobError(code="x", message="y"),
)
_RESULTS = [_RESULT.to_dict()]
_FIELDS = asked(_JOB)
_RECORD: dict[bytes, bytes] = {
    **{
        str(name).encode(): value if isinstance(value, bytes) else str(value).encode()
        for name, value in zip(_FIELDS[::2], _FIELDS[1::2], strict=True)
    },
    b"created_at": b"1790000000.125000",
    b"deadline_at": b"1790086400.125000",
    b"finished_at": b"1790000001.5",
    b"attempt": b"1",
    b"fence": b"1",
    b"worker": b"host-1",
    b"state": b"succeeded",
    b"commit_s": b"0.001000",
    b"result": pack(_RESULT.to_dict()),
}
_REPORT: dict[str, Any] = {
    "id": "host-1-ab",
    "model": "tiny",
    "device": "cpu",
    "dtype": "float32",
    "engine": "shared",
    "running": 1,
    "templates": ["acme/triage"],
    "cache": {"bytes": 5, "max_bytes": 10, "hits": 1, "misses": 2},
    "disk": {"files": 1, "bytes": 5, "max_bytes": 10},
    "admission": {
        "seconds": 1.5,
        "max_logit_error": 1e-7,
        "refused": [{"way": "native", "reason": "no compiler"}],
    },
    "versions": [
        {
            "version": "acme/triage@1",
            "prefix_tokens": 7,
            "bytes": 100,
            "cached": True,
            "prefill_s": 0.5,
            "parity": "identical",
            "parity_tokens": 16,
        }
    ],
}


_CHANGE: dict[str, Any] = {
    "labels": {"production": 2, "old": None},
    "retired": {"1": True, "3": False},
    "versions": [1, 2],
    "rollout": to_plain(make_rollout()),
}
_ENTRY = {
    b"revision": b"7",
    b"who": b"ann@desk",
    b"action": b"label",
    b"from": b"production=1",
    b"to": b"production=2",
    b"why": b"",
    b"token": b"0",
    b"change": json.dumps(_CHANGE).encode(),
}


def _view(record: Hash) -> None:
    view = view_of(_ID, record)
    job = view.job
    # Each byte that is no UTF-8 is four characters.
    if max(map(len, (job.ref.template, job.queue, job.traceparent, view.worker))) > 4 * 200:
        raise Found("a text that is longer than any of ours")
    if view.result is not None:
        json_line(view.result.to_dict())
        if unpack(pack(view.result.to_dict())) != view.result.to_dict():
            raise Found("a result that cannot be stored again")
        str(view.result.text + (view.result.choice or ""))


def _version(data: Any) -> None:
    version = PublishedVersion.from_plain(data)
    filled_text(version.compiled, {"ticket": "x"})
    unpack(pack(version.to_plain()))


def _report(body: bytes) -> str:
    """`worker list` shows what it can, says of what it cannot, and leaves out what is no report."""
    fields = {REVISION: b"1", "acme/triage": body, body: body}
    with bounded(), patch("worker.cli.list_workers", lambda *_: [report]):
        shown = read_reports(["host-1", "host-2"], [pack(_REPORT), fields, body, {}], None)
        json_line(shown)
        if len(shown) < 2:
            return "left out"
        report = shown[1]
        ended = CliRunner().invoke(list_command, [], obj=Settings(redis_url="redis://127.0.0.1:1"))
        json_line(report)
    if not isinstance(ended.exception, SystemExit | None):
        raise ended.exception
    if "\x1b" in ended.stdout:
        raise Found("codes that steer a terminal")
    return "said" if "cannot be read" in ended.stdout else "shown"


def _versions(found: Mapping[bytes, bytes]) -> str:
    refs = read_refs("acme", "triage", found)
    if any(ref.version != version_number(str(ref.version)) for ref in refs):
        raise Found("a number that is spelt otherwise")
    return f"{len(refs)} of {len(found)}"


def _rollout(text: bytes) -> str:
    rollout = parse_text(text)
    if parse_text(to_text(rollout)) != rollout:
        raise Found("a rollout that reads back as another")
    rollout.version_for("acme", rollout.key_of({"ticket": "x"}) or _ID)
    json_line({**to_plain(rollout), "weight": rollout.weight})
    return str(rollout.phase)


def _entry(fields: Hash) -> str:
    entry = read_entry(b"1790000000125-0", fields)
    applied(TemplateState(), entry)
    json_line(entry.to_dict())
    return entry.action


def targets() -> tuple[Target, ...]:
    """See `tests.fuzz.targets`."""
    values = st.one_of(
        st.sampled_from(
            (b"", b"nan", b"inf", b"1e999", b"-1", b"1_0", b" 1", b"queued", b"dead", *BYTES)
        ),
        edited_plain(_RESULTS, [v for v in PLAIN if _packable(v)]).filter(_packable).map(pack),
        edited([pack(_RESULT.to_dict())], BYTES),
    )
    changes = st.dictionaries(st.sampled_from(sorted(_RECORD)), values, max_size=2)
    dropped = st.sets(st.sampled_from(sorted(_RECORD)), max_size=1)
    records = st.builds(
        lambda changed, gone: {n: v for n, v in {**_RECORD, **changed}.items() if n not in gone},
        changes,
        dropped,
    )
    reports = edited_plain([_REPORT]).filter(_packable).map(pack)
    numbers = st.one_of(st.integers(-1, 20).map(lambda n: str(n).encode()), st.sampled_from(BYTES))
    return (
        Target(
            name="record",
            about="job records: hashes with other values, and without some",
            inputs=records,
            run=lambda record: judged(lambda: _view(record)),
            short=150,
        ),
        Target(
            name="version",
            about="published versions",
            inputs=edited_plain([_VERSION.to_plain()]),
            run=lambda data: judged(lambda: _version(data)),
            short=100,
        ),
        Target(
            name="report",
            about="what workers report of themselves",
            inputs=st.one_of(reports, edited([pack(_REPORT)], BYTES)),
            run=_report,
            short=150,
        ),
        Target(
            name="rollout",
            about="rollouts, which a tenant's admin can write",
            inputs=st.one_of(
                edited_plain([to_plain(make_rollout())]).filter(_jsonable).map(_json),
                edited([to_text(make_rollout()).encode()], BYTES),
            ),
            run=lambda text: judged(lambda: _rollout(text)),
            short=150,
        ),
        Target(
            name="journal",
            about="entries of a template's journal",
            inputs=st.builds(
                lambda changed, gone: {
                    n: v for n, v in {**_ENTRY, **changed}.items() if n not in gone
                },
                st.dictionaries(
                    st.sampled_from(sorted(_ENTRY)),
                    st.one_of(
                        st.sampled_from(BYTES),
                        edited([_ENTRY[b"change"]], BYTES),
                        edited_plain([_CHANGE]).filter(_jsonable).map(_json),
                    ),
                    max_size=2,
                ),
                st.sets(st.sampled_from(sorted(_ENTRY)), max_size=1),
            ),
            run=lambda fields: judged(lambda: _entry(fields)),
            short=150,
        ),
        Target(
            name="numbers",
            about="labels' and versions' numbers",
            inputs=st.dictionaries(
                st.one_of(numbers, st.sampled_from([t.encode("utf-8", "replace") for t in TEXTS])),
                st.binary(max_size=8),
                max_size=5,
            ),
            run=_versions,
            short=100,
        ),
    )


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _jsonable(value: Any) -> bool:
    try:
        _json(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _packable(value: Any) -> bool:
    try:
        pack(value)
    except Exception:  # noqa: BLE001 - whatever keeps it from being in Redis at all
        return False
    return True
