"""Contract part 4, what `test_api.py` leaves open: http triggers (methods, cors, host), stopping, followed logs that go on, masking, cancelling, memory.

`BODY_MIB` (96) is the size of the body that a slow caller reads; its whole must never be in anybody's memory.
"""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from test_api import Api, host, own, problem, running  # noqa: F401  (fixtures)

BODY_MIB = int(os.environ.get("BODY_MIB", "96"))
ECHO = "def handle(e, c):\n    h = c.http\n    return {'method': h.method, 'path': h.path, 'raw': h.raw_query, 'host': h.headers.get('host')}\n"


def test_a_trigger_takes_the_methods_that_it_names(host):
    host.deploy("f", "py", ECHO)
    assert host.api("GET", "triggers/f-http").json["methods"] == []
    assert host.api("PATCH", "triggers/f-http", {"methods": ["POST", "PUT"]}).status == 200
    for method in ("POST", "PUT"):
        assert host.fn("f", method=method).json["method"] == method
    for method in ("GET", "DELETE", "OPTIONS", "PATCH"):
        answer = host.fn("f", method=method)
        assert problem(answer) == (405, "MethodNotAllowed", None) and answer.header("allow") == "POST, PUT", answer
    assert host.api("GET", "functions/f/invoke").json["method"] == "GET", "with a token it is no trigger's business"
    assert host.api("PATCH", "triggers/f-http", {"methods": None}).json["methods"] == [] and host.fn("f", method="GET").status == 200
    for methods in (["get"], "GET", [1]):
        assert problem(host.api("PATCH", "triggers/f-http", {"methods": methods})) == (400, "Invalid", "methods")


def test_browsers_are_answered_as_the_cors_block_says(host):
    host.deploy("f", "py", "def handle(e, c):\n    return {'statusCode': 200, 'headers': {'Access-Control-Allow-Origin': 'https://of-the-handler.example'}, 'body': 'x'}\n")
    page = {"origin": "https://app.example"}
    ask = page | {"access-control-request-method": "PUT", "access-control-request-headers": "content-type, x-a"}
    plain = host.fn("f", method="OPTIONS", headers=ask)
    assert plain.text == "x" and host.stored(plain.id), "without cors all of it is the handler's"
    assert host.api("PATCH", "triggers/f-http", {"cors": {"origins": ["https://app.example"], "headers": ["content-type"], "max_age_sec": 60}}).status == 200
    told = host.fn("f", method="OPTIONS", headers=ask)
    allowed = {name: told.header(f"access-control-{name}") for name in ("allow-origin", "allow-methods", "allow-headers", "max-age")}
    assert told.status == 204 and allowed == {"allow-origin": "https://app.example", "allow-methods": "PUT", "allow-headers": "content-type", "max-age": "60"}
    stranger = host.fn("f", method="OPTIONS", headers=ask | {"origin": "https://evil.example"})
    assert stranger.status == 204 and not stranger.header("access-control-allow-origin") and not stranger.header("access-control-allow-methods")
    got = host.fn("f", headers=page)
    assert (got.text, got.headers["access-control-allow-origin"]) == ("x", ["https://app.example"]) and "origin" in got.header("vary").lower()
    foreign = host.fn("f", headers={"origin": "https://evil.example"})
    assert foreign.header("access-control-allow-origin") == "https://of-the-handler.example"
    host.stored(got.id), host.stored(foreign.id)
    assert {i["id"] for i in host.api("GET", "functions/f/invocations").json["items"]} == {plain.id, got.id, foreign.id}, "a preflight is no call"
    assert host.api("PATCH", "triggers/f-http", {"cors": {"origins": ["*"]}, "methods": ["POST"]}).status == 200
    assert host.fn("f", headers=page).header("access-control-allow-origin") == "*"
    refused = host.fn("f", method="GET", headers=page)
    assert (refused.status, refused.header("access-control-allow-origin")) == (405, "*"), "a page may read why"
    for cors, field in (({}, "cors"), ({"origins": ["app.example"]}, "cors"), ({"origins": ["*"], "max_age_sec": "1"}, "cors")):
        assert problem(host.api("PUT", "triggers/f-http", {"type": "http", "function": "f", "cors": cors})) == (400, "Invalid", field), cors


