"""A ScaledObject as KEDA knows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from contract.errors import InvalidInput
from scale.formula import Goal
from scale.keda import FOR_MODEL, Cluster, model_objects, scaled_objects, to_yaml
from scale.names import Named
from worker.cli import start

ROOT = Path(__file__).parents[3]
MODEL = "0123456789ab"
NAMED = Named(tenant="acme", template="triage", models={MODEL: "tiny"})
CLUSTER = Cluster(endpoint="http://prefillq-scale:9465/")

# Of https://keda.sh/docs/latest/reference/scaledobject-spec (v2.15 and later) and of
# apis/keda/v1alpha1/scaledobject_types.go: what an object may hold, level by level.
SPEC = {
    *("scaleTargetRef", "pollingInterval", "initialCooldownPeriod", "cooldownPeriod"),
    *("idleReplicaCount", "minReplicaCount", "maxReplicaCount", "advanced", "triggers", "fallback"),
}
TARGET = {"name", "apiVersion", "kind", "envSourceContainerName"}
FALLBACK = {"failureThreshold", "replicas", "behavior"}
ADVANCED = {"horizontalPodAutoscalerConfig", "restoreToOriginalReplicaCount", "scalingModifiers"}
TRIGGER = {"type", "name", "metadata", "authenticationRef", "metricType", "useCachedMetrics"}
# Of https://keda.sh/docs/latest/scalers/metrics-api.
METRICS_API = {
    *("url", "valueLocation", "targetValue", "activationTargetValue", "format", "unsafeSsl"),
    *("authMode", "method", "keyParamName", "aggregationType", "aggregateFromKubeServiceEndpoints"),
}


def made(named: Named = NAMED, goal: Goal | None = None, **where: Any) -> dict[str, Any]:
    [one] = scaled_objects([named], goal or Goal(wait_s=10.0), replace(CLUSTER, **where))
    return one


def check_is_scaled_object(one: dict[str, Any]) -> None:
    """Fields that KEDA knows, of the types it reads."""
    assert (one["apiVersion"], one["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])
    assert len(f"keda-hpa-{one['metadata']['name']}") <= 63
    spec = one["spec"]
    assert set(spec) <= SPEC
    assert set(spec["scaleTargetRef"]) <= TARGET
    assert set(spec["fallback"]) <= FALLBACK
    assert set(spec["advanced"]) <= ADVANCED
    counts = ("pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount")
    assert all(type(spec[name]) is int for name in counts)
    assert spec["minReplicaCount"] <= spec["maxReplicaCount"]
    for trigger in spec["triggers"]:
        assert set(trigger) <= TRIGGER
        assert trigger["type"] == "metrics-api"
        # A fallback works with an AverageValue only, and so does a target of 1 per replica.
        assert trigger["metricType"] == "AverageValue"
        assert {"url", "valueLocation", "targetValue"} <= set(trigger["metadata"]) <= METRICS_API
        assert all(type(value) is str for value in trigger["metadata"].values())
        # A GJSON path of plain names, and numbers that old versions read as integers.
        assert re.fullmatch(r"\w+(\.\w+)*", trigger["metadata"]["valueLocation"], re.ASCII)
        assert int(trigger["metadata"]["targetValue"]) == 1
        assert int(trigger["metadata"]["activationTargetValue"]) == 0
    # With 0 replicas KEDA has no fallback, and takes the last worker away at an error.
    assert spec["fallback"]["replicas"] >= 1
    assert spec["fallback"]["failureThreshold"] >= 1


def test_fields_are_kedas() -> None:
    """And none besides."""
    check_is_scaled_object(made())
    check_is_scaled_object(made(namespace="jobs"))


def test_goal_reaches_both_keda_and_the_endpoint() -> None:
    """The bounds are KEDA's own, and the endpoint keeps to the same."""
    one = made(goal=Goal(wait_s=2.5, minimum=1, maximum=7), deployment="workers", namespace="jobs")
    assert one["metadata"]["namespace"] == "jobs"
    spec = one["spec"]
    assert spec["scaleTargetRef"] == {"name": "workers"}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 7)
    url = urlsplit(spec["triggers"][0]["metadata"]["url"])
    assert (url.netloc, url.path) == ("prefillq-scale:9465", "/templates/acme/triage")
    assert parse_qs(url.query) == {"target_wait": ["2.5"], "min": ["1"], "max": ["7"]}
    assert spec["triggers"][0]["metadata"]["valueLocation"] == f"models.{MODEL}.desired"


