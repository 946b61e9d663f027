"""What broke for the users of other function hosts, by public report, with that report's input: the kind of fault must not be possible here.

Also held by cases elsewhere, in the same form: all of `openfaas/faas#1927`-like buffering and `apache/openwhisk#3439` in `test_handlers.py` (logs), out of memory under a larger
limit and the kill of whole families in `test_supervisor.py`, further kinds of Node modules in `test_handlers.py`.
"""
import concurrent.futures
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import re
import socket
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from conftest import children
from test_api import Api, Up

ON_TIME = 0.4       # how late a kill may be seen on a busy machine


@pytest.fixture
def marker():
    """A path at which nothing is, where handlers may write."""
    path = Path(tempfile.gettempdir(), f"sless-marker-{uuid.uuid4()}")
    yield path
    path.unlink(missing_ok=True)


def many(call, count, at_once):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(call, range(count)))


def texts(h, answer):
    return [line["text"] for line in h.record(answer)["log"]]


def test_nothing_happens_after_a_timeout(host, lang, marker):
    """openfaas/faas#677, openfaas/of-watchdog#5: the caller was told of a timeout, the code went on and wrote to the database."""
    h = host(lang, py="import os, time\ndef handle(e, c):\n    if 'exists' in e: return os.path.exists(e['exists'])\n    print('begin', flush=True)\n    time.sleep(5)\n    open(e['marker'], 'w').write('must never exist')\n    return {'late': True}\n",
             js="const fs = require('fs')\nexports.handle = async (e) => { if (e.exists) return fs.existsSync(e.exists); console.log('begin')\n  await new Promise(r => setTimeout(r, 5000)); fs.writeFileSync(e.marker, 'must never exist'); return { late: true } }\n",
             SLESS_TIMEOUT_SEC=2)
    began = time.monotonic()
    answer = h.post({"marker": str(marker)})
    assert (answer.status, answer.error["type"]) == (504, "Timeout") and re.search(r"\b2\b", answer.error["message"])
    again = h.post({"exists": str(marker)})
    assert (again.status, again.json) == (200, False) and again.seconds < 1, "a fresh handler is ready"
    time.sleep(max(0, began + 6 - time.monotonic()))
    assert h.post({"exists": str(marker)}).json is False
    assert (h.record(answer)["status"], texts(h, answer)) == ("timeout", ["begin"])


@pytest.mark.parametrize("py, js", [
    ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef handle(e, c):\n    while True:\n        try: time.sleep(60)\n        except BaseException: pass\n",
     "process.on('SIGTERM', () => {})\nexports.handle = () => { for (;;) {} }\n"),
    ("import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef handle(e, c):\n    while True: pass\n", "process.on('SIGTERM', () => {})\nexports.handle = () => new Promise(() => setInterval(() => {}, 1000))\n"),
    ("import hashlib\ndef handle(e, c):\n    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)\n", "exports.handle = () => require('crypto').pbkdf2Sync('x', 'y', 1e9, 32, 'sha256')\n"),
], ids=["ignored", "masked", "inside C"])
def test_a_handler_that_cannot_be_interrupted(host, lang, py, js):
    """GoogleCloudPlatform/functions-framework-python#328: an exception in a thread does not reach code that is blocked in C or swallows exceptions."""
    h = host(lang, py=py, js=js, SLESS_TIMEOUT_SEC=1, SLESS_KILL_GRACE_SEC=1)
    h.wait(lambda: h.metric("sless_workers", state="ready") == 1, 5)
    before, began = set(h.family()), time.monotonic()
    answer = h.post({})
    assert (answer.status, answer.error["type"]) == (504, "Timeout") and 1 <= answer.seconds < 1 + ON_TIME
    h.wait(lambda: not before & set(h.family()), 3)
    assert time.monotonic() - began < 2 + ON_TIME
    assert h.record(answer)["status"] == "timeout"


