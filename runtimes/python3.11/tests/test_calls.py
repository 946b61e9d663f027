"""What goes into a handler and what comes out: contract part 1, against a real worker."""
import json
import time
import unittest

from tests.driver import Worker


def handler(expression, before=""):
    return f"{before}\ndef handle(event, context):\n    return {expression}\n"


ECHO = handler("{'type': type(event).__name__, 'event': event.decode('latin-1') if isinstance(event, bytes) else event}")


class Events(unittest.TestCase):
    def test_each_kind_is_decoded(self):
        with Worker(ECHO) as worker:
            def event(*args, **more):
                return worker.call(*args, **more).json
            self.assertEqual(event(' \n{"a": [1, "é\\u0000"]} '), {"type": "dict", "event": {"a": [1, "é\0"]}})
            self.assertEqual(event("7"), {"type": "int", "event": 7})
            self.assertEqual(event("[" * 300 + "]" * 300)["event"], json.loads("[" * 300 + "]" * 300))
            self.assertEqual(event("a=1&b=%26+%zz%&a=2&c=&&d", kind="form")["event"], {"a": ["1", "2"], "b": "& %zz%", "c": "", "d": ""})
            self.assertEqual(event("a=%D0%9F%ff&a=1&a=2", kind="form")["event"], {"a": ["П\ufffd", "1", "2"]})
            self.assertEqual(event("", kind="query", head={"raw_query": "name=Ada+L&tag=a&tag=b"})["event"], {"name": "Ada L", "tag": ["a", "b"]})
            self.assertEqual(event(b"\xff\x00", kind="bytes"), {"type": "bytes", "event": "\xff\x00"})
            self.assertEqual(event("héllo", kind="text"), {"type": "str", "event": "héllo"})
            self.assertEqual(event(b"h\xe9", kind="text")["event"], "h\ufffd")
            for charset, right in (("ISO-8859-1", "h\xe9"), ("nonsense", "h\ufffd"), ("base64", "h\ufffd"), ("\0", "h\ufffd")):
                self.assertEqual(event(b"h\xe9", kind="text", head={"headers": [["content-type", f'text/plain; charset="{charset}"']]})["event"], right)

    def test_large_bodies_and_many_frames_in_one_read(self):
        with Worker(handler("[len(event), event[-3:]]")) as worker:
            import threading
            big = "x" * 3_000_000 + "end"
            sender = threading.Thread(target=worker.invoke, args=(json.dumps(big),))
            sender.start()
            self.assertEqual(worker.end(1).json, [len(big), "end"])
            sender.join()
            for size in (0, 1, 65500, 65510, 65536, 70000, 140000, 5):
                self.assertEqual(worker.call(json.dumps("y" * size)).json, [size, "y" * min(3, size)])
            numbers = [worker.invoke(json.dumps("z" * n)) for n in range(60)]
            self.assertEqual([worker.end(n).json[0] for n in numbers], list(range(60)))

    def test_a_large_result_is_sent_whole(self):
        with Worker("def handle(event, context):\n    return bytes(event) * 1000\n") as worker:
            self.assertEqual(worker.call(b"0123456789abcdef" * 500, kind="bytes").body, b"0123456789abcdef" * 500_000)

    def test_an_event_that_python_cannot_hold_is_an_error_of_the_call(self):
        with Worker(ECHO) as worker:
            self.assertEqual(worker.call("[" * 100_000 + "]" * 100_000).head["type"], "RecursionError")
            self.assertEqual(worker.call("9" * 5000).head["type"], "ValueError")
            self.assertEqual(worker.call("1").json["event"], 1)