def test_one_for_each_model() -> None:
    """A Deployment runs one."""
    two = replace(NAMED, models={MODEL: "tiny", "f" * 12: "large"})
    cluster = replace(CLUSTER, deployment="{template}-{model}")
    objects = scaled_objects([two], Goal(wait_s=1.0), cluster)
    assert len({one["metadata"]["name"] for one in objects}) == 2
    for one in objects:
        check_is_scaled_object(one)


def test_workers_stay_while_the_endpoint_does_not_answer() -> None:
    """More than `replicas` are not cut down to it, and it is never none."""
    fallback = made(goal=Goal(wait_s=10.0, minimum=0, maximum=7))["spec"]["fallback"]
    assert (fallback["behavior"], fallback["replicas"]) == ("currentReplicasIfHigher", 1)
    assert made(goal=Goal(wait_s=10.0, minimum=3))["spec"]["fallback"]["replicas"] == 3


def test_each_template_has_a_deployment_of_its_own() -> None:
    """KEDA refuses two ScaledObjects for one."""
    others = [NAMED, replace(NAMED, template="mail_in"), replace(NAMED, tenant="globex")]
    objects = scaled_objects(others, Goal(wait_s=1.0), CLUSTER)
    assert [one["spec"]["scaleTargetRef"]["name"] for one in objects] == [
        "prefillq-worker-acme-triage",
        "prefillq-worker-acme-mail-in",
        "prefillq-worker-globex-triage",
    ]
    for pattern in ("workers", "{tenant}", "prefillq-{model}"):
        with pytest.raises(InvalidInput, match="two ScaledObjects for one Deployment"):
            scaled_objects(others, Goal(wait_s=1.0), replace(CLUSTER, deployment=pattern))


@pytest.mark.parametrize("pattern", ["Workers", "{tenat}", "-x", "x" * 254, ""])
def test_what_kubernetes_does_not_take_is_no_name(pattern: str) -> None:
    """Said before kubectl does."""
    with pytest.raises(InvalidInput, match="no name of a Deployment"):
        made(deployment=pattern)


