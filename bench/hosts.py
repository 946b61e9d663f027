"""Starts the programs of a row, watches their processes, and ends them by pid."""
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
from pathlib import Path

from rows import HANDLERS, LIMITS, NODE, PYTHON, SLESS

TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")
NICE = os.environ.get("BENCH_NICE", "-15")      # of hosts and load alike, so that what else runs here weighs little


def favour(pid):
    """For root alone; others measure as they are."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(NICE)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, int(NICE))


def stat(pid):
    """The fields of /proc/PID/stat after the command's name, or None."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def alive(pid):
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def family(pid):
    """`pid` and all that descends from it."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_sec(pids):
    """CPU time of these processes and of the children that they have waited for."""
    return sum(sum(map(int, fields[11:15])) for pid in pids if (fields := stat(pid))) / TICKS_PER_SEC


def rss_mib(pid):
    """From `status`, which can be read of a process that cannot be dumped, too."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024


def free_block():
    """The first of four ports that nobody listens on; ones that were used before are not used again, as their connections linger."""
    while True:
        Host.next_port += 4
        if Host.next_port > 32000:      # where the ports of clients begin
            raise RuntimeError("no free ports between BENCH_PORT and 32000")
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(Host.next_port, Host.next_port + 4):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return Host.next_port


class Host:
    """One running row. Four ports belong to it; the third is the sink's."""
    next_port = int(os.environ.get("BENCH_PORT", 21000))

    def __init__(self, row, timeout_sec=None):
        self.row, self.port = row, free_block()
        # Tokens and records lie where no handler may write, so not below /tmp; marks lie where it may.
        self.private = Path(tempfile.mkdtemp(prefix="sless-bench-", dir="/var/tmp"))
        self.private.chmod(0o755)
        self.marks = Path(tempfile.mkdtemp(prefix="sless-bench-marks-"))
        self.marks.chmod(0o777)
        tools = self.private / "bin"
        tools.mkdir()
        (tools / "python3.11").symlink_to(PYTHON)
        (tools / "node").symlink_to(NODE)
        (self.private / "report-token").write_text("bench")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("SLESS_") and k != "NODE_EXTRA_CA_CERTS"}
        self.env |= {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1", "BENCH_MARKS": str(self.marks)}
        self.env |= row.env(self.port, self.private, timeout_sec)
        self.sink = self.start([LIMITS, "sink", str(self.port + 2)], "sink.log") if row.kind == "sless" else None
        if self.sink:
            self.wait(lambda: self.sink_counts(), 5)
        self.began = time.monotonic()
        self.process = self.start(row.command(self.port), "log")
        self.pid = self.process.pid

    def start(self, command, log):
        with open(self.private / log, "wb") as out:
            process = subprocess.Popen(command, env=self.env, cwd=self.private, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        favour(process.pid)
        return process

    def post(self, body, timeout=30.0, port=None, path=None):
        """(status, body, seconds); status 0 if there was no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=timeout)
        began = time.monotonic()
        try:
            connection.request("POST", path or self.row.path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(), time.monotonic() - began
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error).encode(), time.monotonic() - began
        finally:
            connection.close()

    def sink_counts(self):
        status, body, _ = self.post(b"", port=self.port + 2)
        return json.loads(body) if status == 200 else None

    def wait(self, check, within):
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if value := check():
                return value
            if getattr(self, "process", None) and self.process.poll() is not None:
                break
            time.sleep(0.002)
        return None

    def ready(self, within=40.0):
        """Seconds from exec to the first right answer, or None."""
        if self.row.kind == "host":
            self.deploy(within)

        def look():
            status, body, _ = self.post({"op": "hello", "name": "first"}, timeout=10)
            return status == 200 and b"hello" in body and time.monotonic() - self.began
        return self.wait(look, within)

    def deploy(self, within):
        """The function of this row. It is built and started, so its row says nothing of cold starts."""
        self.wait(lambda: self.post({}, path="/ready")[0] in (200, 405), within)
        client = self.env | {"SLESS_URL": f"http://127.0.0.1:{self.port}", "SLESS_TOKEN": "bench"}
        done = subprocess.run([SLESS, "deploy", str(HANDLERS / self.row.lang), "--name", f"bench-{self.row.lang}"],
                              env=client, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"deploy failed: {done.stdout}{done.stderr}")

    def log(self):
        return (self.private / "log").read_text(errors="replace")[-500:]

    def stop(self, grace=5.0):
        """SIGTERM, then SIGKILL for what is left of the family."""
        pids = family(self.pid) + ([self.sink.pid] if self.sink else [])
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        counts = self.sink_counts() if self.sink else None
        for pid in pids:
            if alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.sink:
            self.sink.wait()
        shutil.rmtree(self.private, ignore_errors=True)
        shutil.rmtree(self.marks, ignore_errors=True)
        return counts
