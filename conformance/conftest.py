"""Starts `sless-supervisor serve` on a handler and lets a test call it, read its records and look at its processes.

    pytest conformance --supervisor target/release/sless-supervisor --runtimes runtimes

Only the standard library and pytest; everything listens on loopback.
"""
import contextlib
import gzip
import http.client
import json
import os
import signal
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

RUNTIMES = {"py": "python3.11", "js": "nodejs20"}


def pytest_addoption(parser):
    parser.addoption("--supervisor", default="target/release/sless-supervisor", help="the supervisor's binary")
    parser.addoption("--sless", default="target/release/sless", help="the binary that `up` is called of")
    parser.addoption("--calls", type=int, default=1000, help="how many calls are made while hosts and stores are killed")
    parser.addoption("--host-url", help="a host or cluster that runs already, instead of `sless up`; its admin token in SLESS_TOKEN")
    parser.addoption("--load-sec", type=float, default=5.0, help="how long each load of test_changes.py lasts")
    parser.addoption("--functions", type=int, default=20, help="how many functions come back in test_changes.py")
    parser.addoption("--runtimes", default="runtimes", help="folder that holds python3.11/ and nodejs20/ with their runtime.json")


def pytest_generate_tests(metafunc):
    """A test that takes `lang` runs once per language, unless `@pytest.mark.only("py")` says otherwise."""
    if "lang" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        metafunc.parametrize("lang", only.args if only else list(RUNTIMES))


def pytest_configure(config):
    config.addinivalue_line("markers", "only(lang): run for one language only")
    signal.signal(signal.SIGTERM, signal.default_int_handler)       # a run that is ended buries what it started


