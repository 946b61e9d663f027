"""Start, errors, output, children, stacks, the end: what a worker does besides answering."""
import textwrap
import time
import unittest

from tests.driver import Worker


def py(text):
    return textwrap.dedent(text)


class Loading(unittest.TestCase):
    def failed(self, files, **how):
        with Worker(files, ready=False, **how) as worker:
            frame = worker.frame()
            self.assertEqual((frame.kind, frame.call), ("INIT_FAILED", 0), frame)
            self.assertEqual(worker.process.wait(5), 1)
            self.assertIn(frame.head["message"].split(" (handler.py")[0], worker.output()[1])
            return frame.head

    def test_what_is_missing_is_named(self):
        head = self.failed({"mistake.txt": "", "src/a.py": ""})
        self.assertIn('entrypoint "handler.handle": looked for handler.py and handler/__init__.py', head["message"])
        self.assertIn("there is mistake.txt, src/", head["message"])
        self.assertIn("there is a.py in src/", self.failed({"src/a.py": ""}, entrypoint="src/b.main")["message"])
        self.assertIn('handler.py has no "handle", which the entrypoint "handler.handle" names; it has other', self.failed("import json\nfrom os import getcwd\ndef other(e, c): pass\n")["message"])
        self.assertIn("is of type int", self.failed("handle = 3\n")["message"])
        self.assertIn("not FILE.FUNCTION", self.failed("", entrypoint="handler")["message"])
        self.assertIn("rename", self.failed({"io.py": "def handle(e): pass\n"}, entrypoint="io.handle")["message"])

    def test_errors_of_the_code(self):
        head = self.failed("import nothing_here\n")
        self.assertEqual((head["type"], head["message"]), ("ModuleNotFoundError", "No module named 'nothing_here'"))
        self.assertIn('handler.py", line 1', head["traceback"])
        self.assertNotIn("sless_shim", head["traceback"])
        head = self.failed("\ndef handle(:\n")
        self.assertEqual(head["type"], "SyntaxError")
        self.assertIn("handler.py, line 2", head["message"])
        head = self.failed("def init(c): raise ValueError('no luck')\ndef handle(e, c): pass\n")
        self.assertEqual((head["type"], head["message"]), ("ValueError", "no luck"))
        self.assertIn("asked for an exit, with code 4", self.failed("raise SystemExit(4)\n")["message"])
        self.assertIn("ProtocolError", self.failed("def handle(e): pass\n", hello={"protocol": 2})["type"])

    def test_entrypoints(self):
        files = {"src/app.py": "from .lib import n\ndef main(event):\n    return n\n", "src/lib.py": "n = 5\n", "my-fn.py": "def handle(e): return 6\n", "pkg/__init__.py": "def handle(e): return 7\n"}
        for entrypoint, right in (("src/app.main", 5), ("src.app.main", 5), ("./src/app.main", 5), ("my-fn.handle", 6), ("pkg.handle", 7)):
            with self.subTest(entrypoint), Worker(files, entrypoint=entrypoint) as worker:
                self.assertEqual(worker.call().json, right)

    def test_paths(self):
        files = {"handler.py": "import helper, dep, pathlib, sys, dep2\ndef handle(e, c):\n    return [helper.n, dep.n, dep2.n, pathlib.Path('data.txt').read_text(), pathlib.Path(__file__).name, sys.path.index(sys.path[0])]\n",
                 "helper.py": "n = 1\n", "data.txt": "data", ".sless/python/dep.py": "n = 2\n", ".sless/python/helper.py": "n = 'wrong'\n", "env/dep2.py": "n = 3\n"}
        with Worker(files, env={"PYTHONPATH": "env"}) as worker:
            self.assertEqual(worker.call().json, [1, 2, 3, "data", "handler.py", 0])
        with Worker({"handler.py": "import sys\ndef handle(e): return sys.traced\n", "trace/sitecustomize.py": "import sys; sys.traced = 5\n"}, env={"PYTHONPATH": "trace"}) as worker:
            self.assertEqual(worker.call().json, 5)
        with Worker({**files, ".sless/python/x.pth": "import sys; sys.by_pth = 1\n", "handler.py": "import sys, dep\ndef handle(e): return [sys.by_pth, dep.n]\n"}) as worker:
            self.assertEqual(worker.call().json, [1, 2])

    def test_environment(self):
        with Worker("import os, sys\ndef handle(e): return [dict(os.environ), sys.stdin.read()]\n", env={"GREETING": "hi"}) as worker:
            env, stdin = worker.call().json
            self.assertEqual((env.pop("GREETING"), env.pop("PYTHONUNBUFFERED"), stdin), ("hi", "1", ""))
            self.assertEqual(set(env), {"PATH"})
        with Worker("import os\ndef handle(e): return os.environ['LC_CTYPE'] + os.environ['PYTHONUNBUFFERED']\n", env={"LC_CTYPE": "C.UTF-8", "PYTHONUNBUFFERED": ""}) as worker:
            self.assertEqual(worker.call().body, b"C.UTF-8")

    def test_ready(self):
        with Worker("print('import')\ndef init(c): print('init', end='')\ndef handle(e): pass\n") as worker:
            self.assertEqual({k: worker.ready.head[k] for k in ("protocol", "runtime", "boundary")}, {"protocol": 1, "runtime": "python3.11", "boundary": "pairs"})
            self.assertEqual(worker.output()[0], "import\ninit")


