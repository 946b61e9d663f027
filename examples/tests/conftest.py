"""Starts `sless up` once, deploys examples with `sless deploy`, and calls them as a stranger would.

    pytest examples/tests --bin target/release

Only the standard library and pytest; everything listens on loopback.
"""
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1]


def pytest_addoption(parser):
    parser.addoption("--bin", default=str(EXAMPLES.parent / "target" / "release"), help="folder that holds sless and sless-supervisor")


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes
    seconds: float

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)


@pytest.fixture(scope="session")
def database_url():
    """A PostgreSQL whose user may make tables: `scripts/test` starts one."""
    if not (url := os.environ.get("SLESS_TEST_DATABASE_URL")):
        pytest.skip("needs a PostgreSQL in SLESS_TEST_DATABASE_URL")
    return url


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def parents():
    """The parent of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


class Host:
    """One running `sless up`. Its data folder is not below /tmp: handlers write there, and the tokens must be out of their reach."""

    def __init__(self, binaries):
        self.sless = str(Path(binaries).resolve() / "sless")
        self.folder = Path(tempfile.mkdtemp(prefix="sless-examples-", dir="/var/tmp"))
        self.folder.chmod(0o755)        # handlers may run under a uid of their own
        self.port, self.token = free_port(), f"examples-{os.urandom(8).hex()}"
        # The user's own settings of sless are not this host's.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLESS_")}
        self.client_env = clean | {"SLESS_URL": f"http://127.0.0.1:{self.port}", "SLESS_TOKEN": self.token}
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.sless, "up"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=clean | {"API_LISTEN": f"127.0.0.1:{self.port}", "API_TOKEN": self.token, "DATA_DIR": str(self.folder / "data")})

    def log(self):
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def wait_ready(self, within=30.0):
        def look():
            assert self.process.poll() is None, f"sless up ended with {self.process.returncode}:\n{self.log()}"
            with contextlib.suppress(OSError):
                return self.request("GET", "/ready").status == 200
        self.until(look, within)

    def until(self, check, within=10.0):
        """What `check` gives as soon as it is true."""
        deadline = time.monotonic() + within
        while not (value := check()):
            assert time.monotonic() < deadline, f"not so within {within} s; the host's log:\n{self.log()}"
            time.sleep(0.05)
        return value

    def cli(self, *args, check=True):
        done = subprocess.run([self.sless, *args], env=self.client_env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        assert not check or done.returncode == 0, f"sless {' '.join(args)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def deploy(self, example, *flags):
        self.cli("deploy", str(EXAMPLES / example), *flags)

    @contextlib.contextmanager
    def open(self, method, path, body=None, headers=None):
        """A response, unread."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            yield connection.getresponse()
        finally:
            connection.close()

    def request(self, method, path, body=None, headers=None):
        began = time.monotonic()
        with self.open(method, path, body, headers) as response:
            data = response.read()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, data, time.monotonic() - began)

    def call(self, example, body=None, query=None, method="POST", headers=None):
        """One call through the public proxy; a dict as body is sent as JSON."""
        headers = dict(headers or {})
        if isinstance(body, dict):
            body = json.dumps(body)
            headers.setdefault("content-type", "application/json")
        return self.request(method, f"/fn/default/{example}" + (f"?{urllib.parse.urlencode(query)}" if query else ""), body, headers)

    def api(self, path, accept="application/json"):
        answer = self.request("GET", f"/v1/namespaces/default/{path}", headers={"authorization": f"Bearer {self.token}", "accept": accept})
        assert answer.status == 200, answer
        return answer

    def record(self, answer):
        """The stored record of an answered call, once it has ended."""
        invocation = answer.headers["x-sless-invocation-id"]

        def look():
            with contextlib.suppress(AssertionError):
                got = self.api(f"invocations/{invocation}").json
                return got if got["status"] not in ("queued", "running") else None
        return self.until(look)

    def log_of(self, answer):
        self.record(answer)
        return self.api(f"invocations/{answer.headers['x-sless-invocation-id']}/logs", "text/plain").text

    def family(self):
        """All that descends from the host now, as {pid: command line}."""
        of, found, todo = parents(), {}, [self.process.pid]
        while todo:
            for pid in (p for p, parent in of.items() if parent in todo and p not in found):
                with contextlib.suppress(OSError):
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            todo = [p for p, parent in of.items() if parent in todo]
        return found

    def stop(self):
        family = self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"sless up did not stop within 30 s of SIGTERM:\n{self.log()}") from None
        assert self.process.returncode == 0, self.log()
        self.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), 5)


@pytest.fixture(scope="session")
def host(request):
    host = Host(request.config.getoption("--bin"))
    try:
        host.wait_ready()
        yield host
        host.stop()
    finally:
        if host.process.poll() is None:
            host.process.kill()
            host.process.wait()
        shutil.rmtree(host.folder, ignore_errors=True)
