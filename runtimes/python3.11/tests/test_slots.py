"""More than one slot: calls side by side in one process, each with its own log."""
import threading
import time
import unittest

from tests.driver import Worker


def collect(worker, slots):
    """Ends of one call on each slot, taken as they come."""
    found = {}

    def one(slot, call):
        found[slot] = worker.end(call, slot)
    threads = [threading.Thread(target=one, args=pair) for pair in slots.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def logs(frame, stream):
    return b"".join(f.body for f in frame.before if f.kind == "LOG" and f.stream == stream).decode()


class Slots(unittest.TestCase):
    def test_twenty_coroutines_at_once_each_with_its_log(self):
        code = """
import asyncio, sys
async def handle(event, context):
    for i in range(20):
        print(event, 'out', i)
        sys.stderr.write(f'{event} err {i}\\n')
        await asyncio.sleep(0.01)
    print('no newline', event, end='')
    return event
"""
        with Worker(code, slots=20) as worker:
            began = time.monotonic()
            for turn in range(2):
                found = collect(worker, {slot: worker.invoke(slot, slot=slot) for slot in range(20)})
                for slot, frame in found.items():
                    self.assertEqual(frame.json, slot)
                    self.assertEqual(logs(frame, 1), "".join(f"{slot} out {i}\n" for i in range(20)) + f"no newline {slot}")
                    self.assertEqual(logs(frame, 2), "".join(f"{slot} err {i}\n" for i in range(20)))
            self.assertLess(time.monotonic() - began, 4, "one after the other they take 8 s")
            self.assertEqual(worker.output(), ("", ""))
            self.assertEqual(worker.finish(), 0)

    def test_threads_and_what_they_start_print_for_their_call(self):
        code = """
import asyncio, concurrent.futures, logging, os, subprocess, sys, threading, time
print('at import')
pool = concurrent.futures.ThreadPoolExecutor(2)
def handle(event, context):
    thread = threading.Thread(target=print, args=('thread', event)); thread.start(); thread.join()
    pool.submit(print, 'pool', event).result()
    logging.info('info %s', event)
    time.sleep(0.2)
    asyncio.run(asyncio.to_thread(print, 'asyncio', event))
    sys.stdout.buffer.write(b'bytes\\n')
    threading.Timer(0.3, print, ('late', event)).start()
    if event == 3: subprocess.run(['echo', 'child'])
    if event == 4: raise ValueError(event)
    return event
"""
        with Worker(code, slots=5) as worker:
            self.assertEqual(worker.output(), ("at import\n", ""))
            began = time.monotonic()
            found = collect(worker, {slot: worker.invoke(slot, slot=slot) for slot in range(5)})
            self.assertLess(time.monotonic() - began, 0.9)
            for slot, frame in found.items():
                self.assertEqual(logs(frame, 1), f"thread {slot}\npool {slot}\nasyncio {slot}\nbytes\n")
                self.assertTrue(logs(frame, 2).startswith(f"INFO:root:info {slot}\n"), logs(frame, 2))
            self.assertEqual((found[4].kind, found[4].head["type"]), ("ERROR", "ValueError"))
            self.assertIn("raise ValueError(event)", logs(found[4], 2))
            seen = ""
            for _ in range(50):
                seen += worker.output()[0]
                if seen.count("late") == 5:
                    break
                time.sleep(0.02)
            self.assertEqual(sorted(seen.splitlines()), ["child"] + [f"late {n}" for n in range(5)], "of no call: they came after its end, or from a child")

    def test_streams_side_by_side(self):
        code = """
import asyncio, time
async def slow():
    for n in range(3):
        print('chunk', n)
        yield str(n)
        await asyncio.sleep(0.1)
def sync():
    yield 'a'
    time.sleep(0.1)
    yield 'b'
def handle(event): return slow() if event == 'slow' else sync() if event == 'sync' else 1 / 0
"""
        with Worker(code, slots=4) as worker:
            found = collect(worker, {n: worker.invoke(kind, kind="text", slot=n) for n, kind in enumerate(("slow", "sync", "slow", "bad"))})
            bodies = {n: b"".join(f.body for f in frame.before if f.kind == "CHUNK") for n, frame in found.items()}
            self.assertEqual(bodies, {0: b"012", 1: b"ab", 2: b"012", 3: b""})
            self.assertEqual([found[n].kind for n in range(4)], ["END", "END", "END", "ERROR"])
            self.assertEqual(logs(found[0], 1), "chunk 0\nchunk 1\nchunk 2\n")

    def test_the_stack_shows_all_tasks_and_threads(self):
        code = "import asyncio, time\nasync def waits():\n    await asyncio.sleep(60)\ndef handle(event):\n    return waits() if event else sleeps()\ndef sleeps():\n    time.sleep(60)\n"
        with Worker(code, slots=2) as worker:
            worker.invoke(1, slot=0)
            worker.invoke(0, slot=1)
            time.sleep(0.3)
            found = worker.stack()
            self.assertIn("in waits", found)
            self.assertIn("in sleeps", found)

    def test_revoked_and_taken_are_of_each_slot(self):
        with Worker("def handle(event): return event\n", slots=2, ready=False, start=False) as worker:
            worker.revoke(1, slot=1)
            worker.start()
            self.assertEqual(worker.frame().kind, "READY")
            self.assertEqual([worker.end(worker.invoke(7, slot=n), n).kind for n in (0, 1)], ["RESULT", "SKIPPED"])
            self.assertEqual([worker.taken(0), worker.taken(1)], [1, 1])

    def test_the_end_waits_for_running_calls(self):
        with Worker("import time\ndef handle(event):\n    time.sleep(0.5)\n    return event\n", slots=2) as worker:
            call = worker.invoke(7, slot=1)
            time.sleep(0.2)
            began = time.monotonic()
            self.assertEqual(worker.finish(), 0)
            self.assertGreater(time.monotonic() - began, 0.1)
            self.assertEqual(worker.end(call, 1).json, 7)

    def test_exits_and_forks(self):
        for code in ("import sys\ndef handle(event):\n    print('bye')\n    sys.exit(3)\n", "import sys\nasync def handle(event):\n    print('bye')\n    sys.exit(3)\n"):
            with self.subTest(code), Worker(code, slots=2) as worker:
                worker.invoke({}, slot=1)
                self.assertEqual(worker.frame(1).body, b"bye\n")
                self.assertEqual(worker.process.wait(5), 3)
        with Worker("import os\ndef handle(event):\n    pid = os.fork()\n    print('both')\n    if pid: os.waitpid(pid, 0)\n    return 'one'\n", slots=2) as worker:
            frame = worker.call(slot=1)
            self.assertEqual((frame.body, logs(frame, 1), frame.flags, worker.output()[0]), (b"one", "both\n", 1, "both\n"))


if __name__ == "__main__":
    unittest.main()