def test_a_host_of_its_own_leads_to_one_function(host):
    host.deploy("f", "py", ECHO)
    name = f"{host.ns}.shop.example"
    assert host.call("GET", "/a", headers={"host": name}).status == 404
    made = host.api("PATCH", "triggers/f-http", {"host": name}).json
    assert made["host"] == name and f"//{name}" in made["url"]
    for asked in (name, name.upper(), f"{name}:1234"):
        got = host.call("GET", "/a//b%2Fc?x=1", headers={"host": asked}).json
        assert (got["path"], got["raw"], got["host"]) == ("/a//b%2Fc", "x=1", asked)
    assert host.fn("f", "/p").json["path"] == "/p", "it is reached by its path as well"
    assert host.call("GET", "/a", headers={"host": f"x.{name}"}).status == 404
    assert host.call("GET", "/v1/whoami", headers={"host": name}).status == 401 and host.call("GET", "/fn/none/none", headers={"host": name}).status == 404
    host.deploy("g", "py", ECHO, trigger=False)
    assert problem(host.api("POST", "triggers", {"name": "g", "type": "http", "function": "g", "host": name})) == (409, "Conflict", "host")
    other = Api(f"http://{host.address}:{host.port}", host.token, f"{host.ns}-b", host.up)
    other.deploy("h", "py", ECHO, trigger=False)
    assert problem(other.api("PUT", "triggers/h", {"type": "http", "function": "h", "host": name})) == (409, "Conflict", "host")
    assert host.api("DELETE", "triggers/f-http").status == 202 and host.call("GET", "/a", headers={"host": name}).status == 404
    assert other.api("PUT", "triggers/h", {"type": "http", "function": "h", "host": name}).status == 201
    assert host.call("GET", "/a", headers={"host": name}).json["path"] == "/a"
    assert (other.api("DELETE", "triggers/h").status, other.api("DELETE", "functions/h").status) == (202, 202)


