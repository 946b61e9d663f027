"""`kubectl` and the API are two doors to the same objects: what they show, what they refuse, and what is put right behind them."""
import json

import pytest
from fixtures import cluster, shared, url  # noqa: F401  (fixtures)
from kube import KubectlError, apply, condition, delete, get, kubectl, namespace, obj, patch, until
from test_api import HELLO, RUNTIME

SAYS = "def handle(e, c):\n    return {}\n"
HEX = "0" * 64


def says(value):
    return {"handler.py": SAYS.format(repr(value))}


def deployment(workload):
    return get("deployments", f"fn-{workload.name}", workload.ns)


def replicas(workload):
    return (deployment(workload) or {"spec": {}})["spec"].get("replicas")


def reason(workload, kind, wanted, within=60):
    """The message of the condition once it has this reason."""
    def look():
        _, why, message = condition(workload.function(), kind)
        return why == wanted and (message or True)
    return until(look, within, what=workload.why)


def test_what_kubectl_applies_the_api_shows_and_the_other_way_round(shared, lang):
    name = f"doors-{lang}"
    workload = shared.put(name, lang, timeoutSec=7)
    there = workload.ready()
    got = shared.api("GET", f"functions/{name}").json
    assert (got["phase"], got["timeout_sec"], got["revision"], got["image"]) == ("Ready", 7, there["status"]["revision"], there["status"]["image"])
    assert [condition(there, kind)[0] for kind in ("Built", "Deployed", "Ready")] == ["True"] * 3
    assert {c["observedGeneration"] for c in there["status"]["conditions"]} == {there["metadata"]["generation"]}
    answer = shared.until(lambda: (a := shared.fn(name, body={"name": "Ada"})).status == 200 and a)
    assert answer.json == {"message": "Hello, Ada!"}

    assert shared.api("PATCH", f"functions/{name}", {"timeout_sec": 9}).status == 200
    assert workload.function()["spec"]["timeoutSec"] == 9
    patch("fn", name, shared.ns, {"spec": {"timeoutSec": 11}})
    assert shared.api("GET", f"functions/{name}").json["timeout_sec"] == 11
    workload.ready()

    head, line = (kubectl("get", "fn", name, "-n", shared.ns, "--no-headers=false").splitlines() + [""])[:2]
    assert head.split()[:5] == ["NAME", "PHASE", "RUNTIME", "REVISION", "URL"] and line.split()[1:3] == ["Ready", RUNTIME[lang]], (head, line)
    head, line = kubectl("get", "trg", f"{name}-http", "-n", shared.ns).splitlines()
    assert head.split()[:6] == ["NAME", "TYPE", "FUNCTION", "ENABLED", "ACTIVE", "URL"], head
    assert line.split()[1:5] == ["http", name, "true", "true"] and line.split()[5].endswith(f"/fn/{shared.ns}/{name}"), line
    apply(obj("FunctionJob", shared.ns, f"{name}-once", {"functionRef": name}))
    assert f"{name}-once" in kubectl("get", "fj", "-n", shared.ns)
    events = [e["reason"] for e in get("events", ns=shared.ns) if e["involvedObject"]["name"] == name]
    assert "Ready" in events or "Answering" in events, events


@pytest.mark.parametrize("kind, name, spec, says", [
    ("Function", "a", {"runtime": "python3.11", "timeoutSec": 0}, "must be at least 0.1"),
    ("Function", "a", {"runtime": "python3.11", "env": {"SLESS_X": "1"}}, "names that begin with SLESS_ are reserved"),
    ("Function", "a", {"runtime": "python3.11", "minReplicas": 3, "maxReplicas": 2}, "must not be above maxReplicas"),
    ("Function", "a", {"runtime": "python3.11", "source": {"key": "x/y/z.zip", "sha256": HEX}}, "must be {namespace}/{name}/{sha256}.zip"),
    ("Function", "a.b", {"runtime": "python3.11"}, "must be a DNS label"),
    ("Trigger", "a", {"type": "cron", "functionRef": "f"}, "needs a schedule"),
    ("Trigger", "a", {"type": "cron", "functionRef": "f", "schedule": "* * * * *", "host": "a.example"}, "are of triggers of type http"),
    ("Trigger", "a", {"type": "rabbitmq", "functionRef": "f"}, "needs a connection and a queue"),
    ("FunctionJob", "a", {"functionRef": "f", "timeoutSec": 0}, "must be at least 0.1"),
])
def test_wrong_objects_are_refused_by_the_api_server(kind, name, spec, says):
    with pytest.raises(KubectlError) as refused:
        kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(obj(kind, "default", name, spec)))
    assert says in str(refused.value)


