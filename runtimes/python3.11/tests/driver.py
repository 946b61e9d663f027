"""Plays the supervisor for one real worker process: its descriptors, its frames, its pipes."""
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNTIME = Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("SHIM_PYTHON", sys.executable)
KINDS = {"json": 1, "form": 2, "text": 3, "bytes": 4, "query": 5}
NAMES = {64: "READY", 65: "INIT_FAILED", 66: "RESULT", 67: "STREAM", 68: "CHUNK", 69: "END", 70: "ERROR", 71: "SKIPPED", 72: "LOG", 73: "WAIT"}
NUMBERS = {"HELLO": 1, "INVOKE": 2, "GO": 3}
LAST = ("RESULT", "END", "ERROR", "SKIPPED")


def command(runtime=RUNTIME):
    given = json.loads((RUNTIME / "runtime.json").read_text())["command"]
    return [PYTHON, *(part.replace("{dir}", str(runtime)) for part in given[1:])]


class Frame:
    """What a worker sent, taken apart."""

    def __init__(self, kind, call, payload):
        self.kind, self.call, self.payload = NAMES[kind], call, payload
        self.cpu = self.rss = self.flags = self.status = self.head = None
        self.body = b""
        rest = payload
        if self.kind in LAST:
            self.cpu, self.rss, self.flags = struct.unpack_from(">IIB", rest)
            rest = rest[9:]
        if self.kind in ("RESULT", "STREAM"):
            self.status, size = struct.unpack_from(">HI", rest)
            self.head, self.body = json.loads(rest[6:6 + size]), rest[6 + size:]
        elif self.kind in ("READY", "INIT_FAILED", "ERROR"):
            self.head = json.loads(rest)
        elif self.kind == "LOG":
            self.stream, self.body = rest[0], rest[1:]
        elif self.kind == "CHUNK":
            self.body = rest

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def type(self):
        return {name.lower(): value for name, value in self.head}.get("content-type")

    def __repr__(self):
        return f"<{self.kind} {self.call} {self.status} {self.head} {self.body[:200]!r}>"


