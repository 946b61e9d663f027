"""Frames, however the socket cuts them; JSON text at its edges."""
import json
import os
import random
import socket
import struct
import threading
import unittest

from sless_shim import fields, text, wire


class Frames(unittest.TestCase):
    def test_any_cut_gives_the_same_frames(self):
        for seed in range(60):
            rng = random.Random(seed)
            wanted = [(rng.choice((2, 3, 200)), rng.getrandbits(32), rng.randbytes(rng.choice((0, 1, 8, 100, 5000, 65527, 65536, 65537, 300_000)) if seed % 3 else rng.randrange(300)))
                      for _ in range(rng.randrange(1, 12))]
            data = b"".join(struct.pack(">BII", kind, call, len(payload)) + payload for kind, call, payload in wanted)
            ours, theirs = socket.socketpair()

            def send():
                at = 0
                while at < len(data):
                    size = rng.choice((1, 3, 9, 50, 4096, 70_000, 1_000_000)) if len(data) > 20_000 else rng.randrange(1, 40)
                    theirs.sendall(data[at:at + size])
                    at += size
                theirs.close()
            sender = threading.Thread(target=send)
            sender.start()
            frames, got = wire.Frames(ours.fileno()), []
            while (frame := frames.next()) is not None:
                kind, call, buffer, start, end = frame
                got.append((kind, call, bytes(buffer[start:end])))
            sender.join()
            ours.close()
            self.assertEqual(got, wanted, f"seed {seed}")

    def test_a_frame_that_breaks_off_is_the_end(self):
        for cut in (1, 8, 9, 12, 100, 200_000):
            ours, theirs = socket.socketpair()
            data = struct.pack(">BII", 2, 1, 250_000) + bytes(250_000)
            sender = threading.Thread(target=lambda: (theirs.sendall(data[:cut]), theirs.close()))
            sender.start()
            self.assertIsNone(wire.Frames(ours.fileno()).next())
            sender.join()
            ours.close()

    def test_large_answers_arrive_whole(self):
        for size in (0, 1, wire.SMALL, wire.SMALL + 1, 3_000_000):
            ours, theirs = socket.socketpair()
            body = os.urandom(size)
            sender = threading.Thread(target=lambda: (wire.result(ours.fileno(), 7, (1, 2, 0), 200, b"[]", body), wire.chunk(ours.fileno(), 8, body, b"before"), ours.close()))
            sender.start()
            got = b""
            while more := theirs.recv(1 << 20):
                got += more
            sender.join()
            theirs.close()
            head = struct.pack(">BIIIIBHI", wire.RESULT, 7, 17 + size, 1, 2, 0, 200, 2) + b"[]"
            self.assertTrue(got.startswith(head + body + b"before"))
            rest, chunks = got[len(head) + size + 6:], b""
            while rest:
                kind, call, length = struct.unpack_from(">BII", rest)
                self.assertEqual((kind, call), (wire.CHUNK, 8))
                self.assertTrue(0 < length <= wire.PIECE)
                chunks, rest = chunks + rest[9:9 + length], rest[9 + length:]
            self.assertEqual(chunks, body)

    def test_nobody_listens(self):
        ours, theirs = socket.socketpair()
        theirs.close()
        for write in (lambda: wire.write(ours.fileno(), b"x"), lambda: wire.result(ours.fileno(), 1, (0, 0, 0), 200, b"[]", bytes(100_000))):
            self.assertRaises(wire.Gone, write)
        ours.close()


class Text(unittest.TestCase):
    def test_json_is_read_as_the_json_package_reads_it(self):
        for sample in ("0", "-0", "1.5e300", '"\\ud83d\\ude00"', '"\\ud800"', "  [1 , 2]\n", '{"a":{"a":1},"b":[]}', '"a\\u0000b"', "true", "null", "123456789012345678901234567890", '{"a":1,"a":2}'):
            self.assertEqual(text.loads(sample), json.loads(sample))
        for sample in ("", "{", "[1,]", "tru", '{"a" 1}'):
            self.assertRaises(ValueError, text.loads, sample)

    def test_json_is_written_as_the_json_package_writes_it(self):
        for sample in ({"a": [1, 2.5, None, True, "é\u2028\x00\"\\"]}, [], {}, "x" * 100_000, {1: 2, None: 3}, 10**40, 1e100, -0.0):
            self.assertEqual(text.dumps(sample), json.dumps(sample, separators=(",", ":")).encode())

    def test_fields_are_read_as_urllib_reads_them(self):
        from urllib.parse import parse_qsl
        rng = random.Random(1)
        for _ in range(500):
            sample = "".join(rng.choice(("a", "b", "=", "&", "%", "+", "%41", "%d0%9f", "%zz", "%4", "é", " ", "%ff", "\t")) for _ in range(rng.randrange(12)))
            self.assertEqual(fields.pairs(sample.encode()), [list(pair) for pair in parse_qsl(sample, keep_blank_values=True)], sample)


if __name__ == "__main__":
    unittest.main()
