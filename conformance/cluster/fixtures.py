"""Fixtures of the cases on a cluster that sless is installed in (`scripts/e2e`): `--host-url` is the API's address, `SLESS_TOKEN` its admin token,
and `kubectl` goes where `KUBECONFIG` says. A module and no `conftest.py`: two of that name in one run would hide one another."""
import json
import os
import uuid

import pytest
from kube import Workload, apply, delete, namespace, obj
from test_api import HELLO, RUNTIME, Api, pack


def npm(postinstall, handler, **files):
    """A Node function whose install runs a script: npm is not called for a package without dependencies."""
    manifest = {"name": "x", "version": "1.0.0", "scripts": {"postinstall": postinstall}, "dependencies": {"dep": "file:./dep"}}
    return {"handler.js": handler, "package.json": json.dumps(manifest), "dep/package.json": json.dumps({"name": "dep", "version": "1.0.0"}), "dep/index.js": ""} | files


class Cluster(Api):
    """The API, in a namespace of this case's own."""

    def workload(self, name):
        return Workload(self.ns, name)

    @property
    def fn_ns(self):
        return f"sless-fn-{self.ns}"

    def push(self, name, lang, files):
        """The `source` that a Function of this code has: what `sless push` prints."""
        path = f"functions/{name}/code?runtime={RUNTIME[lang]}&entrypoint=handler.handle"
        answer = self.api("POST", path, files if isinstance(files, bytes) else pack(files), headers={"content-type": "application/zip"})
        assert answer.status == 201, answer
        return {"key": answer.json["key"], "sha256": answer.json["sha256"], "contentSha256": answer.json["content_sha256"]}

    def put(self, name, lang="py", files=None, trigger=True, **spec):
        """A Function (and its trigger) by the door of Kubernetes."""
        apply(namespace(self.ns))
        files = files or {f"handler.{lang}": HELLO[lang]}
        source = {"source": self.push(name, lang, files)} if "source" not in spec else {}
        apply(obj("Function", self.ns, name, {"runtime": RUNTIME[lang]} | source | spec))
        if trigger:
            apply(obj("Trigger", self.ns, f"{name}-http", {"type": "http", "functionRef": name}))
        return self.workload(name)


@pytest.fixture(scope="session")
def url(request):
    return request.config.getoption("--host-url") or pytest.exit("these cases need --host-url, the API of a cluster")


@pytest.fixture
def cluster(url):
    """Its namespace is made by the first write and goes with the case."""
    one = Cluster(url, os.environ["SLESS_TOKEN"], f"c-{uuid.uuid4().hex[:8]}")
    yield one
    delete("namespace", one.ns)


@pytest.fixture(scope="module")
def shared(url):
    """One namespace for all cases of a file."""
    one = Cluster(url, os.environ["SLESS_TOKEN"], f"s-{uuid.uuid4().hex[:8]}")
    yield one
    delete("namespace", one.ns)
