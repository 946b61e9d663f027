"""Each example, deployed as its README says and called through the public proxy: answer, record, log."""
import contextlib
import json
import struct
import time
from pathlib import Path

import pytest

from conftest import EXAMPLES

PORTRAIT = EXAMPLES / "inputs" / "portrait.jpg"
README = EXAMPLES / "inputs" / "README-express.md"


def jpeg_size(data):
    """(width, height) as the first start-of-frame segment says."""
    assert data[:2] == b"\xff\xd8", "no JPEG"
    at = 2
    while at < len(data):
        marker, length = struct.unpack(">xBH", data[at:at + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5:at + 9])
            return width, height
        at += 2 + length
    raise AssertionError("no frame in this JPEG")


@pytest.mark.parametrize("example", ["hello-python", "hello-node"])
def test_hello(host, example):
    host.deploy(example)
    answer = host.call(example, {"name": "Ada"})
    assert (answer.status, answer.json) == (200, {"message": "Hello, Ada!"})
    record = host.record(answer)
    assert (record["status"], record["http_status"], record["trigger"]) == ("success", 200, "http")
    assert host.log_of(answer).splitlines() == ["greeting Ada"]
    assert host.call(example, query={"name": "Grace"}, method="GET").json == {"message": "Hello, Grace!"}


@pytest.mark.parametrize("example", ["simple-python", "simple-node"])
def test_simple(host, example):
    host.deploy(example)
    cart = {"items": [{"name": "apple", "count": 3}, {"name": "cheese"}]}
    answer = host.call(example, cart, query={"currency": "CHF"}, headers={"x-customer": "Ada"})
    assert (answer.status, answer.headers["x-cart-total"]) == (200, "680")
    assert (answer.json["customer"], answer.json["total"]) == ("Ada", "6.80 CHF")
    assert "cart of Ada: 2 items, 680 cent" in host.log_of(answer)
    assert host.call(example, cart).json["calls_of_this_worker"] == answer.json["calls_of_this_worker"] + 1

    for wrong, status in (({}, 400), ({"items": [{"name": "gold"}]}, 422), ({"items": [{"name": "apple", "count": 0}]}, 422)):
        refused = host.call(example, wrong)
        assert (refused.status, set(refused.json)) == (status, {"error"})
        record = host.record(refused)
        assert (record["status"], record["http_status"]) == ("success", status)
        assert "refused: " in host.log_of(refused)


def test_thumbnail(host):
    host.deploy("thumbnail")
    before = PORTRAIT.read_bytes()
    answer = host.call("thumbnail", before, query={"width": 160}, headers={"content-type": "image/jpeg"})
    assert (answer.status, answer.headers["content-type"]) == (200, "image/jpeg")
    width, height = jpeg_size(before)
    assert jpeg_size(answer.body) == (160, round(height * 160 / width))
    assert len(answer.body) < len(before) / 3
    assert host.record(answer)["status"] == "success"
    assert f"{width}x{height} ({len(before)} bytes) -> 160x" in host.log_of(answer)

    for body, query, hint in ((b"not an image", {}, "not an image"), (before, {"width": "wide"}, "width"), (b"", {}, "image"), (before[:3000], {}, "")):
        refused = host.call("thumbnail", body, query=query, headers={"content-type": "image/jpeg"})
        assert refused.status == 400 and hint in refused.json["error"], refused


def test_markdown(host):
    host.deploy("markdown")
    answer = host.call("markdown", README.read_bytes(), headers={"content-type": "text/markdown"})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h2>Table of contents</h2>" in answer.text and '<a href="#installation">Installation</a>' in answer.text
    assert "import express from" in answer.text and "<pre><code" in answer.text
    assert "of HTML" in host.log_of(answer)
    assert host.call("markdown", b"", headers={"content-type": "text/markdown"}).status == 400


def test_notes(host, database_url):
    host.cli("secret", "set", "notes-db", f"DATABASE_URL={database_url}")
    host.deploy("notes-python", "--secret", "notes-db", "--workers", "2")
    path = "/fn/default/notes-python"
    made = host.call("notes-python", {"text": "buy cheese"})
    assert made.status == 201 and made.json["text"] == "buy cheese" and made.json["created_at"] == made.json["changed_at"]
    assert database_url not in host.log_of(made)
    one = f"{path}/{made.json['id']}"
    assert host.request("GET", one).json == made.json
    changed = host.request("PUT", one, b'{"text": "buy bread"}')
    assert (changed.status, changed.json["text"]) == (200, "buy bread") and changed.json["changed_at"] > made.json["changed_at"]
    assert [note["text"] for note in host.request("GET", path).json if note["id"] == made.json["id"]] == ["buy bread"]
    assert host.request("DELETE", one).json["text"] == "buy bread"
    assert [host.request(method, one, b'{"text": "x"}').status for method in ("GET", "PUT", "DELETE")] == [404] * 3
    for method, where, body, status in (("POST", path, b"{}", 400), ("POST", path, b'{"text": "\\u0000"}', 400), ("PATCH", path, b"{}", 405), ("GET", f"{path}/one", None, 404)):
        refused = host.request(method, where, body)
        assert (refused.status, set(refused.json)) == (status, {"error"}), refused
    host.call("notes-python", {"text": "'; DROP TABLE notes; --"})
    assert host.request("GET", path).json[0]["text"] == "'; DROP TABLE notes; --"


