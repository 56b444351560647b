"""Which queues are warm, as entries come and go and labels move."""

from __future__ import annotations

from worker.catalog import LabelledQueues
from worker.warm_queues import WarmQueues


class Holding:
    """What is in memory."""

    def __init__(self) -> None:
        self.digests: frozenset[str] = frozenset()

    def held(self) -> frozenset[str]:
        return self.digests


def test_a_queue_is_warm_while_a_labelled_version_is_held() -> None:
    """Through eviction and a move of the label; versions without a label make nothing warm."""
    holding, labelled = Holding(), [LabelledQueues()]
    warm = WarmQueues(prefixes=holding, labelled=lambda: labelled[0])
    assert warm() == set()
    labelled[0] = LabelledQueues(queue_of={"d1": "a/one/m", "d2": "a/two/m", "d3": "a/one/m"})
    holding.digests = frozenset({"d2", "unlabelled"})
    assert warm() == {"a/two/m"}
    holding.digests = frozenset({"d3", "d2"})
    assert warm() == {"a/one/m", "a/two/m"}
    labelled[0] = LabelledQueues(queue_of={"d1": "a/one/m", "d2": "a/two/m"})
    assert warm() == {"a/two/m"}
    holding.digests = frozenset()
    assert warm() == set()


def test_a_queue_whose_version_has_no_prefix_is_warm() -> None:
    """Its jobs wait for no prefill."""
    bare = LabelledQueues(queue_of={"d1": "a/one/m"}, bare=frozenset({"a/one/m"}))
    assert WarmQueues(prefixes=Holding(), labelled=lambda: bare)() == {"a/one/m"}


def test_nothing_is_counted_while_nothing_changes() -> None:
    """It is asked for each message."""
    holding = Holding()
    labelled = LabelledQueues(queue_of={"d1": "a/one/m"})
    warm = WarmQueues(prefixes=holding, labelled=lambda: labelled)
    assert warm() is warm()
