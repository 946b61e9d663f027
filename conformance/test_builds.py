"""Contract part 4, builds: private indexes, what is installed once and what is not, limits, and what a failed build says."""
import base64
import hashlib
import io
import json
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from test_api import HELLO, host, own, running  # noqa: F401  (fixtures)

TOKEN = "canary-4711-of-the-index"


def wheel(name, version, code):
    """A wheel with one module of that name."""
    out, info = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(f"{name}.py", code)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    return out.getvalue()


def tarball(name, version, code):
    """A package of npm's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for path, text in (("package/package.json", json.dumps({"name": name, "version": version})), ("package/index.js", code)):
            info = tarfile.TarInfo(path)
            info.size = len(text)
            t.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


class Index:
    """Packages for pip (basic auth) and npm (bearer token) that nobody else has, for who knows the token."""

    def __init__(self):
        self.wheel, self.tarball, self.seen = wheel("private_thing", "1.0", "VALUE = 'from the private index'\n"), tarball("private-thing", "1.0.0", "exports.VALUE = 'from the private index'\n"), []
        index, basic = self, "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                index.seen.append(self.path)
                allowed = self.headers.get("authorization") in (basic, f"Bearer {TOKEN}")
                kind, body = index.answer(self.path) if allowed else ("text/plain", b"who are you?")
                self.send_response((200 if body else 404) if allowed else 401)
                if not allowed:
                    self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def sha256(self):
        return hashlib.sha256(self.wheel).hexdigest()

    def answer(self, path):
        file = "private_thing-1.0-py3-none-any.whl"
        if path == "/simple/private-thing/":
            return "text/html", f'<a href="/{file}#sha256={self.sha256}">{file}</a>'.encode()
        if path == f"/{file}":
            return "application/octet-stream", self.wheel
        if path == "/private-thing":
            dist = {"tarball": f"http://{self.address}/private-thing-1.0.0.tgz", "shasum": hashlib.sha1(self.tarball).hexdigest()}
            return "application/json", json.dumps({"name": "private-thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "private-thing", "version": "1.0.0", "dist": dist}}}).encode()
        if path == "/private-thing-1.0.0.tgz":
            return "application/octet-stream", self.tarball
        return "text/plain", b""

    def secret(self, token):
        return {"PIP_INDEX_URL": f"http://me:{token}@{self.address}/simple", "PIP_RETRIES": "0",
                "NPMRC": f"registry=http://{self.address}/\n//{self.address}/:_authToken={token}\nfetch-retries=0\n"}


@pytest.fixture
def index():
    index = Index()
    yield index
    index.server.shutdown()
    index.server.server_close()


def build_log(host, name):
    return host.api("GET", f"functions/{name}/build/logs", headers={"accept": "text/plain"}).text


def failed(host, name, within=90):
    return host.until(lambda: (f := host.api("GET", f"functions/{name}").json)["phase"] == "Failed" and f, within)


def code(index, lang):
    """(handler, manifest) of a function that needs the private package."""
    return {"py": ("import private_thing\ndef handle(e, c):\n    return private_thing.VALUE\n", {"requirements.txt": f"private-thing==1.0 --hash=sha256:{index.sha256}\n"}),
            "js": ("const p = require('private-thing')\nexports.handle = () => p.VALUE\n", {"package.json": '{"dependencies": {"private-thing": "1.0.0"}}'})}[lang]


def test_a_private_index_is_used_and_its_token_is_nowhere(own, index, lang):
    """FR-29: credentials are there for the install step alone."""
    host = own
    assert host.api("PUT", "secrets/package-index", {"data": index.secret(TOKEN)}).status == 201
    handler, manifest = code(index, lang)
    host.deploy("f", lang, handler, files=manifest)
    assert host.fn("f", body={}).text == "from the private index"
    log = build_log(host, "f")
    assert {"py": "pip install", "js": "npm install"}[lang] in log and TOKEN not in log
    dump = {"py": "import os\ndef handle(e, c):\n    return dict(os.environ)\n", "js": "exports.handle = () => process.env\n"}[lang]
    host.deploy("dump", lang, dump)
    assert TOKEN not in host.fn("dump", body={}).text, "an installer's secret is no handler's"
    # Only the secret itself, encrypted, and nothing that a build has left.
    left = [str(path) for path in (host.up.folder / "data").rglob("*") if path.is_file() and not path.is_symlink() and TOKEN.encode() in path.read_bytes()]
    assert left == []
    assert TOKEN not in host.up.log()


def test_a_wrong_token_is_told_as_that(host, index, lang):
    """FR-29: 401 and the host, not "package not found"."""
    wrong = "wrong-token-4711"
    host.api("PUT", "secrets/package-index", {"data": index.secret(wrong)})
    handler, manifest = code(index, lang)
    host.api("POST", "functions", {"name": "f", "runtime": {"py": "python3.11", "js": "nodejs20"}[lang]})
    host.upload("f", {f"handler.{lang}": handler} | manifest)
    message = failed(host, "f")["message"]
    assert "401" in message and index.address in message, message
    assert wrong not in message and wrong not in build_log(host, "f")
    # Mended, the same upload is built.
    host.api("PUT", "secrets/package-index", {"data": index.secret(TOKEN)})
    host.upload("f", {f"handler.{lang}": handler} | manifest)
    host.ready("f")


def test_unchanged_dependencies_are_not_installed_again(host, index, lang):
    host.api("PUT", "secrets/package-index", {"data": index.secret(TOKEN)})
    handler, manifest = code(index, lang)
    host.deploy("f", lang, handler, files=manifest)
    asked = len(index.seen)
    # Other code, and another function of the namespace, with the same manifest.
    changed = handler + {"py": "# changed\n", "js": "// changed\n"}[lang]
    host.ready("f", code_sha256=host.upload("f", {f"handler.{lang}": changed} | manifest).json["code_sha256"])
    host.deploy("g", lang, handler, files=manifest)
    for name in ("f", "g"):
        assert host.fn(name, body={}).text == "from the private index"
        assert "as in an earlier build" in build_log(host, name)
    assert len(index.seen) == asked, index.seen[asked:]


def test_own_scripts_see_the_whole_folder_each_time(host, lang):
    """What an install makes of the author's own files is made anew."""
    if lang == "py":
        project = '[project]\nname = "dep"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        backend = ("import zipfile, os\ndef build_wheel(folder, config_settings=None, metadata_directory=None):\n    name = 'dep-1.0-py3-none-any.whl'\n    with zipfile.ZipFile(os.path.join(folder, name), 'w') as z:\n"
                   "        z.writestr('dep.py', open('value.txt').read())\n        z.writestr('dep-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: dep\\nVersion: 1.0\\n')\n"
                   "        z.writestr('dep-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n        z.writestr('dep-1.0.dist-info/RECORD', '')\n    return name\n")
        files = lambda n: {"handler.py": "import dep\ndef handle(e, c):\n    return dep.VALUE\n", "requirements.txt": "./dep\n", "dep/pyproject.toml": project, "dep/backend.py": backend, "dep/value.txt": f"VALUE = 'v{n}'\n"}
    else:
        manifest = json.dumps({"name": "f", "version": "1.0.0", "scripts": {"postinstall": "node make.js"}, "dependencies": {"dep": "file:./dep"}})
        make = "require('fs').writeFileSync('made.js', 'exports.VALUE = ' + JSON.stringify(require('fs').readFileSync('value.txt', 'utf8')))"
        files = lambda n: {"handler.js": "exports.handle = () => require('./made').VALUE\n", "package.json": manifest, "make.js": make, "value.txt": f"v{n}", "dep/package.json": '{"name": "dep", "version": "1.0.0"}'}
    host.api("POST", "functions", {"name": "f", "runtime": {"py": "python3.11", "js": "nodejs20"}[lang]})
    host.api("POST", "triggers", {"name": "f", "type": "http", "function": "f"})
    for n in (1, 2):
        host.ready("f", code_sha256=host.upload("f", files(n)).json["code_sha256"])
        host.until(lambda: host.fn("f", body={}).text == f"v{n}", 10)


