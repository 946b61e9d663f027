"""Several slots in one process: a thread for each, which waits on its socket and runs what is not async; coroutines run on one loop in the main thread."""
import os
import sys
import threading
import time
from contextvars import copy_context
from queue import SimpleQueue
from resource import RUSAGE_SELF, getrusage

from . import answer, children, event, output, wire
from .context import Context
from .errors import describe, log
from .sharedlog import Call, LogStream, current

_DONE = object()


def install(worker):
    """Before the author's code is imported: it may keep `sys.stdout`, and start threads."""
    output.install()
    sys.stdout = LogStream(1, sys.__stdout__)
    sys.stderr = LogStream(2, sys.__stderr__)
    _threads_keep_their_call()
    worker.loop()


def _threads_keep_their_call():
    """A thread, and what is given to a pool, runs in the context of the one that started it: so its lines find their call."""
    start = threading.Thread.start

    def start_in_context(self):
        run, context = self.run, copy_context()
        self.run = lambda: context.run(run)
        try:
            start(self)
        except BaseException:
            self.run = run
            raise
    threading.Thread.start = start_in_context

    from concurrent.futures.thread import ThreadPoolExecutor
    submit = ThreadPoolExecutor.submit

    def submit_in_context(self, fn, /, *args, **kwargs):
        return submit(self, copy_context().run, fn, *args, **kwargs)
    ThreadPoolExecutor.submit = submit_in_context


class Process:
    """What the slots' threads share: whether a call runs, and how the process ends."""

    def __init__(self, worker):
        self.worker, self.stderr = worker, sys.stderr
        self._lock = threading.Lock()
        self._running, self._finishing = 0, False
        self.code = None

    def begin(self):
        """False when no call may begin any more."""
        with self._lock:
            if self._finishing:
                return False
            self._running += 1
            return True

    def ended(self):
        with self._lock:
            self._running -= 1
            over = self._finishing and self._running == 0
        if over:
            self.stop(0)

    def finish(self):
        """Slot 0 has ended: the process does when the calls on the other slots have."""
        with self._lock:
            self._finishing = True
            over = self._running == 0
        if over:
            self.stop(0)

    def stop(self, code):
        with self._lock:
            if self.code is not None:
                return
            self.code = code
        loop = self.worker.loop().loop
        loop.call_soon_threadsafe(loop.stop)