class Errors(unittest.TestCase):
    def test_what_is_raised(self):
        code = py("""
            import asyncio
            class Silent(Exception):
                def __str__(self): raise KeyError('in __str__')
            def inner(e): exec(e)
            def handle(event, context): inner(event)
        """)
        with Worker(code) as worker:
            for line, kind, message in (("{}['name']", "KeyError", "'name'"), ("raise Silent", "Silent", "KeyError"), ("raise KeyboardInterrupt('k')", "KeyboardInterrupt", "k"),
                                        ("raise GeneratorExit", "GeneratorExit", ""), ("raise asyncio.CancelledError", "CancelledError", ""), ("raise ValueError('a\\ud800')", "ValueError", "a\\ud800"),
                                        ("f = lambda f: f(f)\nf(f)", "RecursionError", "maximum recursion"), ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup", "g"),
                                        ("raise BrokenPipeError(32, 'mine')", "BrokenPipeError", "mine")):
                with self.subTest(line):
                    frame = worker.call(line, kind="text")
                    self.assertEqual((frame.kind, frame.head["type"]), ("ERROR", kind), frame)
                    self.assertIn(message, frame.head["message"])
                    self.assertIn("in inner", frame.head["traceback"])
                    self.assertNotIn("sless_shim", frame.head["traceback"])
                    self.assertIn("in inner", worker.output()[1])
            self.assertLess(len(worker.call("raise ValueError('x' * 5_000_000)", kind="text").payload), 300_000)
            self.assertEqual(worker.call("pass", kind="text").status, 204)

    def test_async_ones(self):
        with Worker("import asyncio\nasync def inner(): raise ValueError('lost')\nasync def handle(event):\n    if event: await inner()\n    if event is None: asyncio.get_running_loop().stop(); await asyncio.sleep(1)\n    return 1\n") as worker:
            frame = worker.call(1)
            self.assertEqual((frame.head["type"], frame.head["message"]), ("ValueError", "lost"))
            self.assertIn("in inner", frame.head["traceback"])
            self.assertIn("stopped the event loop", worker.call("null").head["message"])
            self.assertEqual(worker.call(0).json, 1)

    def test_what_a_callback_raises_is_the_handlers(self):
        code = py("""
            import asyncio
            def bad(): raise ValueError('in a callback')
            async def work(): raise ValueError('in a task')
            async def handle(event):
                if event == 'callback':
                    asyncio.get_running_loop().call_later(0.01, bad)
                    await asyncio.Event().wait()
                if event == 'retrieved':
                    await asyncio.gather(work(), return_exceptions=True)
                return 'fine'
        """)
        with Worker(code) as worker:
            for event, wanted in (("callback", "in a callback"), ("retrieved", None), ("", None)):
                with self.subTest(event):
                    frame = worker.call(event, kind="text")
                    self.assertEqual(frame.head["message"] if wanted else frame.body, wanted or b"fine")
                    self.assertEqual("ValueError" in worker.output()[1], bool(wanted))

    def test_chained_ones(self):
        with Worker("def handle(event):\n    try: 1 / 0\n    except ZeroDivisionError as e: raise ValueError('second') from e\n") as worker:
            trace = worker.call().head["traceback"]
            self.assertIn("ZeroDivisionError", trace)
            self.assertIn("direct cause", trace)

    def test_broken_frames_end_the_worker(self):
        for kind, payload in ((5, b""), (1, b"{}")):
            with Worker("def handle(event): return 1\n") as worker:
                worker.send(200, 0, b"skipped")
                self.assertEqual(worker.call().json, 1)
                worker.send(kind, 0, payload)
                self.assertEqual(worker.process.wait(5), 70)
                self.assertIn(f"kind {kind}", worker.output()[1])


