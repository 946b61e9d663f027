"""Field reports of other hosts that concern API, proxy, storage and builds: the kind of fault, with that report's input.

Those about handlers and the way of a request are in `test_field_reports.py`; about builds and changes in `test_builds.py` and `test_changes.py`.
"""
import concurrent.futures
import contextlib
import http.client
import io
import os
import socket
import struct
import time
import zipfile
from pathlib import Path

import pytest

from test_api import HELLO, Api, host, own, pack, problem, running  # noqa: F401  (fixtures)


def test_folders_in_archives(host):
    """FR-25, vmware-archive/kubeless#1220: a zip of a folder was taken, and the module not found at run time."""
    for n, (files, says) in enumerate((({"project/handler.py": HELLO["py"]}, None), ({"project/handler.py": HELLO["py"], "__MACOSX/project/._handler.py": b"\0\5\26\7", "project/.DS_Store": b"x", ".git/config": b"x"}, None),
                                       ({"a/handler.py": "x", "b/handler.py": "x"}, ("a/handler.py", "b/handler.py")), ({}, ("empty",)), ({"main.py": "x"}, ("handler.py", "main.py")))):
        host.api("POST", "functions", {"name": f"f{n}", "runtime": "python3.11"})
        answer = host.upload(f"f{n}", files)
        if says:
            assert problem(answer)[:2] == (400, "Invalid") and all(part in answer.json["detail"] for part in says), answer
            continue
        assert answer.status == 202, answer
        host.ready(f"f{n}")
        assert host.api("POST", f"functions/f{n}/invoke", {"name": "Ada"}).json == {"message": "Hello, Ada!"}


def test_archives_packed_on_windows(host):
    """FR-26, serverless/serverless#1835: back-slashes in names were one file with a strange name."""
    host.deploy("f", "js", "const { n } = require('./lib/util')\nexports.handle = () => n\n", files={"lib\\util.js": "exports.n = 42\n"})
    assert host.fn("f", body={}).json == 42
    answer = host.upload("f", {"handler.js": "x", "..\\..\\escape.txt": "x"})
    assert problem(answer)[:2] == (400, "Invalid") and "escape.txt" in answer.json["detail"]
    both = host.upload("f", {"handler.js": "x", "lib\\util.js": "1", "lib/util.js": "2"})
    assert problem(both)[:2] == (400, "Invalid") and "lib/util.js" in both.json["detail"]


@pytest.mark.parametrize("name", ["../../tmp/evil", "/etc/cron.d/x", "a/../../b", "C:\\x", "x" * 5000, "/".join(["d"] * 300) + "/f", "a\0b"])
def test_names_that_lead_out_of_the_folder(host, name):
    """FR-27, CVE-2026-50567: entry names with `..` or absolute paths were written outside."""
    data = bytearray(pack({"handler.py": HELLO["py"], name.replace("\0", "?"): "x"}))
    if "\0" in name:
        data = data.replace(b"a?b", b"a\0b")
    host.api("POST", "functions", {"name": "f", "runtime": "python3.11"})
    answer = host.upload("f", bytes(data))
    assert problem(answer)[:2] == (400, "Invalid"), answer
    assert not Path("/tmp/evil").exists() and not Path("/etc/cron.d/x").exists()


def test_a_link_and_a_file_below_it(host):
    host.api("POST", "functions", {"name": "f", "runtime": "python3.11"})
    answer = host.upload("f", {"handler.py": HELLO["py"], "lib": ("/etc", 0o120777), "lib/passwd": "x"})
    assert problem(answer)[:2] == (400, "Invalid") and "lib" in answer.json["detail"]


def bomb(kind):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("handler.py", HELLO["py"])
        if kind == "large":
            with z.open("zeros", "w", force_zip64=True) as f:
                for _ in range(1500):
                    f.write(bytes(1 << 20))
        elif kind == "lies":
            z.writestr("zeros", bytes(256 << 20))
        else:
            for n in range(200_001):
                z.writestr(f"e/{n}", b"")
    data = out.getvalue()
    if kind == "lies":      # both headers say 100 bytes
        size = struct.pack("<I", 256 << 20)
        info = zipfile.ZipFile(io.BytesIO(data)).getinfo("zeros")
        places = info.header_offset + 22, data.rindex(b"PK\1\2") + 24
        assert [data[at:at + 4] for at in places] == [size, size]
        data = bytearray(data)
        for at in places:
            data[at:at + 4] = struct.pack("<I", 100)
        data = bytes(data)
    return data


