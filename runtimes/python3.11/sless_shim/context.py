"""What a handler is told of its call: read out of the frame when it asks, and not before."""
from time import time

from . import text


class State:
    """Lives as long as the worker; what init and handlers put here stays."""

    def __repr__(self):
        return f"State({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"


class Http:
    """The request as it was sent."""

    __slots__ = ("_context", "_headers", "_query", "_body")

    def __init__(self, context):
        self._context = context
        self._headers = self._query = self._body = None

    @property
    def method(self):
        return self._context._field("method", "")

    @property
    def path(self):
        """What follows the function's own address, not percent-decoded."""
        return self._context._field("path", "")

    @property
    def raw_query(self):
        return self._context._field("raw_query", "")

    @property
    def client_ip(self):
        return self._context._field("client_ip", "")

    @property
    def query(self):
        """[name, value] of each parameter, decoded, in order."""
        if self._query is None:
            from . import fields
            self._query = fields.pairs(self.raw_query.encode())
        return self._query

    @property
    def headers(self):
        """Lower-case name: value; values of a repeated header are joined."""
        if self._headers is None:
            found = {}
            for name, value in self._context._field("headers", ()):
                if name in found:
                    value = f"{found[name]}{'; ' if name == 'cookie' else ', '}{value}"
                found[name] = value
            self._headers = found
        return self._headers

    @property
    def body(self):
        """The raw bytes."""
        if self._body is None:
            self._body = self._context._raw_body()
        return self._body

    def __repr__(self):
        return f"<Http {self.method} {self.path}{'?' if self.raw_query else ''}{self.raw_query} from {self.client_ip}>"


class Context:
    """One call. What is the same for all calls of the worker stands on the class (see `bind`)."""

    __slots__ = ("_data", "_start", "_body", "_end", "_began", "_fields", "_http")

    namespace = function = revision = ""
    state = State()

    def __init__(self, data, start, body, end, began):
        self._data, self._start, self._body, self._end, self._began = data, start, body, end, began
        self._fields = self._http = None

    def _field(self, name, default):
        if self._fields is None:
            self._fields = text.loads_bytes(self._data, self._start, self._body) if self._body > self._start else {}
        return self._fields.get(name, default)

    def _raw_body(self):
        return bytes(self._data[self._body:self._end])

    @property
    def invocation_id(self):
        return self._field("id", "")

    aws_request_id = invocation_id

    @property
    def trigger(self):
        return self._field("trigger", "")

    @property
    def attempt(self):
        return self._field("attempt", 1)

    @property
    def source(self):
        return self._field("source", {})

    @property
    def traceparent(self):
        return self._field("traceparent", "")

    @property
    def deadline_ms(self):
        """When the call is ended, in Unix milliseconds."""
        return int(self._began * 1000) + self._field("timeout_ms", 0)

    def remaining_ms(self):
        """Milliseconds until the call is ended, never below 0."""
        return max(0, self.deadline_ms - int(time() * 1000))

    get_remaining_time_in_millis = remaining_ms

    @property
    def http(self):
        if self._http is None:
            self._http = Http(self)
        return self._http

    def __repr__(self):
        return f"<Context {self.invocation_id} of {self.namespace}/{self.function}, {self.trigger}, attempt {self.attempt}, {self.remaining_ms()} ms left>"


def bind(hello):
    """Takes from HELLO what is the same for all calls."""
    Context.namespace = hello.get("namespace", "")
    Context.function = hello.get("function", "")
    Context.revision = hello.get("revision", "")


def for_init(hello):
    """The context of `init`: no call, but names, state and a deadline."""
    began = time()
    context = Context(b"", 0, 0, 0, began)
    context._fields = {"timeout_ms": max(0, hello.get("init_deadline_ms", int(began * 1000)) - int(began * 1000))}
    return context