def test_children_of_twenty_timeouts(host, lang):
    """nuclio/nuclio#2791: the children of a worker that was restarted for a timeout stayed, re-parented to PID 1."""
    h = host(lang, py="import subprocess, time\ndef handle(e, c):\n    for _ in range(3): subprocess.Popen(['sleep', '600'])\n    time.sleep(30)\n",
             js="const { spawn } = require('child_process')\nexports.handle = () => { for (let i = 0; i < 3; i++) spawn('sleep', ['600']); return new Promise(r => setTimeout(r, 30000)) }\n",
             SLESS_TIMEOUT_SEC=1, SLESS_KILL_GRACE_SEC=0.2, SLESS_WORKERS=4, SLESS_MIN_WORKERS=4)
    h.wait(lambda: h.metric("sless_workers", state="ready") == 4, 10)
    before, memory = len(h.family()), h.metric("sless_worker_memory_bytes")
    assert {a.status for a in many(lambda _: h.post({}), 20, 4)} == {504}
    h.wait(lambda: not h.family(b"sleep\000600"), 3)
    h.wait(lambda: h.metric("sless_workers", state="ready") == 4 and len(h.family()) == before, 5)
    assert h.metric("sless_worker_memory_bytes") < memory * 1.3
    h.wait(lambda: all(state != "Z" for _, state in children(h.process.pid)), 1)


def test_a_child_in_the_background_holds_the_pipe(host, lang):
    """golang/go#13155: the host waited for the end of stdout, which a child of the handler had inherited."""
    h = host(lang, py="import subprocess, time\ndef handle(e, c):\n    if 'sleep' in e: subprocess.Popen(f\"sleep {e['sleep']}; echo stray\", shell=True)\n    else: time.sleep(1.5)\n    print('own', e['n'])\n    return {'ok': True}\n",
             js="const { spawn } = require('child_process')\nexports.handle = async (e) => { if (e.sleep) spawn(`sleep ${e.sleep}; echo stray`, { shell: true, stdio: 'inherit' }); else await new Promise(r => setTimeout(r, 1500))\n"
                "  console.log('own', e.n); return { ok: true } }\n")
    long, short, later = h.post({"n": 1, "sleep": 120}), h.post({"n": 2, "sleep": 1}), h.post({"n": 3})
    assert long.json == short.json == later.json == {"ok": True} and long.seconds < 1 and short.seconds < 1
    assert [texts(h, a) for a in (long, short, later)] == [["own 1"], ["own 2"], ["own 3"]], "the stray's line is nobody's"


def test_orphans_of_five_hundred_calls(host, lang):
    """TritonDataCenter/containerpilot#409, krallin/tini#164: zombies, up to the limit of processes; or PID 1 took the exit status of the handler it waited for."""
    h = host(lang, py="import os\ndef handle(e, c):\n    if e.get('exit'): os._exit(e['exit'])\n    if os.fork() == 0:\n        if os.fork() == 0: os._exit(7)\n        os._exit(0)\n    os.wait()\n    return 'done'\n",
             js="exports.handle = (e) => { if (e.exit) process.exit(e.exit); require('child_process').spawnSync('sh', ['-c', 'sh -c \"exit 7\" & exit 0']); return 'done' }\n",
             SLESS_WORKERS=2, SLESS_MIN_WORKERS=2)
    assert {(a.status, a.text) for a in many(lambda _: h.post({}), 500, 4)} == {(200, "done")}
    h.wait(lambda: h.metric("sless_orphans_reaped_total") >= 500, 3)
    h.wait(lambda: not any(state == "Z" for parent in [h.process.pid, *h.family()] for _, state in children(parent)), 1)
    answer = h.post({"exit": 42})
    assert (answer.status, answer.error["type"]) == (502, "WorkerExited") and "42" in answer.error["message"]


@pytest.fixture
def small_memory():
    """A command's beginning that puts it into a cgroup of 128 MiB, under version 2 or 1."""
    v2, v1, group, limits = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"), None, {}
    with contextlib.suppress(OSError):
        if "memory" in (v2 / "cgroup.subtree_control").read_text().split():
            group, limits = v2 / f"sless-{uuid.uuid4()}", {"memory.max": "128M", "memory.swap.max": "0"}
    if (v1 / "memory.limit_in_bytes").exists():
        group, limits = v1 / f"sless-{uuid.uuid4()}", {"memory.limit_in_bytes": "128M"}
    try:
        group.mkdir()
    except (OSError, AttributeError):
        pytest.skip("no memory cgroup can be made here")
    for name, value in limits.items():
        if (group / name).exists():
            (group / name).write_text(value)
    yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"')
    for _ in range(100):
        with contextlib.suppress(OSError):
            return group.rmdir()
        time.sleep(0.05)


