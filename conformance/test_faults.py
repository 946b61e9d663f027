"""Contract parts 2 to 4 under faults: programs killed with calls in them, an API that is away, a full disk, floods, timeouts in a row.

All with the real programs. What is asked each time: every answered call has exactly one record, nothing runs twice, nothing is left behind or grows.
"""
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from conftest import Host, children, private_folder
from test_api import Api, Up

COUNTED = dict(     # notes that it ran, prints a line of its own
    py="import time\ndef handle(e, c):\n    with open(e['ran'], 'a') as f: f.write(c.invocation_id + '\\n')\n    print('call', e['n'])\n    time.sleep(e.get('sleep', 0))\n    return {'n': e['n']}\n",
    js="const fs = require('fs')\nexports.handle = async (e, c) => { fs.appendFileSync(e.ran, c.invocationId + '\\n'); console.log('call', e.n)\n"
       "  if (e.sleep) await new Promise(r => setTimeout(r, e.sleep * 1000)); return { n: e.n } }\n",
)


@pytest.fixture
def ran():
    """A file to which handlers, whoever runs them, add the ids of the calls that they began."""
    with tempfile.NamedTemporaryFile(prefix="sless-ran-") as file:
        os.chmod(file.name, 0o666)
        yield Path(file.name)


class Load:
    """`count` calls, some at once. `answers` (number: Answer) and `broken` (number: what was raised) grow while it runs."""

    def __init__(self, call, count=None, callers=8):
        self.answers, self.broken, self._call, self._stop = {}, {}, call, False
        self._numbers = iter(range(count)) if count else itertools.count()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(callers)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        while not self._stop:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            try:
                self.answers[number] = self._call(number)
            except (OSError, http.client.HTTPException) as error:
                self.broken[number] = error

    def reach(self, count, within=60.0):
        deadline = time.monotonic() + within
        while len(self.answers) < count:
            assert time.monotonic() < deadline, f"{len(self.answers)} of {count} answers within {within} s; broken: {list(self.broken.items())[-3:]}"
            time.sleep(0.005)

    def join(self, within=120.0):
        deadline = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"{len(self.answers)} answers, {len(self.broken)} broken, and no end within {within} s"

    def stop(self):
        self._stop = True
        self.join()


def patiently(call, within=30.0):
    """Again while nobody listens: such a call was not made."""
    deadline = time.monotonic() + within
    while True:
        try:
            return call()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def by_call(sink):
    """{id: {seq: event}}. What is delivered twice must be the same both times."""
    calls = {}
    for event in list(sink.events):
        known = calls.setdefault(event["invocation_id"], {}).setdefault(event["seq"], event)
        assert known == event, (known, event)
    return calls


def settled(sink, answers, within=20.0):
    """{id: its `finished`, with its `lines`} once all that began have one; each answered call's is the only one and says what was answered."""
    deadline = time.monotonic() + within
    while True:
        calls = by_call(sink)
        ends = {id: [e for e in events.values() if e["type"] == "finished"] for id, events in calls.items()}
        open_calls = [id for id in [a.id for a in answers] + list(calls) if not ends.get(id)]
        if not open_calls:
            break
        assert time.monotonic() < deadline, f"{len(open_calls)} of {len(calls)} calls without an end after {within} s, one is {open_calls[0]}: {calls.get(open_calls[0])}"
        time.sleep(0.1)
    assert not [more for more in ends.values() if len(more) > 1], "more than one end"
    assert len({a.id for a in answers}) == len(answers)
    for answer in answers:
        events, (end,) = calls[answer.id], ends[answer.id]
        assert (end["http_status"], end["status"]) == (answer.status, answer.header("x-sless-status"))
        assert sorted(events) == list(range(len(events))), f"gaps: {events}"
    return {id: end | {"lines": lines_of(calls[id])} for id, (end,) in ends.items()}


def lines_of(events):
    return [line["text"] for _, event in sorted(events.items()) if event["type"] == "log" for line in event["lines"]]


def resident(h):
    """KiB"""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{h.process.pid}/status").read_text())[1])