class ContextOfACall(unittest.TestCase):
    def test_all_of_it(self):
        code = handler("""dict(id=context.invocation_id, ns=context.namespace, fn=context.function, rev=context.revision, trigger=context.trigger, attempt=context.attempt,
            left=context.remaining_ms(), deadline=context.deadline_ms, aws=context.aws_request_id, aws_left=context.get_remaining_time_in_millis(), source=context.source,
            traceparent=context.traceparent, method=context.http.method, path=context.http.path, raw=context.http.raw_query, query=context.http.query, headers=context.http.headers,
            body=context.http.body.decode(), ip=context.http.client_ip, repr=repr(context) + repr(context.http))""")
        with Worker(code) as worker:
            got = worker.call("{}", head={"id": "one", "attempt": 2, "method": "PUT", "path": "/a%20b", "raw_query": "x=1&y=%26&x=2", "source": {"k": 1}, "trigger": "cron", "timeout_ms": 7000,
                                          "headers": [["x-a", "1"], ["cookie", "a=1"], ["x-a", "2"], ["cookie", "b=2"]]}).json
            self.assertEqual((got["id"], got["aws"], got["ns"], got["fn"], got["rev"], got["trigger"], got["attempt"]), ("one", "one", "testing", "f", "r1", "cron", 2))
            self.assertEqual((got["method"], got["path"], got["raw"], got["query"]), ("PUT", "/a%20b", "x=1&y=%26&x=2", [["x", "1"], ["y", "&"], ["x", "2"]]))
            self.assertEqual((got["headers"], got["body"], got["ip"]), ({"x-a": "1, 2", "cookie": "a=1; b=2"}, "{}", "127.0.0.1"))
            self.assertEqual((got["source"], got["traceparent"]), ({"k": 1}, "00-1"))
            for left in (got["left"], got["aws_left"], got["deadline"] - time.time() * 1000):
                self.assertTrue(5000 < left <= 7000, left)
            self.assertIn("one of testing/f, cron, attempt 2", got["repr"])
            self.assertIn("PUT /a%20b?x=1", got["repr"])

    def test_state_and_init(self):
        with Worker("async def init(context):\n    context.state.n = 10 * (context.remaining_ms() > 0)\ndef handle(event, context):\n    context.state.n += 1\n    return context.state.n\n") as worker:
            self.assertEqual([worker.call().json for _ in range(3)], [11, 12, 13])

    def test_context_outlives_its_call(self):
        with Worker("kept = []\ndef handle(event, context):\n    kept.append(context)\n    return [c.invocation_id + c.http.body.decode() for c in kept]\n") as worker:
            for n in range(3):
                worker.invoke(n)
            self.assertEqual([worker.end(n).json for n in (1, 2, 3)][-1], ["id-0-10", "id-0-21", "id-0-32"])


class Signatures(unittest.TestCase):
    FORMS = {
        "def handle(event): return event": {"n": 1},
        "def handle(event, context): return [event, context.attempt]": [{"n": 1}, 1],
        "def handle(event, context=None): return context.attempt": 1,
        "def handle(*args): return len(args)": 2,
        "def handle(event, *, flag=1): return flag": 1,
        "def handle(event, context, more=3): return more": 3,
        "async def handle(event): return event": {"n": 1},
        "def handle(): return 5": 5,
        "handle = lambda e: e": {"n": 1},
        "handle = len": 1,
        "import functools\ndef f(a, event, context): return [a, context.attempt]\nhandle = functools.partial(f, 7)": [7, 1],
        "import functools\ndef f(event, flag): return [event, flag]\nhandle = functools.partial(f, flag=7)": [{"n": 1}, 7],
        "class H:\n  def __call__(self, event): return 'called'\nhandle = H()": "called",
        "class handle:\n  def __call__(self, event, context): return context.attempt": 1,
        "class H:\n  async def __call__(self, event): return 'awaited'\nhandle = H()": "awaited",
        "class H:\n  def m(self, event): return 'method'\nhandle = H().m": "method",
        "class H:\n  @staticmethod\n  def m(event, context): return context.attempt\n  @classmethod\n  def c(cls, event): return H.m(event, None) if 0 else 'class'\nhandle = H.c": "class",
        "import functools\ndef d(f):\n  @functools.wraps(f)\n  def w(*a, **k): return f(*a, **k)\n  return w\n@d\ndef handle(event): return 'wrapped'": "wrapped",
        "import functools\n@functools.lru_cache\ndef f(): pass\n@functools.wraps(f)\ndef handle(event, context): return context.attempt": 1,
        "import asyncio\ndef handle(event):\n  async def f(): return 3\n  return asyncio.run(f())": 3,
        "import asyncio\nasync def handle(event):\n  return sum(await asyncio.gather(*(asyncio.sleep(0.01, n) for n in (1, 2))))": 3,
        "import asyncio\ndef handle(event): return asyncio.sleep(0, 'a coroutine of another')": "a coroutine of another",
    }

    def test_forms(self):
        for code, right in self.FORMS.items():
            with self.subTest(code), Worker(code + "\n") as worker:
                frame = worker.call({"n": 1})
                self.assertEqual(frame.kind, "RESULT", frame)
                self.assertEqual(frame.body.decode() if isinstance(right, str) else frame.json, right)