def test_memory_runs_out(small_memory, host, lang):
    """apache/openwhisk#2652, fission/fission#1676: "exited unexpectedly", and the pod that had restarted got no more calls."""
    h = host(lang, py="def handle(e, c):\n    print('about to eat', flush=True)\n    a = []\n    while e.get('eat'): a.append(bytearray(8 * 1024 * 1024))\n    return 'fine'\n",
             js="exports.handle = (e) => { console.log('about to eat'); const a = []; while (e.eat) a.push(Buffer.alloc(8 << 20, 1)); return 'fine' }\n", wrap=small_memory, SLESS_TIMEOUT_SEC=20)
    for _ in range(2):
        answer = h.post({"eat": 1})
        assert (answer.status, answer.error["type"]) == (502, "OutOfMemory")
        assert "128" in answer.error["message"], answer.error
        record = h.record(answer)
        assert (record["status"], [line["text"] for line in record["log"]]) == ("out_of_memory", ["about to eat"])
        assert 60 << 20 < record["max_rss_bytes"] < 256 << 20       # of which pages of files that it shares are not its own
        again = h.post({})
        assert (again.status, again.text) == (200, "fine")


@pytest.mark.parametrize("py, js, code", [("sys.exit(0)", "process.exit(0)", 0), ("os._exit(3)", "process.exit(3)", 3)], ids=["0", "3"])
def test_an_exit_left_in_a_script(host, lang, py, js, code):
    """aws-samples/iam-identity-center-team#444, serverless/dashboard#509: a forgotten exit ended the runtime, for a reason that was not to be seen."""
    h = host(lang, py=f"import os, sys\ndef handle(e, c):\n    print('bye')\n    {py}\n", js=f"exports.handle = async () => {{ console.log('bye'); {js} }}\n")
    for _ in range(5):
        answer = h.post({})
        assert (answer.status, answer.error["type"]) == (502, "WorkerExited") and re.search(rf"\b{code}\b", answer.error["message"])
        assert answer.seconds < 2, "no back-off for a user's exit"
        record = h.record(answer)
        assert (record["status"], [line["text"] for line in record["log"]]) == ("crashed", ["bye"])
    h.wait(lambda: h.metric("sless_worker_exits_total") == 5, 5)


@pytest.mark.only("js")
def test_a_rejection_that_nobody_handles(host, lang):
    """aws/aws-lambda-base-images#392: one version reported success, the next a raw stack without the call's id."""
    h = host(lang, js="""
const work = async () => { throw new Error("lost in the background"); };
exports.handle = async () => {
  work();
  await new Promise(r => setTimeout(r, 50));
  return "fine";
};
""")
    for _ in range(3):
        answer = h.post({})
        assert (answer.status, answer.error["type"], answer.error["message"]) == (500, "Error", "lost in the background")
        error = h.record(answer)["error"]
        assert "at work" in error["traceback"] and "handler.js" in error["traceback"]


@pytest.mark.only("js")
def test_a_rejection_after_the_answer(host, lang):
    """The same report: it must not be the error of a call that has nothing to do with it unless that one runs; the next call is served either way."""
    h = host(lang, js="exports.handle = (e) => { if (e.late) setTimeout(() => Promise.reject(new Error('late')), 100); return 'fine' }\n")
    first = h.post({"late": 1})
    assert (first.status, first.text, h.record(first)["status"]) == (200, "fine", "success")
    time.sleep(0.5)
    assert [a.status for a in many(lambda _: h.post({}), 10, 1)] == [200] * 10


