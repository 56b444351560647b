"""From one sight to what is shown: a row per template and model, and one per model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contract.load import Flow, Load, Sight
from scale.agreement import disagreements
from scale.fleet import Fleet, Worker
from scale.formula import Advice, Demand, Goal, advise
from scale.names import Named


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What the caller knows better than Redis, or None."""

    concurrency: int | None = None
    service_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One queue, or all of a model's (`template` is empty then). Times in seconds."""

    template: str  # address
    model: str  # its name, as the template has it
    model_digest: str  # 12 hex digits
    retired: bool  # no version for the model takes new jobs
    waiting: int
    estimated: bool
    delayed: int
    oldest_s: float
    running: int
    messages: int
    unacked: int | None
    agree: bool
    why_not: tuple[str, ...]
    window_s: float
    arrivals_per_s: float
    served_per_s: float
    service_s: float | None
    workers: int
    draining: int
    concurrency: float
    concurrency_known: bool
    warm: Mapping[str, int]  # version that a label names -> workers that hold its prefix
    desired: int
    because: str
    for_backlog: int
    for_arrivals: int

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["why_not"] = list(self.why_not)
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All that is shown of a sight."""

    templates: tuple[Row, ...]  # one for each template and model, by template
    models: tuple[Row, ...]  # one for each model, over all of the templates in the sight


def rows_of(
    sight: Sight, named: Sequence[Named], goal: Goal, assumed: Assumed | None = None
) -> Rows:
    """Both kinds of rows."""
    fleet, assumed = Fleet(sight.workers), assumed or Assumed()
    return Rows(
        templates=tuple(_template_rows(sight.loads, named, fleet, goal, assumed)),
        models=tuple(_model_rows(sight.loads, named, fleet, goal, assumed)),
    )


def _template_rows(
    loads: Iterable[Load], named: Iterable[Named], fleet: Fleet, goal: Goal, assumed: Assumed
) -> Iterator[Row]:
    known = {(one.tenant, one.template): one for one in named}
    for load in loads:
        one = known[load.tenant, load.template]
        serving = fleet.of_queue(one.address, load.model)
        warm = {
            str(number): sum(
                worker.keeps_none or not prefix or digest in worker.holds
                for worker in serving
                if not worker.draining
            )
            for number, (digest, prefix) in sorted(one.labelled.get(load.model, {}).items())
        }
        yield _row(
            [load],
            serving,
            goal,
            assumed,
            template=one.address,
            model=one.model_name(load.model),
            retired=load.model in one.retired,
            warm=warm,
        )


def _model_rows(
    loads: Iterable[Load], named: Iterable[Named], fleet: Fleet, goal: Goal, assumed: Assumed
) -> Iterator[Row]:
    retired: dict[str, str] = {}
    used: dict[str, str] = {}
    for one in named:
        retired |= one.retired
        used |= one.models
    by_model: dict[str, list[Load]] = {}
    for load in loads:
        by_model.setdefault(load.model, []).append(load)
    for model, its_loads in sorted(by_model.items()):
        yield _row(
            its_loads,
            fleet.of_model(model),
            goal,
            assumed,
            template="",
            model=used.get(model) or retired.get(model, ""),
            retired=model in retired and model not in used,
            warm={},
        )


def _row(
    loads: Sequence[Load],
    serving: Sequence[Worker],
    goal: Goal,
    assumed: Assumed,
    *,
    template: str,
    model: str,
    retired: bool,
    warm: Mapping[str, int],
) -> Row:
    live = [worker for worker in serving if not worker.draining]
    recent = _sum([load.recent for load in loads])
    kept = _sum([load.kept for load in loads])
    measured = recent.service_s if recent.service_s is not None else kept.service_s
    service_s = measured if assumed.service_s is None else assumed.service_s
    known = assumed.concurrency is not None or bool(live)
    concurrency = float(assumed.concurrency or 1)
    if assumed.concurrency is None and live:
        concurrency = sum(worker.concurrency for worker in live) / len(live)
    waiting, running = sum(load.waiting for load in loads), sum(load.running for load in loads)
    advice: Advice = advise(
        Demand(
            waiting=waiting,
            running=running,
            arrivals_per_s=recent.arrivals_per_s,
            service_s=service_s,
            concurrency=concurrency,
            replicas=len(live),
            most_running=_most_running(loads),
        ),
        goal,
    )
    why_not = tuple(why for load in loads for why in disagreements(load))
    unacked = [load.unacked for load in loads]
    return Row(
        template=template,
        model=model,
        model_digest=loads[0].model,
        retired=retired,
        waiting=waiting,
        estimated=any(load.estimated for load in loads),
        delayed=sum(load.delayed for load in loads),
        oldest_s=max(load.oldest_s for load in loads),
        running=running,
        messages=sum(load.messages for load in loads),
        unacked=None if None in unacked else sum(count or 0 for count in unacked),
        agree=not why_not,
        why_not=why_not,
        window_s=round(recent.seconds, 1),
        arrivals_per_s=round(recent.arrivals_per_s, 4),
        served_per_s=round(recent.served_per_s, 4),
        service_s=None if service_s is None else round(service_s, 4),
        workers=len(live),
        draining=len(serving) - len(live),
        concurrency=round(concurrency, 2),
        concurrency_known=known,
        warm=dict(warm),
        desired=advice.replicas,
        because=advice.because,
        for_backlog=advice.for_backlog,
        for_arrivals=advice.for_arrivals,
    )


def _most_running(loads: Sequence[Load]) -> int | None:
    """How many jobs the limits of these queues' tenants let run at once; None for any number."""
    limits = {load.tenant: load.max_running for load in loads}
    most = [limit for limit in limits.values() if limit is not None]
    return sum(most) if len(most) == len(limits) else None


def _sum(flows: Sequence[Flow]) -> Flow:
    """Of several queues, over the longest of their times."""
    return Flow(
        seconds=max(flow.seconds for flow in flows),
        arrived=sum(flow.arrived for flow in flows),
        ended=sum(flow.ended for flow in flows),
        busy_s=sum(flow.busy_s for flow in flows),
    )