class Sink:
    """An API that keeps the records it is sent; `down` makes it refuse them, as an API in trouble would."""

    def __init__(self):
        self.events, self.tokens, self.types, self.down = [], set(), set(), False
        self._lock = threading.Lock()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                    body = b""
                    while size := int(self.rfile.readline().split(b";")[0], 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Content-Encoding", "") == "gzip":
                    body = gzip.decompress(body)
                with sink._lock:
                    status = 503 if sink.down else 200
                    if status == 200:
                        sink.tokens.add(self.headers.get("Authorization"))
                        sink.types.add(self.headers.get("Content-Type"))
                        sink.events += [json.loads(line) for line in body.splitlines() if line.strip()]
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/internal/v1/reports"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, invocation_id):
        """This invocation's events, each once, in order of seq."""
        with self._lock:
            return sorted({e["seq"]: e for e in self.events if e["invocation_id"] == invocation_id}.values(), key=lambda e: e["seq"])

    def record(self, invocation_id, within=5.0):
        """The `finished` event, with `log` (list of lines) added."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            events = self.of(invocation_id)
            if events and events[-1]["type"] == "finished" and events[0]["type"] == "started":
                return events[-1] | {"log": [line for e in events if e["type"] == "log" for line in e["lines"]], "started": events[0]}
            time.sleep(0.02)
        raise AssertionError(f"no finished record of {invocation_id} within {within} s; events: {self.of(invocation_id)}")


class Answer:
    def __init__(self, response, body, seconds):
        self.status, self.body, self.seconds = response.status, body, seconds
        self.headers = {}
        for name, value in response.getheaders():
            self.headers.setdefault(name.lower(), []).append(value)

    def header(self, name):
        return ", ".join(self.headers.get(name.lower(), []))

    @property
    def id(self):
        return self.header("x-sless-invocation-id")

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:300]!r} after {self.seconds:.3f} s>"


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


class Host:
    """One running supervisor."""

    address = "127.0.0.1"

    def __init__(self, command, env, port, admin_port, sink, out_path):
        self.port, self.admin_port, self.sink, self.out_path, self.err_path = port, admin_port, sink, out_path, out_path.with_suffix(".err")
        self.mark = f"conformance-{uuid.uuid4()}"       # in the environment of all that this supervisor starts
        with open(self.out_path, "ab") as out, open(self.err_path, "ab") as err:
            self.process = subprocess.Popen(command, env=env | {"CONFORMANCE_MARK": self.mark}, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)

    def call(self, method="POST", path="/", body=None, headers=None, timeout=30.0, port=None):
        """One request on a connection of its own. A dict or list as body is sent as JSON."""
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault("content-type", "application/json")
        if isinstance(body, str):
            body = body.encode()
        began = time.monotonic()
        connection = http.client.HTTPConnection(self.address, port or self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        return Answer(response, data, time.monotonic() - began)

    def post(self, body=None, **more):
        return self.call("POST", body=body, **more)

    def admin(self, path, method="GET", headers=None):
        return self.call(method, path, headers=headers, port=self.admin_port)

    def record(self, answer, **more):
        return self.sink.record(answer.id, **more)

    def log_text(self, answer):
        return "\n".join(line["text"] for line in self.record(answer)["log"])

    def metric(self, name, **labels):
        """Sum of the samples of `name` that carry these labels."""
        total, seen = 0.0, False
        for line in self.admin("/metrics").text.splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total, seen = total + float(line.rsplit(" ", 1)[1]), True
        return total if seen else None

    def wait(self, check, within=10.0):
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if (value := check()) not in (None, False):
                    return value
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"not so within {within} s (exit code {self.process.poll()}); log:\n{self.log()}")

    def wait_ready(self, within=30.0):
        self.wait(lambda: self.admin("/ready").status == 200, within)

    def out(self):
        return self.out_path.read_text(errors="replace")

    def log(self):
        """The end of what it wrote on both streams."""
        return self.out()[-4000:] + self.err_path.read_text(errors="replace")[-4000:]

    def family(self, text=b""):
        """Pids that this supervisor started, at any depth, in any session, and whose command line holds `text`; without itself. Zombies have no command line."""
        found = []
        for pid in processes(self.mark):
            with contextlib.suppress(OSError):
                if pid != self.process.pid and text in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def open_fds(self):
        """/proc/PID/fd of a process that cannot be dumped is root's alone: then what it says itself."""
        try:
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        except PermissionError:
            return self.metric("process_open_fds")

    def stop(self, grace=10.0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"did not stop within {grace} s of SIGTERM; log:\n{self.log()}") from None
        return self.process.returncode

    def bury(self):
        """Stop it if it still runs; nothing that it started may be left."""
        try:
            self.stop()
            assert b"panicked" not in self.out_path.read_bytes() + self.err_path.read_bytes(), self.log()
            deadline = time.monotonic() + 3
            while (left := self.family()) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not left, f"left behind: {[Path(f'/proc/{p}/cmdline').read_bytes() for p in left if os.path.exists(f'/proc/{p}')]}"
        finally:
            for pid in self.family():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def processes(marker):
    """Pids whose environment holds `marker`: of this user's processes that can be dumped, for root of all. Not zombies, which have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def children(pid):
    """(pid, state) of the direct children of `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == pid:
                    found.append((int(entry.name), fields[0]))
    return found


@pytest.fixture
def sink():
    sink = Sink()
    yield sink
    sink.server.shutdown()
    sink.server.server_close()


def private_folder():
    """For what the supervisor alone may see: not below /tmp, where handlers write, as Landlock can only allow whole folders."""
    for place in ("/run", "/var/tmp", None):
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="sless-", dir=place))


@pytest.fixture
def host(request, sink):
    """host(lang, py="…", js="…", files={…}, ready=True, args=("serve",), wrap=(), SLESS_…="…", OTHER="…") → Host. The code of the other language is not written.
    Supervisors of one case share the spool."""
    started = []
    private, other, public = private_folder(), private_folder(), Path(tempfile.mkdtemp(prefix="sless-conformance-"))
    public.chmod(0o755)         # handlers may run under a uid of their own
    token = private / "token"
    token.write_text("conformance-token")
    proxy_token = other / "token"       # in a folder of its own, as the two are mounted apart in a cluster
    proxy_token.write_text("proxy-token\n")

    def start(lang, py=None, js=None, files=None, ready=True, args=("serve",), wrap=(), **env):
        folder = public / f"function{len(started)}"
        folder.mkdir(mode=0o755)
        code = {"py": py, "js": js}[lang]
        if code is not None:
            (folder / f"handler.{lang}").write_text(code)
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
        port, admin_port = free_ports(2)
        settings = {
            "SLESS_NAMESPACE": "testing", "SLESS_FUNCTION": "conformance", "SLESS_REVISION": "r1",
            "SLESS_RUNTIME_DIR": str(Path(request.config.getoption("--runtimes")).resolve() / RUNTIMES[lang]),
            "SLESS_FUNCTION_DIR": str(folder),
            "SLESS_LISTEN": f"127.0.0.1:{port}", "SLESS_ADMIN_LISTEN": f"127.0.0.1:{admin_port}",
            "SLESS_REPORT_URL": sink.url, "SLESS_REPORT_TOKEN_FILE": str(token),
            "SLESS_SPOOL_DIR": str(private / "spool"), "SLESS_PROXY_TOKEN_FILE": str(proxy_token),
        }
        command = [*wrap, str(Path(request.config.getoption("--supervisor")).resolve()), *args]
        one = Host(command, {"PATH": os.environ["PATH"], "HOME": "/tmp"} | settings | {k: str(v) for k, v in env.items()},
                   port, admin_port, sink, private / f"supervisor{len(started)}.out")
        one.token, one.proxy_token = token, proxy_token
        started.append(one)
        if ready:
            one.wait_ready()
        return one

    with contextlib.ExitStack() as stack:
        for folder in (private, other, public):
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield start
        for one in started:
            stack.callback(one.bury)
