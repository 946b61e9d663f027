"""Hostile code, in a function's pod and in a build: what it can reach, read and become. With the installation's RUNTIME_CLASS, whichever that is."""
import base64
import http.client
import json
import os

import pytest
from fixtures import npm, shared, url  # noqa: F401  (fixtures)
from kube import get, kubectl, until
from test_api import pack

# One handler that tries what it is told and returns what became of it.
HOSTILE = r'''
import ctypes, glob, json, os, socket, subprocess, urllib.request, urllib.error

def connect(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return "open"
    except OSError as e:
        return type(e).__name__

def ask(url, headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, data=b"{}\n", headers=headers), timeout=3).status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError as e:
        return str(getattr(e, "reason", e))

def read(path):
    try:
        return "read " + repr(open(path, "rb").read(40))
    except OSError as e:
        return e.strerror

def write(path):
    try:
        open(path, "w").write("x")
        return "written"
    except OSError as e:
        return e.strerror

def run(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
        return [done.returncode, (done.stdout + done.stderr)[-200:]]
    except (OSError, subprocess.SubprocessError) as e:
        return [-1, str(e)]

def root():
    out = {}
    for name in ("setuid", "setgid"):
        try:
            getattr(os, name)(0)
            out[name] = "became it"
        except OSError as e:
            out[name] = e.strerror
    libc = ctypes.CDLL(None, use_errno=True)
    out["unshare"] = "became it" if libc.unshare(0x10000000) == 0 and libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == 0 else "refused"
    out["status"] = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if line.startswith(("Cap", "NoNewPrivs", "Uid")))
    out["suid"] = subprocess.run("find / -xdev -perm /6000 -type f 2>/dev/null", shell=True, capture_output=True, text=True).stdout.split()
    out["ids"] = [os.getuid(), os.geteuid(), os.getgid()]
    return out

def handle(event, context):
    return {
        "connect": lambda: {f"{h}:{p}": connect(h, p) for h, p in event.get("targets", [])},
        "ask": lambda: ask(event.get("url"), event.get("headers", {})),
        "read": lambda: {p: read(p) for pattern in event.get("paths", []) for p in (glob.glob(pattern) or [pattern])},
        "write": lambda: {p: write(p) for p in event.get("paths", [])},
        "walk": lambda: [os.path.join(d, f) for top in event.get("paths", []) for d, _, files in os.walk(top) for f in files if os.access(os.path.join(d, f), os.R_OK)],
        "run": lambda: run(event.get("command")),
        "root": root,
        "env": lambda: dict(os.environ),
    }[event["do"]]()
'''
BYSTANDER = {"handler.py": "def handle(e, c):\n    return 'a secret of another tenant'\n"}


@pytest.fixture(scope="module")
def hostile(shared):
    workload = shared.put("hostile", files={"handler.py": HOSTILE}, timeoutSec=60)
    workload.ready()

    def do(what, **more):
        answer = shared.fn("hostile", body={"do": what} | more, timeout=70)
        assert answer.status == 200, (answer, workload.why())
        return answer.json
    shared.until(lambda: shared.fn("hostile", body={"do": "env"}).status == 200, 30)
    do.workload = workload
    return do


def service(name, ns="sless"):
    return get("services", name, ns)["spec"]["clusterIP"]


def pod_addresses(selector, ns="sless"):
    return [p["status"]["podIP"] for p in get("pods", ns=ns, selector=selector)]


def registry():
    """As pods reach it, from the settings of the installation."""
    name = next(c["metadata"]["name"] for c in get("configmaps", ns="sless") if c["metadata"]["name"].startswith("sless-config"))
    host = get("configmap", name, "sless")["data"]["REGISTRY"].split("/")[0]
    return host.split(":")[0], int((host.split(":") + ["443"])[1])


def test_it_runs_in_the_runtime_class_of_the_installation(hostile):
    name = next(c["metadata"]["name"] for c in get("configmaps", ns="sless") if c["metadata"]["name"].startswith("sless-config"))
    wanted = get("configmap", name, "sless")["data"].get("RUNTIME_CLASS") or None
    assert hostile.workload.pod()["spec"].get("runtimeClassName") == wanted