@pytest.mark.parametrize("kind", ["large", "lies", "many"])
def test_archives_that_grow(own, kind):
    """FR-28, zip-rs/zip2#989: a small archive became gigabytes, and the size in its header lied."""
    def resident():
        return int(Path(f"/proc/{own.up.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    def on_disk():
        return sum(path.stat().st_size for path in (own.up.folder / "data").rglob("*") if path.is_file() and path.suffix not in (".db", ".db-wal", ".db-shm"))
    data = bomb(kind)
    own.api("POST", "functions", {"name": "f", "runtime": "python3.11"})
    memory, disk = resident(), on_disk()
    answer = own.upload("f", data)
    assert problem(answer)[:2] in ((400, "Invalid"), (413, "TooLarge")), answer
    assert resident() < memory + (64 << 20) and on_disk() <= disk + 4096


def test_a_secret_is_nowhere_but_in_the_handler(own):
    """FR-30, knative/func#357: values of secrets were copied into what was built and pushed."""
    canary = "canary-4711-of-the-function"
    own.api("PUT", "secrets/s", {"data": {"API_KEY": canary}})
    code = ("import os, sys\ndef handle(e, c):\n    key = os.environ['API_KEY']\n    print('the key is', key)\n    print(key, file=sys.stderr)\n    if e.get('raise'): raise ValueError(f'bad key {key}')\n"
            "    if e.get('crash'): os.abort()\n    return {'reversed': key[::-1], 'key': key}\n")
    own.deploy("f", "py", code, secrets=["s"], files={"requirements.txt": "# nothing\n"})
    good = own.fn("f", body={})
    assert good.json == {"reversed": canary[::-1], "key": canary}, "the caller gets what the handler answers"
    raised, crashed = own.fn("f", body={"raise": 1}), own.fn("f", body={"crash": 1})
    assert (raised.status, crashed.status) == (500, 502)
    told = crashed.text
    for call in (good, raised, crashed):
        own.stored(call.id)
        told += own.api("GET", f"invocations/{call.id}").text + own.api("GET", f"invocations/{call.id}/logs").text
    assert "the key is ***" in told
    for path in ("functions/f", "functions/f/build", "functions/f/build/logs", "functions/f/revisions", "functions/f/invocations", "functions/f/logs", "secrets/s", "secrets", "triggers"):
        told += own.api("GET", path).text
    told += own.call("GET", "/metrics").text + own.up.log()
    for group in own.call("GET", "/metrics/targets").json:
        told += own.call("GET", group["labels"]["__metrics_path__"]).text
    assert canary not in told
    found = [str(path) for path in (own.up.folder / "data").rglob("*") if path.is_file() and canary.encode() in path.read_bytes()]
    assert found == []


def test_names_at_their_limits(host):
    """FR-32, fission/fission#2009: long names were taken, and failed for ever inside."""
    runtime = {"runtime": "python3.11"}
    for name in ("a", "a" * 52, "a" * 53, "a" * 62 + "b", "a" * 62 + "c"):
        host.deploy(name, "py", f"def handle(e, c):\n    return {name!r}\n", trigger=False)
        assert host.api("POST", "triggers", {"name": name, "type": "http", "function": name}).status == 201
        answer = host.fn(name, body={})
        assert answer.text == name and host.stored(answer.id)["function"] == name
    for name in ("a" * 64, "a" * 253, "A_b", "-x", "x-", "x.", "кот", "", "a b", "a/b"):
        answer = host.api("POST", "functions", {"name": name} | runtime)
        assert problem(answer) == (400, "Invalid", "name"), (name, answer)
    for ns in ("n" * 55, "kube-x", "sless-x", "-x"):
        answer = host.api("POST", f"/v1/namespaces/{ns}/functions", {"name": "f"} | runtime)
        assert answer.status in (400, 404) and problem(answer)[1] in ("Invalid", "NotFound"), (ns, answer)


def test_the_public_listener_serves_functions_alone(tmp_path, request):
    """FR-39, CVE-2026-46614: an internal route on the public port let anyone call anything."""
    from conftest import free_ports
    from test_api import Up
    public, admin = free_ports(2)
    up = Up(request.config.getoption("--sless"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBLIC_LISTEN", f"127.0.0.1:{public}")
        patch.setenv("API_ADMIN_LISTEN", f"127.0.0.1:{admin}")
        try:
            start_without_admin(up, admin)
            api = Api(up.url, up.token, "default", up)
            api.deploy("open", "py", "def handle(e, c):\n    return 'open'\n")
            api.deploy("closed", "py", "def handle(e, c):\n    return 'closed'\n", trigger=False)
            outside = lambda path, method="GET", **headers: api.call(method, path, headers=headers, port=public)
            assert outside("/fn/default/open").text == "open"
            nothing = outside("/fn/default/nothing-like-this")
            for path in ("/v1/whoami", "/v1/namespaces/default/functions", "/metrics", "/metrics/targets", "/health", "/ready", "/openapi.json", "/internal/v1/reports", "/", "/fn", "/fn/default", "/fn/default/closed",
                         "/fn/default/..%2f..%2fv1/whoami", "/fn/default/open/../../../v1/whoami", "//fn/default/closed", "/fn/../v1/whoami", "/fn//default/closed", "/FN/default/open"):
                answer = outside(path, authorization=f"Bearer {up.token}")
                seen = (answer.status, answer.text)
                assert answer.status in (400, 404) or seen == (200, "open") and path.startswith("/fn/default/open/"), (path, answer)
            hidden = outside("/fn/default/closed")
            assert (hidden.status, hidden.json["code"]) == (nothing.status, nothing.json["code"]) == (404, "NotFound")
            for header in ("x-forwarded-host", "x-original-url", "x-rewrite-url", "x-forwarded-prefix"):
                assert outside("/fn/default/nothing-like-this", **{header: "/fn/default/closed"}).status == 404
            # Health and figures have an address of their own then.
            assert api.call("GET", "/metrics", port=admin).status == 200 and api.call("GET", "/metrics").status == 404
            assert api.call("POST", "/internal/v1/reports", body="{}").status == 404
        finally:
            up.bury()


def start_without_admin(up, admin):
    """`Up.start` waits for /ready where it then is not."""
    import subprocess
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLESS_")} | {"API_LISTEN": f"127.0.0.1:{up.port}", "API_TOKEN": up.token, "DATA_DIR": str(up.folder / "data")}
    with open(up.folder / "log", "ab") as log:
        up.process = subprocess.Popen([up.program, "up"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    api, deadline = Api(up.url, up.token, "default"), time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError):
            if api.call("GET", "/ready", port=admin).status == 200:
                return
        assert up.process.poll() is None and time.monotonic() < deadline, up.log()
        time.sleep(0.05)


def test_large_results_do_not_fill_the_store(own):
    """FR-41, windmill-labs/windmill#6855: large results were kept in rows until the disk was full."""
    own.deploy("f", "py", "import base64, os\ndef handle(e, c):\n    print('x' * 300_000)\n    return base64.b64encode(os.urandom(786_432)).decode()\n")
    def size():
        return sum(path.stat().st_size for path in (own.up.folder / "data/private").glob("sless.db*"))
    before, calls = size(), 60
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: own.fn("f", body={}), range(calls)))
    assert all(len(answer.body) == 1 << 20 for answer in answers)
    for answer in answers:
        record = own.stored(answer.id, 30)
        assert record["result"]["truncated"] and record["result"]["size"] == 1 << 20 and len(record["result"]["text"]) <= 64 << 10, record["status"]
    # 64 KiB of the result and 300 kB of log each, not the megabyte; and some for the write-ahead log.
    assert size() - before < calls * 450_000 + (16 << 20), (before, size())


def test_series_of_two_namespaces(host):
    """FR-42, openfaas/faas PR 811: deleted functions went on reporting, equal names of two namespaces were one series."""
    if not host.up:
        pytest.skip("asks the supervisors of a local host")
    code = "import os, time\ndef handle(e, c):\n    if e.get('sleep'): time.sleep(9)\n    if e.get('crash'): os._exit(3)\n    return 1\n"
    other = Api(host.url.geturl(), host.token, f"{host.ns}-b", host.up)
    try:
        for api, calls in ((host, 10), (other, 20)):
            api.deploy("echo", "py", code, timeout_sec=0.5)
            for _ in range(calls):
                assert api.fn("echo", body={}).status == 200
        for _ in range(5):
            assert other.fn("echo", body={"sleep": 1}).status == 504
        assert other.fn("echo", body={"crash": 1}).status == 502
        def pages():
            return {group["labels"]["__metrics_path__"]: host.call("GET", group["labels"]["__metrics_path__"]).text for group in host.call("GET", "/metrics/targets").json}
        def lines(ns):
            return [line for page in pages().values() for line in page.splitlines() if f'function_namespace="{ns}"' in line and 'function="echo"' in line]
        def total(ns, status):
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines(ns) if line.startswith("sless_invocations_total{") and f'status="{status}"' in line)
        counts = lambda: (total(host.ns, "success"), total(other.ns, "success"), total(other.ns, "timeout"), total(other.ns, "crashed"))
        host.until(lambda: counts() == (10, 20, 5, 1), 10)
        series = {line.rsplit(" ", 1)[0] for line in lines(other.ns)}
        for n in range(300):
            assert other.fn("echo", f"/some/{n}/path", body={}).status == 200
        assert {line.rsplit(" ", 1)[0] for line in lines(other.ns)} == series, "paths are no labels"
        assert host.api("DELETE", "functions/echo").status == 202
        host.until(lambda: host.api("GET", "functions/echo").status == 404)
        assert lines(host.ns) == [] and total(other.ns, "success") == 320
    finally:
        other.api("DELETE", "triggers/echo-http")
        other.api("DELETE", "functions/echo")
        other.until(lambda: other.api("GET", "functions").json["items"] == [])


def test_a_slow_sender_is_the_callers_time(host):
    """FR-19: a body that comes in pieces is one body; a sender that stops does not hold a worker."""
    host.deploy("f", "py", "def handle(e, c):\n    return len(c.http.body)\n", timeout_sec=1)
    with socket.create_connection((host.address, host.port), 20) as s:
        s.sendall(f"POST /fn/{host.ns}/f HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for _ in range(4):
            s.sendall(b"4;ext=1\r\nabcd\r\n")
            time.sleep(0.5)
            assert host.fn("f", body=b"x").status == 200, "others are served meanwhile"
        s.sendall(b"0\r\nx-trailer: y\r\n\r\n")
        answer = http.client.HTTPResponse(s)
        answer.begin()
        assert (answer.status, answer.read()) == (200, b"16"), "the limit is the handler's, not the sender's"
