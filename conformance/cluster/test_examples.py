"""Every folder of `examples/`, deployed through the API or by `sless push` and `kubectl apply`, and called through the proxy and an Ingress host."""
import http.client
import json
import os
import subprocess
import time
import urllib.parse
from pathlib import Path

import pytest
from fixtures import shared, url  # noqa: F401  (fixtures)
from kube import apply, get, namespace, obj, until
from test_api import pack

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PORTRAIT, README = EXAMPLES / "inputs" / "portrait.jpg", EXAMPLES / "inputs" / "README-express.md"
RUNTIMES = {".py": "python3.11", ".js": "nodejs20", ".mjs": "nodejs20"}


def runtime_of(example):
    return next(RUNTIMES[path.suffix] for path in (EXAMPLES / example).glob("handler.*"))


def by_api(api, example, **settings):
    """As a client of the API does: create, upload, trigger."""
    folder = EXAMPLES / example
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert api.api("POST", "functions", {"name": example, "runtime": runtime_of(example)} | settings).status == 201
    answer = api.upload(example, pack(files))
    assert answer.status == 202, answer
    assert api.api("POST", "triggers", {"name": f"{example}-http", "type": "http", "function": example}).status == 201
    api.workload(example).ready(within=180)


def by_kubectl(api, example, sless, host=None, **spec):
    """As a user of `kubectl` does: the `source` is what `sless push` prints."""
    apply(namespace(api.ns))
    done = subprocess.run([str(Path(sless).resolve()), "push", str(EXAMPLES / example), "-n", api.ns, "-o", "json", "--url", api.url.geturl(), "--token", api.token], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    source = json.loads(done.stdout)
    source = {"key": source["key"], "sha256": source["sha256"], "contentSha256": source["content_sha256"]}
    apply(obj("Function", api.ns, example, {"runtime": runtime_of(example), "source": source} | spec),
          obj("Trigger", api.ns, f"{example}-http", {"type": "http", "functionRef": example} | ({"host": host} if host else {})))
    api.workload(example).ready(within=180)


@pytest.fixture(scope="module")
def sless(request):
    return request.config.getoption("--sless")


def call(api, example, body=None, query=None, **more):
    """The first answer of a trigger that may still be on its way into the proxy."""
    path = f"?{urllib.parse.urlencode(query)}" if query else ""
    return until(lambda: (a := api.fn(example, path, body=body, **more)).status != 404 and a, 20)


@pytest.mark.parametrize("door", ["api", "kubectl"])
@pytest.mark.parametrize("language", ["python", "node"])
def test_hello_and_simple(shared, sless, door, language):
    example = f"{'hello' if door == 'api' else 'simple'}-{language}"
    by_api(shared, example) if door == "api" else by_kubectl(shared, example, sless)
    if door == "api":
        answer = call(shared, example, {"name": "Ada"})
        assert (answer.status, answer.json) == (200, {"message": "Hello, Ada!"})
        assert shared.api("GET", f"invocations/{shared.stored(answer.id)['id']}/logs", headers={"accept": "text/plain"}).text.splitlines() == ["greeting Ada"]
        assert shared.fn(example, "?name=Grace", method="GET").json == {"message": "Hello, Grace!"}
    else:
        cart = {"items": [{"name": "apple", "count": 3}, {"name": "cheese"}]}
        answer = call(shared, example, cart, {"currency": "CHF"}, headers={"x-customer": "Ada"})
        assert (answer.status, answer.header("x-cart-total"), answer.json["customer"], answer.json["total"]) == (200, "680", "Ada", "6.80 CHF")
        assert shared.fn(example, body={"items": [{"name": "gold"}]}).status == 422


def test_thumbnail_has_its_dependencies(shared):
    by_api(shared, "thumbnail")
    answer = call(shared, "thumbnail", PORTRAIT.read_bytes(), {"width": 160}, headers={"content-type": "image/jpeg"})
    assert (answer.status, answer.header("content-type"), answer.body[:2]) == (200, "image/jpeg", b"\xff\xd8")
    assert len(answer.body) < len(PORTRAIT.read_bytes()) / 3
    assert shared.fn("thumbnail", body=b"not an image", headers={"content-type": "image/jpeg"}).status == 400


def test_markdown_at_a_host_of_its_own(shared, sless):
    host = f"markdown-{shared.ns}.{os.environ['SLESS_E2E_HOST_SUFFIX']}"
    by_kubectl(shared, "markdown", sless, host=host)
    ingress = urllib.parse.urlsplit(os.environ["SLESS_E2E_INGRESS"])

    def ask(method="POST", path="/"):
        connection = http.client.HTTPConnection(ingress.hostname, ingress.port or 80, timeout=30)
        try:
            connection.request(method, path, README.read_bytes(), {"host": host, "content-type": "text/markdown"})
            answer = connection.getresponse()
            return answer.status, answer.getheader("content-type"), answer.read().decode()
        finally:
            connection.close()
    status, kind, text = until(lambda: (a := ask())[0] not in (404, 503) and a, 30, what=lambda: get("ingresses", ns="sless"))
    assert (status, kind) == (200, "text/html; charset=utf-8") and "<h2>Table of contents</h2>" in text
    assert get("trg", "markdown-http", shared.ns)["status"]["url"].split("://")[1].split(":")[0].split("/")[0] == host
    assert shared.api("PATCH", "triggers/markdown-http", {"methods": ["GET"]}).status == 200
    until(lambda: ask()[0] == 405, 20)
    assert shared.api("PATCH", "triggers/markdown-http", {"enabled": False}).status == 200
    until(lambda: ask()[0] == 404, 20)


@pytest.fixture(scope="module")
def database(shared):
    """A PostgreSQL of the author's own, beside the functions, which an admin lets them reach."""
    apply(namespace(shared.ns))
    image = get("statefulset", "sless-postgres", "sless")["spec"]["template"]["spec"]["containers"][0]["image"]
    env = {"POSTGRES_USER": "notes", "POSTGRES_DB": "notes", "POSTGRES_PASSWORD": "of-the-notes"}
    apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db", "namespace": shared.ns}, "spec": {
        "automountServiceAccountToken": False, "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532},
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        "containers": [{"name": "db", "image": image, "env": [{"name": k, "value": v} for k, v in env.items()],
                        "readinessProbe": {"exec": {"command": ["pg_isready", "-h", "127.0.0.1", "-U", "notes", "-d", "notes"]}, "periodSeconds": 1},
                        "volumeMounts": [{"name": "data", "mountPath": "/var/lib/postgresql"}, {"name": "tmp", "mountPath": "/tmp"}]}]}})
    def address():
        status = get("pod", "db", shared.ns)["status"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])) and status["podIP"]
    ip = until(address, 60)
    apply(namespace(shared.ns, egress_allow=f"{ip}/32:5432"))
    assert shared.api("PUT", "secrets/db", {"data": {"DATABASE_URL": f"postgres://notes:of-the-notes@{ip}/notes"}}).status == 201
    yield