class Results(unittest.TestCase):
    JSON, TEXT, BYTES = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
    GOOD = [
        ("{'a': [1, 2.5, None, True]}", 200, JSON, b'{"a":[1,2.5,null,true]}'),
        ("[1, 2]", 200, JSON, b"[1,2]"), ("7", 200, JSON, b"7"), ("False", 200, JSON, b"false"), ("1.5", 200, JSON, b"1.5"),
        ("'h\\xe9llo'", 200, TEXT, "héllo".encode()), ("''", 200, TEXT, b""), ("'a\\ud800b'", 200, TEXT, "a\ufffdb".encode()),
        ("b'\\0\\xff'", 200, BYTES, b"\0\xff"), ("bytearray(b'ab')", 200, BYTES, b"ab"), ("memoryview(b'abc')[1:]", 200, BYTES, b"bc"),
        ("None", 204, None, b""),
        ("{'h\\xe9': 'x'}", 200, JSON, '{"hé":"x"}'.encode()), ("{'a': '\\ud800\\xe9'}", 200, JSON, b'{"a":"\\ud800\\u00e9"}'),
        ("{1: 2, True: 3.5, None: 4, 0.5: 5, 'a': 6}", 200, JSON, b'{"1":3.5,"null":4,"0.5":5,"a":6}'),
        ("{'statusCode': 404, 'body': 'nope'}", 404, TEXT, b"nope"), ("{'statusCode': 200}", 200, None, b""),
        ("{'statusCode': 201, 'headers': {'Content-Type': 'image/gif'}, 'body': 'R0l\\nG', 'isBase64Encoded': True}", 201, "image/gif", b"GIF"),
        ("{'statusCode': 200, 'body': {'a': 1}}", 200, JSON, b'{"a":1}'), ("{'statusCode': 200, 'body': b'a', 'headers': None}", 200, BYTES, b"a"),
        ("{'statusCode': 'later'}", 200, JSON, b'{"statusCode":"later"}'), ("{'statusCode': True}", 200, JSON, b'{"statusCode":true}'),
        ("collections.OrderedDict(statusCode=202, body='x')", 202, TEXT, b"x"), ("collections.Counter('a')", 200, JSON, b'{"a":1}'),
        ("{'t': (1, 2), 's': {3}, 'f': frozenset([4]), 'p': Point(1, Point(2, {5}))}", 200, JSON, b'{"t":[1,2],"s":[3],"f":[4],"p":{"x":1,"y":{"x":2,"y":[5]}}}'),
        ("[dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), dt.date(2026, 1, 2), dt.time(3, 4), uuid.UUID(int=1), decimal.Decimal('1.10')]", 200, JSON,
         b'["2026-01-02T00:00:00+00:00","2026-01-02","03:04:00","00000000-0000-0000-0000-000000000001","1.10"]'),
        ("Point(1, 2)", 200, JSON, b'{"x":1,"y":2}'), ("{3}", 200, JSON, b"[3]"), ("decimal.Decimal('1.0')", 200, JSON, b'"1.0"'),
    ]
    BAD = [
        ("{'deep': [float('nan')]}", "ResultNotSerializable", "deep[0]"), ("{'deep': [object()]}", "ResultNotSerializable", "deep[0]"),
        ("(lambda a: (a.append(a), {'deep': a})[1])([])", "ResultNotSerializable", "deep[0]"), ("object()", "ResultNotSerializable", "the result"),
        ("{'a': {(1, 2): 3}}", "ResultNotSerializable", "a: a key of type tuple"), ("{float('inf'): 3}", "ResultNotSerializable", "inf"),
        ("{'two words': [Point(1, {'k': b'x'})]}", "ResultNotSerializable", "['two words'][0].y.k"), ("{'a': 1j}", "ResultNotSerializable", "a: "),
        ("nested(3000)", "ResultNotSerializable", "levels deep"), ("{'statusCode': 200, 'body': {'x': {1: object()}}}", "ResultNotSerializable", "body.x[1]"),
        ("{'a': Bad(2026, 1, 2)}", "ResultNotSerializable", "no luck"), ("Point", "ResultNotSerializable", "the result"),
        ("{'statusCode': 99}", "InvalidResponse", "99"), ("{'statusCode': 600}", "InvalidResponse", "600"), ("{'statusCode': 10**30}", "InvalidResponse", "1000"),
        ("{'statusCode': 200, 'headers': 'x'}", "InvalidResponse", "headers"), ("{'statusCode': 200, 'headers': {'x': None}}", "InvalidResponse", "x"),
        ("{'statusCode': 200, 'headers': {'x': {'a': 1}}}", "InvalidResponse", "dict"), ("{'statusCode': 200, 'headers': {1: 'a'}}", "InvalidResponse", "1"),
        ("{'statusCode': 200, 'headers': {'x': '\\ud800'}}", "InvalidResponse", "x"), ("{'statusCode': 200, 'body': 'R0l', 'isBase64Encoded': True}", "InvalidResponse", "base64"),
        ("{'statusCode': 200, 'body': {}, 'isBase64Encoded': True}", "InvalidResponse", "dict"), ("{'statusCode': 200, 'body': '', 'isBase64Encoded': 'no'}", "InvalidResponse", "isBase64Encoded"),
    ]
    BEFORE = """
import collections, dataclasses, datetime as dt, decimal, uuid
@dataclasses.dataclass
class Point: x: object; y: object
class Bad(dt.date):
    def isoformat(self): raise RuntimeError('no luck')
def nested(n):
    a = []
    for _ in range(n): a = [a]
    return a
"""

    def test_good_ones(self):
        with Worker(handler("eval(event)", self.BEFORE)) as worker:
            for expression, status, content_type, body in self.GOOD:
                with self.subTest(expression):
                    frame = worker.call(expression, kind="text")
                    self.assertEqual((frame.kind, frame.status, frame.head and frame.type or None, frame.body), ("RESULT", status, content_type, body), frame)

    def test_bad_ones(self):
        with Worker(handler("eval(event)", self.BEFORE)) as worker:
            for expression, kind, word in self.BAD:
                with self.subTest(expression):
                    frame = worker.call(expression, kind="text")
                    self.assertEqual((frame.kind, frame.head["type"]), ("ERROR", kind), frame)
                    self.assertIn(word, frame.head["message"])
                    self.assertIn(kind, worker.output()[1])

    def test_headers(self):
        with Worker(handler("{'statusCode': 200, 'headers': {'Set-Cookie': ['a=1', 'b=2'], 'X-N': 5, 'x-b': b'\\xe9', 'x-t': True}, 'body': ''}")) as worker:
            self.assertEqual(worker.call().head, [["content-type", "text/plain; charset=utf-8"], ["Set-Cookie", "a=1"], ["Set-Cookie", "b=2"], ["X-N", "5"], ["x-b", "\xe9"], ["x-t", "true"]])


