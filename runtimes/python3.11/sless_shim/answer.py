"""What a handler returned, as an answer: status, headers, body; or a stream of which the body comes later."""
from types import AsyncGeneratorType, CoroutineType, GeneratorType

from . import text
from .errors import Refused
from .forms import to_json

JSON_TYPE, TEXT_TYPE, BYTES_TYPE = "application/json", "text/plain; charset=utf-8", "application/octet-stream"


def _only(content_type):
    return text.dumps([["content-type", content_type]])


NO_HEAD = b"[]"
HEADS = {JSON_TYPE: _only(JSON_TYPE), TEXT_TYPE: _only(TEXT_TYPE), BYTES_TYPE: _only(BYTES_TYPE), "": NO_HEAD}
JSON_HEAD = HEADS[JSON_TYPE]
PLAIN = frozenset((dict, list, tuple, int, float, bool))        # exact types that are JSON and nothing else (a dict without statusCode)


class Stream:
    """An answer whose body is still to be made."""

    __slots__ = ("status", "headers", "source")

    def __init__(self, status, headers, source):
        self.status, self.headers, self.source = status, headers, source

    @property
    def is_async(self):
        return hasattr(type(self.source), "__anext__")

    def head(self, first):
        """With the content type that the first chunk suggests, where the handler named none."""
        content_type = TEXT_TYPE if isinstance(first, str) else BYTES_TYPE
        return _head(self.headers, content_type)


def chunk(value, number):
    """The bytes of what a stream yielded."""
    if isinstance(value, str):
        return text.to_bytes(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise _invalid(f"chunk {number} of the stream is of type {type(value).__name__}: a chunk is str or bytes")


def is_stream(value):
    kind = type(value)
    return kind is GeneratorType or kind is AsyncGeneratorType or hasattr(kind, "__next__") or hasattr(kind, "__anext__")


def is_awaitable(value):
    return type(value) is CoroutineType or hasattr(type(value), "__await__")


def _body(value):
    """(content type, bytes) of what is no stream."""
    if value is None:
        return "", b""
    if isinstance(value, str):
        return TEXT_TYPE, text.to_bytes(value)
    if isinstance(value, bytes):
        return BYTES_TYPE, value
    if isinstance(value, (bytearray, memoryview)):
        return BYTES_TYPE, bytes(value)
    return JSON_TYPE, to_json(value)


def render(result):
    """A Stream, or (status, head, body)."""
    if isinstance(result, dict):
        status = result.get("statusCode")
        if isinstance(status, int) and not isinstance(status, bool):
            return _response(result, status)
    elif is_stream(result):
        return Stream(200, (), result)
    content_type, body = _body(result)
    return (200 if result is not None else 204), HEADS[content_type], body


def _invalid(message):
    return Refused("InvalidResponse", message)


def _response(result, status):
    if not 200 <= status <= 599:
        raise _invalid(f"statusCode {status} is not one of 200 to 599")
    headers = _headers(result.get("headers"))
    body = result.get("body")
    encoded = result.get("isBase64Encoded")
    if encoded is not None and not isinstance(encoded, bool):
        raise _invalid(f"isBase64Encoded is of type {type(encoded).__name__}: it is True or False")
    if encoded and body is not None:
        content_type, body = BYTES_TYPE, _from_base64(body)
    elif is_stream(body):
        return Stream(status, headers, body)
    else:
        try:
            content_type, body = _body(body)
        except Refused as error:
            raise _inside_body(error) from None
    return status, _head(headers, content_type), body


def _inside_body(error):
    if error.message.startswith("the result: "):
        return Refused(error.kind, "body" + error.message[len("the result"):])
    return Refused(error.kind, f"body{'' if error.message.startswith('[') else '.'}{error.message}")


def _from_base64(body):
    from binascii import Error, a2b_base64
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise _invalid(f"body is of type {type(body).__name__}: with isBase64Encoded it is str or bytes")
    try:
        return a2b_base64(b"".join(bytes(body).split()), strict_mode=True)
    except Error as why:
        raise _invalid(f"body is not base64, though isBase64Encoded says so: {why}") from None


def _headers(given):
    """[name, value] pairs of a response's `headers`. What is in names and values is the supervisor's to judge."""
    if given is None:
        return ()
    if not hasattr(given, "items"):
        raise _invalid(f"headers is of type {type(given).__name__}: it is a dict of name: value")
    found = []
    for name, value in given.items():
        if not isinstance(name, str):
            raise _invalid(f"the header name {name!r} is of type {type(name).__name__}: it is a str")
        for one in value if isinstance(value, (list, tuple)) else (value,):
            found.append([_text(name, name), _text(name, one)])
    return found


def _text(name, value):
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    elif isinstance(value, bool):
        value = "true" if value else "false"
    elif isinstance(value, (int, float)):
        value = str(value)
    elif not isinstance(value, str):
        raise _invalid(f"the header {name} has a value of type {type(value).__name__}: it is str, a number, or a list of these")
    if text.clean(value) is not value:
        raise _invalid(f"the header {text.clean(name)} has a character that is no Unicode text")
    return value


def _head(headers, content_type):
    if not headers:
        return HEADS[content_type]
    if content_type and not any(name.lower() == "content-type" for name, _ in headers):
        headers = [["content-type", content_type], *headers]
    return text.dumps(headers)
