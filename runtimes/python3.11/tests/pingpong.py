"""What a call costs in the worker: `python3.11 -m tests.pingpong [calls]` in this folder. Four calls are in flight, as under load."""
import resource
import sys
import time

from tests.driver import Worker

HELLO = "def handle(event, context):\n    return {'message': f\"Hello, {event['name']}!\"}\n"
LOGS = "def handle(event, context):\n    for i in range(1000): print('line', i)\n    return {}\n"
ASYNC = "async def handle(event, context):\n    return {'message': f\"Hello, {event['name']}!\"}\n"


def measure(name, code, calls, flight=4):
    with Worker(code) as worker:
        for _ in range(50):
            worker.call({"name": "Ada"})
            worker.output()
        first = worker.numbers[0]
        before = _children_cpu(worker.process.pid)
        began = time.perf_counter()
        for n in range(flight):
            worker.invoke({"name": "Ada"}, pair=n % 3)
        for n in range(calls):
            frame = worker.end(first + 1 + n)
            assert frame.kind == "RESULT", frame
            if code is LOGS:
                worker.output(n % flight % 3)
            if n + flight < calls:
                worker.invoke({"name": "Ada"}, pair=n % flight % 3)
        took = time.perf_counter() - began
        cpu = _children_cpu(worker.process.pid) - before
        print(f"{name}: {took / calls * 1e6:.1f} us a call with this driver, {cpu / calls * 1e6:.1f} us of the worker's CPU, {worker.call({'name': 'Ada'}).rss} KiB")


def _children_cpu(pid):
    with open(f"/proc/{pid}/schedstat") as stat:        # nanoseconds; `stat` counts in ticks
        return int(stat.read().split()[0]) / 1e9


def start(times=20):
    took = []
    for _ in range(times):
        began = time.perf_counter()
        with Worker(HELLO) as worker:
            worker.call({"name": "Ada"})
            took.append(time.perf_counter() - began)
    took.sort()
    print(f"start to first answer: p50 {took[times // 2] * 1e3:.1f} ms, best {took[0] * 1e3:.1f} ms (with the driver's fork)")


if __name__ == "__main__":
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
    measure("hello", HELLO, calls)
    measure("async hello", ASYNC, calls // 4)
    measure("1000 lines", LOGS, max(10, calls // 200), flight=1)
    start()
    print(f"driver: {resource.getrusage(resource.RUSAGE_SELF).ru_utime:.1f} s of user CPU")