def test_prints_are_seen_at_once(host, lang):
    """fission/fission#1927, openfaas/faas#1654, vmware-archive/kubeless#1173: what was printed to a pipe came late, or never, after a kill. Also of a Python child."""
    h = host(lang, py="import subprocess, sys, time\ndef handle(e, c):\n    print('one')\n    sys.stdout.write('two\\n')\n    subprocess.run(['python3', '-c', 'import time; print(\"three\"); time.sleep(60)'])\n",
             js="exports.handle = () => new Promise(() => { console.log('one'); process.stdout.write('two\\n'); require('child_process').spawn('python3', ['-c', 'import time; print(\"three\"); time.sleep(60)'], { stdio: 'inherit' }) })\n", SLESS_TIMEOUT_SEC=2)

    def seen():
        return [line["text"] for event in list(h.sink.events) if event["type"] == "log" for line in event["lines"]]

    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(h.post, {})
        h.wait(lambda: seen()[:2] == ["one", "two"], 1)
        if lang == "py":        # whose environment says so to its children
            h.wait(lambda: seen() == ["one", "two", "three"], 1)
        assert not call.done()
        assert call.result().status == 504
    assert texts(h, call.result())[:2] == ["one", "two"]


def test_a_line_of_five_megabytes(host, lang):
    """openfaas/of-watchdog#165, #100: a line longer than the buffer ended the reader for good, and with a full pipe the function hung."""
    h = host(lang, py="def handle(e, c):\n    print('before')\n    if 'n' in e: print('x' * e['n'])\n    print(e.get('last', 'after'))\n    return 'ok'\n",
             js="exports.handle = (e) => { console.log('before'); if (e.n) console.log('x'.repeat(e.n)); console.log(e.last || 'after'); return 'ok' }\n", SLESS_LOG_LIMIT_BYTES=8_000_000)
    first, second = h.post({"n": 5_000_000}), h.post({"last": "second"})
    assert first.text == second.text == "ok" and first.seconds < 3
    lines = texts(h, first)
    assert (lines[0], lines[-1], "".join(lines[1:-1])) == ("before", "after", "x" * 5_000_000) and max(map(len, lines)) <= 16 * 1024
    assert texts(h, second) == ["before", "second"]
    assert h.record(first)["log_dropped_bytes"] == 0


@pytest.mark.parametrize("workers, concurrency", [(2, 20), (4, 1)], ids=["shared", "apart"])
def test_two_hundred_calls_keep_their_own_lines(host, sink, lang, workers, concurrency):
    """apache/openwhisk#3439: logs were given to calls by their time, and under load they were missing or another's."""
    h = host(lang, py="import asyncio, random, sys\nasync def handle(e, c):\n    for i in range(50):\n        print(f\"{e['m']} out {i}\")\n        print(f\"{e['m']} err {i}\", file=sys.stderr)\n        await asyncio.sleep(random.random() * 0.005)\n    return e['m']\n",
             js="exports.handle = async (e) => {\n  for (let i = 0; i < 50; i++) {\n    console.log(`${e.m} out ${i}`); console.error(`${e.m} err ${i}`)\n    await new Promise(r => setTimeout(r, Math.random() * 5))\n  }\n  return e.m\n}\n",
             SLESS_WORKERS=workers, SLESS_MIN_WORKERS=workers, SLESS_CONCURRENCY=concurrency)
    answers = many(lambda n: h.post({"m": f"m{n}"}), 200, 20)
    assert [a.text for a in answers] == [f"m{n}" for n in range(200)]
    for answer in answers:
        h.record(answer)
    logs = {}
    for event in sorted(sink.events, key=lambda e: e["seq"]):
        if event["type"] == "log":
            for line in event["lines"]:
                logs.setdefault(event["invocation_id"], {}).setdefault(line["stream"], []).append(line["text"])
    for n, answer in enumerate(answers):
        assert logs[answer.id] == {stream: [f"m{n} {short} {i}" for i in range(50)] for stream, short in (("stdout", "out"), ("stderr", "err"))}


def test_output_is_never_the_answer(host, lang):
    """openfaas/faas#1004: what a library printed was in the response, as stdout was the way back."""
    h = host(lang, py="import os\nprint('{\"statusCode\": 500}')\ndef handle(e, c):\n    os.write(1, b'{\"result\": \"forged\"}\\n'); os.system('echo from-a-child')\n    return {'real': 1}\n",
             js="const fs = require('fs')\nconsole.log('{\"statusCode\": 500}')\nexports.handle = () => { fs.writeSync(1, '{\"result\": \"forged\"}\\n'); require('child_process').execSync('echo from-a-child', { stdio: 'inherit' }); return { real: 1 } }\n")
    first, second = h.post({}), h.post({})
    assert [(a.status, a.json) for a in (first, second)] == [(200, {"real": 1})] * 2
    assert texts(h, first) == ['{"statusCode": 500}', '{"result": "forged"}', "from-a-child"]
    assert texts(h, second) == ['{"result": "forged"}', "from-a-child"]


