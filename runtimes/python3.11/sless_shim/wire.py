"""Frames: how they are cut out of a slot's bytes, and put together again."""
import os
from _struct import Struct      # the package `struct` adds nothing but the time to import it

HELLO, INVOKE, GO = 1, 2, 3
READY, INIT_FAILED, RESULT, STREAM, CHUNK, END, ERROR, SKIPPED, LOG = 64, 65, 66, 67, 68, 69, 70, 71, 72

SPAWNED = 1                     # bits of the usage flags

_header = Struct(">BII")
_unpack_header = _header.unpack_from
unpack_invoke = Struct(">BBHI").unpack_from                    # event kind, flags, output pair, length of the head
INVOKE_HEAD = 8
_pack_result = Struct(">BIIIIBHI").pack                        # header, usage, status, length of the head
_pack_stream = Struct(">BIIHI").pack
_pack_usage = Struct(">BIIIIB").pack

READ = 65536
PIECE = 256 * 1024              # of a stream's chunk: what the supervisor has to hold at once
SMALL = 32 * 1024               # up to here, one copy costs less than a list of buffers


class Broken(Exception):
    """The supervisor sent what this protocol does not have."""


class Gone(BaseException):
    """Nobody reads the answers any more. No handler's `except Exception` is meant for it."""


class Frames:
    """The frames that arrive on one descriptor."""

    __slots__ = ("fd", "_data", "_at")

    def __init__(self, fd):
        self.fd, self._data, self._at = fd, b"", 0

    def next(self):
        """(kind, call, data, start, end): the payload is data[start:end]. None at the end of the stream. Waits."""
        data, at = self._data, self._at
        have = len(data) - at
        while True:
            need = 9
            if have >= 9:
                kind, call, length = _unpack_header(data, at)
                need += length
                if have >= need:
                    end = at + need
                    if have == need:                           # let go of it: a body may be large
                        self._data, self._at = b"", 0
                    else:
                        self._data, self._at = data, end
                    return kind, call, data, at + 9, end
            if have == 0:
                data = os.read(self.fd, READ)
            elif need - have <= READ:
                more = os.read(self.fd, READ)
                data = data[at:] + more if more else b""
            else:
                data = self._read_large(data, at, need)
            if not data:
                return None
            at, have = 0, len(data)

    def _read_large(self, data, at, need):
        whole = bytearray(need)
        filled = len(data) - at
        whole[:filled] = data[at:]
        with memoryview(whole) as view:
            while filled < need:
                with view[filled:] as rest:
                    got = os.readv(self.fd, [rest])
                if got == 0:
                    return b""
                filled += got
        return whole


def frame(kind, call, payload):
    return _header.pack(kind, call, len(payload)) + payload


def write(fd, data):
    """All of `data`, on a descriptor that blocks."""
    try:
        sent = os.write(fd, data)
        if sent != len(data):
            with memoryview(data) as view:
                while sent < len(data):
                    sent += os.write(fd, view[sent:])
    except OSError as error:
        raise Gone(f"the supervisor does not listen: {error.strerror}") from None


def result(fd, call, usage, status, head, body):
    cpu, rss, flags = usage
    size = len(body)
    start = _pack_result(RESULT, call, 15 + len(head) + size, cpu, rss, flags, status, len(head)) + head
    if size <= SMALL:
        write(fd, start + body)
        return
    try:
        sent = os.writev(fd, (start, body)) - len(start)
    except OSError as error:
        raise Gone(f"the supervisor does not listen: {error.strerror}") from None
    if sent < 0:
        write(fd, start[sent:])
        sent = 0
    if sent < size:
        with memoryview(body) as view, view[sent:] as rest:
            write(fd, rest)


def stream(call, status, head):
    """The frame that begins a stream; the caller sends it together with the first chunk."""
    return _pack_stream(STREAM, call, 6 + len(head), status, len(head)) + head


def chunk(fd, call, data, before=b""):
    """`data` in as many frames as it takes, none of them empty, after the bytes `before`."""
    if len(data) <= SMALL:
        write(fd, before + frame(CHUNK, call, data) if data else before)
        return
    if before:
        write(fd, before)
    with memoryview(data) as view:
        for at in range(0, len(data), PIECE):
            with view[at:at + PIECE] as piece:
                write(fd, _header.pack(CHUNK, call, len(piece)))
                write(fd, piece)


def end(fd, kind, call, usage, payload=b""):
    """END, SKIPPED or ERROR, with what they have in common."""
    write(fd, _pack_usage(kind, call, 9 + len(payload), *usage) + payload)
