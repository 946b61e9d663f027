"""stdout and stderr of a worker: each line is written whole and at once, for the next thing that happens may be a kill."""
import io
import os
import sys


class Descriptor(io.FileIO):
    """Writes all that it is given, whatever a signal or a child has done to the descriptor. Unbuffered, as with `python -u`."""

    def __init__(self, fd, name):
        super().__init__(fd, "wb", closefd=False)
        self.name = name

    def write(self, data):
        sent = _write(self, data)
        if sent != len(data):
            self._rest(data, sent or 0)
        return len(data)

    def _rest(self, data, sent):
        with memoryview(data) as view, view.cast("B") as view:
            while sent < len(view):
                now = _write(self, view[sent:])
                if now is None:                         # a child made the pipe, which is shared, non-blocking
                    os.set_blocking(self.fileno(), True)
                else:
                    sent += now


_write = io.FileIO.write


def _text(fd, name):
    stream = io.TextIOWrapper(Descriptor(fd, name), encoding="utf-8", errors="backslashreplace", newline="\n", line_buffering=True)
    stream.mode = "w"
    return stream


def install():
    sys.stdout = sys.__stdout__ = _text(1, "<stdout>")
    sys.stderr = sys.__stderr__ = _text(2, "<stderr>")


def flush():
    """What stands in a buffer, a line without its end, goes out."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except Exception:
            pass                                        # closed, or replaced by something that cannot flush
