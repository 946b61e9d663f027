"""Changes and accidents under load: no call fails, no record is lost, nothing is built twice."""
import contextlib
import os
import threading
import time

import pytest
from fixtures import npm, shared, url  # noqa: F401  (fixtures)
from kube import get, kubectl, until

RATE = 100
VERSION = "import time\nV = {}\ndef handle(e, c):\n    time.sleep(0.02)\n    return V\n"


class Load:
    """Calls at a steady rate from now until `stop`, whoever is slow."""

    def __init__(self, api, name, rate=RATE, callers=40):
        self.api, self.name, self.period, self.answers, self.broken = api, name, 1 / rate, [], []
        self.over, self.lock, self.next, self.began = threading.Event(), threading.Lock(), time.monotonic(), time.monotonic()
        self.pool = [threading.Thread(target=self.work, daemon=True) for _ in range(callers)]
        for thread in self.pool:
            thread.start()

    def work(self):
        while not self.over.is_set():
            with self.lock:
                at, self.next = self.next, max(self.next + self.period, time.monotonic() - 1)
            if (pause := at - time.monotonic()) > 0 and self.over.wait(pause):
                return
            try:
                answer = self.api.fn(self.name, body={}, timeout=60)
                self.answers.append((answer.status, answer.id, answer.text[:200]))
            except OSError as e:
                self.broken.append(f"{type(e).__name__}: {e}")

    def stop(self):
        self.over.set()
        self.rate = (len(self.answers) + len(self.broken)) / (time.monotonic() - self.began)
        for thread in self.pool:
            thread.join(70)
        return self

    def bad(self):
        return [a for a in self.answers if a[0] != 200] + self.broken


@contextlib.contextmanager
def load(api, name, **more):
    one = Load(api, name, **more)
    try:
        yield one
    finally:
        one.stop()


def recorded(api, name, load, within=120):
    """Every call that was answered has one record, and there is no record of another call."""
    wanted = {id for status, id, _ in load.answers if id}

    def stored():
        ids, cursor = [], ""
        while True:
            page = api.api("GET", f"functions/{name}/invocations?limit=200{cursor}").json
            ids += [i["id"] for i in page["items"] if i["status"] not in ("running", "queued")]
            if not page["next"]:
                return ids
            cursor = f"&cursor={page['next']}"

    def missing():
        with contextlib.suppress(OSError, KeyError):
            ids = stored()
            assert len(ids) == len(set(ids)), "a call with two records"
            return wanted - set(ids)
        return wanted
    until(lambda: not missing(), within, every=2, what=lambda: f"{len(missing())} of {len(wanted)} calls have no record")


def deploy(shared, name, version=0, **spec):
    workload = shared.put(name, files={"handler.py": VERSION.format(version)}, workers=4, concurrency=2, **spec)
    workload.ready()
    shared.until(lambda: shared.fn(name, body={}).status == 200, 30)
    return workload


def test_no_call_fails_while_versions_change(shared, request):
    workload = deploy(shared, "rolling", minReplicas=2, maxReplicas=2)
    with load(shared, "rolling") as calls:
        until_then = time.monotonic() + request.config.getoption("--load-sec")
        version = 0
        while version < 2 or time.monotonic() < until_then:
            version += 1
            assert shared.upload("rolling", {"handler.py": VERSION.format(version)}).status == 202
            workload.ready()
            assert shared.fn("rolling", body={}).text == str(version)
        time.sleep(1)
    assert not calls.bad(), (len(calls.answers), calls.bad()[:5])
    assert {text for _, _, text in calls.answers} == {str(v) for v in range(version + 1)}
    assert calls.rate > 0.7 * RATE, f"only {calls.rate:.0f} calls/s were made"
    recorded(shared, "rolling", calls)


