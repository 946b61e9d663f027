"""Requests that are written to be read in two ways, over raw sockets: `corpus/requests.json` has what is sent and what may be answered.

Whatever is sent to one function, another one is never reached by it, the connection stays in step or is closed, and so does the host's
own connection to the supervisor. In the texts stand `{front}` and `{victim}` for the two functions, `{base}` and `{ns}` for what leads to them,
`{host}` for the host's address, `{length}` for the length of the body, `{chunk}` for a chunk that holds a call of the victim.
A `status` of null is a connection that was closed without an answer; `open` says whether it must stay open or be closed, if the case says so.
"""
import json
import socket
import time
from pathlib import Path

import pytest
from test_api import Api, host, running  # noqa: F401  (fixtures)

CASES = json.loads((Path(__file__).parent / "corpus" / "requests.json").read_text())
ECHO = """
def handle(event, context):
    http = context.http
    return {"function": context.function, "method": http.method, "path": http.path, "raw_query": http.raw_query, "body": http.body.decode("latin-1")}
"""


class Line:
    """One connection, and the answers that come on it."""

    def __init__(self, api):
        self.socket = socket.create_connection((api.address, api.port), timeout=10)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass                                    # the other side has closed: the answer, if any, says why

    def answer(self):
        """(status, body) of the next final answer; None at the end of the connection."""
        while True:
            try:
                first = self.file.readline()
            except ConnectionError:
                return None
            if not first:
                return None
            assert first.startswith(b"HTTP/1."), first
            status, headers = int(first.split()[1]), {}
            while (line := self.file.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            assert status != 101, "nothing here is upgraded"
            if status < 200:
                continue
            if headers.get("transfer-encoding") == "chunked":
                body = b""
                while size := int(self.file.readline(), 16):
                    body += self.file.read(size)
                    self.file.readline()
                while self.file.readline() not in (b"\r\n", b""):
                    pass
            elif "content-length" in headers:
                body = self.file.read(int(headers["content-length"]))
            else:
                body = b"" if status == 204 else self.file.read()
            return status, body

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture(scope="module")
def pair(running):
    """An Api with the functions `front` and `victim`, which tell what they were sent."""
    url, token, up = running
    api = Api(url, token, "requests", up)
    for name in ("front", "victim"):
        api.deploy(name, "py", ECHO)
    yield api
    # Records come a moment after the answer: a call that comes last has the last one.
    last = api.fn("front", "/last", "GET")
    api.stored(last.id)
    time.sleep(1)
    assert [item["id"] for item in api.api("GET", "functions/victim/invocations").json["items"]] == []
    for name in ("front", "victim"):
        api.api("DELETE", f"triggers/{name}-http")
        api.api("DELETE", f"functions/{name}")


def filled(text, words):
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    return text


def written(api, case):
    words = {"host": f"{api.address}:{api.port}", "base": f"/fn/{api.ns}", "front": f"/fn/{api.ns}/front", "victim": f"/fn/{api.ns}/victim",
             "ns": api.ns, "case": case["name"]}
    hidden = filled("GET {victim}/{case} HTTP/1.1\r\nHost: {host}\r\n\r\n", words)
    words["chunk"] = f"{len(hidden):x}\r\n{hidden}"
    text = filled(case["send"], words)
    mark = "\r\n\r\n" if "\r\n\r\n" in text else "\n\n"
    return text.replace("{length}", str(len(text.partition(mark)[2]))).encode("latin-1"), words


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_request_reaches_its_own_function_or_none(pair, case):
    sent, words = written(pair, case)
    line = Line(pair)
    try:
        line.send(sent)
        if None in case["status"]:
            line.socket.settimeout(5)
        answer = line.answer()
        status = answer and answer[0]
        assert status in case["status"], (answer, sent)
        if status == 200 and answer[1]:
            got = json.loads(answer[1])
            assert got["function"] == "front", got
            for field, value in case.get("seen", {}).items():
                assert got[field] == filled(value, words), got
        # What follows on the connection is answered as itself, or not at all.
        line.send(filled("GET {front}/probe/{case} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n", words).encode())
        probe = line.answer()
        stayed = probe is not None
        if stayed:
            assert probe[0] == 200 and (json.loads(probe[1])["function"], json.loads(probe[1])["path"]) == ("front", f"/probe/{case['name']}"), probe
            assert line.answer() is None, "an answer to nothing that was asked"
        assert case.get("open", stayed) == stayed, "the connection was closed" if case.get("open") else "the connection was kept"
    finally:
        line.close()
    # The host's connection to the supervisor is in step too: callers that come next get their own answers.
    for n in range(2):
        next_one = pair.fn("front", f"/next/{n}", "GET")
        assert (next_one.status, next_one.json["function"], next_one.json["path"], next_one.json["body"]) == (200, "front", f"/next/{n}", "")
