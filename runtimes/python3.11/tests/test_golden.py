"""The transcripts of protocol/testdata against a real worker: the bytes that the Rust codec wrote go in, what comes out is compared by meaning."""
import json
import os
import struct
import unittest
from pathlib import Path

from tests.driver import RUNTIME, Frame, Worker, body_of

FOLDER = Path(os.environ.get("SHIM_TRANSCRIPTS", RUNTIME.parent.parent / "protocol" / "testdata"))
NAME = "python3.11"


def frames_in(data):
    at = 0
    while at < len(data):
        kind, call, size = struct.unpack_from(">BII", data, at)
        yield kind, call, data[at + 9:at + 9 + size]
        at += 9 + size


class Golden(unittest.TestCase):
    def test_there_are_transcripts(self):
        self.assertTrue(list(FOLDER.glob("*.json")), f"no transcripts in {FOLDER}")

    def test_transcripts(self):
        for path in sorted(FOLDER.glob("*.json")):
            transcript = json.loads(path.read_text())
            if NAME in transcript.get("runtimes", [NAME]):
                with self.subTest(path.stem):
                    self.run_transcript(path, transcript)

    def run_transcript(self, path, transcript):
        sent = list(frames_in(path.with_suffix(".supervisor.bin").read_bytes()))
        hello = json.loads(sent[0][2])
        frames = transcript["frames"]
        self.assertEqual(frames[0]["kind"], "HELLO")
        self.assertEqual(len(sent), sum(f["from"] == "supervisor" for f in frames))
        with Worker(transcript["files"][NAME], env=transcript.get("env"), pairs=2, start=False, hello={k: v for k, v in hello.items() if k != "function_dir"}) as worker:
            for call in transcript.get("revoked", ()):
                worker.revoke(call)
            worker.start()
            rest = iter(sent[1:])
            for frame in frames[1:]:
                if frame["from"] == "supervisor":
                    worker.send(*next(rest))
                else:
                    self.compare(worker.frame(), {**frame, **frame.get(NAME, {})})

    def compare(self, got: Frame, wanted):
        self.assertIsNotNone(got, wanted)
        self.assertEqual((got.kind, got.call), (wanted["kind"], wanted["call"]), got)
        if "status" in wanted:
            self.assertEqual(got.status, wanted["status"], got)
        if "head" in wanted:
            self.compare_head(got.head, wanted["head"])
        if "body" in wanted or "body_base64" in wanted:
            body = body_of(wanted)
            if "json" in (dict(got.head).get("content-type", "") if got.kind == "RESULT" else ""):
                self.assertEqual(json.loads(got.body), json.loads(body))
            else:
                self.assertEqual(got.body, body)

    def compare_head(self, got, wanted):
        if isinstance(wanted, list):                        # of names and values
            names = {name for name, _ in wanted}
            self.assertEqual([pair for pair in got if pair[0] in names], wanted)
            self.assertEqual(bool(got), bool(wanted))
            return
        for name, value in wanted.items():
            if value == "*":
                self.assertIn(name, got)
            else:
                self.assertEqual(got.get(name), value, name)


if __name__ == "__main__":
    unittest.main()