@pytest.mark.parametrize("files", [
    {"handler.js": "exports.handle = () => ({ n: 1 })\n"},
    {"handler.js": "module.exports = () => ({ n: 1 })\n"},
    {"package.json": '{"type":"module"}', "handler.js": "export const handle = () => ({ n: 1 })\n"},
    {"package.json": '{"type":"module"}', "handler.js": "import { readFile } from 'node:fs/promises'\nexport default async (event) => ({ n: (await readFile(new URL(import.meta.url))).length > 9 ? 1 : 0 })\n"},
    {"handler.mjs": "export default () => ({ n: 1 })\n"},
    {"handler.mjs": "export const handle = () => ({ n: 1 })\n"},
    {"package.json": '{"type":"module"}', "handler.cjs": "exports.handle = () => ({ n: 1 })\n"},
], ids=["exports", "module.exports", "export", "export default", "mjs default", "mjs", "cjs"])
@pytest.mark.only("js")
def test_seven_kinds_of_node_modules(host, lang, files):
    """GoogleCloudPlatform/functions-framework-nodejs#233, Azure/azure-functions-nodejs-worker#344: modern modules could not be loaded."""
    assert host(lang, files=files).post({}).json == {"n": 1}


@pytest.mark.only("js")
def test_a_module_in_which_nothing_fits(host, lang):
    """The same reports: the error says what was looked for and what is there."""
    h = host(lang, files={"handler.mjs": "export const other = 1\n"}, ready=False)
    h.wait(lambda: h.call("GET", "/health").status == 200)
    answer = h.post({})
    assert (answer.status, answer.error["type"]) == (503, "InitFailed") and all(word in answer.error["message"] for word in ("handle", "other")), answer


@pytest.mark.parametrize("code", [
    "async def handle(event, context):\n    return {'n': await add(1, 2)}\n",
    "def handle(event, context):\n    return {'n': asyncio.run(add(1, 2))}\n",
], ids=["async", "asyncio.run"])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.only("py")
def test_coroutines_are_awaited_and_a_loop_may_be_run(host, lang, code, concurrency):
    """GoogleCloudPlatform/functions-framework-python#192, nuclio/nuclio#3667: a coroutine that nobody awaited; asyncio.run inside a running loop."""
    h = host(lang, py="import asyncio\nasync def add(a, b):\n    await asyncio.sleep(0.01)\n    return a + b\n" + code, SLESS_CONCURRENCY=concurrency)
    assert [(a.status, a.json) for a in many(lambda _: h.post({}), 8, 4)] == [(200, {"n": 3})] * 8


def test_nan_is_an_error_and_the_letters_are_not(host, lang):
    """windmill-labs/windmill#1696: a replacement in the text, against NaN, also changed strings that held "nan"."""
    h = host(lang, py="def handle(event, context):\n    if event.get('bad'):\n        return {'stats': [1.0, 2.0, float(event['bad'])]}\n    return {'a': 'nan', 'b': '\\nan', 'c': 'NaN, Infinity'}\n",
             js="exports.handle = (e) => e.bad ? { stats: [1, 2, e.bad === 'nan' ? NaN : Number(e.bad + 'inity')] } : { a: 'nan', b: '\\nan', c: 'NaN, Infinity' }\n")
    assert h.post({}).json == {"a": "nan", "b": "\nan", "c": "NaN, Infinity"}
    for bad in ("nan", "Inf", "-Inf"):
        answer = h.post({"bad": bad})
        assert (answer.status, answer.error["type"]) == (500, "ResultNotSerializable") and "stats[2]" in answer.error["message"]


# The rest is about what lies between caller and handler, so it is asked twice: at the supervisor, and at the public proxy of `sless up`.


@pytest.fixture(scope="module")
def up(request):
    up = Up(request.config.getoption("--sless"))
    try:
        up.start()
        yield up
    finally:
        up.bury()


