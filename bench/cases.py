"""What is measured of a row. Each case yields results: dicts that become a line of JSON."""
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import time
import uuid

from hosts import Host, alive, cpu_sec, family, favour, rss_mib
from rows import BENCH

HELLO = {"op": "hello", "name": "bob"}
MIB = {"op": "echo", "data": "y" * (1 << 20)}
LOGS = {"op": "logs", "n": 1000}
GRACE_SEC = 1.0


def load(host, body, connections, secs):
    """wrk for `secs` seconds. `cpu_us` is the CPU of the row's processes for a call: load and sink are not in it."""
    file = host.private / "body.json"
    file.write_text(json.dumps(body))
    before, cpu_before = family(host.pid), cpu_sec(family(host.pid))
    wrk = subprocess.Popen(["wrk", "-t1", f"-c{connections}", f"-d{secs}s", "--timeout", "20s", "-s", str(BENCH / "load.lua"), f"http://127.0.0.1:{host.port}{host.row.path}"],
                           env=os.environ | {"BENCH_BODY": str(file)}, stdout=subprocess.PIPE, text=True, start_new_session=True)
    favour(wrk.pid)
    out = wrk.communicate(timeout=secs + 60)[0]
    cpu = cpu_sec(set(before) | set(family(host.pid))) - cpu_before
    found = re.search(r"^JSON (.*)$", out, re.M)
    if not found:
        raise RuntimeError(f"wrk gave no result:\n{out[-500:]}")
    got = json.loads(found[1])
    calls = max(got["calls"], 1)
    return {"calls": got["calls"], "rps": round(calls / got["us"] * 1e6, 1), "p50_ms": got["p50"] / 1000, "p99_ms": got["p99"] / 1000,
            "bad": got["bad"] + got["broken"], "cpu_us": round(cpu / calls * 1e6, 1)}


@contextlib.contextmanager
def running(row, timeout_sec=None):
    host = Host(row, timeout_sec)
    try:
        cold_sec = host.ready()
        if not cold_sec:
            raise RuntimeError(f"{row.name} gave no right answer; its log ends with:\n{host.log()}")
        host.cold_ms = cold_sec * 1000
        yield host
    finally:
        host.stop()


def speed(row, secs):
    """Hello at 1, 16 and 64 connections, echo of 1 MiB, 1,000 lines of log; memory before and after."""
    with running(row) as host:
        time.sleep(0.5)
        yield {"case": "rss", "when": "idle", "mib": rss_mib(host.pid), "processes": len(family(host.pid))}
        load(host, HELLO, 1, 1)
        for connections in (1,) if row.serial else (1, 16, 64):
            yield {"case": "hello", "connections": connections, "load": round(os.getloadavg()[0], 1)} | load(host, HELLO, connections, secs)
        if row.hello_only or row.kind == "host":
            return
        yield {"case": "echo", "connections": 1} | load(host, MIB, 1, max(2, secs // 2))
        yield {"case": "logs", "connections": 1} | load(host, LOGS, 1, max(2, secs // 2))
        time.sleep(1)
        yield {"case": "rss", "when": "after load", "mib": rss_mib(host.pid)}


def cold(row, times):
    if row.kind == "host":
        return
    for _ in range(times):
        with running(row) as host:
            yield {"case": "cold", "ms": round(host.cold_ms, 1)}


def records(row, secs):
    """Every answered call has its record: in the sink when the supervisor has ended, in the store two seconds after the last call."""
    if row.kind not in ("sless", "host"):
        return
    host = Host(row)
    try:
        if not host.ready():
            raise RuntimeError(f"{row.name} gave no right answer; its log ends with:\n{host.log()}")
        got = load(host, HELLO, 16, secs)
        if row.kind == "host":
            time.sleep(2)
            yield {"case": "records", "calls": got["calls"], "rps": got["rps"], "stored": stored(host)}
    finally:
        counts = host.stop(30)
    if row.kind == "sless":
        yield {"case": "records", "calls": got["calls"], "rps": got["rps"], "stored": counts and counts["finished"], "batches": counts and counts["batches"]}


def stored(host):
    """Ended invocations in the host's database; reading does not disturb its writer."""
    for file in (host.private / "data").rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file() and file.open("rb").read(15) == b"SQLite format 3":
                with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
                    return database.execute("SELECT count(*) FROM invocations WHERE finished_at IS NOT NULL").fetchone()[0]
    raise RuntimeError("the host has no database")


def kills(row, times):
    """Timeouts and exits: how exact, how soon all is gone, how soon the next call is answered."""
    if row.kind != "sless":
        return
    limit = 1.0
    with running(row, limit) as host:
        for op in ("sleep", "busy"):
            for _ in range(times):
                status, _, seconds = host.post({"op": op, "s": 60})
                again, _, next_sec = host.post(HELLO)
                yield {"case": "timeout", "op": op, "status": status, "late_ms": round((seconds - limit) * 1000, 1), "again": again, "next_ms": round(next_sec * 1000, 1)}
        for _ in range(times):
            call = uuid.uuid4().hex
            began = time.monotonic()
            status, _, seconds = host.post({"op": "fork", "id": call})
            pids = json.loads((host.marks / call).read_text())
            while any(map(alive, pids.values())) and time.monotonic() - began < limit + GRACE_SEC + 5:
                time.sleep(0.002)
            gone_sec = time.monotonic() - began - limit - GRACE_SEC
            yield {"case": "family", "status": status, "late_ms": round((seconds - limit) * 1000, 1), "gone_after_grace_ms": round(gone_sec * 1000, 1)}
        for _ in range(times):
            status, _, _ = host.post({"op": "exit"})
            again, _, next_sec = host.post(HELLO)
            yield {"case": "exit", "status": status, "again": again, "next_ms": round(next_sec * 1000, 1)}
            time.sleep(0.3)


def soak(row, secs):
    """Memory under load for so long, every ten seconds."""
    if row.kind != "sless":
        return
    with running(row) as host:
        began = time.monotonic()
        while time.monotonic() - began < secs:
            got = load(host, HELLO, 16, 10)
            yield {"case": "soak", "at_sec": round(time.monotonic() - began), "rps": got["rps"], "bad": got["bad"], "mib": round(rss_mib(host.pid), 2)}
