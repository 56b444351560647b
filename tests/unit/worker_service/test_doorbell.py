"""Messages at a worker's door: a job's id comes in, and nothing else that was written into them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from contract.celery_app import TASK_NAME
from contract.codec import pack, unpack
from contract.errors import InvalidInput
from contract.ids import new_job_id
from worker.doorbell import remade

QUEUE = "acme/triage/aaaaaaaaaaaa"
JOB = new_job_id("acme")


def body(*args: Any, kwargs: Any = None, embed: Any = None) -> str:
    return base64.b64encode(pack([list(args), kwargs or {}, embed or {}])).decode("ascii")


def message(**changes: Any) -> dict[str, Any]:
    """What a producer sends, as kombu writes it, with parts of it changed."""
    return {
        "body": body(JOB),
        "content-type": "application/x-msgpack",
        "content-encoding": "binary",
        "headers": {"lang": "py", "task": TASK_NAME, "id": "1", "retries": 0},
        "properties": {
            "body_encoding": "base64",
            "correlation_id": "1",
            "delivery_info": {"exchange": "", "routing_key": QUEUE},
            "delivery_tag": "tag-1",
        },
    } | changes


def content(made: dict[str, Any]) -> Any:
    return unpack(base64.b64decode(made["body"]))


def test_the_job_id_is_taken_over() -> None:
    """For the task there is, in the form that Celery reads."""
    made = remade(message(), QUEUE)
    assert content(made) == [[JOB], {}, {}]
    assert made["headers"]["task"] == TASK_NAME
    assert made["content-type"] == "application/x-msgpack"


def test_remaking_twice_is_no_change_of_content() -> None:
    """A message that was put back comes in again."""
    again = remade(remade(message(), QUEUE), QUEUE)
    assert content(again) == [[JOB], {}, {}]


STRANGE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(headers=st.dictionaries(st.text(max_size=12), STRANGE), properties=STRANGE, embed=STRANGE)
def test_nothing_else_is(headers: dict[str, Any], properties: Any, embed: Any) -> None:
    """Whatever stands beside the id: what comes out depends on the id and the queue alone."""
    given_properties = properties if isinstance(properties, dict) else {"x": properties}
    made = remade(
        message(
            headers={**headers, "task": TASK_NAME},
            properties={**given_properties, "body_encoding": "base64"},
            body=body(JOB, embed=embed if isinstance(embed, dict) else {"x": embed}),
            more=properties,
        ),
        QUEUE,
    )
    plain = remade(message(), QUEUE)
    for varies in (made, plain):
        assert len(varies["headers"].pop("id")) == 36
        assert len(varies["properties"].pop("correlation_id")) == 36
        assert len(varies["properties"].pop("delivery_tag")) == 36
    assert made == plain


@pytest.mark.parametrize(
    "orders",
    [
        {"callbacks": [{"task": TASK_NAME, "args": ["x"], "options": {"queue": "globex/a/b"}}]},
        {"chain": [{"task": TASK_NAME}]},
        {"errbacks": [{"task": TASK_NAME}]},
    ],
)
def test_orders_to_celery_are_left_outside(orders: dict[str, Any]) -> None:
    """Celery would send these messages on, with the worker's rights."""
    made = remade(message(body=body(JOB, embed=orders)), QUEUE)
    assert content(made)[2] == {}


def test_a_message_goes_back_to_the_queue_that_it_came_from() -> None:
    """Not to the one that it names, which may be another tenant's or no queue at all."""
    for name in ("globex/triage/bbbbbbbbbbbb", "unacked_index"):
        forged = {"exchange": "", "routing_key": name}
        properties = {**message()["properties"], "delivery_info": forged}
        made = remade(message(properties=properties), QUEUE)
        assert made["properties"]["delivery_info"] == {"exchange": "", "routing_key": QUEUE}


def test_its_tag_is_new() -> None:
    """A tag that is chosen outside could name another message that is being worked on."""
    first, second = remade(message(), QUEUE), remade(message(), QUEUE)
    tags = {made["properties"]["delivery_tag"] for made in (first, second)}
    assert len(tags | {"tag-1"}) == 3


def _wrapped(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _deep() -> bytes:
    return b"\x91" * 5000 + b"\xc0"


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        list,
        lambda: "text",
        lambda: {"body": 5},
        lambda: message(body=None),
        lambda: message(body="no base64!"),
        lambda: message(body="é"),
        lambda: message(body=_wrapped(b"\xc1")),
        lambda: message(body=_wrapped(_deep())),
        lambda: message(body=_wrapped(pack([]))),
        lambda: message(body=_wrapped(pack({"args": [JOB]}))),
        lambda: message(body=body()),
        lambda: message(body=body(5)),
        lambda: message(body=body([JOB])),
        lambda: message(body=body(JOB, JOB)),
        lambda: message(body=body("x")),
        lambda: message(body=body(JOB, kwargs={"job": JOB})),
        lambda: message(body=body(new_job_id("globex"))),
        lambda: message(headers={"task": "os.system"}),
        lambda: message(headers=None),
        lambda: message(properties={"body_encoding": "zlib"}),
        lambda: message(properties=[]),
        lambda: message(**{"content-type": "application/json"}),
        lambda: message(**{"content-type": "application/x-python-serialize"}),
        lambda: message(**{"content-type": []}),
    ],
)
def test_what_is_no_doorbell_of_its_queue_is_refused(make: Callable[[], Any]) -> None:
    """By one error, whatever it was, with nothing of the message in its text."""
    given = make()
    with pytest.raises(InvalidInput, match="no doorbell") as caught:
        remade(given, QUEUE)
    for secret in (JOB, "globex", "os.system", "no base64!"):
        assert secret not in str(caught.value)
