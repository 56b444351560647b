"""KEDA's ScaledObjects with a trigger of type `metrics-api`: of a template and model, or a model.

Field names: https://keda.sh/docs/latest/reference/scaledobject-spec and
https://keda.sh/docs/latest/scalers/metrics-api. The metric is the number of replicas that
`prefillq scale` wants, and its target value 1 per replica, so that Kubernetes' arithmetic
(`ceil(value / target)`) gives just that number. How they are read:
https://github.com/kedacore/keda/blob/main/pkg/scalers/metrics_api_scaler.go and pkg/fallback.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import yaml

from contract.errors import InvalidInput
from scale.formula import Goal
from scale.names import Named

# KEDA makes labels and the autoscaler's name, `keda-hpa-...`, of it: 63 characters at most.
_NAME_CHARS = 54
POLL_S = 15
COOLDOWN_S = 300  # from the last work to none: longer than a worker takes to start
CALM_S = 120  # the most of so long counts, so that a dip takes no worker away

# Names of the workers' Deployments, where none is said.
FOR_TEMPLATE, FOR_MODEL = "prefillq-worker-{tenant}-{template}", "prefillq-worker"
_FIELD = re.compile("{(tenant|template|model)}")
_DEPLOYMENT = re.compile("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where things are in it."""

    endpoint: str  # URL of `prefillq scale --serve`, as KEDA reaches it
    # The workers' Deployment: its name, with `{tenant}`, `{template}` and `{model}` (12 hex digits)
    # for those of the object.
    deployment: str = FOR_TEMPLATE
    namespace: str | None = None


def scaled_objects(named: Sequence[Named], goal: Goal, cluster: Cluster) -> list[dict[str, Any]]:
    """One for each template and model, as plain data.

    Raises InvalidInput where two would have one Deployment, or a name that Kubernetes refuses.
    """
    return _checked(
        _scaled_object(
            _Scaled(
                name=_name(one, model),
                deployment={"tenant": one.tenant, "template": one.template, "model": model},
                path=f"templates/{one.address}",
                location=f"models.{model}.desired",
            ),
            goal,
            cluster,
        )
        for one in named
        for model in sorted(one.models)
    )


def model_objects(named: Sequence[Named], goal: Goal, cluster: Cluster) -> list[dict[str, Any]]:
    """One for each model, for workers that serve all of its templates; raises the same."""
    return _checked(
        _scaled_object(
            _Scaled(
                name=f"prefillq-{model}",
                deployment={"model": model},
                path=f"models/{model}",
                location="desired",
            ),
            goal,
            cluster,
        )
        for model in sorted({model for one in named for model in one.models})
    )


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """One document for each."""
    text: str = yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scaled:
    """What differs from object to object."""

    name: str
    deployment: Mapping[str, str]  # what the fields of its name stand for
    path: str  # of the endpoint
    location: str  # where in its answer the number stands, in GJSON's notation


def _scaled_object(one: _Scaled, goal: Goal, cluster: Cluster) -> dict[str, Any]:
    query = urlencode({"target_wait": f"{goal.wait_s:g}", "min": goal.minimum, "max": goal.maximum})
    url = f"{cluster.endpoint.rstrip('/')}/{one.path}?{query}"
    metadata: dict[str, Any] = {"name": one.name}
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    metadata["labels"] = {"app.kubernetes.io/part-of": "prefillq"}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"name": _deployment(cluster.deployment, one.deployment)},
            "pollingInterval": POLL_S,
            "cooldownPeriod": COOLDOWN_S,
            "minReplicaCount": goal.minimum,
            "maxReplicaCount": goal.maximum,
            # Where the endpoint does not answer, the workers that are there stay. Never none: KEDA
            # would see no fallback and take the last worker away at an error. `behavior` is KEDA's
            # since 2.17; one before that knows `replicas` alone, and cuts down to it.
            "fallback": {
                "failureThreshold": 3,
                "replicas": max(1, goal.minimum),
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {
                "horizontalPodAutoscalerConfig": {
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": CALM_S}}
                }
            },
            "triggers": [
                {
                    "type": "metrics-api",
                    "metricType": "AverageValue",
                    "metadata": {
                        "url": url,
                        "valueLocation": one.location,
                        "targetValue": "1",
                        "activationTargetValue": "0",
                    },
                }
            ],
        },
    }


def _deployment(pattern: str, fields: Mapping[str, str]) -> str:
    name = _FIELD.sub(lambda found: fields.get(found[1], found[0]), pattern).replace("_", "-")
    if not _DEPLOYMENT.fullmatch(name):
        raise InvalidInput(
            "no name of a Deployment",
            given=name[:120],
            expected="small letters, digits and dashes; "
            f"{', '.join(f'{{{field}}}' for field in fields)} for what it is of",
            remedy="Change --deployment.",
        )
    return name


def _checked(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """KEDA's webhook refuses a second ScaledObject for one Deployment."""
    found: dict[str, dict[str, Any]] = {}
    for one in objects:
        deployment = one["spec"]["scaleTargetRef"]["name"]
        if deployment in found:
            names = (found[deployment]["metadata"]["name"], one["metadata"]["name"])
            raise InvalidInput(
                "two ScaledObjects for one Deployment, of which KEDA takes the first alone",
                given=f"{deployment}, for {' and '.join(names)}",
                expected="a Deployment for each",
                remedy="Have {tenant}, {template} and {model} in --deployment, or scale all "
                "templates of a model together with --per-model.",
            )
        found[deployment] = one
    return list(found.values())


def _name(one: Named, model: str) -> str:
    """A DNS label. Names that lose something to it get a digest of what they were."""
    plain = f"prefillq-{one.tenant}-{one.template}-{model}"
    name = plain.replace("_", "-")
    if name == plain and len(name) <= _NAME_CHARS and "-" not in one.tenant + one.template:
        return name
    digest = hashlib.sha256(f"{one.address}/{model}".encode()).hexdigest()[:8]
    return f"{name[: _NAME_CHARS - 9].rstrip('-')}-{digest}"
