"""The least worker: a length and JSON in, a length and JSON out, on descriptor 3."""
import json
import os
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "handlers", "py"))
from ops import call  # noqa: E402

connection = socket.socket(fileno=3)
requests = connection.makefile("rb", 1 << 20)
while len(head := requests.read(4)) == 4:
    answer = json.dumps(call(json.loads(requests.read(int.from_bytes(head, "big"))))).encode()
    connection.sendall(len(answer).to_bytes(4, "big") + answer)