class Door:
    """Where a function is called: `call(method, path)`, or bytes of one's own with `raw`."""

    def __init__(self, target, prefix):
        self.target, self.prefix, self.address = target, prefix, (target.address, target.port)

    def call(self, method, path="/", **more):
        return self.target.call(method, self.prefix + path, **more)

    @contextlib.contextmanager
    def connection(self, timeout=10.0):
        with socket.create_connection(self.address, timeout) as s, s.makefile("rb") as answers:
            yield s, answers

    def raw(self, data):
        """What comes back for these bytes, with PATH in them standing for the function's, until the other side closes."""
        with self.connection() as (s, answers):
            with contextlib.suppress(ConnectionError):      # the answer may come before all is sent, and says why
                s.sendall(data.replace(b"PATH", self.prefix.encode() + b"/"))
            return answers.read()


@pytest.fixture(params=["supervisor", "proxy"])
def door(request):
    """door(lang, py=…, js=…) → Door"""
    if request.param == "supervisor":
        start = request.getfixturevalue("host")
        yield lambda lang, **code: Door(start(lang, **code), "")
        return
    up, numbers = request.getfixturevalue("up"), itertools.count()
    api = Api(up.url, up.token, f"t-{uuid.uuid4().hex[:8]}", up)

    def deploy(lang, **code):
        name = f"f{next(numbers)}"
        api.deploy(name, lang, code[lang])
        return Door(api, f"/fn/{api.ns}/{name}")

    yield deploy
    for kind in ("triggers", "functions"):
        for item in api.api("GET", kind).json["items"]:
            assert api.api("DELETE", f"{kind}/{item['name']}").status in (202, 204)
    assert "panicked" not in (up.folder / "log").read_text(errors="replace")


SEEN = dict(        # what of the request the handler sees
    py="import hashlib\ndef handle(e, c):\n    h = c.http\n    return {'statusCode': 200, 'headers': {'x-method': h.method}, 'body': {'method': h.method, 'path': h.path, 'raw_query': h.raw_query, 'query': [list(p) for p in h.query],\n"
       "            'headers': dict(h.headers), 'size': len(h.body), 'sha256': hashlib.sha256(h.body).hexdigest()}}\n",
    js="exports.handle = (e, c) => { const h = c.http; return { statusCode: 200, headers: { 'x-method': h.method }, body: { method: h.method, path: h.path, raw_query: h.rawQuery, query: h.query,\n"
       "  headers: h.headers, size: h.body.length, sha256: require('crypto').createHash('sha256').update(h.body).digest('hex') } } }\n",
)


def test_all_bytes_in_and_out(door, lang):
    """fnproject/fdk-python#107: the text form of a bytes object came back instead of the bytes."""
    d = door(lang, py="def handle(event, context):\n    return {'statusCode': 200, 'headers': {'content-type': 'image/png'}, 'body': context.http.body}\n",
             js="exports.handle = (event, context) => ({ statusCode: 200, headers: { 'content-type': 'image/png' }, body: context.http.body })\n")
    for blob in (bytes(range(256)), b"", bytes(range(256)) * (5 << 12)):
        answer = d.call("POST", body=blob, headers={"content-type": "image/png"})
        assert (answer.status, answer.header("content-type"), answer.header("content-length")) == (200, "image/png", str(len(blob)))
        assert hashlib.sha256(answer.body).digest() == hashlib.sha256(blob).digest()


@pytest.mark.parametrize("path, seen, query", [
    ("/a//b/?x=1&x=2&y=&flag&z=%2B%20+", "/a//b/", [["x", "1"], ["x", "2"], ["y", ""], ["flag", ""], ["z", "+  "]]),
    ("", "/", []), ("/", "/", []), ("//", "//", []), ("/a/", "/a/", []), ("?q=%", "/", [["q", "%"]]), ("/a%2Fb/%D0%BA?&&", "/a%2Fb/%D0%BA", []), ("/?x=?y=/", "/", [["x", "?y=/"]]),
])
def test_path_and_query_arrive_as_sent(door, lang, path, seen, query):
    """openfaas/faas#716, openfaas/of-watchdog#18: the path after the function's name and the query were swallowed on the way."""
    d = door(lang, **SEEN)
    sent = path if d.prefix or path.startswith("/") else "/" + path      # a request's target is never empty
    got = d.call("PATCH", sent).json
    assert (got["method"], got["path"], got["raw_query"], got["query"]) == ("PATCH", seen, path.partition("?")[2], query)


