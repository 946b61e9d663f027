"""What went wrong, as ERROR and INIT_FAILED carry it."""
import sys

from . import text

_HERE = __file__.rpartition("/")[0] + "/"
_MESSAGE_LIMIT = 16 * 1024      # characters; a message may hold a whole document
_TRACE_LIMIT = 128 * 1024


class Refused(Exception):
    """An error that the shim itself finds in what a handler is or gives: a stable type, a message, no traceback."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind, self.message = kind, message


def _message(error):
    try:
        return str(error)
    except BaseException as why:        # a __str__ of the author's may raise whatever it likes
        return f"(the message could not be made: {type(why).__name__})"


def _shorten(whole, limit):
    if len(whole) <= limit:
        return whole
    return f"{whole[:limit // 2]}\n… {len(whole) - limit // 2 * 2} characters left out …\n{whole[-(limit // 2):]}"


def _without_shim(found, seen):
    """Takes the shim's own frames out of a TracebackException and of those that it was raised from."""
    if found is None or id(found) in seen:
        return
    seen.add(id(found))
    found.stack[:] = [frame for frame in found.stack if not frame.filename.startswith(_HERE)]
    for other in (found.__cause__, found.__context__, *(found.exceptions or ())):
        _without_shim(other, seen)


def _traceback(error, message):
    try:
        import traceback
        found = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        _without_shim(found, set())
        return "".join(found.format())
    except Exception:                   # deep recursion, a broken __cause__, the author's own traceback.py
        where = []
        step = error.__traceback__
        while step is not None and len(where) < 100:
            code = step.tb_frame.f_code
            if not code.co_filename.startswith(_HERE):
                where.append(f'  File "{code.co_filename}", line {step.tb_lineno}, in {code.co_name}\n')
            step = step.tb_next
        return f"Traceback (most recent call last):\n{''.join(where)}{type(error).__name__}: {message}\n"


def describe(error):
    """(payload, text for the log) of an exception."""
    message = _shorten(text.clean(_message(error)), _MESSAGE_LIMIT)
    if isinstance(error, Refused):
        kind, trace = error.kind, ""
    else:
        kind = text.clean(type(error).__name__)
        trace = _shorten(text.clean(_traceback(error, message)), _TRACE_LIMIT)
    return text.dumps({"type": kind, "message": message, "traceback": trace}), trace or f"{kind}: {message}\n"


def log(printed):
    """Writes to what was stderr when the worker began: `sys.stderr` may be anything by now."""
    try:
        sys.__stderr__.write(printed)
    except Exception:
        pass                            # the handler has closed it; the record has the traceback all the same