def test_it_reaches_nothing_of_the_platform_and_of_others(shared, hostile):
    other = shared.put("bystander", files=BYSTANDER)
    other.ready()
    address = other.pod()["status"]["podIP"]
    kubernetes = get("services", "kubernetes", "default")["spec"]["clusterIP"]
    endpoint = get("endpoints", "kubernetes", "default")["subsets"][0]
    targets = {(kubernetes, 443), (endpoint["addresses"][0]["ip"], endpoint["ports"][0]["port"]), (service("sless-postgres"), 5432), (service("sless-s3"), 9000), registry(),
               (address, 8080), (address, 9090), ("169.254.169.254", 80), ("127.0.0.1", 6443), ("10.244.0.1", 10250)}
    targets |= {(ip, 5432) for ip in pod_addresses("app.kubernetes.io/name=sless-postgres")} | {(ip, 9000) for ip in pod_addresses("app.kubernetes.io/name=sless-s3")}
    targets |= {(ip, port) for ip in pod_addresses("app.kubernetes.io/name=sless-api") for port in (8080, 9090)} | {(ip, 9090) for ip in pod_addresses("app.kubernetes.io/name=sless-controller")}
    opened = {target: how for target, how in hostile("connect", targets=sorted(targets)).items() if how == "open"}
    assert not opened, opened
    # That the look itself works: what it may reach it does reach.
    internal = service("sless-api-internal")
    assert hostile("connect", targets=[(internal, 8081)]) == {f"{internal}:8081": "open"}


def test_the_internal_route_believes_nobody_without_a_token(hostile):
    where = f"http://{service('sless-api-internal')}:8081/internal/v1/"
    for path in ("reports", "builds/sless/x/b-1"):
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": f"Bearer {os.environ['SLESS_TOKEN']}"}):
            assert hostile("ask", url=where + path, headers=headers | {"Content-Type": "application/x-ndjson"}) in (401, 403), (path, headers)
    assert hostile("ask", url=where.replace("/internal/v1/", "/v1/whoami"), headers={}) == 404


def test_a_token_of_one_function_is_not_one_of_another(shared, hostile):
    """What a function's account says is taken as that function's, whatever its lines name."""
    token = kubectl("create", "token", "fn-hostile", "-n", shared.fn_ns, "--audience", "sless-api").strip()
    connection = http.client.HTTPConnection(service("sless-api-internal"), 8081, timeout=10)
    line = {"v": 1, "invocation_id": "01930000-0000-7000-8000-00000000beef", "seq": 0, "type": "started", "time": "2026-01-01T00:00:00.000Z", "namespace": shared.ns, "function": "bystander",
            "revision": "x", "trigger": "http", "attempt": 1, "method": "POST", "path": "/", "pod": "p", "request": {"raw_query": "", "headers": [], "size": 0, "text": "", "truncated": False}}
    connection.request("POST", "/internal/v1/reports", json.dumps(line) + "\n", {"authorization": f"Bearer {token}", "content-type": "application/x-ndjson"})
    assert connection.getresponse().status in (200, 204)
    items = shared.api("GET", "functions/bystander/invocations").json["items"]
    assert line["invocation_id"] not in [i["id"] for i in items]
    wrong = kubectl("create", "token", "fn-hostile", "-n", shared.fn_ns).strip()        # of another audience
    connection = http.client.HTTPConnection(service("sless-api-internal"), 8081, timeout=10)
    connection.request("POST", "/internal/v1/reports", json.dumps(line) + "\n", {"authorization": f"Bearer {wrong}", "content-type": "application/x-ndjson"})
    assert connection.getresponse().status in (401, 403)