def assert_quiet(h, processes, fds):
    """No more processes, zombies or descriptors than there were."""
    h.wait(lambda: len(h.family()) <= processes, 10)
    h.wait(lambda: h.open_fds() <= fds + 4, 5)
    h.wait(lambda: all(state != "Z" for _, state in children(h.process.pid)), 2)


def test_a_supervisor_killed_in_the_middle_of_a_thousand_calls(host, sink, lang, ran):
    """Twice; each time the next one on the spool delivers what was answered and ends what was open."""
    settings = dict(SLESS_WORKERS=3, SLESS_MIN_WORKERS=3)
    now = [host(lang, **COUNTED, **settings)]
    load = Load(lambda n: patiently(lambda: now[-1].post({"n": n, "ran": str(ran), "sleep": 0.02 if n % 5 == 0 else 0})), 1000)
    for reached in (300, 600):
        load.reach(reached)
        now[-1].process.kill()
        now[-1].process.wait()
        now.append(host(lang, **COUNTED, **settings))
    load.join()
    assert len(load.answers) + len(load.broken) == 1000 and 0 < len(load.broken) <= 32     # a caller may connect again before the kernel has closed the listener
    assert {a.status for a in load.answers.values()} == {200}
    ends = settled(sink, load.answers.values())
    assert all(ends[answer.id]["lines"] == [f"call {number}"] for number, answer in load.answers.items())
    unanswered = ends.keys() - {a.id for a in load.answers.values()}
    assert {ends[id]["status"] for id in unanswered} <= {"success", "crashed"} and len(unanswered) <= 32
    begun = ran.read_text().split()
    assert len(begun) == len(set(begun)), "a call ran twice"
    assert {a.id for a in load.answers.values()} <= set(begun) <= ends.keys()
    for h in now[:-1]:
        assert h.family() == []


@pytest.fixture
def up(request):
    """`sless up` that the case may kill."""
    up = Up(request.config.getoption("--sless"))
    try:
        up.start()
        yield up
    finally:
        up.bury()


def history(api, name):
    """Every invocation of a function, page by page."""
    items, cursor = [], ""
    while cursor is not None:
        page = api.api("GET", f"functions/{name}/invocations?limit=200" + (f"&cursor={cursor}" if cursor else "")).json
        items += page["items"]
        cursor = page["next"]
    return items


def test_a_host_killed_in_the_middle_of_a_thousand_calls(up, ran):
    """Through the proxy, both languages. Nothing of the old family is left, the functions answer without a build, and all that was answered is in the history once."""
    api, names = Api(up.url, up.token, "default", up), {"py": "counted-py", "js": "counted-js"}
    for lang, name in names.items():
        api.deploy(name, lang, COUNTED[lang], workers=2)
    builds = {name: api.api("GET", f"functions/{name}/build").json for name in names.values()}

    def call(n):
        """503 NotReady is no answer of the function's: it did not run."""
        name, deadline = list(names.values())[n % 2], time.monotonic() + 60
        while True:
            answer = patiently(lambda: api.fn(name, body={"n": n, "ran": str(ran)}))
            if answer.status != 503 or time.monotonic() > deadline:
                return answer
            time.sleep(0.05)

    load = Load(call, 1000)
    load.reach(400)
    up.stop(signal.SIGKILL, after=10)
    up.start()
    load.join()
    # Each of the eight callers lost the call that ran, and perhaps some that the kernel took in while it was closing the host's descriptors.
    assert len(load.answers) + len(load.broken) == 1000 and len(load.broken) <= 40
    # A call on a supervisor that died under a host that still lived a moment is 502.
    answered = {n: a for n, a in load.answers.items() if a.status == 200}
    assert len(answered) >= 1000 - 48 and {a.status for a in load.answers.values()} <= {200, 502}
    assert {name: api.api("GET", f"functions/{name}/build").json for name in names.values()} == builds
    for answer in answered.values():
        api.stored(answer.id, within=20)
    items = api.until(lambda: (found := [i for name in names.values() for i in history(api, name)]) and all(i["finished_at"] for i in found) and found, 20)
    ids = {i["id"]: i for i in items}
    assert len(ids) == len(items) <= 1000
    assert all(ids[a.id]["status"] == "success" for a in answered.values())
    assert {i["status"] for id, i in ids.items() if id not in {a.id for a in answered.values()}} <= {"success", "crashed", "lost"}
    begun = ran.read_text().split()
    assert len(begun) == len(set(begun)) and {a.id for a in answered.values()} <= set(begun) <= ids.keys()
    assert "panicked" not in (up.folder / "log").read_text(errors="replace")


