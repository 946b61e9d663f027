"""One slot: a loop in the main thread, which takes a frame, runs the call, answers. What stands in it is paid for by each call."""
import os
from resource import RUSAGE_SELF, getrusage
from time import time

from . import answer, children, event, forms, output, text, wire
from .context import Context
from .errors import describe, log


class Serial:
    def __init__(self, worker):
        self.worker = worker
        self.fd = worker.frames.fd
        self.pair = 0
        self._started = 0                       # the first call answers for what the import has started
        used = getrusage(RUSAGE_SELF)
        self._spent = used[0] + used[1]

    def usage(self):
        """Of the call that ends now: CPU in microseconds, highest memory in KiB, flags."""
        used = getrusage(RUSAGE_SELF)
        spent = used[0] + used[1]
        cpu, self._spent = int((spent - self._spent) * 1e6), spent
        flags = 0
        if children.started != self._started:
            self._started, flags = children.started, wire.SPAWNED
        return (cpu if cpu < 0xFFFFFFFF else 0xFFFFFFFF), used[2], flags

    def use_pair(self, number):
        """Makes this output pair descriptors 1 and 2. Only between calls, when all buffers are empty."""
        try:
            out, err = self.worker.pairs[number]
        except IndexError:
            raise wire.Broken(f"output pair {number} of {len(self.worker.pairs)}") from None
        os.dup2(out, 1)
        os.dup2(err, 2)
        self.pair = number

    def finish(self, call, result):
        """The answer to a call that gave something else than plain JSON; None if it has been streamed already."""
        if answer.is_awaitable(result):
            result = self.worker.loop().run(result)
        rendered = answer.render(result)
        if type(rendered) is answer.Stream:
            self.stream(call, rendered)
            return None
        return rendered

    def stream(self, call, stream):
        """Sends chunks as they are yielded. The head goes with the first, so that what is raised before it is still a whole error."""
        fd, pid, begun, number = self.fd, self.worker.pid, False, 0

        def send(value):
            nonlocal begun, number
            if os.getpid() != pid:
                raise SystemExit(0)             # a fork inside the generator came back here
            number += 1
            data = answer.chunk(value, number)
            if begun:
                if data:
                    wire.chunk(fd, call, data)
            else:
                begun = True
                wire.chunk(fd, call, data, wire.stream(call, stream.status, stream.head(value)))

        source = stream.source
        if stream.is_async:
            loop = self.worker.loop()
            loop.run(loop.take(source, send))
        else:
            try:
                for value in source:
                    send(value)
            finally:
                close = getattr(source, "close", None)
                if close is not None:
                    close()
        if not begun:
            wire.chunk(fd, call, b"", wire.stream(call, stream.status, stream.head("")))


def serve(worker):
    serial = Serial(worker)
    frames, fd, pid, shared, revoked = worker.frames, serial.fd, worker.pid, worker.shared, worker.revoked
    handler, arguments = worker.handler, worker.arguments
    next_frame, unpack, pwrite, getpid, flush = frames.next, wire.unpack_invoke, os.pwrite, os.getpid, output.flush
    loads, to_json, plain, json_head, write_result = text.loads_bytes, forms.to_json, answer.PLAIN, answer.JSON_HEAD, wire.result
    try:
        while True:
            arrived = next_frame()
            if arrived is None:
                worker.leave(0)
            kind, call, data, start, end = arrived
            if kind != wire.INVOKE:
                if kind > 127:
                    continue
                raise wire.Broken(f"a frame of kind {kind} where a call was due")
            event_kind, _, pair, head_size = unpack(data, start)
            pwrite(shared, call.to_bytes(4, "little"), 0)       # before the look at `revoked`: the supervisor does it the other way round
            if revoked[64 + (call & 63)]:
                wire.end(fd, wire.SKIPPED, call, serial.usage())
                continue
            if pair != serial.pair:
                serial.use_pair(pair)
            start += wire.INVOKE_HEAD
            body = start + head_size
            failed = error = None
            try:
                context = Context(data, start, body, end, time())
                if event_kind == 1:
                    value = loads(data, body, end)
                else:
                    value = event.DECODERS[event_kind](context, data, body, end)
                if arguments == 2:
                    result = handler(value, context)
                elif arguments == 1:
                    result = handler(value)
                else:
                    result = handler()
                shape = type(result)
                if shape in plain and (shape is not dict or "statusCode" not in result):
                    rendered = 200, json_head, to_json(result)
                else:
                    rendered = serial.finish(call, result)
            except wire.Gone:
                raise
            except SystemExit as asked:
                if getpid() == pid:
                    worker.leave(worker.exit_code(asked))
                error = asked
            except BaseException as raised:
                error = raised
            if getpid() != pid:
                worker.leave_child(error)
            if error is not None:
                failed, printed = describe(error)
                log(printed)
            flush()
            if failed is not None:
                wire.end(fd, wire.ERROR, call, serial.usage(), failed)
            elif rendered is None:
                wire.end(fd, wire.END, call, serial.usage())
            else:
                write_result(fd, call, serial.usage(), *rendered)
            arrived = data = value = result = rendered = context = error = asked = raised = None      # nothing of a call outlives it here
    except (wire.Broken, wire.Gone, OSError) as trouble:
        log(f"the worker ends: {trouble}\n")
        worker.leave(70)