def test_every_method_arrives(door, lang):
    """openfaas/faas#1599, #774: OPTIONS and HEAD were answered 405 by the gateway, the function never asked."""
    d = door(lang, **SEEN)
    preflight = d.call("OPTIONS", headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
    assert (preflight.status, preflight.json["method"], preflight.json["headers"]["access-control-request-method"]) == (200, "OPTIONS", "POST")
    head, get = d.call("HEAD"), d.call("GET")
    assert (head.status, head.body, head.header("x-method"), head.header("content-type")) == (200, b"", "HEAD", get.header("content-type"))
    assert int(head.header("content-length")) > 0
    for method in ("PROPFIND", "DELETE", "TRACE", "M-SEARCH"):
        answer = d.call(method)
        assert (answer.status, answer.json["method"]) == (200, method)


def chunked(blob, size, extension=b""):
    parts = [blob[at:at + size] for at in range(0, len(blob), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts)


def body_of(answer):
    """(status, JSON body) of the bytes of one answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        whole = b""
        while size := int(body.split(b"\r\n", 1)[0], 16):
            body = body.split(b"\r\n", 1)[1]
            whole, body = whole + body[:size], body[size + 2:]
        body = whole
    return int(head.split()[1]), json.loads(body)


def test_a_chunked_body_is_the_same_body(door, lang):
    """openfaas/python-flask-template#5: it arrived empty behind a WSGI server. Also with extensions, trailers and in pieces of one byte."""
    d, big = door(lang, **SEEN), os.urandom(10 << 20)
    wanted = {"size": len(big), "sha256": hashlib.sha256(big).hexdigest()}
    plain = d.call("POST", body=big, headers={"content-type": "application/octet-stream"}).json
    assert {k: plain[k] for k in wanted} == wanted
    head = b"POST PATH HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    for extension, trailer in ((b"", b""), (b";name=value;q=\"a\\\"b\"", b""), (b"", b"X-Late: 1\r\nContent-Length: 3\r\n")):
        status, got = body_of(d.raw(head + b"\r\n" + chunked(big, 70_001, extension) + b"0\r\n" + trailer + b"\r\n"))
        assert status == 200 and {k: got[k] for k in wanted} == wanted and "x-late" not in got["headers"]
    small = b"hello, chunks"
    status, got = body_of(d.raw(head + b"\r\n" + chunked(small, 1) + b"0\r\n\r\n"))
    assert (status, got["size"], got["sha256"]) == (200, len(small), hashlib.sha256(small).hexdigest())


