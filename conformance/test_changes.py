"""Contract part 4, revisions: changes under load, and what never happens to a revision that is in use.

`--load-sec` is how long each load lasts; the gate takes a few seconds, by hand it was 20.
"""
import concurrent.futures
import http.client
import io
import json
import threading
import time
import zipfile

import pytest

from test_api import HELLO, RUNTIME, host, own, pack, running  # noqa: F401  (fixtures)

RATE = 200          # calls a second
CALLERS = 16


def version(lang, n, sleep=0.02):
    return {"py": f"import time\ndef handle(e, c):\n    time.sleep({sleep})\n    return 'v{n}'\n",
            "js": f"exports.handle = async () => {{ await new Promise(r => setTimeout(r, {sleep * 1000})); return 'v{n}' }}\n"}[lang]


class Load:
    """RATE calls a second, sent when they are due and not when the one before was answered; for as long as the block lasts."""

    def __init__(self, host, name):
        self.host, self.path = host, f"/fn/{host.ns}/{name}"
        self.answers, self.failed, self.late = [], [], 0.0
        self._stop, self._lock, self._next = threading.Event(), threading.Lock(), 0

    def _turn(self):
        with self._lock:
            self._next += 1
            return self._next - 1

    def _caller(self):
        connection = None
        while not self._stop.is_set():
            due = self.began + self._turn() / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            self.late = max(self.late, time.monotonic() - due)
            try:
                # What a kept connection does when it is closed is another test's matter.
                connection = connection or http.client.HTTPConnection(self.host.address, self.host.port, timeout=30)
                sent = time.monotonic()
                connection.request("POST", self.path, body=b"{}", headers={"content-type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode()
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                connection = None
                continue
            if response.status == 200:
                self.answers.append((sent, text, time.monotonic() - sent))
            else:
                self.failed.append(f"{response.status} {text[:200]}")

    def __enter__(self):
        self.began = time.monotonic()
        self._pool = concurrent.futures.ThreadPoolExecutor(CALLERS)
        self._calls = [self._pool.submit(self._caller) for _ in range(CALLERS)]
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._pool.shutdown()
        [call.result() for call in self._calls]

    def check(self, seconds):
        assert self.failed == [], (len(self.failed), self.failed[:3])
        rate = len(self.answers) / seconds
        slowest = max(took for _, _, took in self.answers)
        print(f"{len(self.answers)} calls, {rate:.0f}/s, none failed, slowest {slowest * 1000:.0f} ms")
        assert rate > RATE * 0.7, f"only {rate:.0f} calls/s were sent: this machine is too busy for the case"


def test_redeploy_under_200_calls_a_second(host, lang, request):
    """FR-22, FR-31: no call fails, and after "ready" nothing but the new version answers."""
    seconds = request.config.getoption("--load-sec")
    host.deploy("v", lang, version(lang, 0), workers=8)
    with Load(host, "v") as load:
        n, ready = 0, {}
        while time.monotonic() - load.began < seconds:
            n += 1
            host.ready("v", code_sha256=host.upload("v", {f"handler.{lang}": version(lang, n)}).json["code_sha256"])
            ready[n] = time.monotonic()
            time.sleep(0.5)
        took = time.monotonic() - load.began
    load.check(took)
    print(f"{n} versions")
    assert n >= 3 and load.answers[-1][1] == f"v{n}"
    for sent, text, _ in load.answers:
        newest = max((k for k, at in ready.items() if at < sent), default=0)
        assert int(text[1:]) >= newest, f"{text} answered {sent - ready[newest]:.3f} s after v{newest} was ready"


def test_rollback_under_200_calls_a_second(host, lang, request):
    seconds = request.config.getoption("--load-sec")
    first = host.deploy("v", lang, version(lang, 1), workers=8)
    second = host.ready("v", code_sha256=host.upload("v", {f"handler.{lang}": version(lang, 2)}).json["code_sha256"])
    built = host.api("GET", "functions/v/build").json
    seen = set()
    with Load(host, "v") as load:
        turns = 0
        while time.monotonic() - load.began < seconds:
            turns += 1
            back = (first, second)[turns % 2 == 0]["revision"]
            assert host.api("POST", "functions/v/rollback", {"revision": back}).status == 202
            host.ready("v", revision=back)
            time.sleep(0.5)
        took = time.monotonic() - load.began
    load.check(took)
    seen = {text for _, text, _ in load.answers}
    assert turns >= 3 and seen == {"v1", "v2"}
    assert host.api("GET", "functions/v/build").json == built, "a rollback builds nothing"


def test_twenty_versions_one_after_another(host, lang):
    """FR-31: once a version is ready, 0 answers of the one before."""
    host.deploy("v", lang, version(lang, 0, 0))
    for n in range(1, 21):
        host.ready("v", code_sha256=host.upload("v", {f"handler.{lang}": version(lang, n, 0)}).json["code_sha256"])
        assert {host.fn("v", body={}).text for _ in range(20)} == {f"v{n}"}
    built = host.api("GET", "functions/v/build").json
    function = host.api("GET", "functions/v").json
    call = host.fn("v", body={})
    assert host.upload("v", {f"handler.{lang}": version(lang, 20, 0)}).status == 202
    assert host.api("GET", "functions/v/build").json == built
    assert host.ready("v")["revision"] == function["revision"] == host.stored(call.id)["revision"]


def test_a_long_call_outlives_five_redeploys(host, lang):
    """FR-22: what runs on an old version ends there, by its own limit, also when its code has left the history."""
    slow = {"py": "import time\ndef handle(e, c):\n    time.sleep(4)\n    import json.tool\n    return open('note.txt').read()\n",
            "js": "exports.handle = async () => { await new Promise(r => setTimeout(r, 4000)); return require('fs').readFileSync('note.txt', 'utf8') }\n"}[lang]
    host.deploy("v", lang, slow, files={"note.txt": "of the first"}, revision_history=1, timeout_sec=20)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(host.fn, "v", body={})
        time.sleep(0.5)
        for n in range(5):
            host.ready("v", code_sha256=host.upload("v", {f"handler.{lang}": version(lang, n)}).json["code_sha256"])
        answer = call.result()
    assert (answer.status, answer.text) == (200, "of the first"), answer
    assert len(host.api("GET", "functions/v/revisions").json["items"]) == 1


def test_a_replayed_revision_stays_while_it_runs(host):
    """keep-last-N: a supervisor of an earlier revision keeps its code until its calls are through."""
    slow = "import time\ndef handle(e, c):\n    time.sleep(e.get('sleep', 0))\n    return open('note.txt').read()\n"
    first = host.deploy("v", "py", slow, files={"note.txt": "of the first"}, revision_history=2, timeout_sec=20)
    call = host.fn("v", body={"sleep": 3})
    host.stored(call.id)
    host.ready("v", code_sha256=host.upload("v", {"handler.py": version("py", 1)}).json["code_sha256"])
    replay = host.api("POST", f"invocations/{call.id}/replay", {"revision": first["revision"]})
    assert replay.status == 202, replay
    host.until(lambda: host.api("GET", f"invocations/{replay.json['invocation_id']}").json.get("status") == "running", 10)
    for n in (2, 3, 4):
        host.ready("v", code_sha256=host.upload("v", {"handler.py": version("py", n)}).json["code_sha256"])
    record = host.stored(replay.json["invocation_id"])
    assert (record["status"], record["revision"], record["result"]["text"]) == ("success", first["revision"], "of the first"), record


def test_the_same_folder_zipped_elsewhere_is_no_change(host):
    """`content_sha256` is of paths, execute bits and bytes: not of times, order, compression or a folder around it."""
    files = {"handler.py": HELLO["py"], "lib/a.py": "A = 1\n", "tool.sh": ("#!/bin/sh\n", 0o755)}
    before = host.deploy("f", "py", files.pop("handler.py"), files=files)
    built = host.api("GET", "functions/f/build").json
    files = {"handler.py": HELLO["py"]} | files
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, content in reversed(files.items()):
            content, mode = content if isinstance(content, tuple) else (content, 0o600)
            info = zipfile.ZipInfo(f"project/{name}", (2019, 5, 4, 3, 2, 2))
            info.external_attr = (0o100000 | mode) << 16
            z.writestr(info, content)
    sent = host.upload("f", out.getvalue()).json["code_sha256"]
    after = host.ready("f")
    assert sent != before["code_sha256"] and after["content_sha256"] == before["content_sha256"] and after["revision"] == before["revision"]
    assert host.api("GET", "functions/f/build").json == built and len(host.api("GET", "functions/f/revisions").json["items"]) == 1
    other = host.upload("f", files | {"tool.sh": ("#!/bin/sh\n# other\n", 0o755)})
    assert host.ready("f", code_sha256=other.json["code_sha256"])["content_sha256"] != before["content_sha256"]


def test_a_timeout_changes_without_a_build(host, lang):
    sleep = {"py": "import time\ndef handle(e, c):\n    time.sleep(2)\n    return 'slept'\n", "js": "exports.handle = () => new Promise(r => setTimeout(() => r('slept'), 2000))\n"}[lang]
    before = host.deploy("f", lang, sleep)
    built = host.api("GET", "functions/f/build").json
    assert host.fn("f", body={}).text == "slept"
    assert host.api("PATCH", "functions/f", {"timeout_sec": 0.5}).status == 200
    after = host.ready("f")
    cut = host.fn("f", body={})
    assert (cut.status, cut.error["type"]) == (504, "Timeout") and cut.seconds < 1.5
    assert after["revision"] != before["revision"] and host.api("GET", "functions/f/build").json == built
    back = host.api("POST", "functions/f/rollback", {"revision": before["revision"]})
    assert back.status == 202 and host.ready("f", revision=before["revision"])["timeout_sec"] == 30
    assert host.fn("f", body={}).text == "slept"


def test_memory_runs_out(host, lang):
    """A function's `memory_mb` holds on one machine too, and is told from a crash."""
    hog = {"py": "def handle(e, c):\n    if not e.get('mib'): return 'ok'\n    return len(bytearray(b'x') * (e['mib'] << 20))\n",
           "js": "exports.handle = (e) => { if (!e.mib) return 'ok'; const all = []; for (let i = 0; i < e.mib; i += 16) all.push(Buffer.alloc(16 << 20, 1)); return all.length }\n"}[lang]
    host.deploy("f", lang, hog, memory_mb=128)
    if not host.up or "no limit of memory" in (host.up.folder / "log").read_text():
        pytest.skip("no control group can be made here")
    assert host.fn("f", body={}).text == "ok"
    answer = host.fn("f", body={"mib": 400})
    assert (answer.status, answer.error["type"]) == (502, "OutOfMemory"), answer
    record = host.stored(answer.id)
    # The peak, in which files that others have read already count as well.
    assert record["status"] == "out_of_memory" and 64 << 20 < record["max_rss_bytes"] <= 256 << 20, record
    assert host.until(lambda: host.fn("f", body={}).text == "ok", 10)
    # With more of it the same call goes through: a setting like the others.
    assert host.api("PATCH", "functions/f", {"memory_mb": 1024}).status == 200
    host.ready("f")
    assert host.fn("f", body={"mib": 400}).status == 200


def test_two_hundred_functions_come_back(own, request):
    """All answer after a restart, and a first call that comes early waits or is told to come again, by 503 and `Retry-After`."""
    count = request.config.getoption("--functions")
    def make(n):
        lang = ("py", "js")[n % 2]
        own.deploy(f"f{n}", lang, {"py": f"def handle(e, c):\n    return {n}\n", "js": f"exports.handle = () => {n}\n"}[lang], wait=False)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(count)))
        list(pool.map(lambda n: own.ready(f"f{n}", 300), range(count)))
        assert own.up.stop() == 0
        own.up.start()
        def first(n):
            began = time.monotonic()
            while (answer := own.fn(f"f{n}", body={})).status != 200:
                assert answer.status == 503 and int(answer.header("retry-after")) > 0 and time.monotonic() - began < 120, answer
                time.sleep(0.05)
            return answer.json
        assert list(pool.map(first, range(count))) == list(range(count))
        # The fixture takes one page of them.
        assert all(status == 202 for status in pool.map(lambda n: own.api("DELETE", f"functions/f{n}").status, range(count)))