class Slot(threading.Thread):
    def __init__(self, process, number, frames):
        super().__init__(name=f"sless-slot-{number}", daemon=True)
        self.process, self.worker, self.number, self.frames, self.fd = process, process.worker, number, frames, frames.fd
        self.lock = threading.RLock()           # on what is written to the slot: other threads of the call send LOG frames
        self.at = 128 * number                  # of this slot's part of the shared page

    def run(self):
        try:
            while (arrived := self.frames.next()) is not None and self.call(arrived):
                pass
            if self.number == 0:
                self.process.finish()
        except SystemExit as asked:
            self.process.stop(self.worker.exit_code(asked))
        except (wire.Broken, wire.Gone, OSError) as trouble:
            log(f"the worker ends: {trouble}\n")
            self.process.stop(70)

    def call(self, arrived):
        """Runs the call that a frame asks for; False when the process is about to end."""
        kind, number, data, start, end = arrived
        if kind != wire.INVOKE:
            if kind > 127:
                return True
            raise wire.Broken(f"a frame of kind {kind} where a call was due")
        if not self.process.begin():
            return False
        worker = self.worker
        event_kind, _, _, head_size = wire.unpack_invoke(data, start)
        os.pwrite(worker.shared, number.to_bytes(4, "little"), self.at)
        if worker.revoked[self.at + 64 + (number & 63)]:
            wire.end(self.fd, wire.SKIPPED, number, (0, 0, 0))
            self.process.ended()
            return True
        start += wire.INVOKE_HEAD
        body = start + head_size
        call = Call(self.fd, number, self.lock)
        began = time.thread_time(), time.process_time(), children.started
        context = copy_context()
        error = rendered = None
        try:
            rendered = context.run(self.handle, call, Context(data, start, body, end, time.time()), event_kind, data, body, end)
        except wire.Gone:
            raise
        except BaseException as raised:
            error = raised
        self.finish(call, rendered, error, began)
        self.process.ended()
        return True

    def handle(self, call, context, event_kind, data, body, end):
        """In the context of the call: what prints here, and all that it starts, prints for the call."""
        current.set(call)
        worker = self.worker
        value = event.DECODERS[event_kind](context, data, body, end)
        result = worker.handler(*(value, context)[:worker.arguments])
        if answer.is_awaitable(result):
            call.is_async = True
            result = self.on_loop(result)
        rendered = answer.render(result)
        if type(rendered) is answer.Stream:
            self.stream(call, rendered)
            return None
        return rendered

    def on_loop(self, awaitable):
        """The result of an awaitable that the main thread's loop runs, in this call's context."""
        done = SimpleQueue()
        loop, context = self.worker.loop().loop, copy_context()

        def begin():
            task = loop.create_task(_settle(awaitable), context=context)
            task.add_done_callback(done.put)
        loop.call_soon_threadsafe(begin)
        result, error = done.get().result()
        if error is not None:
            raise error
        return result

    def stream(self, call, stream):
        begun, count = False, 0

        def send(value):
            nonlocal begun, count
            if os.getpid() != self.worker.pid:
                raise SystemExit(0)
            count += 1
            data = answer.chunk(value, count)
            before = b""
            if not begun:
                before, begun = wire.stream(call.number, stream.status, stream.head(value)), True
            if data or before:
                with self.lock:
                    wire.chunk(self.fd, call.number, data, before)

        if stream.is_async:
            call.is_async = True
            self.pump(stream.source, send)
        else:
            try:
                for value in stream.source:
                    send(value)
            finally:
                close = getattr(stream.source, "close", None)
                if close is not None:
                    close()
        if not begun:
            with self.lock:
                wire.chunk(self.fd, call.number, b"", wire.stream(call.number, stream.status, stream.head("")))

    def pump(self, source, send):
        """One task takes from the async iterator, this thread sends: a slow reader holds up its own stream alone."""
        ready = SimpleQueue()
        loop = self.worker.loop()
        context = copy_context()

        async def each(value):
            sent = loop.loop.create_future()
            ready.put((value, sent))
            await sent

        def begin():
            task = loop.loop.create_task(_settle(loop.take(source, each)), context=context)
            task.add_done_callback(lambda task: ready.put((_DONE, task)))
        loop.loop.call_soon_threadsafe(begin)
        while True:
            value, sent = ready.get()
            if value is _DONE:
                _, error = sent.result()
                if error is not None:
                    raise error
                return
            trouble = None
            try:
                send(value)
            except BaseException as error:
                trouble = error
            loop.loop.call_soon_threadsafe(_settled, sent, trouble)

    def finish(self, call, rendered, error, began):
        if os.getpid() != self.worker.pid:
            self.worker.leave_child(error)
        if isinstance(error, SystemExit):
            call.flush(1)
            call.flush(2)
            raise error
        failed = None
        if error is not None:
            failed, printed = describe(error)
            call.write(2, printed.encode("utf-8", "replace"))
        with self.lock:
            call.flush(1)
            call.flush(2)
            call.open = False                   # a thread that prints later prints for no call
            usage = self.usage(call, began)
            if failed is not None:
                wire.end(self.fd, wire.ERROR, call.number, usage, failed)
            elif rendered is None:
                wire.end(self.fd, wire.END, call.number, usage)
            else:
                wire.result(self.fd, call.number, usage, *rendered)

    @staticmethod
    def usage(call, began):
        """A thread's own time is exact. What a coroutine takes of the loop's cannot be told from its neighbours': the process' time is the bound."""
        cpu = time.process_time() - began[1] if call.is_async else time.thread_time() - began[0]
        flags = wire.SPAWNED if children.started != began[2] else 0        # by this call or one beside it
        return min(int(cpu * 1e6), 0xFFFFFFFF), getrusage(RUSAGE_SELF)[2], flags


async def _settle(awaitable):
    """(result, error): an exception that nobody awaits would be the loop's to report, and SystemExit would end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


def _settled(future, error):
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def serve(worker):
    """The main thread has the loop, until a slot says how the process ends."""
    process = Process(worker)
    for number in range(worker.slots):
        frames = worker.frames if number == 0 else wire.Frames(worker.frames.fd + number)
        Slot(process, number, frames).start()
    loop = worker.loop().loop
    try:
        while process.code is None:             # a handler may stop the loop, to no avail
            loop.run_forever()
    except SystemExit as asked:
        worker.leave(worker.exit_code(asked))
    worker.leave(process.code)
