"""What is deleted goes for good, in whatever order: pods, builds, objects in S3, tags of the registry."""
import http.client
import json
import os
import time

import pytest
from fixtures import cluster, npm, url  # noqa: F401  (fixtures)
from kube import apply, delete, get, kubectl, obj, until


def in_s3(ns):
    """The keys below a namespace, out of the folder that the demo's S3 server keeps its objects in."""
    code, text = kubectl("exec", "-n", "sless", "sless-s3-0", "--", "find", "/data", "-path", f"*/{ns}/*", "-type", "f", check=False)
    assert code == 0 or "No such file" in text, text
    return [line for line in text.splitlines() if f"/{ns}/" in line]


def tags(ns, name):
    host, _, port = os.environ["SLESS_E2E_REGISTRY"].split("/")[0].partition(":")
    connection = http.client.HTTPConnection(host, int(port or 80), timeout=10)
    connection.request("GET", f"/v2/{ns}/{name}/tags/list")
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status in (200, 404), body
    return (json.loads(body).get("tags") or []) if answer.status == 200 else []


def full(cluster):
    """Functions of both languages with triggers, one with a job, one that is called."""
    for lang in ("py", "js"):
        cluster.put(f"f-{lang}", lang)
    apply(obj("Trigger", cluster.ns, "hosted", {"type": "http", "functionRef": "f-py", "host": f"{cluster.ns}.{os.environ['SLESS_E2E_HOST_SUFFIX']}"}),
          obj("FunctionJob", cluster.ns, "once", {"functionRef": "f-py", "runId": 1, "payload": {"name": "Ada"}}))
    for lang in ("py", "js"):
        cluster.workload(f"f-{lang}").ready()
    until(lambda: ingresses(cluster.ns), 20)
    assert in_s3(cluster.ns) and tags(cluster.ns, "f-py") and tags(cluster.ns, "f-js")


def ingresses(ns):
    return [i for i in get("ingresses", ns="sless") if any(rule.get("host", "").startswith(f"{ns}.") for rule in i["spec"].get("rules", []))]


def left(cluster):
    """All of a namespace that should be gone and isn't."""
    found = {
        "namespaces": [n for n in (cluster.ns, cluster.fn_ns) if get("namespace", n)],
        "S3": in_s3(cluster.ns),
        "tags": [tag for name in ("f-py", "f-js") for tag in tags(cluster.ns, name)],
        "builds": [j["metadata"]["name"] for j in get("jobs,pods,secrets", ns="sless-builds", selector=f"sless.kube5s.ru/namespace={cluster.ns}")],
        "ingresses": [i["metadata"]["name"] for i in ingresses(cluster.ns)],
    }
    return {what: names for what, names in found.items() if names}


def gone(cluster, within):
    def why():
        return json.dumps(left(cluster)) + kubectl("get", "fn,trg,fj", "-n", cluster.ns, "-o", "yaml", check=False)[1][-3000:] + kubectl("logs", "-n", "sless", "-l", "app.kubernetes.io/name=sless-controller", "--tail=20", check=False)[1]
    until(lambda: not left(cluster), within, every=1, what=why)


def test_a_namespace_goes_with_all_that_is_in_it(cluster):
    full(cluster)
    began = time.monotonic()
    delete("namespace", cluster.ns)
    gone(cluster, 60)
    assert time.monotonic() - began < 60
    assert cluster.fn("f-py", body={"name": "Ada"}).status == 404


def test_code_that_no_function_names_goes_with_its_namespace(cluster):
    """What `sless push` sent for an object that was never applied."""
    cluster.put("f-py")
    cluster.push("f-loose", "py", {"handler.py": "def handle(e): pass\n"})
    cluster.workload("f-py").ready()
    assert any("/f-loose/" in key for key in in_s3(cluster.ns))
    delete("namespace", cluster.ns)
    gone(cluster, 30)


def test_a_function_that_is_deleted_is_visible_until_it_is_gone(cluster):
    cluster.put("f-py", "py", {"handler.py": "import time\ndef handle(e, c):\n    time.sleep(6)\n    return 'whole'\n"}, timeoutSec=20)
    cluster.workload("f-py").ready()
    assert cluster.api("DELETE", "functions/f-py").status == 202
    seen = set()
    def look():
        answer = cluster.api("GET", "functions/f-py")
        seen.add(answer.json.get("phase") if answer.status == 200 else answer.status)
        return answer.status == 404
    until(look, 60, every=0.05, what=cluster.workload("f-py").why)
    assert seen == {"Terminating", 404}, seen
    until(lambda: not in_s3(cluster.ns) and not tags(cluster.ns, "f-py") and not get("deployments,services,secrets,serviceaccounts,networkpolicies,pods", ns=cluster.fn_ns, selector="sless.kube5s.ru/function=f-py"), 60)
    assert cluster.api("GET", "triggers/f-py-http").json["active"] is False


def test_a_build_that_runs_ends_with_its_function(cluster):
    cluster.put("f-js", "js", npm("sleep 120", "exports.handle = () => 1\n"))
    chosen = f"sless.kube5s.ru/namespace={cluster.ns},sless.kube5s.ru/function=f-js"
    until(lambda: get("pods", ns="sless-builds", selector=chosen), 30, what=cluster.workload("f-js").why)
    delete("functions.sless.kube5s.ru", "f-js", cluster.ns)
    until(lambda: not get("functions.sless.kube5s.ru", "f-js", cluster.ns) and not get("jobs,pods", ns="sless-builds", selector=chosen), 60, every=1)


def test_what_is_gone_already_holds_nothing_up(cluster):
    """Its workloads' namespace, its image's tags and its code were removed by somebody else."""
    cluster.put("f-py").ready()
    delete("namespace", cluster.fn_ns)
    delete("namespace", cluster.ns)
    gone(cluster, 60)


@pytest.mark.parametrize("away", ["sless-controller", "sless-s3"])
def test_deletion_waits_for_a_part_that_is_away_and_then_ends(cluster, away):
    """FR-37."""
    full(cluster)
    kind, count = ("deployment", 2) if away == "sless-controller" else ("statefulset", 1)
    kubectl("scale", kind, away, "-n", "sless", "--replicas=0")
    try:
        until(lambda: not get("pods", ns="sless", selector=f"app.kubernetes.io/name={away}"), 60, every=1)
        delete("namespace", cluster.ns)
        time.sleep(8)
    finally:
        kubectl("scale", kind, away, "-n", "sless", f"--replicas={count}")
        kubectl("rollout", "status", f"{kind}/{away}", "-n", "sless", "--timeout=90s")
    gone(cluster, 120)
