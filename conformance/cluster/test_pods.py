"""Contract parts 1 and 2 in a pod: what holds for a supervisor on a machine holds for one that is PID 1 in a container."""
import http.client
import json
import threading
import time

import pytest
from fixtures import shared, url  # noqa: F401  (fixtures)
from kube import get, kubectl, until
from test_api import HELLO


def of(lang, py, js):
    return {"py": py, "js": js}[lang]


def test_a_timeout_is_enforced_in_the_pod_and_leaves_nothing(shared, lang):
    name = f"slow-{lang}"
    shared.deploy(name, lang, of(lang,
        "import subprocess, time\ndef handle(e, c):\n    if e.get('ok'): return 'ok'\n    subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 987 & wait'])\n    spin(e)\ndef spin(e):\n    time.sleep(60)\n",
        "const { spawn } = require('child_process')\nexports.handle = async (e) => { if (e.ok) return 'ok'; spawn('setsid', ['sh', '-c', 'trap \"\" TERM; sleep 987 & wait'], { stdio: 'ignore' }); spin() }\nfunction spin () { const t = Date.now(); while (Date.now() - t < 60000); }\n"),
        timeout_sec=1)
    late = shared.fn(name, body={})
    assert (late.status, late.error["type"]) == (504, "Timeout") and late.seconds < 4, late
    record = shared.stored(late.id)
    assert record["status"] == "timeout" and 900 < record["duration_ms"] < 3000
    assert "spin" in record["error"]["traceback"], record["error"]
    workload = shared.workload(name)
    until(lambda: not any("987" in line for line in workload.processes()), 10, what=lambda: workload.processes())
    again = shared.fn(name, body={"ok": True})
    assert (again.status, again.text) == (200, "ok") and workload.pod()["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_crash_is_told_from_an_error(shared, lang):
    name = f"crash-{lang}"
    shared.deploy(name, lang, of(lang,
        "import os\ndef handle(e, c):\n    if e['how'] == 'exit': os._exit(3)\n    if e['how'] == 'kill': os.kill(os.getpid(), 9)\n    raise KeyError(e['how'])\n",
        "exports.handle = async (e) => { if (e.how === 'exit') process.exit(3); if (e.how === 'kill') process.kill(process.pid, 9); if (e.how === 'kill') await new Promise(() => {}); throw new TypeError(e.how) }\n"))
    for how, status, kept in (("exit", 502, "crashed"), ("kill", 502, "crashed"), ("x", 500, "error")):
        answer = shared.fn(name, body={"how": how})
        assert answer.status == status and shared.stored(answer.id)["status"] == kept, (how, answer)
    assert shared.workload(name).pod()["status"]["containerStatuses"][0]["restartCount"] == 0


def test_memory_mb_is_a_limit_and_its_end_is_recorded(shared, lang):
    name = f"greedy-{lang}"
    shared.deploy(name, lang, of(lang,
        "def handle(e, c):\n    return len(bytearray(e['mb'] << 20))\n",
        "exports.handle = (e) => { const all = []; for (let i = 0; i < e.mb; i++) all.push(Buffer.alloc(1 << 20, 1)); return all.length }\n"), memory_mb=128)
    ok = shared.fn(name, body={"mb": 8})
    assert ok.status == 200, ok
    answer = shared.fn(name, body={"mb": 512})
    assert answer.status == 502, answer
    record = shared.stored(answer.id, within=30)
    assert record["status"] == "out_of_memory", record
    shared.until(lambda: shared.fn(name, body={"mb": 8}).status == 200, 30)
    pod = shared.workload(name).pod()
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits["memory"] == "128Mi", limits


def test_logs_are_the_calls_own_and_reach_kubectl(shared, lang):
    name = f"talk-{lang}"
    shared.deploy(name, lang, of(lang,
        "import sys\ndef handle(e, c):\n    print('out', e['n'])\n    print('err', e['n'], file=sys.stderr)\n    return e['n']\n",
        "exports.handle = (e) => { console.log('out', e.n); console.error('err', e.n); return e.n }\n"))
    answers = [shared.fn(name, body={"n": n}) for n in range(5)]
    for n, answer in enumerate(answers):
        shared.stored(answer.id)
        items = shared.api("GET", f"invocations/{answer.id}/logs", headers={"accept": "application/json"}).json["items"]
        assert sorted((i["stream"], i["text"]) for i in items) == [("stderr", f"err {n}"), ("stdout", f"out {n}")]
    pod = shared.workload(name).pod()["metadata"]["name"]
    lines = [json.loads(line) for line in kubectl("logs", "-n", shared.fn_ns, pod, "-c", "function").splitlines()]
    assert any(answers[3].id in json.dumps(line) and "out 3" in json.dumps(line) for line in lines), lines[-10:]


def test_a_pod_that_goes_finishes_its_calls(shared, lang):
    name = f"drain-{lang}"
    shared.deploy(name, lang, of(lang, "import time\ndef handle(e, c):\n    time.sleep(4)\n    return 'whole'\n",
                                 "exports.handle = async () => { await new Promise(r => setTimeout(r, 4000)); return 'whole' }\n"), timeout_sec=20)
    workload, got = shared.workload(name), []
    pod = workload.pod()["metadata"]["name"]
    caller = threading.Thread(target=lambda: got.append(shared.fn(name, body={})))
    caller.start()
    time.sleep(1)
    kubectl("delete", "pod", pod, "-n", workload.ns, "--wait=false")
    caller.join(30)
    assert got and (got[0].status, got[0].text) == (200, "whole"), (got, workload.why())
    record = shared.stored(got[0].id, within=20)
    assert record["status"] == "success" and record["http_status"] == 200


@pytest.mark.only("py")
def test_metrics_are_for_scrapers_alone(shared, lang):
    name = "measured"
    shared.deploy(name, lang, HELLO[lang])
    for _ in range(3):
        assert shared.fn(name, body={"name": "Ada"}).status == 200
    address = shared.workload(name).pod()["status"]["podIP"]
    # The machine itself is always let in (it asks the probes).
    connection = http.client.HTTPConnection(address, 9090, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    labels = f'function="{name}",function_namespace="{shared.ns}"'
    line, = [l for l in text.splitlines() if l.startswith("sless_invocations_total{") and 'status="success"' in l and 'trigger="http"' in l]
    assert labels in line and line.endswith(" 3"), line
    pods = get("pods", ns=shared.fn_ns, selector=f"sless.kube5s.ru/function={name}")
    ports = {p["name"]: p["containerPort"] for p in pods[0]["spec"]["containers"][0]["ports"]}
    assert ports == {"http": 8080, "admin": 9090} and pods[0]["metadata"]["annotations"]["prometheus.io/port"] == "9090"


@pytest.mark.only("py")
def test_a_running_call_is_cancelled(shared, lang):
    shared.deploy("endless", lang, "import time\ndef handle(e, c):\n    time.sleep(50)\n", timeout_sec=60)
    got = []
    caller = threading.Thread(target=lambda: got.append(shared.fn("endless", body={})))
    caller.start()
    running = shared.until(lambda: shared.api("GET", "functions/endless/invocations?status=running").json["items"])
    assert shared.api("POST", f"invocations/{running[0]['id']}/cancel").status == 202
    caller.join(15)
    assert got and got[0].status == 502 and got[0].error["type"] == "Cancelled" and shared.stored(running[0]["id"])["status"] == "cancelled"


def test_code_that_does_not_load_is_failed_with_its_error(shared, lang):
    name = f"broken-{lang}"
    shared.deploy(name, lang, HELLO[lang])
    first = shared.workload(name).ready()
    code = of(lang, "import no_such_module\ndef handle(e): pass\n", "require('no-such-module')\nexports.handle = () => 1\n")
    assert shared.upload(name, {f"handler.{lang}": code}).status == 202
    failed = shared.workload(name).failed()
    assert "no_such_module" in failed["status"]["message"] or "no-such-module" in failed["status"]["message"], failed["status"]
    assert failed["status"]["revision"] == first["status"]["revision"]
    answer = shared.fn(name, body={"name": "Ada"})
    assert (answer.status, answer.json) == (200, {"message": "Hello, Ada!"})


@pytest.mark.only("py")
def test_calls_run_beside_one_another(shared, lang):
    shared.deploy("many", lang, "import time\ndef handle(e, c):\n    time.sleep(2)\n    return 1\n", workers=2, concurrency=2)
    began, answers = time.monotonic(), []
    callers = [threading.Thread(target=lambda: answers.append(shared.fn("many", body={}))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [a.status for a in answers] == [200] * 4 and time.monotonic() - began < 6