def test_what_can_not_change_says_so(shared):
    apply(namespace(shared.ns))
    for kind, first, change, says in (
            ("Function", {"runtime": "python3.11"}, {"runtime": "nodejs20"}, "can't be changed; make a new function"),
            ("Trigger", {"type": "http", "functionRef": "x"}, {"type": "cron", "schedule": "* * * * *"}, "can't be changed; make a new trigger"),
            ("FunctionJob", {"functionRef": "x", "runId": 0}, {"functionRef": "y"}, "can't be changed; make a new job")):
        apply(obj(kind, shared.ns, "fixed", first))
        with pytest.raises(KubectlError) as refused:
            patch(f"{kind.lower()}s.sless.kube5s.ru", "fixed", shared.ns, {"spec": change})
        assert says in str(refused.value)


def test_drift_is_repaired(shared):
    workload = shared.put("drift")
    workload.ready()
    before = deployment(workload)
    delete("deployment", "fn-drift", workload.ns)
    until(lambda: (d := deployment(workload)) and d["metadata"]["uid"] != before["metadata"]["uid"], 30, what=workload.why)
    kubectl("set", "image", "deployment/fn-drift", "function=127.0.0.1:5000/busybox:1", "-n", workload.ns)
    kubectl("scale", "deployment/fn-drift", "--replicas=3", "-n", workload.ns)
    image = before["spec"]["template"]["spec"]["containers"][0]["image"]
    def same():
        spec = deployment(workload)["spec"]
        return spec["replicas"] == 1 and spec["template"]["spec"]["containers"][0]["image"] == image
    until(same, 30, what=workload.why)
    delete("networkpolicy", "fn-drift", workload.ns)
    until(lambda: get("networkpolicies", "fn-drift", workload.ns), 30, what=workload.why)
    delete("service", "fn-drift", workload.ns)
    until(lambda: get("services", "fn-drift", workload.ns), 30, what=workload.why)
    workload.ready()
    shared.until(lambda: shared.fn("drift", body={"name": "Ada"}).status == 200, 30)


def test_a_pod_that_has_no_room_says_why_and_the_one_before_answers(shared):
    workload = shared.put("huge")
    first = workload.ready()
    node = get("nodes")[0]["status"]["allocatable"]["memory"]
    more = int(node.removesuffix("Ki")) // 1024 + 1024
    patch("fn", "huge", shared.ns, {"spec": {"memoryMb": min(more, 32768)}})
    if more <= 32768:
        assert "no node has room" in reason(workload, "Ready", "Unschedulable") and "memory" in reason(workload, "Ready", "Unschedulable")
    else:
        reason(workload, "Ready", "QuotaExceeded")
    assert workload.function()["status"]["phase"] == "Pending" and workload.function()["status"]["revision"] == first["status"]["revision"]
    assert shared.fn("huge", body={"name": "Ada"}).status == 200
    patch("fn", "huge", shared.ns, {"spec": {"memoryMb": 128}})
    workload.ready()


def test_a_quota_that_is_full_is_named(cluster):
    apply(namespace(cluster.ns, quota="pods=1"))
    kubectl("annotate", "namespace", cluster.ns, "sless.kube5s.ru/quota=pods=1", "--overwrite")
    source = cluster.push("one", "py", says(1))
    apply(obj("Function", cluster.ns, "one", {"runtime": "python3.11", "source": source}))
    cluster.workload("one").ready()
    apply(obj("Function", cluster.ns, "two", {"runtime": "python3.11", "source": cluster.push("two", "py", says(2))}))
    workload = cluster.workload("two")
    assert "exceeded quota" in reason(workload, "Ready", "QuotaExceeded") and workload.function()["status"]["phase"] == "Pending"
    kubectl("annotate", "namespace", cluster.ns, "sless.kube5s.ru/quota=pods=3", "--overwrite")
    workload.ready()


def test_a_secret_that_is_missing_is_named_and_waited_for(shared):
    workload = shared.put("needs", files={"handler.py": "import os\ndef handle(e, c):\n    return os.environ['WORD']\n"}, secrets=["words"])
    message = until(lambda: (s := (workload.function() or {}).get("status", {}).get("message")) and "words" in s and s, 60, what=workload.why)
    assert workload.function()["status"]["phase"] == "Pending", message
    assert shared.api("PUT", "secrets/words", {"data": {"WORD": "sesame"}}).status == 201
    workload.ready()
    assert shared.until(lambda: (a := shared.fn("needs")).status == 200 and a).text == "sesame"