class Streams(unittest.TestCase):
    def test_chunks_come_when_they_are_yielded(self):
        for code in ("import time\ndef handle(event, context):\n    for n in range(3):\n        yield f'part {n}'\n        time.sleep(0.3)\n",
                     "import asyncio\nasync def handle(event, context):\n    for n in range(3):\n        yield f'part {n}'\n        await asyncio.sleep(0.3)\n"):
            with self.subTest(code), Worker(code) as worker:
                worker.call()
                call = worker.invoke({})
                began = time.monotonic()
                head = worker.frame()
                self.assertEqual((head.kind, head.status, head.head), ("STREAM", 200, [["content-type", "text/plain; charset=utf-8"]]))
                self.assertEqual(worker.frame().body, b"part 0")
                self.assertLess(time.monotonic() - began, 0.25)
                frame = worker.end(call)
                self.assertEqual((frame.kind, [f.body for f in frame.before]), ("END", [b"part 1", b"part 2"]))

    def test_kinds(self):
        code = """
async def agen():
    yield 'a'
    yield b'\\xff'
class Closes:
    closed = 0
    def __iter__(self): return self
    def __next__(self): raise StopIteration
    def close(self): Closes.closed += 1
def handle(event, context): return eval(event)
"""
        with Worker(code) as worker:
            for expression, status, content_type, chunks in (
                    ("(x for x in ['a', b'', '', bytearray(b'\\xff'), '\\xe9'])", 200, "text/plain; charset=utf-8", [b"a", b"\xff", b"\xc3\xa9"]),
                    ("{'statusCode': 201, 'headers': {'content-type': 'x/y'}, 'body': (x for x in [b'a'])}", 201, "x/y", [b"a"]),
                    ("agen()", 200, "text/plain; charset=utf-8", [b"a", b"\xff"]), ("iter([b'a'])", 200, "application/octet-stream", [b"a"]),
                    ("iter(())", 200, "text/plain; charset=utf-8", []), ("Closes()", 200, "text/plain; charset=utf-8", [])):
                with self.subTest(expression):
                    frame = worker.call(expression, kind="text")
                    self.assertEqual((frame.kind, frame.before[0].status, frame.before[0].type, [f.body for f in frame.before[1:]]), ("END", status, content_type, chunks))
            self.assertEqual(worker.call("Closes.closed", kind="text").json, 1)
            frame = worker.call("(x for x in ['x' * 1_000_000])", kind="text")
            self.assertEqual((len(frame.body), frame.before[1].kind), (1_000_000, "CHUNK"))
            self.assertGreater(len(frame.before), 3)

    def test_errors(self):
        code = """
closed = []
def breaks(n):
    try:
        for i in range(n): yield str(i)
        raise ValueError('lost')
    finally: closed.append(n)
def wrong():
    try:
        yield 'a'
        yield 3
    finally: closed.append('wrong')
def handle(event, context): return eval(event)
"""
        with Worker(code) as worker:
            frame = worker.call("breaks(2)", kind="text")
            self.assertEqual((frame.kind, frame.head["message"], [f.kind for f in frame.before]), ("ERROR", "lost", ["STREAM", "CHUNK", "CHUNK"]))
            frame = worker.call("breaks(0)", kind="text")
            self.assertEqual((frame.kind, frame.before), ("ERROR", []), "nothing was sent yet: a whole error")
            frame = worker.call("wrong()", kind="text")
            self.assertEqual((frame.kind, frame.head["type"]), ("ERROR", "InvalidResponse"))
            self.assertIn("chunk 2", frame.head["message"])
            self.assertEqual(worker.call("closed", kind="text").json, [2, 0, "wrong"])


if __name__ == "__main__":
    unittest.main()
