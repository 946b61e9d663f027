"""PostgreSQL and an S3 server that a case may kill and start again. Their programs must be there: `scripts/servers.sh` installs them."""
import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from conftest import free_ports

CACHE = Path(os.environ.get("SLESS_CACHE") or Path.home() / ".cache/sless")


def children(pid):
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Server:
    """One process that keeps what it has in `self.folder`."""

    def __init__(self):
        self.folder, self.process = Path(tempfile.mkdtemp(prefix="sless-st-", dir="/tmp")), None

    def start(self, within=30.0):
        """A server that was killed may have left something that its next one must wait for: then again."""
        deadline = time.monotonic() + within
        while True:
            if self.process is None or self.process.poll() is not None:
                with open(self.folder / "log", "ab") as log:
                    self.process = subprocess.Popen(self.command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            if self.answers():
                return
            assert time.monotonic() < deadline, (self.folder / "log").read_text(errors="replace")[-3000:]
            time.sleep(0.1)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def bury(self):
        if self.process and self.process.poll() is None:
            for pid in children(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    def __init__(self):
        super().__init__()
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin")) or [os.path.dirname(shutil.which("postgres") or "")]
        self.bin, self.user = Path(found[-1]), []
        assert (self.bin / "initdb").exists(), "PostgreSQL's programs are missing; get them with: sudo apt-get install postgresql"
        if os.geteuid() == 0:       # it refuses to run as root
            self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            os.chown(self.folder, pwd.getpwnam("postgres").pw_uid, -1)
        subprocess.run([*self.user, self.bin / "initdb", "-D", "data", "-U", "sless", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        self.url = f"postgres://sless@localhost/postgres?host={self.folder}"

    def command(self):
        # What a process has written outlives its kill; only a machine that goes down would need `fsync`.
        return [*self.user, self.bin / "postgres", "-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses=", "-c", "fsync=off"]

    def ask(self, sql):
        done = subprocess.run([self.bin / "psql", "-qtAX", "-h", self.folder, "-U", "sless", "postgres", "-c", sql], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    def answers(self):
        return self.ask("SELECT 1") == "1"

    def kill_one(self, luck):
        """A process of its, upon which all of them start anew by themselves."""
        if found := children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(luck.choice(found), signal.SIGKILL)


class S3(Server):
    KEYS = {"S3_ACCESS_KEY_ID": "test", "S3_SECRET_ACCESS_KEY": "test-secret"}

    def __init__(self):
        super().__init__()
        self.program, (self.port,) = CACHE / "tools/bin/s3s-fs", free_ports(1)
        assert self.program.exists(), f"{self.program} is missing; scripts/conformance-api installs it"
        self.url, self.files = f"http://127.0.0.1:{self.port}", self.folder / "files"
        self.files.mkdir()

    def command(self):
        return [self.program, "--host", "127.0.0.1", "--port", str(self.port), "--access-key", "test", "--secret-key", "test-secret", self.files]

    def answers(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def objects(self, function, ns="default"):
        return sorted(path.name for path in self.files.glob(f"*/{ns}/{function}/*.zip"))


@pytest.fixture
def postgres():
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.bury()


@pytest.fixture
def s3():
    server = S3()
    try:
        server.start()
        yield server
    finally:
        server.bury()


def settings(postgres, s3):
    """Of a host that keeps what it has there."""
    return {"DATABASE_URL": postgres.url, "S3_ENDPOINT": s3.url, "S3_BUCKET": "code"} | S3.KEYS
