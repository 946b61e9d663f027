"""What broke for people who run function hosts on Kubernetes, each as a case; named by the report. FR-37 is in test_deletion.py."""
import concurrent.futures
import threading
import time

import pytest
from fixtures import shared, url  # noqa: F401  (fixtures)
from kube import KubectlError, apply, get, kubectl, namespace, obj, until


def flood(call, seconds_or_count, at_once):
    """The answers of so many calls, so many at a time."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda _: call(), range(seconds_or_count)))


def test_fr_06_out_of_memory_is_told_and_the_next_call_works(shared):
    shared.put("eater", files={"handler.py": "def handle(e, c):\n    if e.get('ok'): return 'ok'\n    print('about to eat', flush=True)\n    a = []\n    while True: a.append(bytearray(8 * 1024 * 1024))\n"}, memoryMb=128).ready()
    shared.until(lambda: shared.fn("eater", body={"ok": 1}).status == 200, 30)
    for _ in range(2):
        answer = shared.fn("eater", body={})
        assert answer.status == 502, answer
        record = shared.stored(answer.id, within=30)
        assert record["status"] == "out_of_memory", record
        assert "about to eat" in shared.api("GET", f"invocations/{answer.id}/logs", headers={"accept": "text/plain"}).text
        began = time.monotonic()
        shared.until(lambda: shared.fn("eater", body={"ok": 1}).status == 200, 60)
        assert time.monotonic() - began < 30


def test_fr_22_long_calls_survive_updates_and_the_loss_of_a_pod(shared):
    code = "import time\ndef handle(e, c):\n    time.sleep(3)\n    return %d\n"
    workload = shared.put("long", files={"handler.py": code % 0}, timeoutSec=20, workers=8, concurrency=8, memoryMb=512)
    workload.ready()
    answers, over = [], threading.Event()
    def caller():
        while not over.is_set():
            answers.append(shared.fn("long", body={}, timeout=60))
    threads = [threading.Thread(target=caller, daemon=True) for _ in range(30)]
    for t in threads:
        t.start()
    try:
        for version in (1, 2):
            assert shared.upload("long", {"handler.py": code % version}).status == 202
            workload.ready()
        kubectl("delete", "pod", workload.pod()["metadata"]["name"], "-n", workload.ns, "--wait=false")
        time.sleep(4)
    finally:
        over.set()
        for t in threads:
            t.join(60)
    assert not [a for a in answers if a.status != 200] and len(answers) > 60, [a for a in answers if a.status != 200][:3]


def test_fr_23_idle_begins_when_the_last_call_has_ended(shared):
    workload = shared.put("idle", files={"handler.py": "import time\ndef handle(e, c):\n    time.sleep(e['sec'])\n    return 'whole'\n"}, trigger=False, minReplicas=0, idleTimeoutSec=3, timeoutSec=60)
    workload.ready()
    until(lambda: not workload.pods(), 60, what=workload.why)
    answer = shared.api("POST", "functions/idle/invoke", {"sec": 12}, timeout=90)
    assert (answer.status, answer.text) == (200, "whole"), answer
    ended = time.monotonic()
    assert workload.pods(), "its pod went with the answer"
    until(lambda: not workload.pods(), 60, what=workload.why)
    assert time.monotonic() - ended > 2


def test_fr_24_calls_wait_for_code_that_loads_slowly(shared):
    workload = shared.put("cold", files={"handler.py": "import time; time.sleep(4)\ndef handle(event, context):\n    return 'warm'\n"}, minReplicas=0, idleTimeoutSec=6, workers=1, concurrency=10, memoryMb=256)
    workload.ready()
    until(lambda: not workload.pods(), 60, what=workload.why)
    answers = flood(lambda: shared.fn("cold", body={}, timeout=90), 100, 100)
    assert {(a.status, a.text) for a in answers} == {(200, "warm")}, [a for a in answers if a.status != 200][:3]


def test_fr_31_after_ready_no_answer_is_of_the_old_code(shared):
    workload = shared.put("fresh", files={"handler.py": "def handle(e, c):\n    return {'v': 0}\n"}, minReplicas=2, maxReplicas=2)
    workload.ready()
    for version in range(1, 4):
        uploaded = shared.upload("fresh", {"handler.py": f"def handle(e, c):\n    return {{'v': {version}}}\n"})
        shared.ready("fresh", code_sha256=uploaded.json["code_sha256"])
        answers = flood(lambda: shared.fn("fresh", body={}), 200, 8)
        assert {(a.status, a.text) for a in answers} == {(200, f'{{"v":{version}}}')}, (version, {a.text for a in answers})
    pods = {p["metadata"]["uid"] for p in workload.pods()}
    assert "@sha256:" in workload.pod()["spec"]["containers"][0]["image"]
    assert shared.upload("fresh", {"handler.py": "def handle(e, c):\n    return {'v': 3}\n"}).status == 202
    time.sleep(3)
    assert {p["metadata"]["uid"] for p in workload.pods()} == pods, "the same code made new pods"


@pytest.mark.parametrize("name", ["a" * 64, "a" * 253, "A_b", "-x", "x.", "кот"])
def test_fr_32_a_name_that_cannot_be_is_refused_at_both_doors(shared, name):
    apply(namespace(shared.ns))
    refused = shared.api("POST", "functions", {"name": name, "runtime": "python3.11"})
    assert (refused.status, refused.json["code"]) == (400, "Invalid"), refused
    with pytest.raises(KubectlError) as door:
        apply(obj("Function", shared.ns, name, {"runtime": "python3.11"}))
    assert "Invalid value" in str(door.value) or "is invalid" in str(door.value), door.value


def test_fr_32_long_names_do_not_meet(shared):
    names = ["a", "n" * 52, "n" * 53, "n" * 62 + "a", "n" * 62 + "b"]
    workloads = [shared.put(name, files={"handler.py": f"def handle(e, c):\n    return {name!r}\n"}, trigger=False) for name in names]
    apply(*(obj("Trigger", shared.ns, f"long-{i}", {"type": "http", "functionRef": name}) for i, name in enumerate(names)))
    for workload in workloads:
        workload.ready()
    for name in names:
        assert shared.until(lambda: (a := shared.fn(name)).status == 200 and a, 30).text == name
    services = [s["metadata"]["name"] for s in get("services", ns=shared.fn_ns) if s["metadata"]["labels"].get("sless.kube5s.ru/function") in names]
    assert len(services) == len(set(services)) == len(names)


def test_fr_39_the_public_door_leads_to_functions_with_a_trigger_alone(shared):
    shared.put("private", trigger=False).ready()
    for path in (f"/fn/{shared.ns}/private", f"/fn/{shared.ns}/no-such", f"/fn/{shared.ns}/..%2f..%2fv1/whoami", f"//fn/{shared.ns}/private"):
        for headers in ({}, {"x-original-url": f"/v1/namespaces/{shared.ns}/functions"}, {"x-forwarded-host": "sless-api-internal.sless.svc"}, {"x-sless-proxy-token": "x"}):
            assert shared.call("GET", path, headers=headers).status == 404, (path, headers)
    private, absent = (shared.call("GET", f"/fn/{shared.ns}/{name}") for name in ("private", "no-such"))
    assert private.json["code"] == absent.json["code"] and private.json["title"] == absent.json["title"]
    assert private.json["detail"].replace("private", "no-such") == absent.json["detail"]
    # Records, metrics and storage are on no public listener; the rest asks for a token.
    assert shared.call("POST", "/internal/v1/reports", "{}\n", {"content-type": "application/x-ndjson"}).status == 404
    assert shared.call("GET", "/metrics").status == 404 and shared.call("GET", "/metrics/targets").status == 404
    assert shared.call("GET", f"/v1/namespaces/{shared.ns}/functions").status == 401


def test_fr_40_no_account_of_the_platform_is_in_reach_of_a_handler(shared):
    code = '''import os, glob
def handle(event, context):
    out = {}
    for p in ["/proc/1/environ", "/proc/1/mem", "/var/run/secrets/kubernetes.io/serviceaccount/token"] + glob.glob("/proc/1/fd/*") + glob.glob("/var/run/sless/**", recursive=True):
        try: out[p] = len(open(p, "rb").read(64))
        except OSError as e: out[p] = e.strerror
    out["ptrace"] = __import__("ctypes").CDLL(None, use_errno=True).ptrace(16, 1, 0, 0)
    return out
'''
    workload = shared.put("prying", files={"handler.py": code})
    workload.ready()
    answer = shared.until(lambda: (a := shared.fn("prying")).status == 200 and a, 30)
    got = answer.json
    assert got.pop("ptrace") == -1 and "/proc/1/environ" in got
    assert not {path: how for path, how in got.items() if not isinstance(how, str)}, got
    account = get("serviceaccount", workload.pod()["spec"]["serviceAccountName"], workload.ns)
    assert account["metadata"]["name"] == "fn-prying"
    who = f"system:serviceaccount:{workload.ns}:fn-prying"
    for verb, what in (("get", "secrets"), ("list", "pods"), ("create", "pods"), ("get", "functions.sless.kube5s.ru")):
        assert kubectl("auth", "can-i", verb, what, "-n", shared.ns, "--as", who, check=False)[1].strip().splitlines()[-1] == "no", (verb, what)