class Output(unittest.TestCase):
    def test_lines_are_there_at_once(self):
        code = "import sys, time, os\ndef handle(event):\n    print('one', 1)\n    sys.stdout.write('two\\n')\n    print('err', file=sys.stderr)\n    sys.stdout.buffer.write(b'three')\n    if event: os._exit(3)\n    time.sleep(60)\n"
        with Worker(code) as worker:
            worker.invoke(0)
            self.assertEqual(worker.wait_output(0, 0, "three", within=1), "one 1\ntwo\nthree")
            self.assertEqual(worker.output()[1], "err\n")
        with Worker(code) as worker:
            worker.invoke(1)
            self.assertEqual(worker.process.wait(5), 3)
            self.assertEqual(worker.output(), ("one 1\ntwo\nthree", "err\n"))

    def test_each_call_has_its_pair(self):
        code = "import os, subprocess\ndef handle(n):\n    print('print', n)\n    os.write(1, b'raw %d\\n' % n)\n    subprocess.run(['echo', f'child {n}'])\n    print('end', n, end='')\n    return n\n"
        with Worker(code) as worker:
            numbers = [worker.invoke(n, pair=n % 3, flags=1) for n in range(3)]
            self.assertEqual([worker.end(n).json for n in numbers], [0, 1, 2])
            for n in range(3):
                self.assertEqual(worker.output(n)[0], f"print {n}\nraw {n}\nchild {n}\nend {n}")

    def test_odd_text_and_odd_streams(self):
        with Worker("import sys, os\ndef handle(event):\n    print('\\ud800 é')\n    sys.stdout.close(); sys.stderr = None\n    raise ValueError('seen')\n") as worker:
            self.assertEqual(worker.call().head["message"], "seen")
            out, err = worker.output()
            self.assertEqual(out, "\\ud800 é\n")
            self.assertIn("seen", err)
            self.assertEqual(worker.call().head["type"], "ValueError")
        with Worker("import os\ndef handle(event):\n    os.set_blocking(1, False)\n    print('x' * 3_000_000)\n    return 1\n") as worker:
            call = worker.invoke({})
            got, deadline = 0, time.monotonic() + 10
            while got < 3_000_001 and time.monotonic() < deadline:
                got += len(worker.output()[0])
                time.sleep(0.001)
            self.assertEqual((got, worker.end(call).json), (3_000_001, 1))

    def test_logging_needs_no_set_up(self):
        with Worker("import logging\ndef handle(event):\n    logging.debug('no')\n    logging.info('yes %s', 1)\n    logging.getLogger('mine').warning('w')\n") as worker:
            worker.call()
            self.assertEqual(worker.output()[1], "INFO:root:yes 1\nWARNING:mine:w\n")
        with Worker("def handle(event):\n    import logging\n    logging.info('late')\n") as worker:
            worker.call()
            self.assertEqual(worker.output()[1], "INFO:root:late\n")
        with Worker("import logging, sys\nlogging.basicConfig(level=logging.DEBUG, format='mine %(message)s', stream=sys.stdout)\ndef handle(event):\n    logging.debug('x')\n") as worker:
            worker.call()
            self.assertEqual(worker.output(), ("mine x\n", ""))

    def test_child_pythons_are_unbuffered(self):
        with Worker("import subprocess, sys\ndef handle(event):\n    subprocess.Popen([sys.executable, '-c', 'import time; print(1); time.sleep(60)'])\n    return 1\n") as worker:
            frame = worker.call()
            self.assertEqual((frame.json, frame.flags), (1, 1))
            self.assertEqual(worker.wait_output(0, 0, "1\n"), "1\n")