def test_code_of_somebody_else_is_refused(shared):
    shared.put("mine").ready()
    key = shared.api("GET", "functions/mine").json["code_sha256"]
    workload = shared.put("thief", trigger=False, source={"key": f"{shared.ns}/mine/{key}.zip", "sha256": key})
    assert f"{shared.ns}/thief/{key}.zip" in reason(workload, "Ready", "InvalidSource")
    assert not workload.pods() and not get("deployments", "fn-thief", workload.ns)


def test_an_image_that_can_not_be_pulled_says_so(shared):
    """A registry that lost it: the revision's image is named by a digest that isn't there."""
    workload = shared.put("lost")
    workload.ready()
    revision = next(r for r in get("controllerrevisions", ns=shared.ns) if r["metadata"]["name"].startswith("lost-"))
    image = revision["metadata"]["annotations"]["sless.kube5s.ru/image"]
    kubectl("annotate", "controllerrevision", revision["metadata"]["name"], "-n", shared.ns, f"sless.kube5s.ru/image={image.split('@')[0]}@sha256:{HEX}", "--overwrite")
    until(lambda: image.split("@")[0] in (m := workload.function()["status"].get("message") or "") and "could not be pulled" in m, 60, what=workload.why)
    assert shared.fn("lost", body={"name": "Ada"}).status == 200
    kubectl("annotate", "controllerrevision", revision["metadata"]["name"], "-n", shared.ns, f"sless.kube5s.ru/image={image}", "--overwrite")
    workload.ready()


def test_the_same_code_is_not_built_again_and_a_rollback_builds_nothing(shared):
    workload = shared.put("history", files=says(1))
    first = workload.ready()["status"]
    assert shared.upload("history", says(2)).status == 202
    second = workload.ready()["status"]
    assert second["revision"] != first["revision"] and second["build"] != first["build"]
    assert shared.fn("history").json == 2
    assert shared.upload("history", says(2)).status == 202
    same = workload.ready()["status"]
    assert {k: same[k] for k in ("revision", "image", "build", "conditions")} == {k: second[k] for k in ("revision", "image", "build", "conditions")}
    assert {r["revision"]: r["active"] for r in shared.api("GET", "functions/history/revisions").json["items"]} == {first["revision"]: False, second["revision"]: True}
    assert shared.api("POST", "functions/history/rollback", {"revision": first["revision"]}).status == 202
    back = workload.ready(revision=first["revision"])["status"]
    assert back["image"] == first["image"] and back["build"] == second["build"]
    assert shared.fn("history").json == 1


def test_builds_of_one_input_give_one_digest(shared):
    """In two functions, so that neither finds what the other has built."""
    images = [shared.put(name, files=says("same"), trigger=False).ready()["status"]["image"] for name in ("twin-a", "twin-b")]
    assert images[0] != images[1] and len({image.split("@")[1] for image in images}) == 1, images


def test_dependencies_are_a_layer_that_stays_when_only_code_changes(shared):
    def layer(revision):
        return json.loads(get("controllerrevisions", f"layers-{revision}", shared.ns)["metadata"]["annotations"]["sless.kube5s.ru/dependencies"])
    code, requirements = "import idna\ndef handle(e, c):\n    return [idna.__version__, %d]\n", {"requirements.txt": "idna==3.10\n"}
    workload = shared.put("layers", files={"handler.py": code % 1} | requirements)
    first = layer(workload.ready()["status"]["revision"])
    shared.upload("layers", {"handler.py": code % 2} | requirements)
    second = workload.ready()["status"]
    assert layer(second["revision"]) == first and first["digest"].startswith("sha256:")
    assert shared.fn("layers").json == ["3.10", 2]
    log = shared.api("GET", "functions/layers/build/logs", headers={"accept": "text/plain"}).text
    assert "Successfully installed" not in log and log.strip(), log


def test_the_last_trigger_that_is_disabled_scales_to_zero_in_place(shared):
    workload = shared.put("asleep", files=says("awake"), idleTimeoutSec=1)
    workload.ready()
    patch("trg", "asleep-http", shared.ns, {"spec": {"enabled": False}})
    until(lambda: replicas(workload) == 0 and not workload.pods(), 60, what=workload.why)
    assert shared.fn("asleep").status == 404
    woken = shared.api("POST", "functions/asleep/invoke", {}, timeout=60)
    assert (woken.status, woken.json if woken.header("content-type").startswith("application/json") else woken.text) == (200, "awake"), woken
    until(lambda: replicas(workload) == 0 and not workload.pods(), 60, what=workload.why)
    patch("trg", "asleep-http", shared.ns, {"spec": {"enabled": True}})
    until(lambda: replicas(workload) == 1, 30, what=workload.why)
    assert shared.until(lambda: (a := shared.fn("asleep", timeout=60)).status == 200 and a).text == "awake"