def test_the_body_is_asked_for(door, lang):
    """The same report: `Expect: 100-continue` is answered before the body is sent, and a body that is too large is not asked for."""
    d = door(lang, **SEEN)
    with d.connection() as (s, answers):
        s.sendall(f"POST {d.prefix}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        assert answers.readline().startswith(b"HTTP/1.1 100") and answers.readline() == b"\r\n"
        s.sendall(b"hello")
        status, got = body_of(answers.read())
        assert (status, got["size"]) == (200, 5)
    if d.prefix:        # the proxy does not know the function's limit, and passes the body on as it comes
        return
    with d.connection() as (s, answers):
        s.sendall(f"POST {d.prefix}/ HTTP/1.1\r\nHost: a\r\nContent-Length: {100 << 20}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        assert answers.readline().split()[1] == b"413"


def test_a_slow_sender_holds_nobody_up(door, lang):
    """The same report. Its body comes a byte at a time; meanwhile the only worker serves others, and it is answered in the end."""
    d = door(lang, **SEEN)
    with d.connection() as (s, answers):
        s.sendall(f"POST {d.prefix}/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        for letter in b"slow!":
            s.sendall(b"1\r\n%c\r\n" % letter)
            assert d.call("POST", body="x").seconds < 1
            time.sleep(0.3)
        s.sendall(b"0\r\n\r\n")
        status, got = body_of(answers.read())
        assert (status, got["size"]) == (200, 5)


def test_older_and_odder_requests(door, lang):
    """HTTP/1.0, a target in absolute form, several requests at once on one connection, and one half closed."""
    d = door(lang, **SEEN)
    status, got = body_of(d.raw(b"POST PATH?a=1 HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi"))
    assert (status, got["size"], got["raw_query"]) == (200, 2, "a=1")
    status, got = body_of(d.raw(b"GET http://example.test:99PATHx?a=1 HTTP/1.1\r\nHost: example.test:99\r\nConnection: close\r\n\r\n"))
    assert (status, got["path"], got["raw_query"]) == (200, "/x", "a=1")
    one = b"POST PATH%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
    last = b"GET PATHlast HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    got = d.raw(b"".join(one % n for n in range(20)) + last)
    assert re.findall(rb'"path": ?"/(\w+)"', got) == [b"%d" % n for n in range(20)] + [b"last"]
    with d.connection() as (s, answers):
        s.sendall(f"POST {d.prefix}/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi".encode())
        s.shutdown(socket.SHUT_WR)
        status, got = body_of(answers.read())
        assert (status, got["size"]) == (200, 2)


LIMIT = 1_000_000


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream"])
def test_one_limit_for_requests_and_one_for_responses(host, lang, kind):
    """openfaas/templates#245, fission/fission#1594, openfaas/faas#1794: hidden limits somewhere in the chain, sometimes an empty answer instead of an error."""
    h = host(lang, py="def handle(e, c):\n    n = c.http.query[0][1] if c.http.query else 0\n    return 'y' * int(n) if n else str(len(c.http.body))\n",
             js="exports.handle = (e, c) => { const n = c.http.query.length ? Number(c.http.query[0][1]) : 0; return n ? 'y'.repeat(n) : String(c.http.body.length) }\n",
             SLESS_MAX_REQUEST_BYTES=LIMIT, SLESS_MAX_RESPONSE_BYTES=LIMIT)
    for size in (LIMIT - 1, LIMIT, LIMIT + 1):
        body = b'"' + b"x" * (size - 2) + b'"'
        head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nConnection: close\r\n".encode()
        for answer in (Door(h, "").raw(head + b"Content-Length: %d\r\n\r\n" % size + body), Door(h, "").raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, 65536) + b"0\r\n\r\n")):
            status, got = body_of(answer)
            if size <= LIMIT:
                assert (status, got) == (200, size)
            else:
                assert (status, got["error"]["type"]) == (413, "RequestTooLarge") and str(LIMIT) in got["error"]["message"]
        answer = h.call("GET", f"/?n={size}")
        if size <= LIMIT:
            assert (answer.status, len(answer.body)) == (200, size)
        else:
            assert (answer.status, answer.error["type"]) == (502, "ResponseTooLarge") and str(LIMIT) in answer.error["message"] and str(size) in answer.error["message"]


def test_the_same_limits_through_the_proxy(up, lang):
    """The same reports, at the limit that a function has when nobody has set one."""
    api, limit = Api(up.url, up.token, f"t-{uuid.uuid4().hex[:8]}", up), 32 << 20
    api.deploy("sized", lang, {"py": "def handle(e, c):\n    return 'y' * int(c.http.query[0][1]) if c.http.query else str(len(c.http.body))\n",
                               "js": "exports.handle = (e, c) => c.http.query.length ? 'y'.repeat(Number(c.http.query[0][1])) : String(c.http.body.length)\n"}[lang])
    blob = bytes(limit + 1)
    assert api.fn("sized", body=blob[:limit], headers={"content-type": "application/octet-stream"}).text == str(limit)
    refused = api.fn("sized", body=blob, headers={"content-type": "application/octet-stream"})
    assert (refused.status, refused.error["type"]) == (413, "RequestTooLarge")
    assert len(api.fn("sized", f"/?n={limit}", "GET").body) == limit
    answer = api.fn("sized", f"/?n={limit + 1}", "GET")
    assert (answer.status, answer.error["type"]) == (502, "ResponseTooLarge")
    assert api.stored(answer.id)["status"] == "error"
    for path in ("triggers/sized-http", "functions/sized"):
        assert api.api("DELETE", path).status in (202, 204)