def events(api, path, last=None):
    """(id, item) of each event, until the stream ends."""
    headers = {"authorization": f"Bearer {api.token}", "accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
    with api.open("GET", f"/v1/namespaces/{api.ns}/{path}", headers) as stream:
        assert stream.status == 200, stream.status
        mark = None
        while line := stream.readline():
            if line.startswith(b"id:"):
                mark = line[3:].strip().decode()
            if line.startswith(b"data:"):
                yield mark, json.loads(line[5:])


def test_a_followed_log_goes_on_where_its_reader_was_cut_off(host):
    host.deploy("tick", "py", "import time\ndef handle(e, c):\n    for i in range(6):\n        print('tick', i)\n        time.sleep(0.3)\n")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(host.fn, "tick", body={})
        running = host.until(lambda: host.api("GET", "functions/tick/invocations?status=running").json["items"])
        path = f"invocations/{running[0]['id']}/logs?follow=true"
        seen, last = [], None
        while len(seen) < 6:                        # a reader that is cut off after each line
            with contextlib.closing(events(host, path, last)) as stream:
                last, line = next(stream)
                seen.append(line["text"])
        assert seen == [f"tick {i}" for i in range(6)] and call.result().status == 204
    host.stored(running[0]["id"])
    no_more = host.api("GET", path, headers={"accept": "text/event-stream", "last-event-id": last})
    assert no_more.status == 204, "else a browser would come back for ever"
    marks = [mark for mark, _ in events(host, path)]
    assert len(set(marks)) == 6 and [line["text"] for _, line in events(host, path, marks[2])] == ["tick 3", "tick 4", "tick 5"]
    build = [(mark, line) for mark, line in events(host, "functions/tick/build/logs")]
    if len(build) > 1:
        assert [line for _, line in events(host, "functions/tick/build/logs", build[0][0])] == [line for _, line in build[1:]]


def test_a_new_function_of_an_old_name_begins_anew(host):
    host.deploy("f", "py", "def handle(e, c):\n    print('of the first')\n    return 'one'\n")
    first = host.fn("f")
    host.stored(first.id)
    before = host.api("GET", "functions/f")
    assert host.api("DELETE", "functions/f").status == 202
    host.until(lambda: host.api("GET", "functions/f").status == 404)
    assert host.api("GET", f"invocations/{first.id}").json["status"] == "success", "it is kept until retention takes it"
    host.deploy("f", "py", "def handle(e, c):\n    print('of the second')\n    return 'two'\n", trigger=False)
    after = host.api("GET", "functions/f")
    assert host.fn("f").text == "two", "its trigger was left, and works again"
    second = host.fn("f")
    host.stored(second.id)
    ids = [i["id"] for i in host.api("GET", "functions/f/invocations").json["items"]]
    assert first.id not in ids and second.id in ids
    assert "of the first" not in host.api("GET", "functions/f/logs").text and len(host.api("GET", "functions/f/revisions").json["items"]) == 1
    late = host.api("PATCH", "functions/f", {"timeout_sec": 9}, headers={"if-match": before.header("etag")})
    assert problem(late) == (412, "Conflict", None) and after.header("etag") != before.header("etag")


def test_secret_values_are_nowhere_in_what_is_kept(host):
    value = "v4lue-of-the-secret"
    assert host.api("PUT", "secrets/s", {"data": {"KEY": value}}).status == 201
    host.deploy("f", "py", "import os\ndef inner(text):\n    raise ValueError('bad: ' + text)\ndef handle(e, c):\n    print('log', os.environ['KEY'])\n    if c.http.path == '/raise': inner(os.environ['KEY'])\n    return {'key': os.environ['KEY'], 'sent': e}\n",
                secrets=["s"])
    good = host.fn("f", f"/{value}?q={value}", body={"password": value}, headers={"x-own": value})
    bad = host.fn("f", "/raise", body={})
    assert good.json["sent"] == {"password": value}, "the handler has it as it was sent"
    for call in (good, bad):
        record = host.stored(call.id)
        assert value not in json.dumps(record) and "***" in json.dumps(record), record
        log = host.api("GET", f"invocations/{call.id}/logs", headers={"accept": "text/plain"}).text
        assert log.startswith("log ***\n") and value not in log
    assert "in inner" in host.stored(bad.id)["error"]["traceback"]
    assert problem(host.api("POST", f"invocations/{good.id}/replay")) == (409, "Conflict", None), "it would not be what was sent"
    assert host.api("POST", f"invocations/{bad.id}/replay").status == 202
    if host.up:
        assert value not in host.up.log()
        kept = [path for path in host.up.folder.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
        assert kept == [], "encrypted at rest, masked in records"
    # A value that changes reaches the workers without a build, and the old one is masked no more than it is used.
    built = host.api("GET", "functions/f/build").json
    host.api("PUT", "secrets/s", {"data": {"KEY": "another-value-of-it"}})
    assert host.until(lambda: (answer := host.fn("f", body={})).json["key"] == "another-value-of-it" and answer).status == 200
    assert host.api("GET", "functions/f/build").json == built


def test_streams_and_calls_that_wait_are_cancelled_too(host):
    host.deploy("f", "py", "import time\ndef handle(e, c):\n    yield 'first'\n    time.sleep(25)\n    yield 'second'\n", timeout_sec=30)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with host.open("POST", f"/fn/{host.ns}/f", {}, "") as response:
            assert response.read1(5) == b"first"
            streamed = response.getheader("x-sless-invocation-id")
            waiting = pool.submit(host.fn, "f", body={})
            time.sleep(0.5)
            began = time.monotonic()
            # The one that waits has no record before a worker has it; what the history shows as running is the other.
            assert host.api("POST", f"invocations/{streamed}/cancel").status == 202
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                response.read()
            assert time.monotonic() - began < 10
        assert host.stored(streamed)["status"] == "cancelled"
        running = host.until(lambda: host.api("GET", "functions/f/invocations?status=running").json["items"])
        assert host.api("POST", f"invocations/{running[0]['id']}/cancel").status == 202
        assert running[0]["id"] != streamed and host.stored(running[0]["id"])["status"] == "cancelled"
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            waiting.result(15)
    assert problem(host.api("POST", f"invocations/{streamed}/cancel")) == (409, "Conflict", None)


def followed(api, path):
    """All bytes of an answer, until the connection ends."""
    with socket.create_connection((api.address, api.port), 30) as s:
        s.sendall(f"GET /v1/namespaces/{api.ns}/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\nAccept: text/event-stream\r\n\r\n".encode())
        got = b""
        with contextlib.suppress(ConnectionError):
            while chunk := s.recv(1 << 16):
                got += chunk
        return got


def resident(up):
    """KiB that the host and all that it has started hold."""
    total = 0
    for pid in [up.process.pid, *(pid for pid, _ in up.family())]:
        with contextlib.suppress(OSError):
            total += sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return total


def test_a_slow_caller_holds_the_handler_back_and_no_memory(host):
    if not host.up:
        pytest.skip("needs a host whose memory can be seen")
    host.deploy("big", "py", "def handle(e, c):\n    for _ in range(e['mib']):\n        yield bytes(1 << 20)\n", timeout_sec=600)
    with host.open("POST", f"/fn/{host.ns}/big", {"content-type": "application/json"}, '{"mib": 1}') as response:
        assert len(response.read()) == 1 << 20
    small = peak = resident(host.up)
    with socket.create_connection((host.address, host.port)) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        body = json.dumps({"mib": BODY_MIB})
        s.sendall(f"POST /fn/{host.ns}/big HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        for _ in range(20):                         # two seconds in which nothing is read
            time.sleep(0.1)
            peak = max(peak, resident(host.up))
        got, looked = 0, time.monotonic()
        while chunk := s.recv(1 << 20):
            got += len(chunk)
            if time.monotonic() - looked > 0.2:
                peak, looked = max(peak, resident(host.up)), time.monotonic()
    print(f"{BODY_MIB} MiB: {small} KiB before, {peak} KiB at most")
    assert got > BODY_MIB << 20
    assert peak < small + 24_000, f"{small} KiB, then {peak} KiB"


def test_a_large_request_that_is_refused_holds_no_memory(host):
    if not host.up:
        pytest.skip("needs a host whose memory can be seen")
    host.deploy("f", "py", "def handle(e, c):\n    return len(c.http.body)\n")
    host.fn("f", body=bytes(1 << 20), headers={"content-type": "application/octet-stream"})
    small = resident(host.up)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call, peak = pool.submit(host.flood, "POST", f"/fn/{host.ns}/f", BODY_MIB, **{"content-type": "application/octet-stream"}), 0
        while not call.done():
            peak = max(peak, resident(host.up))
            time.sleep(0.05)
    assert call.result() == 413
    # The supervisor reads up to its own limit (32 MiB) before it refuses; the host passes on and keeps nothing.
    assert peak < small + 32_768 + 24_000, f"{small} KiB, then {peak} KiB"
    assert host.fn("f", body=b"xy", headers={"content-type": "application/octet-stream"}).text == "2"


def control_groups(family):
    """The hosts' control groups below which one of these processes is, where the host may make any."""
    pids = {str(pid) for pid, _ in family}
    found = set()
    for procs in Path("/sys/fs/cgroup").rglob("sless-*/*/cgroup.procs"):
        with contextlib.suppress(OSError):      # it may go while we look
            if pids & set(procs.read_text().split()):
                found.add(procs.parent.parent)
    return found


def test_stopping_tells_probes_and_late_callers_and_loses_nothing(own):
    own.deploy("nap", "py", "import time\ndef handle(e, c):\n    time.sleep(2)\n    return 'done'\n", workers=2)
    own.deploy("drip", "py", "import time\ndef handle(e, c):\n    for i in range(8):\n        yield f'{i} '\n        time.sleep(0.3)\n")
    own.fn("nap"), own.fn("drip")
    up = own.up
    with concurrent.futures.ThreadPoolExecutor() as pool:
        calls = [pool.submit(own.fn, "nap") for _ in range(2)]
        drip = pool.submit(own.fn, "drip")
        follow = pool.submit(followed, own, "functions/nap/logs?follow=true")
        own.until(lambda: len(own.api("GET", "functions/nap/invocations?status=running").json["items"]) == 2)
        up.known |= up.family()
        groups = control_groups(up.family())
        up.process.send_signal(signal.SIGTERM)
        own.until(lambda: own.call("GET", "/ready").status == 503, 2)
        assert own.call("GET", "/ready").json["status"] == "draining" and own.call("GET", "/health").status == 200
        late = [own.fn("nap"), own.api("GET", "functions")]
        assert [problem(answer) for answer in late] == [(503, "Unavailable", None)] * 2 and late[0].header("retry-after")
        assert up.process.wait(30) == 0
        assert [(c.result().status, c.result().text) for c in calls] == [(200, "done")] * 2
        assert drip.result().text == "0 1 2 3 4 5 6 7 "
        got = follow.result(5)
        assert got.startswith(b"HTTP/1.1 200 ") and not got.endswith(b"\r\n0\r\n\r\n"), "cut: more would have come"
    deadline = time.monotonic() + 5
    while up.left() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert up.left() == []
    assert [group for group in groups if group.exists()] == []
    up.start()
    for call in [*calls, drip]:
        assert own.stored(call.result().id)["status"] == "success"
