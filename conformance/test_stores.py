"""Contract part 4 on PostgreSQL and S3 when these are killed, away or hang, and when several hosts share them; the same kills on SQLite."""
import concurrent.futures
import contextlib
import http.client
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from stores import S3, postgres, s3, settings  # noqa: F401  (fixtures)
from test_api import Api, Up, problem
from test_faults import Load, history, patiently, ran  # noqa: F401

# Notes that it ran, prints a line of its own, and ends as it is told.
COUNTED = {
    "py": "import time\ndef handle(e, c):\n    with open(e['ran'], 'a') as f: f.write(c.invocation_id + '\\n')\n    print('call', e['n'])\n"
          "    if e['n'] % 10 == 4: raise ValueError(e['n'])\n    if e['n'] % 50 == 6: time.sleep(30)\n    time.sleep(0.01)\n    return {'n': e['n']}\n",
    "js": "const fs = require('fs')\nconst nap = (ms) => new Promise(r => setTimeout(r, ms))\nexports.handle = async (e, c) => { fs.appendFileSync(e.ran, c.invocationId + '\\n'); console.log('call', e.n)\n"
          "  if (e.n % 10 === 3) throw new Error(e.n)\n  if (e.n % 50 === 7) await nap(30000)\n  await nap(10); return { n: e.n } }\n",
}
NAMES = {"py": "counted-py", "js": "counted-js"}
# A call that gets one of these was not taken: nothing that could take it was there.
NOT_NOW = {"NotReady", "Unavailable"}


def up_on(request, **env):
    up = Up(request.config.getoption("--sless"))
    up.env = env
    return up


@pytest.fixture(params=["sqlite", "servers"])
def place(request):
    """(a host, [what else can be killed])."""
    if request.param == "sqlite":
        up, servers = up_on(request), []
    else:
        servers = [request.getfixturevalue("postgres"), request.getfixturevalue("s3")]
        up = up_on(request, **settings(*servers))
    try:
        up.start()
        yield up, servers
    finally:
        for server in servers:
            server.start()
        up.bury()