@pytest.mark.parametrize("replicas", [1, 2])
def test_no_call_fails_while_a_pod_is_deleted(shared, request, replicas):
    name = f"losing-{replicas}"
    workload = deploy(shared, name, minReplicas=replicas, maxReplicas=replicas)
    with load(shared, name) as calls:
        time.sleep(request.config.getoption("--load-sec") / 2)
        gone = workload.pods()[0]["metadata"]["name"]
        kubectl("delete", "pod", gone, "-n", workload.ns, "--wait=false")
        until(lambda: len([p for p in workload.pods() if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", []))]) == replicas, 60, what=workload.why)
        time.sleep(request.config.getoption("--load-sec") / 2)
    assert not calls.bad(), (len(calls.answers), calls.bad()[:5])
    assert calls.rate > 0.7 * RATE, f"only {calls.rate:.0f} calls/s were made"
    recorded(shared, name, calls)


def images_of(shared, name):
    return [r["metadata"]["annotations"].get("sless.kube5s.ru/image") for r in get("controllerrevisions", ns=shared.ns) if r["metadata"]["name"].startswith(f"{name}-")]


def test_controller_and_api_that_are_killed_come_back_and_build_once(shared):
    """Both kinds of pods at once, while a build runs: what they were about to do is done, once."""
    workload = deploy(shared, "killed")
    slow = npm("sleep 6", "exports.handle = () => 'built'\n")
    building = shared.put("slowly", "js", slow)
    chosen = f"sless.kube5s.ru/namespace={shared.ns},sless.kube5s.ru/function=slowly"
    seen, over = set(), threading.Event()

    def watch():
        while not over.wait(0.3):
            with contextlib.suppress(AssertionError):
                seen.update(j["metadata"]["uid"] for j in get("jobs", ns="sless-builds", selector=chosen))
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        until(lambda: seen, 30, what=building.why)
        with load(shared, "killed", rate=20) as calls:
            for part in ("controller", "api"):
                kubectl("delete", "pods", "-n", "sless", "-l", f"app.kubernetes.io/name=sless-{part}", "--grace-period=0", "--force", "--wait=false")
            kubectl("rollout", "status", "deployment/sless-api", "-n", "sless", "--timeout=90s")
            kubectl("rollout", "status", "deployment/sless-controller", "-n", "sless", "--timeout=90s")
            building.ready()
            time.sleep(2)
    finally:
        over.set()
        watcher.join()
    assert len(seen) == 1, f"{len(seen)} builds of one input"
    assert len(images_of(shared, "slowly")) == 1
    assert shared.until(lambda: (a := shared.fn("slowly")).status == 200 and a).text == "built"
    # The API was away: callers saw refused connections then, and no other failure; what was answered is recorded.
    assert not [a for a in calls.answers if a[0] != 200] and calls.answers, calls.bad()[:5]
    recorded(shared, "killed", calls)
    workload.ready()


@pytest.mark.parametrize("away", ["sless-postgres", "sless-s3"])
def test_stores_that_are_away_lose_nothing(shared, away):
    name = f"steady-{away.removeprefix('sless-')}"
    workload = deploy(shared, name)
    before = images_of(shared, name)
    with load(shared, name, rate=20) as calls:
        kubectl("scale", "statefulset", away, "-n", "sless", "--replicas=0")
        try:
            time.sleep(float(os.environ.get("SLESS_E2E_AWAY_SEC", 30)))
        finally:
            kubectl("scale", "statefulset", away, "-n", "sless", "--replicas=1")
            kubectl("rollout", "status", f"statefulset/{away}", "-n", "sless", "--timeout=90s")
        time.sleep(3)
    assert not calls.bad(), (len(calls.answers), calls.bad()[:5])
    recorded(shared, name, calls)
    assert images_of(shared, name) == before
    again = until(lambda: (a := shared.upload(name, {"handler.py": VERSION.format(7)})).status == 202 and a, 60, every=1)
    workload.ready()
    assert again.json["code_sha256"] == workload.function()["status"]["codeSha256"] and shared.fn(name, body={}).text == "7"