class Children(unittest.TestCase):
    def test_what_starts_a_process_is_told(self):
        code = py("""
            import os, subprocess, multiprocessing, sys
            def work(n): return n + 1
            def pooled(how):
                with multiprocessing.get_context(how).Pool(1) as pool: return pool.map(work, [1])
            def handle(event, context): return eval(event)
        """)
        with Worker(code) as worker:
            for expression, flags in (("1", 0), ("os.system('true')", 1), ("1", 0), ("subprocess.run(['true']).returncode", 1), ("os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)[1]", 1),
                                      ("os.popen('echo 1').read()", 1), ("os.spawnlp(os.P_WAIT, 'true', 'true')", 1), ("pooled('fork')", 1), ("pooled('spawn')", 1), ("pooled('forkserver')", 1), ("id(1)", 0)):
                with self.subTest(expression):
                    frame = worker.call(expression, kind="text")
                    self.assertEqual((frame.kind, frame.flags), ("RESULT", flags), frame)

    def test_a_fork_that_comes_back_ends_and_is_silent(self):
        for last in ("return 'two'", "raise ValueError('in child')", "raise SystemExit(5)"):
            code = f"import os\ndef handle(event):\n    print('before', end='')\n    pid = os.fork()\n    if pid == 0:\n        print('child')\n        {last}\n    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
            with self.subTest(last), Worker(code) as worker:
                frame = worker.call()
                self.assertEqual(frame.json, {"r": 0 if "return" in last else 5 if "Exit" in last else 1}["r"])
                out, err = worker.output()
                self.assertEqual((out, "in child" in err), ("beforechild\n", "in child" in last))
                self.assertEqual(worker.call().kind, "RESULT")
        for generator in ("def handle(event):\n    os.fork()\n    yield 'a'\n    yield 'b'\n", "async def handle(event):\n    os.fork()\n    yield 'a'\n    yield 'b'\n"):
            with self.subTest(generator), Worker("import os\n" + generator) as worker:
                self.assertEqual(worker.call().body, b"ab")
                self.assertEqual(worker.call().body, b"ab")

    def test_children_get_no_descriptor_and_forks_hold_no_slot(self):
        code = "import os, subprocess\ndef handle(event):\n    if os.fork() == 0:\n        import time; time.sleep(60)\n    return subprocess.run(['ls', '/proc/self/fd'], capture_output=True, text=True, close_fds=False).stdout.split()\n"
        with Worker(code) as worker:
            self.assertEqual(worker.call().json, ["0", "1", "2", "3"], "3 is that of ls itself")
            self.assertEqual(worker.finish(), 0)
            self.assertIsNone(worker.frame(within=1), "the fork lives, and yet the slot has ended")


class Stacks(unittest.TestCase):
    def test_where_the_handler_is(self):
        for body, word in (("import re; re.match('(a+)+$', 'a' * 64 + 'b')", "in stuck"), ("while True: pass", "in stuck"), ("import time; time.sleep(60)", "in stuck"),
                           ("import threading; threading.Event().wait()", "in stuck"), ("import subprocess; subprocess.run(['sleep', '60'])", "in stuck")):
            with self.subTest(body), Worker(f"def stuck():\n    {body}\ndef handle(event):\n    stuck()\n") as worker:
                worker.invoke({})
                time.sleep(0.3)
                self.assertIn(word, worker.stack())
                self.assertIsNone(worker.process.poll())

    def test_where_a_coroutine_waits(self):
        for name, code in {
            "plain": "async def stuck(): await asyncio.sleep(60)\nasync def handle(event): await stuck()\n",
            "busy": "async def stuck():\n  while True: pass\nasync def handle(event): await stuck()\n",
            "gather": "async def stuck(): await asyncio.sleep(60)\nasync def handle(event): await asyncio.gather(stuck(), stuck())\n",
            "generator": "async def stuck(): await asyncio.sleep(60)\nasync def handle(event):\n  yield 'a'\n  await stuck()\n",
        }.items():
            with self.subTest(name), Worker("import asyncio\n" + code) as worker:
                worker.invoke({})
                time.sleep(0.4)
                found = worker.stack()
                self.assertIn("in stuck", found)
                self.assertIn("in handle", found) if name != "gather" else None
                self.assertEqual(found.endswith("\0"), name != "busy")

    def test_a_handler_that_goes_on_after_the_question(self):
        with Worker("import time\ndef handle(event):\n    time.sleep(0.5)\n    return 1\n") as worker:
            call = worker.invoke({})
            time.sleep(0.2)
            self.assertIn("in handle", worker.stack())
            self.assertEqual(worker.end(call).json, 1)