class Operator:
    """Somebody who looks and deploys all the while; whatever is away, the answer can be read."""

    def __init__(self, api):
        self.api, self.seen, self.bad, self.stopped = api, {}, [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        n = 0
        while not self.stopped.wait(0.2):
            n += 1
            for ask in (lambda: self.api.api("GET", "functions"), lambda: self.api.api("GET", f"functions/{NAMES['py']}/invocations?limit=5"),
                        lambda: self.api.upload("changes", {"handler.py": f"def handle(e, c):\n    return {n}\n"})):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    answer = ask()
                    what = problem(answer)[:2]
                    self.seen[what] = self.seen.get(what, 0) + 1
                    if answer.status >= 400 and what != (503, "Unavailable"):
                        self.bad.append(answer)

    def stop(self):
        self.stopped.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_host_and_stores_are_killed_at_random_moments(request, place, ran):
    """Each answered call has exactly one record that says what was answered, with exactly its own lines; none ran twice."""
    up, servers = place
    count = request.config.getoption("--calls")
    luck = random.Random(20261201)
    api = Api(up.url, up.token, "default", up)
    for lang, name in NAMES.items():
        api.deploy(name, lang, COUNTED[lang], workers=2, timeout_sec=1)
    api.deploy("changes", "py", "def handle(e, c):\n    return 0\n", revision_history=2)

    def call(n):
        time.sleep(0.08)
        deadline = time.monotonic() + 60
        while True:
            answer = patiently(lambda: api.fn(list(NAMES.values())[n % 2], body={"n": n, "ran": str(ran)}))
            if not (answer.status == 503 and problem(answer)[1] in NOT_NOW) or time.monotonic() > deadline:
                return answer
            time.sleep(0.05)

    load, operator, kills = Load(call, count), Operator(api), {}
    while len(load.answers) + len(load.broken) < count:
        time.sleep(luck.uniform(0.5, 3.0))
        victims = luck.sample([up, *servers], luck.choice([1, 1, 1, len(servers) + 1]))
        for victim in victims:
            kills[type(victim).__name__] = kills.get(type(victim).__name__, 0) + 1
            if victim is up:
                up.known |= up.family()
                up.process.kill()
                up.process.wait()
            elif hasattr(victim, "kill_one") and luck.random() < 0.3:
                victim.kill_one(luck)
            else:
                victim.kill()
        time.sleep(luck.choice([0, luck.uniform(0, 2.5)]))
        # A host does not start while its stores are away.
        for server in servers:
            server.start()
        if up in victims:
            up.start()
    load.join()
    operator.stop()
    api.until(lambda: api.call("GET", "/ready").status == 200, 30)
    answered = {n: a for n, a in load.answers.items() if a.header("x-sless-status")}
    said = lambda status: sum(a.status == status for a in answered.values())
    print(f"{count} calls: {len(answered)} answered by the function, {len(load.broken)} broken off, {len(load.answers) - len(answered)} by the host; kills {kills}; the operator saw {operator.seen}")
    assert not operator.bad, operator.bad[:3]
    assert len(kills) == len(servers) + 1
    # Up to 8 calls are under way when a host is killed.
    assert len(answered) >= count - 8 * kills["Up"] and min(said(200), said(500), said(504)) > 0
    ids = {a.id for a in answered.values()}
    assert len(ids) == len(answered)

    def all_ended():
        found = [i for name in NAMES.values() for i in history(api, name)]
        return ids <= {i["id"] for i in found} and all(i["finished_at"] for i in found) and found
    # A supervisor that was refused asks again after at most 15 s.
    items = api.until(all_ended, 60)
    by_id = {i["id"]: i for i in items}
    assert len(by_id) == len(items) <= count, "more than one record of a call"
    for n, answer in answered.items():
        record = by_id[answer.id]
        assert (record["status"], record["http_status"]) == (answer.header("x-sless-status"), answer.status), (n, answer, record)
        wanted = {3: 500, 4: 500}.get(n % 10, 200) if n % 50 not in (6, 7) else 504
        assert answer.status == wanted, (n, answer)
    assert {i["status"] for id, i in by_id.items() if id not in ids} <= {"success", "error", "timeout", "crashed", "lost"}
    begun = ran.read_text().split()
    assert len(begun) == len(set(begun)), "a call ran twice"
    assert ids <= set(begun) <= by_id.keys()
    for n, answer in sorted(answered.items())[:: max(1, count // 500)]:
        log = api.api("GET", f"invocations/{answer.id}/logs").text.splitlines()
        # Of one that raised, its traceback comes after that.
        assert log[:1] == [f"call {n}"] and (len(log) == 1 or answer.status == 500) and not any(line.startswith("call ") for line in log[1:]), log
    api.until(lambda: api.api("GET", "functions/changes").json["phase"] == "Ready", 60)
    for server in servers:
        if isinstance(server, S3):
            # The active one and as many as are kept; what was put while a store was away goes with the next change.
            assert api.upload("changes", {"handler.py": "def handle(e, c):\n    return 'last'\n"}).status == 202
            api.until(lambda: len(server.objects("changes")) <= 3 and api.api("POST", "functions/changes/invoke", {}).text == "last", 30)
    assert "panicked" not in (up.folder / "log").read_text(errors="replace")


@pytest.fixture
def served(request, postgres, s3):
    up = up_on(request, **settings(postgres, s3))
    try:
        up.start()
        yield Api(up.url, up.token, "default", up)
    finally:
        for server in (postgres, s3):
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            server.start()
        up.bury()


HELLO = "def handle(e, c):\n    return 'hello'\n"


def test_a_database_that_is_away_or_hangs_is_told_and_missed_by_no_call(served, postgres):
    served.deploy("f", "py", HELLO)
    token = served.token_of("invoker")
    calls, invoke = [], lambda: served.api("POST", "functions/f/invoke", {}, token=token)
    assert invoke().status == 200
    for away in (postgres.kill, lambda: [os.kill(pid, signal.SIGSTOP) for pid in [postgres.process.pid, *children_of(postgres)]]):
        away()
        asked = (lambda: served.api("GET", "functions"), lambda: served.api("GET", "functions/f"), lambda: served.api("PATCH", "functions/f", {"labels": {"a": "b"}}),
                 lambda: served.upload("f", {"handler.py": HELLO + "#\n"}), invoke, lambda: served.call("GET", "/ready"))
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda ask: ask(), asked))
        for answer in answers:
            assert problem(answer)[:2] == (503, "Unavailable") and "database" in answer.json["detail"] and answer.header("retry-after"), answer
            assert answer.seconds < 12
        calls += [served.fn("f", body={}) for _ in range(20)]
        assert {a.status for a in calls} == {200} and max(a.seconds for a in calls) < 1
        assert served.call("GET", "/health").status == 200
        for pid in [postgres.process.pid, *children_of(postgres)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        postgres.start()
        served.until(lambda: served.call("GET", "/ready").status == 200, 15)
        assert invoke().status == 200
    for answer in calls:
        assert served.stored(answer.id, within=40)["status"] == "success"


def children_of(server):
    return [int(pid) for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()] if server.process.poll() is None else []


def test_a_code_store_that_is_away_or_hangs_is_told_and_missed_by_no_call(served, s3):
    served.deploy("f", "py", HELLO, revision_history=2)
    for n, away in enumerate((s3.kill, lambda: s3.process.send_signal(signal.SIGSTOP))):
        away()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            upload = pool.submit(served.upload, "f", {"handler.py": f"def handle(e, c):\n    return {n}\n"}, timeout=60)
            assert [served.fn("f", body={}).status for _ in range(20)] == [200] * 20
            assert served.api("GET", "functions/f").status == 200 and served.call("GET", "/ready").status == 200
            answer = upload.result()
        assert problem(answer)[:2] == (503, "Unavailable") and "code" in answer.json["detail"] and answer.seconds < 45, answer
        assert served.api("GET", "functions/f").json["phase"] == "Ready"
        s3.process.send_signal(signal.SIGCONT)
        s3.start()
        assert served.upload("f", {"handler.py": f"def handle(e, c):\n    return {n}\n"}).status == 202
        served.until(lambda: served.fn("f", body={}).text == str(n), 30)
    for n in range(4):
        assert served.upload("f", {"handler.py": f"def handle(e, c):\n    return 'more {n}'\n"}).status == 202
        served.until(lambda: served.fn("f", body={}).text == f"more {n}", 30)
    served.until(lambda: len(s3.objects("f")) == len(served.api("GET", "functions/f/revisions").json["items"]) <= 3, 15)
    s3.kill()
    assert served.api("DELETE", "functions/f").status == 202
    time.sleep(1)
    assert served.api("GET", "functions/f").json["phase"] == "Terminating"
    s3.start()
    served.until(lambda: served.api("GET", "functions/f").status == 404, 30)
    assert s3.objects("f") == []


def test_two_hosts_start_at_once_on_one_database(request, postgres, s3):
    """One makes the tables. What both store is in one order for whoever reads it."""
    ups = [up_on(request, **settings(postgres, s3)) for _ in range(2)]
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda up: up.start(), ups))
        one, other = (Api(up.url, up.token, "default", up) for up in ups)
        one.deploy("f", "py", "def handle(e, c):\n    for i in range(3): print(e['n'], i)\n    return e['n']\n", workers=2)
        # It has what there was when it started.
        assert ups[1].stop() == 0
        ups[1].start()
        other.until(lambda: other.fn("f", body={"n": -1}).status == 200, 30)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: (one, other)[n % 2].fn("f", body={"n": n}), range(200)))
        assert [a.json for a in answers] == list(range(200))
        for answer in answers:
            assert other.stored(answer.id)["status"] == one.stored(answer.id)["status"] == "success"
        logs = [api.api("GET", "functions/f/logs?tail=600", headers={"accept": "application/json"}).json["items"] for api in (one, other)]
        assert logs[0] == logs[1] and len(logs[0]) == 600
        for answer, n in zip(answers, range(200)):
            assert [line["text"] for line in logs[0] if line["invocation_id"] == answer.id] == [f"{n} {i}" for i in range(3)]
    finally:
        for up in ups:
            up.bury()