def test_notes_in_a_database(shared, database):
    by_api(shared, "notes-python", secrets=["db"], workers=2)
    made = call(shared, "notes-python", {"text": "buy cheese"})
    assert made.status == 201 and made.json["text"] == "buy cheese", made
    assert shared.fn("notes-python", f"/{made.json['id']}", method="GET").json == made.json


def test_pg_query(shared, sless, database):
    by_kubectl(shared, "pg-query", sless, secrets=["db"], timeoutSec=4)
    # What a pod may reach is open to it within about a second of its start.
    answer = until(lambda: (a := call(shared, "pg-query", {"query": "SELECT %s::int AS n", "parameters": [7]})).status == 200 and a, 10)
    assert (answer.status, answer.json) == (200, {"columns": ["n"], "rows": [[7]], "more": False}), answer
    assert "read-only" in shared.fn("pg-query", body={"query": "CREATE TABLE sneaked_in (n int)"}).json["error"]


@pytest.mark.parametrize("language", ["python", "node"])
def test_streaming_is_not_gathered_on_its_way(shared, sless, language):
    example = f"streaming-{language}"
    by_kubectl(shared, example, sless)
    assert call(shared, example, {"steps": 0}).status == 400
    lines, times = [], []
    with shared.open("GET", f"/fn/{shared.ns}/{example}?steps=4&pause_sec=0.4", {}) as response:
        assert response.status == 200
        while line := response.readline():
            lines.append(line.decode())
            times.append(time.monotonic())
    assert lines == [f"step {i} of 4\n" for i in range(1, 5)] + ["done\n"] and times[3] - times[0] > 0.9


def test_slow_is_timed_out(shared, sless):
    by_kubectl(shared, "slow", sless, timeoutSec=2)
    answer = call(shared, "slow", {"sleep_sec": 60})
    assert (answer.status, answer.json["error"]["type"]) == (504, "Timeout") and 1.9 < answer.seconds < 3
    assert "handler.py" in shared.stored(answer.id)["error"]["traceback"]
    assert shared.fn("slow", body={"sleep_sec": 0.1}).json == {"slept": True}


def test_every_example_is_tried_here():
    text = Path(__file__).read_text() + "hello-python hello-node simple-python simple-node streaming-python streaming-node"
    assert [folder.name for folder in EXAMPLES.iterdir() if list(folder.glob("handler.*")) and folder.name not in text] == []
