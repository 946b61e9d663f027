"""stdout and stderr where calls run side by side: what is printed goes to its own call, in LOG frames; what belongs to none, to the pipes."""
import io
import os
from contextvars import ContextVar

from . import wire

current = ContextVar("sless_call", default=None)
PIECE = 64 * 1024               # of a LOG frame
WAITS = 8 * 1024                # a line without its end goes out when it has grown so long

_forked = False                 # a fork must not speak on the slots


def _in_child():
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_in_child)


class Call:
    """One running call, as its threads and coroutines see it."""

    __slots__ = ("fd", "number", "lock", "open", "is_async", "pending")

    def __init__(self, fd, number, lock):
        self.fd, self.number, self.lock = fd, number, lock
        self.open, self.is_async = True, False
        self.pending = [None, b"", b""]         # by stream: what waits for the end of its line

    def write(self, stream, data):
        """False if the call is over. Whole lines are sent at once: print() writes a line in several parts."""
        with self.lock:
            if not self.open:
                return False
            waiting = self.pending[stream] + data
            cut = waiting.rfind(b"\n") + 1 if len(waiting) < WAITS else len(waiting)
            self.pending[stream] = waiting[cut:]
            self._send(stream, waiting[:cut])
            return True

    def flush(self, stream):
        with self.lock:
            if self.open:
                waiting, self.pending[stream] = self.pending[stream], b""
                self._send(stream, waiting)

    def _send(self, stream, data):
        for at in range(0, len(data), PIECE):
            wire.write(self.fd, wire.frame(wire.LOG, self.number, bytes((stream,)) + data[at:at + PIECE]))


def _call():
    return None if _forked else current.get()


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, stream, fallback):
        super().__init__()
        self._stream, self._fallback = stream, fallback
        self.name, self.mode = fallback.name, "wb"

    def writable(self):
        return True

    def fileno(self):
        return self._stream

    def write(self, data):
        data = bytes(data)
        call = _call()
        if call is None or not call.write(self._stream, data):
            self._fallback.write(data)
        return len(data)

    def flush(self):
        call = _call()
        if call is not None:
            call.flush(self._stream)


class LogStream(io.TextIOBase):
    """`sys.stdout` and `sys.stderr`."""

    encoding, errors, newlines, line_buffering, mode = "utf-8", "backslashreplace", None, True, "w"

    def __init__(self, stream, fallback):
        super().__init__()
        self._stream, self._fallback = stream, fallback
        self.buffer = _Bytes(stream, fallback.buffer)
        self.name = fallback.name

    def writable(self):
        return True

    def fileno(self):
        return self._stream

    def reconfigure(self, **_):
        """For code that asks for line buffering or UTF-8, both of which it has."""

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        call = _call()
        if call is None or not call.write(self._stream, text.encode("utf-8", "backslashreplace")):
            self._fallback.write(text)
        return len(text)

    def flush(self):
        call = _call()
        if call is not None:
            call.flush(self._stream)
        else:
            self._fallback.flush()
