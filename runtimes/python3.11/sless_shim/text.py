"""JSON without the package `json`, which costs a worker's start as much as the whole interpreter: its C half does all the work.

The module `_json` belongs to one CPython version, as this runtime does.
"""
import _json


class _Options:
    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float      # NaN and the infinities never come here: the supervisor has checked the text


_scan = _json.make_scanner(_Options())
_BLANK = " \t\n\r"


def loads(text):
    """The value of a text that has been checked to be JSON."""
    if text[:1] in _BLANK:
        text = text.lstrip(_BLANK)
    try:
        return _scan(text, 0)[0]
    except (SystemError, StopIteration):    # it leaves its errors to json.decoder, which is not loaded
        import json
        return json.loads(text)


def loads_bytes(data, start, end):
    if end - start <= 65536:
        return loads(data[start:end].decode())
    with memoryview(data) as view, view[start:end] as part:
        return loads(str(part, "utf-8"))


def encoder(default, escape=_json.encode_basestring):
    """A function that gives a value's JSON text in pieces. A circle ends in RecursionError: no marks are kept, as they cost more than the text."""
    return _json.make_encoder(None, default, escape, None, ":", ",", False, False, False)


def _none(value):
    raise TypeError(type(value).__name__)


_encode = encoder(_none, _json.encode_basestring_ascii)


def dumps(value):
    """Of what the shim itself has to say. ASCII, without lone surrogates, which no other parser would take."""
    return "".join(_encode(value, 0)).encode()


def clean(text):
    """The same text without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def to_bytes(text):
    """UTF-8 of a handler's text; what stands for no character becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