def test_it_finds_no_credential(hostile):
    env = hostile("env")
    assert {name for name in env if name.startswith("SLESS_")} == {"SLESS_NAMESPACE", "SLESS_FUNCTION", "SLESS_REVISION"}, env
    # Kubelets name the API server's address to every container, whatever a pod says; no other service is named.
    assert not {name for name in env if name.endswith(("_SERVICE_HOST", "_SERVICE_PORT")) and not name.startswith("KUBERNETES_")}, env
    paths = ["/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/fd/*", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/var/run/sless/*", "/var/run/sless/*/*", "/run/sless/*", "/var/spool/sless/*", "/var/spool/sless"]
    got = {path: how for path, how in hostile("read", paths=paths).items() if how.startswith("read")}
    assert not got, got
    assert hostile("walk", paths=["/var/run", "/run", "/var/spool"]) == []
    pod = hostile.workload.pod()
    assert pod["spec"]["automountServiceAccountToken"] is False and not pod["spec"].get("shareProcessNamespace")


def test_it_writes_to_tmp_alone(hostile):
    assert hostile("write", paths=["/tmp/mine"]) == {"/tmp/mine": "written"}
    paths = ["/mine", "/etc/mine", "/app/mine", "/app/function/mine", "/app/function/handler.py", "/var/mine", "/var/tmp/mine", "/usr/bin/mine", "/opt/sless/runtime/mine", "/opt/sless/runtime/runtime.json", "/var/spool/sless/mine", "/var/run/sless/mine", "/root/mine", "/home/mine", "/proc/sys/kernel/core_pattern"]
    written = {path for path, how in hostile("write", paths=paths).items() if how == "written"}
    assert not written


def test_it_does_not_become_root(hostile):
    got = hostile("root")
    assert 0 not in got["ids"] and got["setuid"] != "became it" and got["setgid"] != "became it" and got["unshare"] == "refused", got
    assert got["status"]["NoNewPrivs"].strip() == "1" and all(int(value, 16) == 0 for name, value in got["status"].items() if name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")), got
    for command in (["sudo", "-n", "id"], ["su", "-c", "id"], ["unshare", "-Ur", "mount", "-t", "tmpfs", "x", "/mnt"], ["chown", "0", "/tmp/mine"]):
        assert hostile("run", command=command)[0] != 0, command
    spec = hostile.workload.pod()["spec"]
    container, = spec["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"] and security["allowPrivilegeEscalation"] is False and spec["securityContext"]["runAsNonRoot"]


# What a build's code looks at. Its words become a file of the function, which gives them out.
SPY_PY = """
import glob, os, socket
out = []
def say(*words): out.append(" ".join(str(w) for w in words))
for name, value in sorted(os.environ.items()): say("ENV", name, value)
paths = ["/proc/1/environ", "/proc/%d/environ" % os.getppid(), "/var/run/secrets/kubernetes.io/serviceaccount/token", "/root/.docker/config.json"]
for path in paths + [p for p in glob.glob("/var/run/sless/**", recursive=True) if not p.startswith("/var/run/sless/ca")] + glob.glob("/work/**", recursive=True)[:200] + glob.glob("/tmp/**", recursive=True)[:200]:
    try: say("READ", path, repr(open(path, "rb").read(5000)))
    except OSError as e: say("NOT", path, e.strerror)
for host, port in TARGETS:
    try: socket.create_connection((host, port), 2).close(); say("OPEN", host, port)
    except OSError as e: say("SHUT", host, port, type(e).__name__)
say("UID", os.getuid())
open("evil.py", "w").write("REPORT = " + repr("\\n".join(out)))
from setuptools import setup
setup(name="evil", version="1", py_modules=["evil"])
"""
SPY_JS = """
const fs = require("fs"), net = require("net"), path = require("path"), out = [], say = (...w) => out.push(w.join(" "));
for (const [n, v] of Object.entries(process.env)) say("ENV", n, v);
const read = (p) => { try { say("READ", p, JSON.stringify(fs.readFileSync(p, "latin1").slice(0, 5000))) } catch (e) { say("NOT", p, e.code) } };
const walk = (d) => { try { for (const e of fs.readdirSync(d, { withFileTypes: true })) { const p = path.join(d, e.name); if (e.isDirectory()) walk(p); else read(p) } } catch (e) { say("NOT", d, e.code) } };
["/proc/1/environ", `/proc/${process.ppid}/environ`, "/var/run/secrets/kubernetes.io/serviceaccount/token", "/root/.docker/config.json"].forEach(read); (fs.existsSync("/var/run/sless") ? fs.readdirSync("/var/run/sless") : []).filter(d => d !== "ca").forEach(d => walk("/var/run/sless/" + d));
const one = ([h, p]) => new Promise((done) => { const s = net.connect({ host: h, port: p }); s.setTimeout(2000); const end = (w) => { say(w, h, p); s.destroy(); done() };
  s.on("connect", () => end("OPEN")); s.on("error", () => end("SHUT")); s.on("timeout", () => end("SHUT")) });
Promise.all(TARGETS.map(one)).then(() => { say("UID", process.getuid()); fs.writeFileSync("node_modules/report.txt", out.join("\\n")) });
"""


def spy_targets():
    endpoint = get("endpoints", "kubernetes", "default")["subsets"][0]
    return [(get("services", "kubernetes", "default")["spec"]["clusterIP"], 443), (endpoint["addresses"][0]["ip"], endpoint["ports"][0]["port"]), (service("sless-postgres"), 5432),
            (service("sless-api-internal"), 8081), ("169.254.169.254", 80)]     # the registry and S3 are open to builds, which have no credential for them


def secrets_of_the_installation():
    """Every value that no build may see."""
    values = {}
    for ns in ("sless", "sless-builds"):
        for secret in get("secrets", ns=ns):
            for key, value in (secret.get("data") or {}).items():
                text = base64.b64decode(value).decode(errors="replace")
                if key not in ("S3_ACCESS_KEY_ID",) and len(text) > 5:      # the key's id is part of a presigned address by design
                    values[f"{ns}/{secret['metadata']['name']}/{key}"] = text
    return values


def test_a_hostile_build_gets_nothing(shared, lang):
    canary = "canary-of-the-victim"
    shared.put("victim", files={"handler.py": f"CANARY = '{canary}'\ndef handle(e, c):\n    return 1\n"}, env={"WORD": canary}).ready()
    name, targets = f"spy-{lang}", json.dumps(spy_targets())
    files = {"py": {"handler.py": "import evil\ndef handle(e, c):\n    return evil.REPORT\n", "requirements.txt": "./evil\n", "evil/setup.py": SPY_PY.replace("TARGETS", targets)},
             "js": npm("node spy.js", "const fs = require('fs'); exports.handle = () => fs.readFileSync('node_modules/report.txt', 'utf8')\n", **{"spy.js": SPY_JS.replace("TARGETS", targets)})}[lang]
    shared.put(name, lang, files).ready(within=150)
    text = shared.until(lambda: (a := shared.fn(name)).status == 200 and a, 30).text
    lines = text.splitlines()
    assert any(line.startswith("ENV PATH") for line in lines) and sum(line.startswith("SHUT") for line in lines) == len(spy_targets()), text
    assert "UID 0" not in lines and not [line for line in lines if line.startswith("OPEN")], text
    seen = {what for what, value in secrets_of_the_installation().items() if value.strip() in text}
    assert not seen and canary not in text, (seen, text)
    read = [line.split()[1] for line in lines if line.startswith("READ")]
    assert read and not [path for path in read if "/secrets/" in path or "/registry/" in path or "docker" in path], text
    # The address that the code was fetched from is nobody's but the installer's.
    signed = [line.split()[:2] for line in lines if "x-amz-signature" in line.lower()]
    assert not signed, f"a script of the build reads the presigned address of the code in {signed}"


@pytest.mark.parametrize("link", ["/etc/passwd", "../../../etc/passwd", "/var/run/sless/registry/config.json", "/proc/1/environ"])
def test_a_link_out_of_the_tree_is_refused(shared, link):
    answer = shared.api("POST", "functions/linked/code?runtime=python3.11&entrypoint=handler.handle", pack({"handler.py": "def handle(e): pass\n", "stolen": (link.encode(), 0o120777)}), headers={"content-type": "application/zip"})
    assert answer.status == 400 and "stolen" in answer.json["detail"], answer


def test_a_link_that_an_installer_makes_is_not_followed(shared):
    """Made by a script in the build, past all checks of the zip: what it points at is not in the image."""
    look = "p => { try { return fs.lstatSync(p).isSymbolicLink() ? 'a link' : fs.readFileSync(p, 'latin1') } catch (e) { return e.code } }"
    script = "ln -sf /var/run/sless/registry/config.json node_modules/stolen && ln -sf /etc/passwd node_modules/passwd && ln -sf / node_modules/all && echo yes > node_modules/ran"
    handler = f"const fs = require('fs'); exports.handle = () => ['ran', 'stolen', 'passwd', 'all'].map(n => 'node_modules/' + n).map({look})\n"
    workload = shared.put("linker", "js", npm(script, handler))
    until(lambda: (workload.function() or {}).get("status", {}).get("phase") in ("Ready", "Failed"), 120, what=workload.why)
    status = workload.function()["status"]
    if status["phase"] == "Failed":
        assert "node_modules/" in status["message"], status         # refused, by name
        return
    ran, *links = shared.until(lambda: (a := shared.fn("linker")).status == 200 and a, 30).json
    assert ran == "yes\n" and set(links) <= {"a link", "ENOENT"}, links