class TheEnd(unittest.TestCase):
    def test_exits(self):
        for code, right in (("import sys\ndef handle(e): sys.exit(0)\n", 0), ("import sys\ndef handle(e): sys.exit(7)\n", 7), ("def handle(e): exit()\n", 0), ("import sys\ndef handle(e): sys.exit('why')\n", 1),
                            ("import sys\nasync def handle(e): sys.exit(6)\n", 6), ("import os\ndef handle(e): os._exit(3)\n", 3), ("import sys\ndef handle(e):\n    yield 'a'\n    sys.exit(8)\n", 8),
                            ("import sys, threading, time\ndef handle(e):\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    sys.exit(9)\n", 9),
                            ("import os, threading\ndef handle(e):\n    threading.Thread(target=os._exit, args=(11,)).start()\n    threading.Event().wait()\n", 11)):
            with self.subTest(code), Worker("print('bye')\n" + code) as worker:
                worker.invoke({})
                self.assertEqual(worker.process.wait(5), right)
                self.assertIn("bye", worker.output()[0])

    def test_end_of_slot_0(self):
        code = py("""
            import asyncio, atexit, threading, time
            atexit.register(print, 'atexit')
            async def left():
                try: await asyncio.sleep(60)
                finally: print('cancelled')
            async def handle(event):
                threading.Thread(target=time.sleep, args=(60,)).start()
                asyncio.create_task(left())
                await asyncio.sleep(0.1)
                return 1
        """)
        with Worker(code) as worker:
            calls = [worker.invoke({}), worker.invoke({})]
            time.sleep(0.05)
            self.assertEqual(worker.finish(), 0)
            self.assertEqual([worker.end(call).json for call in calls], [1, 1], "what was sent before the end is still run")
            self.assertEqual(worker.output()[0], "cancelled\ncancelled\natexit\n")

    def test_the_supervisor_is_gone(self):
        with Worker("def handle(e):\n    import time; time.sleep(0.3)\n    return 'x'\n") as worker:
            worker.invoke({})
            time.sleep(0.1)
            worker.slots[0].close()
            self.assertIn(worker.process.wait(5), (0, 70))

    def test_usage(self):
        with Worker("import time\ndef handle(e):\n    end = time.process_time() + e\n    while time.process_time() < end: pass\n") as worker:
            worker.call("0")
            frame = worker.call("0.2")
            self.assertTrue(190_000 < frame.cpu < 300_000, frame.cpu)
            self.assertTrue(5_000 < frame.rss < 100_000, frame.rss)
            self.assertLess(worker.call("0").cpu, 20_000)

    def test_taken_and_revoked(self):
        with Worker("def handle(e):\n    import time; time.sleep(e)\n    return e\n") as worker:
            first, second, third = worker.invoke("0.3"), worker.invoke("0"), worker.invoke("0")
            time.sleep(0.1)
            self.assertEqual(worker.taken(), first)
            worker.revoke(second)
            self.assertEqual([worker.end(n).kind for n in (first, second, third)], ["RESULT", "SKIPPED", "RESULT"])
            self.assertEqual(worker.taken(), third)


class StartUp(unittest.TestCase):
    def test_nothing_heavy_is_imported(self):
        with Worker("import sys\nseen = list(sys.modules)\ndef handle(e): return seen\n") as worker:
            heavy = {"json", "re", "enum", "asyncio", "logging", "inspect", "typing", "dataclasses", "subprocess", "traceback", "threading", "socket", "signal", "urllib", "functools", "collections", "site", "contextlib", "importlib"}
            self.assertEqual(heavy & set(worker.call().json), set())


if __name__ == "__main__":
    unittest.main()
