"""One handler of many operations. Every row of the bench calls `call(event)` through an adapter of a few lines."""
import json
import os
import subprocess
import sys
import time

MARKS = os.environ.get("BENCH_MARKS", "/tmp")
# A child that hears no SIGTERM and would live for two minutes.
STUBBORN = ["sh", "-c", "trap '' TERM; i=0; while [ $i -lt 120 ]; do sleep 1; i=$((i+1)); done"]


def mark(event, value):
    with open(f"{MARKS}/{event['id']}.tmp", "w") as file:
        json.dump(value, file)
    os.rename(file.name, f"{MARKS}/{event['id']}")


def call(event):
    op = event.get("op", "hello")
    if op == "hello":
        return {"hello": event.get("name", "world")}
    if op == "echo":
        return {"data": event["data"]}
    if op == "logs":
        for i in range(event["n"]):
            print(f"LINE {i} some text as long as a usual log line of a handler")
        sys.stdout.flush()
        return {"n": event["n"]}
    if op == "sleep":
        time.sleep(event["s"])
        return {"slept": event["s"]}
    if op == "busy":
        while True:
            pass
    if op == "fork":
        mark(event, {"child": subprocess.Popen(STUBBORN).pid, "worker": os.getpid()})
        time.sleep(60)
        return {}
    if op == "exit":
        os._exit(1)
    raise ValueError(f"there is no operation {op!r}")