def test_notes_without_a_database_say_why(host):
    host.cli("secret", "set", "no-db", "DATABASE_URL=postgres://me:of-no-database@127.0.0.1:1/none")
    failed = host.cli("deploy", str(EXAMPLES / "notes-python"), "--name", "notes-alone", "--secret", "no-db", check=False)
    assert failed.returncode == 1 and "onnection" in failed.stderr and "of-no-database" not in failed.stderr, failed.stderr
    host.cli("delete", "notes-alone")


def test_pg_query(host, database_url):
    host.cli("secret", "set", "reports-db", f"DATABASE_URL={database_url}")
    host.deploy("pg-query", "--secret", "reports-db", "--timeout-sec", "4", "--no-trigger")
    assert host.call("pg-query", {"query": "SELECT 1"}).status == 404

    def ask(query, *parameters):
        done = host.cli("invoke", "pg-query", "-d", json.dumps({"query": query, "parameters": parameters}), check=False)
        return done.returncode, json.loads(done.stdout)
    code, answer = ask("SELECT %s::int AS n, %s::numeric / 4 AS q, '2026-01-02T03:04:05Z'::timestamptz AT TIME ZONE 'UTC' AS at", 7, 10)
    assert code == 0 and answer == {"columns": ["n", "q", "at"], "rows": [[7, "2.5000000000000000", "2026-01-02T03:04:05"]], "more": False}
    code, answer = ask("SELECT * FROM generate_series(1, 2000)")
    assert (len(answer["rows"]), answer["more"]) == (1000, True)
    for query, says in (("SELECT * FROM nothing_like_this", "nothing_like_this"), ("CREATE TABLE sneaked_in (n int)", "read-only"), ("SELECT pg_sleep(60)", "did not answer within")):
        code, answer = ask(query)
        assert code == 1 and says in answer["error"], answer


@pytest.mark.parametrize("example", ["streaming-python", "streaming-node"])
def test_streaming(host, example):
    host.deploy(example)
    lines, times = [], []
    with host.open("GET", f"/fn/default/{example}?steps=4&pause_sec=0.4") as response:
        assert response.status == 200
        while line := response.readline():
            lines.append(line.decode())
            times.append(time.monotonic())
    assert lines == [f"step {i} of 4\n" for i in range(1, 5)] + ["done\n"]
    assert times[3] - times[0] > 0.9, "the lines came at once: the answer was not streamed"
    assert host.call(example, {"steps": 0}).status == 400


def test_slow(host):
    host.deploy("slow", "--timeout-sec", "2")
    answer = host.call("slow", {"sleep_sec": 60})
    assert (answer.status, answer.json["error"]["type"]) == (504, "Timeout")
    assert 1.9 < answer.seconds < 2.5
    record = host.record(answer)
    assert (record["status"], record["http_status"]) == ("timeout", 504)
    assert "handler.py" in record["error"]["traceback"], "the record does not say where the handler was"
    assert "going to sleep with" in host.log_of(answer)
    host.until(lambda: not any("sleep 600.25" in line for line in commands()), 3)       # its child, in a session of its own

    quick = host.call("slow", {"sleep_sec": 0.1})
    assert (quick.status, quick.json) == (200, {"slept": True})


def commands():
    """The command lines of all processes: what a killed handler left would have another parent by now."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def test_the_command_line_tells_of_the_calls(host):
    host.deploy("hello-python")
    answer = host.call("hello-python", {"name": "Mary"})
    host.record(answer)
    assert "hello-python" in host.cli("list").stdout
    assert "success" in host.cli("invocations", "hello-python").stdout
    assert "greeting Mary" in host.cli("logs", "hello-python").stdout
    assert "Hello, Jean!" in host.cli("invoke", "hello-python", "-d", '{"name": "Jean"}').stdout


def test_a_deleted_function_is_gone(host):
    host.deploy("hello-node", "--name", "short-lived")
    assert host.call("short-lived", {"name": "x"}).status == 200
    host.cli("delete", "short-lived")
    assert host.call("short-lived", {"name": "x"}).status == 404
