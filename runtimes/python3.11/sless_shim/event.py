"""The event: an INVOKE's body, decoded as the supervisor has told."""
from . import text


def _json(context, data, start, end):
    return text.loads_bytes(data, start, end)


def _form(context, data, start, end):
    from . import fields
    return fields.as_object(bytes(data[start:end]))


def _charset(content_type):
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")
    return "utf-8"


def _text(context, data, start, end):
    charset = _charset(context.http.headers.get("content-type", ""))
    body = bytes(data[start:end])
    try:
        return body.decode(charset, "replace")
    except (LookupError, ValueError):           # not known, not of text, or no name at all
        return body.decode("utf-8", "replace")


def _bytes(context, data, start, end):
    return context.http.body                    # the same object in both places


def _query(context, data, start, end):
    from . import fields
    return fields.as_object(context.http.raw_query.encode())


JSON = 1
DECODERS = {JSON: _json, 2: _form, 3: _text, 4: _bytes, 5: _query}
