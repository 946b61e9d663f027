"""A worker's life: HELLO, the author's code, READY, calls, the end."""
import mmap
import os
import sys

from . import children, context, load, logs, output, stacks, text, wire
from .errors import Refused, describe, log

SLOT = 3                        # descriptor of slot 0
SHARED_SLOT = 128               # bytes of the shared page that a slot has


class Worker:
    """What all calls of this process share."""

    def __init__(self, hello, frames):
        self.hello, self.frames = hello, frames
        self.slots = hello["slots"]
        self.ask, self.answer = hello["stack"]
        self.pairs = hello["pairs"]
        self.shared = hello["shared"]
        self.revoked = mmap.mmap(self.shared, SHARED_SLOT * self.slots, prot=mmap.PROT_READ)
        self.pid = os.getpid()
        self.handler, self.arguments = None, 2
        self._loop = None

    def loop(self):
        """The event loop, made when the first coroutine comes."""
        if self._loop is None:
            from .loop import Loop
            self._loop = Loop(self.ask, self.answer)
        return self._loop

    def leave(self, code):
        """Ends the process. Threads are not waited for: one that never ends would keep the worker for ever."""
        if os.getpid() == self.pid:
            if self._loop is not None:
                self._loop.close()
            import atexit
            atexit._run_exitfuncs()
        output.flush()
        os._exit(code)

    def leave_child(self, error):
        """A fork of the handler's that has come back: it ends here, as the script would."""
        code = 0
        if isinstance(error, SystemExit):
            code = self.exit_code(error)
        elif error is not None:
            log(describe(error)[1])
            code = 1
        output.flush()
        os._exit(code)

    def exit_code(self, error):
        """Of a SystemExit, as Python has it."""
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 0xFF
        log(f"{code}\n")
        return 1


class _Quitter:
    """`exit` and `quit`, which `site` would have made."""

    def __init__(self, name):
        self.name = name

    def __call__(self, code=None):
        raise SystemExit(code)

    def __repr__(self):
        return f"Use {self.name}() to end the process"


def _hello():
    frames = wire.Frames(SLOT)
    first = frames.next()
    if first is None:
        os._exit(0)             # the supervisor went before it began
    kind, _, data, start, end = first
    if kind != wire.HELLO:
        raise wire.Broken(f"the first frame is of kind {kind}, not HELLO")
    return text.loads_bytes(data, start, end), frames


def _shut(hello):
    """Makes all descriptors close-on-exec, that children of the handler get none of them."""
    own = [*range(SLOT, SLOT + hello["slots"]), hello["shared"], *hello["stack"], *(fd for pair in hello["pairs"] for fd in pair)]
    for fd in own:
        os.set_inheritable(fd, False)
    return own


def _environment():
    environ = os.environ
    if environ.get("LC_CTYPE") == "C.UTF-8":        # perhaps Python's own doing, where no locale is set (PEP 538)
        try:
            with open("/proc/self/environ", "rb") as given:
                if b"\0LC_CTYPE=" not in b"\0" + given.read():
                    del environ["LC_CTYPE"]
        except OSError:
            pass                                    # the worker's cage has no /proc: one harmless name more
    environ.setdefault("PYTHONUNBUFFERED", "1")     # for Python processes that the handler starts
    import builtins
    for name in ("exit", "quit"):
        if not hasattr(builtins, name):
            setattr(builtins, name, _Quitter(name))


def _load(worker):
    hello = worker.hello
    load.search_path(hello["function_dir"])
    entrypoint = load.Entrypoint(hello["entrypoint"], hello["function_dir"])
    module, worker.handler = entrypoint.load()
    worker.arguments = load.positional(worker.handler)
    init = getattr(module, "init", None)
    if callable(init):
        result = init(*(context.for_init(hello),)[:load.positional(init)])
        if hasattr(type(result), "__await__"):
            worker.loop().run(result)


def _failed(worker, error):
    if isinstance(error, SystemExit):
        error = Refused("SystemExit", f"the code asked for an exit, with code {worker.exit_code(error)}, before it was ready")
    payload, printed = describe(error)
    log(printed)
    output.flush()
    wire.write(SLOT, wire.frame(wire.INIT_FAILED, 0, payload))
    worker.leave(1)


def main():
    hello, frames = _hello()
    own = _shut(hello)
    worker = Worker(hello, frames)
    if worker.slots > 1:
        from . import parallel
        parallel.install(worker)
    else:
        output.install()
    stacks.arm(worker.ask, worker.answer)
    context.bind(hello)
    _environment()
    logs.prepare()
    children.watch(own)
    try:
        if hello["protocol"] != 1:
            raise Refused("ProtocolError", f"the supervisor speaks protocol {hello['protocol']}, this shim 1")
        _load(worker)
    except BaseException as error:
        if os.getpid() != worker.pid:
            worker.leave(1)
        _failed(worker, error)
    output.flush()
    import gc
    gc.freeze()                 # what is there now stays: the collector need not look at it again
    wire.write(SLOT, wire.frame(wire.READY, 0, text.dumps({
        "protocol": 1, "runtime": "python%d.%d" % sys.version_info[:2], "version": "%d.%d.%d" % sys.version_info[:3], "boundary": "pairs"})))
    if worker.slots > 1:
        parallel.serve(worker)
    else:
        from . import serial
        serial.serve(worker)