class Worker:
    """A worker on a handler. `files` are those of the function's folder; nothing is read of the environment of the tests."""

    def __init__(self, files, env=None, slots=1, pairs=3, ready=True, entrypoint="handler.handle", hello=None, start=True, runtime=RUNTIME):
        if isinstance(files, str):
            files = {"handler.py": files}
        self.dir = Path(tempfile.mkdtemp(prefix="shim-test-"))
        for name, content in files.items():
            path = self.dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        both = [socket.socketpair() for _ in range(slots)]
        self.slots, theirs = [a for a, _ in both], [b.detach() for _, b in both]
        self.shared = os.memfd_create("shared")
        os.ftruncate(self.shared, 128 * slots)
        ask_read, self.ask = os.pipe()
        self.told, tell = os.pipe()
        pipes = [(os.pipe(), os.pipe()) for _ in range(pairs)]
        self.outputs = [(out[0], err[0]) for out, err in pipes]
        for fd in (fd for pair in self.outputs for fd in pair):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20)        # nobody reads while a test waits for a frame
        inherited = [*theirs, self.shared, ask_read, tell, *(fd for out, err in pipes for fd in (out[1], err[1]))]
        at = 3 + slots
        self.hello = {"protocol": 1, "entrypoint": entrypoint, "function_dir": str(self.dir), "namespace": "testing", "function": "f", "revision": "r1",
                      "slots": slots, "shared": at, "stack": [at + 1, at + 2], "pairs": [[at + 3 + 2 * i, at + 4 + 2 * i] for i in range(pairs)],
                      "mark": "0" * 32, "init_deadline_ms": int(time.time() * 1000) + 30000, **(hello or {})}
        self.numbers, self.buffers, self.got, self.late = [0] * slots, [b""] * slots, {}, []
        self._inherited, self._runtime = inherited, runtime
        self._env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **(env or {})}
        self.send("HELLO", 0, json.dumps(self.hello).encode())
        self.process = None
        if start:
            self.start()
            if ready:
                first = self.frame()
                assert first is not None and first.kind == "READY", (first, self.output())
                self.ready = first

    def start(self):
        inherited = self._inherited

        def place():
            high = [os.dup(fd) for fd in inherited]
            moved = []
            for fd in high:                                 # above all target numbers first, else they overwrite each other
                while fd < 3 + len(inherited):
                    fd = os.dup(fd)
                moved.append(fd)
            for number, fd in enumerate(moved):
                os.dup2(fd, 3 + number)
            first = 3 + len(inherited) - 2 * len(self.outputs)
            os.dup2(first, 1)
            os.dup2(first + 1, 2)
            os.closerange(3 + len(inherited), 1024)

        self.process = subprocess.Popen(command(self._runtime), cwd=self.dir, env=self._env, stdin=subprocess.DEVNULL, preexec_fn=place, close_fds=False, start_new_session=True)
        for fd in inherited:
            if fd != self.shared:
                os.close(fd)
        return self

    def send(self, kind, call, payload, slot=0):
        self.slots[slot].sendall(struct.pack(">BII", NUMBERS.get(kind, kind), call, len(payload)) + payload)

    def invoke(self, body=b"", kind="json", head=None, pair=0, slot=0, flags=0):
        """Sends a call, gives its number."""
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        self.numbers[slot] += 1
        head = json.dumps({"id": f"id-{slot}-{self.numbers[slot]}", "trigger": "http", "attempt": 1, "timeout_ms": 5000, "method": "POST", "path": "/", "raw_query": "",
                           "headers": [["content-type", "application/json"]], "client_ip": "127.0.0.1", "source": {}, "traceparent": "00-1", **(head or {})}).encode()
        self.send("INVOKE", self.numbers[slot], struct.pack(">BBHI", KINDS.get(kind, kind), flags, pair, len(head)) + head + body, slot)
        return self.numbers[slot]

    def frame(self, slot=0, within=10.0):
        """The next frame of a slot, None at its end."""
        deadline = time.monotonic() + within
        while True:
            have = self.buffers[slot]
            if len(have) >= 9:
                kind, call, size = struct.unpack_from(">BII", have)
                if len(have) >= 9 + size:
                    self.buffers[slot] = have[9 + size:]
                    return Frame(kind, call, have[9:9 + size])
            if not select.select([self.slots[slot]], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no frame within {within} s")
            try:
                more = self.slots[slot].recv(1 << 20)
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            self.buffers[slot] += more

    def end(self, call, slot=0, within=10.0):
        """The frame that ends a call; what came before it is in `before` and its whole body in `body`."""
        before = []
        while True:
            frame = self.frame(slot, within)
            assert frame is not None, f"the worker went before it ended call {call}: {self.process.wait(5)}, {self.output()}"
            assert frame.call == call, (frame, call)
            if frame.kind in LAST:
                frame.before = before
                if before and before[0].kind == "STREAM":
                    frame.body = b"".join(f.body for f in before)
                return frame
            before.append(frame)

    def call(self, body=None, **how):
        slot = how.get("slot", 0)
        return self.end(self.invoke({} if body is None else body, **how), slot)

    def output(self, pair=0):
        """What has been written to a pair, (stdout, stderr)."""
        return tuple(self._drain(fd).decode("utf-8", "replace") for fd in self.outputs[pair])

    @staticmethod
    def _drain(fd):
        os.set_blocking(fd, False)
        got = b""
        try:
            while more := os.read(fd, 1 << 20):
                got += more
        except BlockingIOError:
            pass
        return got

    def wait_output(self, pair, stream, word, within=5.0):
        """Reads one stream of a pair until `word` is there."""
        fd, got, deadline = self.outputs[pair][stream], "", time.monotonic() + within
        while word not in got:
            assert select.select([fd], [], [], max(0, deadline - time.monotonic()))[0], f"no {word!r} within {within} s, but {got!r}"
            got += self._drain(fd).decode()
        return got

    def stack(self, quiet=0.2):
        """Asks where the worker is."""
        os.write(self.ask, b"?")
        got = b""
        while select.select([self.told], [], [], 2.0 if not got else quiet)[0]:
            got += os.read(self.told, 65536)
            if got.endswith(b"\0"):
                break
        return got.decode()

    def revoke(self, call, slot=0):
        os.pwrite(self.shared, b"\1", 128 * slot + 64 + call % 64)

    def taken(self, slot=0):
        return struct.unpack("<I", os.pread(self.shared, 4, 128 * slot))[0]

    def finish(self):
        """Ends slot 0 and gives the exit code."""
        self.slots[0].shutdown(socket.SHUT_WR)
        return self.process.wait(5)

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)     # what the handler has left
            except ProcessLookupError:
                pass
        for fd in (self.shared, self.ask, self.told, *(fd for pair in self.outputs for fd in pair)):
            os.close(fd)
        for slot in self.slots:
            slot.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def body_of(frame):
    """The bytes that a golden frame names."""
    return base64.b64decode(frame["body_base64"]) if "body_base64" in frame else frame.get("body", "").encode()
