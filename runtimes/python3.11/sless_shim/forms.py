"""JSON forms beyond JSON, and where in a result the thing is that has none."""
import sys

from . import text
from .errors import Refused

_DEEPEST = 900                  # about what Python's recursion limit lets the encoder do


def _of(module, name):
    """A class, if anyone has imported its module: else there is no object of it."""
    module = sys.modules.get(module)
    return getattr(module, name, None) or ()


def _form(value):
    """Called by the encoder for what it does not know."""
    if isinstance(value, (set, frozenset)):
        return list(value)
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {field.name: getattr(value, field.name) for field in sys.modules["dataclasses"].fields(value)}
    if isinstance(value, (_of("datetime", "date"), _of("datetime", "time"))):      # a datetime is a date
        return value.isoformat()
    if isinstance(value, (_of("uuid", "UUID"), _of("decimal", "Decimal"))):
        return str(value)
    raise TypeError(f"a value of type {kind.__name__} has no JSON form")


_encode = text.encoder(_form)


def to_json(value):
    """The bytes of its JSON form; raises Refused, of type ResultNotSerializable."""
    try:
        whole = "".join(_encode(value, 0))
    except Exception as error:
        raise refusal(value, error) from None
    try:
        return whole.encode()
    except UnicodeEncodeError:          # lone surrogates: JSON can escape them, UTF-8 cannot hold them
        import _json
        return "".join(text.encoder(_form, _json.encode_basestring_ascii)(value, 0)).encode()


def refusal(value, error):
    try:
        found = _find(value, "", ())
    except Exception:
        found = None
    path, why = found or ("", str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}")
    return Refused("ResultNotSerializable", f"{path or 'the result'}: {why}")


def _step(path, key):
    if isinstance(key, str):
        if key.isidentifier():
            return f"{path}.{key}" if path else key
        return f"{path}[{key[:60]!r}]"
    return f"{path}[{key}]"


def _find(value, path, above):
    """(path, why) of the first thing that has no JSON form, in the encoder's order; None if all have one."""
    if value is None or isinstance(value, (str, int)):
        return None
    if isinstance(value, float):
        return (path, f"{value!r} has no JSON form") if value != value or value in (float("inf"), float("-inf")) else None
    if id(value) in above:
        return path, "a circle: it contains itself"
    if len(above) > _DEEPEST:
        return path[:200] + "…", f"nested more than {_DEEPEST} levels deep"
    above = (*above, id(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            if key is not None and not isinstance(key, (str, int, float)):
                return path, f"a key of type {type(key).__name__} has no JSON form"
            if isinstance(key, float) and _find(key, "", ()):
                return path, f"the key {key!r} has no JSON form"
            if found := _find(inner, _step(path, key), above):
                return found
        return None
    if isinstance(value, (list, tuple)):
        for at, inner in enumerate(value):
            if found := _find(inner, f"{path}[{at}]", above):
                return found
        return None
    try:
        form = _form(value)
    except Exception as error:
        return path, str(error) if type(error) is TypeError else f"{type(error).__name__}: {error}"
    return _find(form, path, above)
