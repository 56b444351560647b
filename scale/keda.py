"""KEDA's ScaledObject for a template and model, with a trigger of type `metrics-api`.

Field names: https://keda.sh/docs/latest/reference/scaledobject-spec and
https://keda.sh/docs/latest/scalers/metrics-api. The metric is the number of replicas that
`prefillq scale` wants, and its target value 1 per replica, so that Kubernetes' arithmetic
(`ceil(value / target)`) gives just that number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import yaml

from scale.formula import Goal
from scale.names import Named

# KEDA makes labels and the autoscaler's name, `keda-hpa-...`, of it: 63 characters at most.
_NAME_CHARS = 54
POLL_S = 15
COOLDOWN_S = 300  # from the last work to none: longer than a worker takes to start
CALM_S = 120  # the most of so long counts, so that a dip takes no worker away


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where things are in it."""

    endpoint: str  # URL of `prefillq scale --serve`, as KEDA reaches it
    deployment: str  # of the workers
    namespace: str | None = None


def scaled_objects(named: Sequence[Named], goal: Goal, cluster: Cluster) -> list[dict[str, Any]]:
    """One for each template and model, as plain data."""
    return [
        _scaled_object(one, model, goal, cluster) for one in named for model in sorted(one.models)
    ]


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """One document for each."""
    text: str = yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True)
    return text


def value_location(model: str) -> str:
    """Where in the endpoint's answer the number stands, in GJSON's notation."""
    return f"models.{model}.desired"


def _scaled_object(one: Named, model: str, goal: Goal, cluster: Cluster) -> dict[str, Any]:
    query = urlencode({"target_wait": f"{goal.wait_s:g}", "min": goal.minimum, "max": goal.maximum})
    url = f"{cluster.endpoint.rstrip('/')}/templates/{one.address}?{query}"
    metadata: dict[str, Any] = {"name": _name(one, model)}
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    metadata["labels"] = {"app.kubernetes.io/part-of": "prefillq"}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata,
        "spec": {
            "scaleTargetRef": {"name": cluster.deployment},
            "pollingInterval": POLL_S,
            "cooldownPeriod": COOLDOWN_S,
            "minReplicaCount": goal.minimum,
            "maxReplicaCount": goal.maximum,
            # The endpoint does not answer: workers stay rather than go.
            "fallback": {"failureThreshold": 3, "replicas": max(1, goal.minimum)},
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
                        "valueLocation": value_location(model),
                        "targetValue": "1",
                        "activationTargetValue": "0",
                    },
                }
            ],
        },
    }


def _name(one: Named, model: str) -> str:
    """A DNS label. Names that lose something to it get a digest of what they were."""
    plain = f"prefillq-{one.tenant}-{one.template}-{model}"
    name = plain.replace("_", "-")
    if name == plain and len(name) <= _NAME_CHARS and "-" not in one.tenant + one.template:
        return name
    digest = hashlib.sha256(f"{one.address}/{model}".encode()).hexdigest()[:8]
    return f"{name[: _NAME_CHARS - 9].rstrip('-')}-{digest}"