class Gate:
    """Stands before the sink: lets connections through, refuses them, or takes them and says nothing (an address that is firewalled, a host that hangs)."""

    def __init__(self, port):
        self._to, self._cut, self.silent = ("127.0.0.1", port), [], False
        self._listener = None
        self._port = 0
        self.open()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._port}/internal/v1/reports"

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self):
        for s in self._cut:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        self._cut = []

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self._cut.append(near)
            if not self.silent:
                far = socket.create_connection(self._to)
                self._cut.append(far)
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    @staticmethod
    def _pump(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def gate(sink):
    gate = Gate(sink.server.server_port)
    yield gate
    gate.close()


@pytest.mark.only("py")
def test_an_api_that_is_away_for_half_a_minute(host, sink, gate, lang):
    """It answers 503, says nothing, is not there: 10 s each, with calls going on. No call is slower for it, all records come, in order."""
    h = host(lang, py="def handle(e, c):\n    for i in range(20): print(e['n'], i, 'x' * 80)\n    return {'n': e['n']}\n", SLESS_REPORT_URL=gate.url, SLESS_WORKERS=2, SLESS_MIN_WORKERS=2)

    def call(n):
        time.sleep(0.02)
        return h.post({"n": n})

    def slow(answers):
        return sorted(a.seconds for a in answers)[int(len(answers) * 0.98)]

    load = Load(call, callers=4)
    time.sleep(4)
    before, fds, small = list(load.answers.values()), h.open_fds(), resident(h)
    sink.down = True
    time.sleep(10)
    gate.silent = True
    gate.cut()
    sink.down = False
    time.sleep(10)
    gate.close()
    time.sleep(10)
    during, big = list(load.answers.values())[len(before):], resident(h)
    gate.silent = False
    gate.open()
    back = time.monotonic()
    load.stop()
    assert not load.broken and {a.status for a in load.answers.values()} == {200} and len(during) > 500
    assert slow(during) < 3 * slow(before) + 0.05
    assert big < small + 6000, f"{small} KiB, then {big} KiB"
    # Back-off is up to 15 s; what waited is then delivered at once.
    ends = settled(sink, load.answers.values(), within=25 - (time.monotonic() - back))
    for number, answer in load.answers.items():
        assert ends[answer.id]["lines"] == [f"{number} {i} {'x' * 80}" for i in range(20)]
    first = {}
    for at, event in enumerate(sink.events):
        first.setdefault((event["invocation_id"], event["seq"]), (at, event))
    places = {}
    for (id, seq), (at, _) in first.items():
        places.setdefault(id, []).append((seq, at))
    assert all([at for _, at in sorted(place)] == sorted(at for _, at in place) for place in places.values()), "a call's events in order"
    times = [event["time"] for _, event in sorted(first.values(), key=lambda x: x[0]) if event["type"] == "finished"]
    assert times == sorted(times), "outcomes in order"
    assert h.metric("sless_report_events_total", outcome="lost") in (0, None)
    h.wait(lambda: h.metric("sless_report_spool_bytes") == 0, 5)
    assert h.open_fds() <= fds + 4 and resident(h) < small + 6000


@pytest.fixture
def small_disk():
    """A file system of 4 MiB for the spool, not below /tmp."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    folder = private_folder()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "sless-small-disk", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def fill(folder):
    """A file that takes all that is left."""
    path = folder / "other"
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(folder).f_bavail == 0
    return path


SIZED = dict(       # so much log, in lines of 100 bytes, and so much result
    py="def handle(e, c):\n    for i in range(e['lines']): print(str(e['n']).rjust(99))\n    return 'r' * e['result']\n",
    js="exports.handle = (e) => { for (let i = 0; i < e.lines; i++) console.log(String(e.n).padStart(99)); return 'r'.repeat(e.result) }\n",
)


def test_a_full_disk_under_the_spool(host, sink, lang, small_disk):
    """Calls go on as if nothing were; there is memory enough for these few records, so that all of them come once there is room again."""
    h = host(lang, **SIZED, SLESS_SPOOL_DIR=small_disk / "spool", SLESS_WORKERS=2, SLESS_MIN_WORKERS=2)
    small = resident(h)
    sink.down = True
    first = Load(lambda n: h.post({"n": n, "lines": 20, "result": 1000}), 50, callers=4)
    first.join()
    other = fill(small_disk)
    second = Load(lambda n: h.post({"n": n, "lines": 20, "result": 1000}), 300, callers=4)
    second.join()
    other.unlink()
    third = Load(lambda n: h.post({"n": n, "lines": 20, "result": 1000}), 50, callers=4)
    third.join()
    time.sleep(1.2)
    h.post({"n": 0, "lines": 0, "result": 0})       # what waited in memory is in files now
    assert resident(h) < small + 12_000
    sink.down = False
    for load in (first, second, third):
        assert not load.broken and {a.status for a in load.answers.values()} == {200} and max(a.seconds for a in load.answers.values()) < 1.5
        ends = settled(sink, load.answers.values())
        for number, answer in load.answers.items():
            assert ends[answer.id]["lines"] == [str(number).rjust(99)] * 20
            assert ends[answer.id]["result"]["truncated"] is False and ends[answer.id]["log_dropped_bytes"] == 0
    assert h.metric("sless_report_events_total", outcome="lost") in (0, None)
    h.wait(lambda: h.metric("sless_report_spool_bytes") == 0, 5)


@pytest.mark.parametrize("full", [False, True], ids=["limit", "disk"])
@pytest.mark.only("py")
def test_what_is_let_go_goes_in_order(host, sink, lang, small_disk, full):
    """Past the limit, on a disk with room and on one without: first log lines, then texts, last whole outcomes, the oldest first, and all of it is counted."""
    h = host(lang, **SIZED, SLESS_SPOOL_DIR=small_disk / "spool", SLESS_SPOOL_LIMIT_BYTES=1 << 20)
    lost = 0
    for calls, lines, result, texts_go, outcomes_go in ((70, 100, 8_000, False, False), (250, 50, 8_000, True, False), (2000, 1, 10, True, True)):
        sink.down = True
        del sink.events[:]
        other = fill(small_disk) if full else None
        load = Load(lambda n: h.post({"n": n, "lines": lines, "result": result}), calls, callers=1)
        load.join()
        assert not load.broken and {a.status for a in load.answers.values()} == {200}
        if other:
            other.unlink()
        sink.down = False
        h.wait(lambda: h.metric("sless_report_spool_bytes") == 0, 25)
        now_lost = int(h.metric("sless_report_events_total", outcome="lost") or 0)
        ends = {id: end | {"lines": lines_of(events)} for id, events in by_call(sink).items() for end in events.values() if end["type"] == "finished"}
        order = [load.answers[n].id for n in range(calls)]
        assert len(ends) + now_lost - lost == calls
        assert (now_lost > lost) == outcomes_go
        # The oldest go, but for a batch that was on its way.
        runs = "".join("-+"[id in ends] for id in order)
        assert re.fullmatch(r"\+*-*\+{200,}" if outcomes_go else r"\+*", runs), runs
        truncated = [ends[id]["result"]["truncated"] for id in order if id in ends]
        dropped = [ends[id]["log_dropped_bytes"] for id in order if id in ends]
        assert any(dropped) and any(truncated) == texts_go
        for number, id in enumerate(order):
            if id in ends:
                end = ends[id]
                assert end["log_bytes"] + end["log_dropped_bytes"] == lines * 100 and end["log_bytes"] == sum(len(line) + 1 for line in end["lines"])
                assert end["result"]["size"] == result
                assert not end["result"]["truncated"] or end["lines"] == [], "texts go after the log"
        lost = now_lost


def test_a_full_disk_under_the_host(request):
    """What is answered as written is written, records wait, and each finds its own function when there is room again."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    up = Up(request.config.getoption("--sless"))
    data = up.folder / "data"
    data.mkdir(mode=0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m,mode=755", "sless-small-disk", data], check=True)
    try:
        up.start()
        api = Api(up.url, up.token, "default", up)
        code = "def handle(e, c):\n    return {'by': c.function, 'pad': 'x' * 2000}\n"
        api.deploy("author", "py", code)
        other = fill(data)
        said = [api.api("POST", "functions", {"name": f"g{n}", "runtime": "python3.11"}) for n in range(3)]
        calls = [api.fn("author", body={}) for _ in range(30)]
        assert [a.status for a in calls] == [200] * 30, "calls go on"
        other.unlink()
        for n, answer in enumerate(said):
            assert answer.status in (201, 500, 503, 507), answer
            assert (api.api("GET", f"functions/g{n}").status == 200) == (answer.status == 201), (n, answer)
        api.deploy("greet", "py", code)
        later = [api.fn("greet", body={}) for _ in range(3)]
        assert [a.status for a in later] == [200] * 3
        for again in (False, True):
            if again:
                assert up.stop() == 0, up.log()
                up.start()
            for name, answers in (("author", calls), ("greet", later)):
                for answer in answers:
                    stored = api.stored(answer.id, within=30)
                    assert (stored["function"], stored["status"]) == (name, "success"), stored
                listed = {i["id"] for i in api.api("GET", f"functions/{name}/invocations?limit=100").json["items"]}
                assert listed == {a.id for a in answers}, name
    finally:
        try:
            if up.process and up.process.poll() is None:
                up.stop()
        finally:
            subprocess.run(["umount", "-l", data], check=True)
            up.bury()


@pytest.mark.parametrize("through", ["supervisor", "proxy"])
def test_a_stream_that_breaks_off_at_once(host, up, lang, through):
    """The caller gets what was sent before it, and sees that it is not all."""
    code = {"py": "def handle(e, c):\n    yield 'one'\n    raise ValueError('lost')\n",
            "js": "exports.handle = async function* () { yield 'one'; throw new RangeError('lost') }\n"}[lang]
    if through == "supervisor":
        h = host(lang, **{lang: code})
        port, path = h.port, "/"
    else:
        api = Api(up.url, up.token, "default", up)
        api.deploy("broken", lang, code)
        port, path = up.port, "/fn/default/broken"
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            got = b""
            with contextlib.suppress(ConnectionError):
                while chunk := s.recv(65536):
                    got += chunk
        assert got.startswith(b"HTTP/1.1 200 ") and b"x-sless-invocation-id" in got.lower(), got
        assert b"3\r\none\r\n" in got and b"0\r\n\r\n" not in got, got


def test_a_gibibyte_of_output_in_one_call(host, sink, lang):
    h = host(lang, py="import sys\nCHUNK = ('y' * 1023 + '\\n') * 1024\ndef handle(e, c):\n    print('the beginning')\n    for _ in range(1024): sys.stdout.write(CHUNK)\n    print('the end')\n    return {}\n",
             js="const chunk = ('y'.repeat(1023) + '\\n').repeat(1024)\nexports.handle = () => { console.log('the beginning'); for (let i = 0; i < 1024; i++) process.stdout.write(chunk); console.log('the end'); return {} }\n",
             SLESS_TIMEOUT_SEC=60)
    small = resident(h)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call, peak = pool.submit(h.post, {}, timeout=70), 0
        while not call.done():
            peak = max(peak, resident(h))
            time.sleep(0.05)
    answer = call.result()
    assert answer.status == 200 and answer.seconds < 30
    assert peak < small + 12_000, f"{small} KiB, then {peak} KiB"
    end = settled(sink, [answer])[answer.id]
    lines = end["lines"]
    assert end["log_bytes"] + end["log_dropped_bytes"] == (1 << 30) + len("the beginning\nthe end\n")
    assert (1 << 20) * 0.9 < end["log_bytes"] <= 1 << 20
    assert (lines[0], lines[-1]) == ("the beginning", "the end") and sum(str(end["log_dropped_bytes"]) in line for line in lines) == 1
    assert h.metric("sless_log_bytes_total", stream="stdout") == (1 << 30) + len("the beginning\nthe end\n")
    assert h.metric("sless_log_dropped_bytes_total") == end["log_dropped_bytes"]
    assert h.post({}, timeout=70).status == 200 and resident(h) < small + 12_000


TIMEOUTS = {"py": 1000, "js": 200}     # a worker of Node's takes longer to start


def test_a_thousand_timeouts_in_a_row(host, sink, lang):
    h = host(lang, py="import time\ndef handle(e, c):\n    print('in', e['n'])\n    time.sleep(60)\n", js="exports.handle = (e) => { console.log('in', e.n); return new Promise(r => setTimeout(r, 60000)) }\n",
             SLESS_TIMEOUT_SEC=0.05, SLESS_KILL_GRACE_SEC=0.05, SLESS_WORKERS=4, SLESS_MIN_WORKERS=4)
    Load(lambda n: h.post({"n": n}), 40, callers=4).join()
    h.wait(lambda: h.metric("sless_workers", state="ready") == 4, 10)
    processes, fds, small = len(h.family()), h.open_fds(), resident(h)
    load = Load(lambda n: h.post({"n": n}), TIMEOUTS[lang], callers=4)
    load.join()
    assert not load.broken and {a.status for a in load.answers.values()} == {504}
    ends = settled(sink, load.answers.values())
    assert {ends[a.id]["status"] for a in load.answers.values()} == {"timeout"}
    assert max(ends[a.id]["duration_ms"] for a in load.answers.values()) < 1000
    for number, answer in load.answers.items():
        assert ends[answer.id]["lines"] in ([f"in {number}"], []), "its own line, if it came to print one"
    h.wait(lambda: h.metric("sless_workers", state="ready") == 4, 10)
    assert_quiet(h, processes, fds)
    assert resident(h) < small + 3000, f"{small} KiB, then {resident(h)} KiB"


def test_killed_processes_at_random_moments(host, sink, lang, ran):
    """Workers, keepers and what handlers started are killed under load: no call runs twice, none is lost without an answer, and afterwards all is as it was."""
    luck = random.Random(20260131)
    h = host(lang, **COUNTED, SLESS_WORKERS=3, SLESS_MIN_WORKERS=3)
    h.wait(lambda: h.metric("sless_workers", state="ready") == 3, 10)
    processes, fds = len(h.family()), h.open_fds()
    load, until, kills = Load(lambda n: h.post({"n": n, "ran": str(ran), "sleep": 0.03 if n % 7 == 0 else 0}), callers=6), time.monotonic() + 12, 0
    while time.monotonic() < until:
        time.sleep(luck.uniform(0.02, 0.3))
        if family := h.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(luck.choice(family), luck.choice([signal.SIGKILL] * 3 + [signal.SIGSEGV]))
                kills += 1
    load.stop()
    assert not load.broken and kills > 30, load.broken
    by_status = {}
    for answer in load.answers.values():
        by_status.setdefault(answer.status, []).append(answer)
    # 503: all workers were dead or starting when the last one that was starting was killed.
    assert by_status.keys() <= {200, 502, 503} and len(by_status[200]) > 200, {k: v[0] for k, v in by_status.items()}
    assert {(a.status, a.error["type"]) for a in load.answers.values() if a.status != 200} <= {(502, "WorkerExited"), (503, "InitFailed")}
    ends = settled(sink, load.answers.values())
    assert len(ends) == len(load.answers)
    begun = ran.read_text().split()
    assert len(begun) == len(set(begun)), "a call ran twice"
    assert {a.id for a in by_status[200]} <= set(begun)
    h.wait(lambda: h.metric("sless_workers", state="ready") == 3, 10)
    assert h.post({"n": 0, "ran": str(ran)}).status == 200
    assert_quiet(h, processes, fds)


def test_a_drain_under_load_loses_no_call(host, sink, lang, ran):
    """Every call that began is answered and recorded; those that come later are refused, and no worker sees them."""
    h = host(lang, **COUNTED, SLESS_WORKERS=2, SLESS_MIN_WORKERS=2, SLESS_FLUSH_SEC=10)
    load = Load(lambda n: h.post({"n": n, "ran": str(ran), "sleep": 0.05}), callers=8)
    load.reach(40)
    h.process.send_signal(signal.SIGTERM)
    assert h.process.wait(10) == 0
    load.stop()
    fine = [a for a in load.answers.values() if a.status == 200]
    assert all((a.status, a.error["type"], a.header("x-sless-status")) == (503, "Draining", "rejected") for a in load.answers.values() if a.status != 200)
    begun = ran.read_text().split()
    assert sorted(begun) == sorted(a.id for a in fine), "begun and answered are the same calls"
    ends = settled(sink, fine, within=1)
    assert ends.keys() == set(begun)


# Each does harm to its own worker at most; `e["do"]` says whether to. Then the statuses that a call may be answered with.
HOSTILE = {
    "closes its descriptors": ("os.closerange(3, 1024)", "for (let i = 3; i < 1024; i++) try { fs.closeSync(i) } catch {}", {200, 502}),
    "closes its output": ("os.close(1); os.close(2)", "fs.closeSync(1); fs.closeSync(2)", {200, 500, 502}),
    # Which may look like a long frame of a kind that is skipped: then its answer is skipped with it.
    "writes garbage into its channel": ("[spoil(n) for n in range(3, 30)]", "for (let i = 3; i < 30; i++) spoil(i)", {200, 500, 502, 504}),
    "returns from its child too": ("os.fork()", "cp.spawnSync('sh', ['-c', 'kill -9 $$'])", {200, 502}),
    "stops its parent": ("tell(os.getppid(), signal.SIGSTOP); time.sleep(0.3); tell(os.getppid(), signal.SIGKILL)", "tell(process.ppid, 'SIGSTOP'); tell(process.ppid, 'SIGKILL')", {200, 502, 500}),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "process.kill(process.pid, 'SIGSTOP')", {504}),
    "stops its group": ("os.killpg(0, signal.SIGSTOP)", "process.kill(0, 'SIGSTOP')", {504}),
    "kills its group": ("os.killpg(0, signal.SIGKILL)", "process.kill(0, 'SIGKILL')", {502}),
    "kills all it can": ("tell(-1, signal.SIGKILL)", "tell(-1, 'SIGKILL')", {200, 502, 500}),
    "has no room for files": ("resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
                              "cp.spawnSync('prlimit', ['--pid', String(process.pid), '--nofile=0:0', '--fsize=0:0'])", {200, 500, 502}),
    "has no room for memory": ("resource.setrlimit(resource.RLIMIT_AS, (0, 0)); bytearray(1 << 26)", "cp.spawnSync('prlimit', ['--pid', String(process.pid), '--as=0:0']); Buffer.alloc(1 << 28)", {200, 500, 502, 504}),
    "has many threads": ("[threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(2000)]", "for (let i = 0; i < 40; i++) new (require('worker_threads').Worker)('setTimeout(() => {}, 60000)', { eval: true })", {200, 500, 502, 504}),
    "removes its folder": ("shutil.rmtree(os.getcwd(), ignore_errors=True); os.chdir('/')", "fs.rmSync(process.cwd(), { recursive: true, force: true }); process.chdir('/')", {200, 500, 502}),
    "prints what looks like marks": ("os.write(1, bytes(range(256)) * 40 + b'\\x00\\xff\\x1b]0;x\\x07' * 999); os.write(2, b'\\x1e{}\\n' * 999)", "fs.writeSync(1, Buffer.alloc(9999, Buffer.from([...Array(256).keys()]))); fs.writeSync(2, '\\x1e{}\\n'.repeat(999))", {200}),
    "asks for SIGIO on its channel": ("[(fcntl.fcntl(n, fcntl.F_SETOWN, -os.getpgrp()), fcntl.fcntl(n, fcntl.F_SETFL, fcntl.fcntl(n, fcntl.F_GETFL) | os.O_ASYNC)) for n in map(int, os.listdir('/proc/self/fd')) if os.path.exists(f'/proc/self/fd/{n}')]",
                                     "cp.spawnSync('sh', ['-c', 'exit 3'])", {200, 500, 502}),
    "makes its channel block": ("[os.set_blocking(int(n), True) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')]", "cp.spawnSync('true', { stdio: 'inherit' })", {200, 502}),
    "shuts its channel down": ("[shut(n) for n in range(3, 30)]", "for (let i = 3; i < 30; i++) spoil(i, '')", {200, 500, 502}),
    "forks without end": ("""
        for _ in range(300):
            if os.fork() == 0: time.sleep(60); os._exit(0)""", "for (let i = 0; i < 300; i++) cp.spawn('sleep', ['60'])", {200, 500, 502, 504}),
}

HOSTILE_PY = """import fcntl, os, resource, shutil, signal, socket, threading, time
def tell(pid, number):
    try: os.kill(pid, number)
    except OSError as error: print(error)
def spoil(n):
    try: os.write(n, b"\\xff garbage \\x00" * 50)
    except OSError: pass
def shut(n):
    try: socket.socket(fileno=os.dup(n)).shutdown(socket.SHUT_RDWR)
    except OSError: pass
def handle(e, c):
    if e.get("do"):
        %s
    return {"fine": True}
"""
HOSTILE_JS = """const fs = require('fs'), cp = require('child_process')
const tell = (pid, number) => { try { process.kill(pid, number) } catch (error) { console.log(error.message) } }
const spoil = (n, what = '\\xff garbage \\x00'.repeat(50)) => { try { fs.writeSync(n, what) } catch {} }
exports.handle = async (e) => { if (e.do) { %s }; return { fine: true } }
"""


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_handler_harms_its_own_worker_alone(host, sink, lang, what):
    """Beside it another worker goes on, after it calls are answered, and nothing of it stays."""
    py, js, allowed = HOSTILE[what]
    code = HOSTILE_PY % py.strip() if lang == "py" else HOSTILE_JS % js
    h = host(lang, **{lang: code}, SLESS_TIMEOUT_SEC=2, SLESS_KILL_GRACE_SEC=0.3, SLESS_WORKERS=2, SLESS_MIN_WORKERS=2)
    h.wait(lambda: h.metric("sless_workers", state="ready") == 2, 10)
    answers = [h.post({"do": 1})]
    assert answers[0].status in allowed and answers[0].seconds < 2.5, answers
    if what != "removes its folder":    # there is nothing to load any more
        deadline = time.monotonic() + 8
        while (after := h.post({})).status != 200:
            # What it did to its worker may show with the next call.
            assert after.status in (500, 502, 504) and time.monotonic() < deadline, after
            answers.append(after)
        assert after.json == {"fine": True}
        answers.append(after)
    settled(sink, answers)
    assert h.process.poll() is None and h.admin("/health").status == 200


def test_hostile_callers(host, sink, lang):
    """Heads and bodies that come a byte at a time or never, connections that only wait: others are served as ever, and what they took is given back."""
    h = host(lang, py="def handle(e, c):\n    return {'n': e.get('n')}\n", js="exports.handle = (e) => ({ n: e.n })\n")
    h.post({"n": 0})
    fds, small = h.open_fds(), resident(h)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", h.port), 5)) for _ in range(800)]
        for n, s in enumerate(idle):
            s.sendall((b"", b"POST / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 33000000\r\n\r\n{", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")[n % 4])
        answers = [h.post({"n": n}) for n in range(200)]
        assert [(a.status, a.json) for a in answers] == [(200, {"n": n}) for n in range(200)] and max(a.seconds for a in answers) < 1
        assert resident(h) < small + 40_000
    h.wait(lambda: h.open_fds() <= fds + 4, 5)
    settled(sink, answers)
    assert {e["invocation_id"] for e in sink.events} - {a.id for a in answers}.union({e["invocation_id"] for e in sink.events[:2]}) == set(), "no record of what never came"