def test_one_for_all_templates_of_a_model() -> None:
    """It asks for the sum, and is the only one of its Deployment."""
    named = [NAMED, replace(NAMED, template="mail", models={MODEL: "tiny", "f" * 12: "large"})]
    cluster = replace(CLUSTER, deployment=FOR_MODEL)
    [one] = model_objects(named[:1], Goal(wait_s=2.0, maximum=9), cluster)
    check_is_scaled_object(one)
    assert one["spec"]["scaleTargetRef"] == {"name": "prefillq-worker"}
    metadata = one["spec"]["triggers"][0]["metadata"]
    assert urlsplit(metadata["url"]).path == f"/models/{MODEL}"
    assert metadata["valueLocation"] == "desired"
    with pytest.raises(InvalidInput, match="two ScaledObjects"):
        model_objects(named, Goal(wait_s=2.0), cluster)
    each = replace(CLUSTER, deployment="prefillq-worker-{model}")
    assert len(model_objects(named, Goal(wait_s=2.0), each)) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a-b", "c"), ("a", "b-c")),
        (("a_b", "c"), ("a-b", "c")),
        (("a", "x" * 64), ("a", "x" * 63 + "y")),
    ],
    ids=["dashes", "underscores", "long"],
)
def test_names_do_not_meet(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Kubernetes allows fewer letters and characters than we do."""
    names = set()
    for tenant, template in (one, other):
        made_one = made(replace(NAMED, tenant=tenant, template=template))
        check_is_scaled_object(made_one)
        names.add(made_one["metadata"]["name"])
    assert len(names) == 2


def test_yaml_reads_back_as_it_was() -> None:
    """One document for each object."""
    objects = scaled_objects([NAMED, replace(NAMED, template="mail")], Goal(wait_s=1.0), CLUSTER)
    assert list(yaml.safe_load_all(to_yaml(objects))) == objects
    assert json.loads(json.dumps(objects)) == objects


def test_the_example_is_what_is_printed() -> None:
    """deploy/keda/scaledobject.yaml is the output of a command, and says which."""
    text = (ROOT / "deploy" / "keda" / "scaledobject.yaml").read_text("utf-8")
    [shown] = yaml.safe_load_all(text)
    check_is_scaled_object(shown)
    model = shown["spec"]["triggers"][0]["metadata"]["valueLocation"].split(".")[1]
    named = Named(tenant="acme", template="support-triage", models={model: "tiny"})
    goal = Goal(wait_s=10.0, minimum=0, maximum=20)
    assert (
        to_yaml(scaled_objects([named], goal, replace(CLUSTER, endpoint=CLUSTER.endpoint))) in text
    )


def test_the_service_serves_what_the_objects_ask() -> None:
    """deploy/keda/endpoint.yaml: the Service's name and port are --endpoint's default."""
    text = (ROOT / "deploy" / "keda" / "endpoint.yaml").read_text("utf-8")
    deployment, service, policy = yaml.safe_load_all(text)
    kinds = [one["kind"] for one in (deployment, service, policy)]
    assert kinds == ["Deployment", "Service", "NetworkPolicy"]
    assert service["metadata"]["name"] == "prefillq-scale"
    [port] = service["spec"]["ports"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert port["port"] == container["ports"][0]["containerPort"] == 9465
    assert container["command"] == ["prefillq", "scale", "--serve", "0.0.0.0:9465"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert container["image"] == compose["services"]["worker"]["image"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = policy["spec"]["ingress"]
    assert [entry["port"] for entry in rule["ports"]] == [container["ports"][0]["name"]]
    [who] = rule["from"]
    assert set(who) == {"namespaceSelector", "podSelector"}, "both at once, in one entry"


def test_the_workers_are_those_that_the_object_scales() -> None:
    """deploy/keda/worker.yaml: name, template, model's image, and time to end in."""
    folder = ROOT / "deploy" / "keda"
    [workers] = yaml.safe_load_all((folder / "worker.yaml").read_text("utf-8"))
    [shown] = yaml.safe_load_all((folder / "scaledobject.yaml").read_text("utf-8"))
    assert shown["spec"]["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    spec, pod = workers["spec"], workers["spec"]["template"]["spec"]
    assert "replicas" not in spec, "it is KEDA's"
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    [fetch], [worker] = pod["initContainers"], pod["containers"]
    assert worker["command"][:3] == ["prefillq", "worker", "start"]
    given = dict(word.removeprefix("--").split("=") for word in worker["command"][3:])
    known = {option.removeprefix("--") for p in start.params for option in p.opts}
    assert set(given) <= known
    url = shown["spec"]["triggers"][0]["metadata"]["url"]
    assert urlsplit(url).path == f"/templates/{given['template']}"
    assert float(given["grace"]) < pod["terminationGracePeriodSeconds"]
    assert fetch["command"] == ["prefillq", "models", "fetch", given["model"]]
    assert worker["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    assert [port["containerPort"] for port in worker["ports"]] == [int(given["metrics-port"])]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    assert {fetch["image"], worker["image"]} == {compose["services"]["worker"]["image"]}
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile
    [mount] = worker["volumeMounts"]
    assert f"PREFILLQ_CACHE_DIR={mount['mountPath']}\n" in dockerfile