def test_what_a_failed_build_says(host):
    """FR-33: the reason itself, by name; the version before goes on."""
    host.deploy("f", "js", HELLO["js"])
    for files, says in (({"package.json": "{,}"}, "package.json is not valid JSON"),
                        ({"package.json": '{"dependencies": {"no-such-package-zz9": "1.0.0"}}'}, "no-such-package-zz9"),
                        ({"package.json": '{"name": "f", "scripts": {"preinstall": "echo the disk is made of cheese >&2; exit 3"}, "dependencies": {"is-number": "7.0.0"}}'}, "made of cheese")):
        host.upload("f", {"handler.js": HELLO["js"]} | files)
        message = failed(host, "f")["message"]
        assert says in message and len(message) < 1500, message
        assert host.fn("f", body={"name": "Ada"}).json == {"message": "Hello, Ada!"}
        host.ready("f", code_sha256=host.upload("f", {"handler.js": HELLO["js"]}).json["code_sha256"])


def test_a_build_has_a_limit_of_memory(own):
    """A package that eats memory ends its build, and not the machine."""
    hog = "const all = []; for (let i = 0; i < 64; i++) all.push(Buffer.alloc(64 << 20, 1)); console.log('ate', all.length)"
    manifest = json.dumps({"name": "f", "scripts": {"preinstall": "node hog.js"}, "dependencies": {"is-number": "7.0.0"}})
    own.api("POST", "functions", {"name": "f", "runtime": "nodejs20"})
    own.upload("f", {"handler.js": HELLO["js"], "hog.js": hog, "package.json": manifest})
    message = failed(own, "f")["message"]
    assert "memory" in message.lower() and "ate 64" not in build_log(own, "f"), message


def test_a_build_can_be_watched(host, index):
    """Lines come while the installer still runs."""
    script = "console.log('first line'); setTimeout(() => console.log('second line'), 3000)"
    manifest = json.dumps({"name": "f", "scripts": {"preinstall": "node say.js"}, "dependencies": {"dep": "file:./dep"}})
    host.api("POST", "functions", {"name": "f", "runtime": "nodejs20"})
    host.upload("f", {"handler.js": HELLO["js"], "say.js": script, "package.json": manifest, "dep/package.json": '{"name": "dep", "version": "1.0.0"}', ".npmrc": "foreground-scripts=true\n"})
    host.until(lambda: host.api("GET", "functions/f/build").json.get("phase") == "Building", 10)
    came = {}
    for line in host.events("functions/f/build/logs?follow=true"):
        came.setdefault(line["text"], time.monotonic())
    assert came["second line"] - came["first line"] > 2, came
    host.ready("f")
